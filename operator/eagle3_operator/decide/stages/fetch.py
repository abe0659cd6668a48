"""Fetch: what comes from a hub or a bucket."""

from dataclasses import dataclass, replace
from typing import Any

from eagle3_api.artifacts import MODELS_ROOT, folder
from eagle3_api.jobs import FetchConfig, HubDataset, HubSource, StageName, StoredSource
from eagle3_api.spec import Eagle3Draft
from eagle3_operator.decide.keys import key_of
from eagle3_operator.decide.stages.configuration import owner
from eagle3_operator.decide.stages.stage import Link, Stage


@dataclass(frozen=True)
class Sources:
    """What Fetch is made from: what comes from a hub or a bucket, each under a key and with a folder of its own."""

    obj: Eagle3Draft
    target: HubSource | None = None
    dataset: HubDataset | None = None
    draft: HubSource | None = None
    stored: StoredSource | None = None


def _inputs(sources: Sources) -> dict[str, Any]:
    named = {
        "target": sources.target,
        "dataset": sources.dataset,
        "draft": sources.draft,
        "stored": sources.stored,
    }
    return {name: source and source.key for name, source in named.items()}


def _config(sources: Sources, key: str) -> FetchConfig:
    return FetchConfig(
        owner=owner(sources.obj),
        key=key,
        target=sources.target,
        dataset=sources.dataset,
        draft=sources.draft,
        stored=sources.stored,
    )


def _first(sources: Sources, _key: str) -> str | None:
    first = sources.target or sources.dataset or sources.draft or sources.stored
    return first.folder if first is not None else None


FETCH = Stage(StageName.FETCH, 1, _inputs, _config, _first)


def fetch(obj: Eagle3Draft, attempt: str | None, drift: str | None = None) -> Link | None:
    """What comes from a hub or a bucket, before everything else; None where nothing does.

    Target, data set and draft have a key and a folder each, so that another data set does not fetch the target again. What a
    branch is called may move: a revision is resolved once, and anew with a retry of the finished stage; that of the data
    set also where traffic has drifted from it.

    Args:
        obj: the object.
        attempt: token of such a retry.
        drift: when the data was last looked at again because the draft drifts.
    """
    spec = obj.spec
    if not spec.fetches:
        return None
    target: HubSource | None = None
    dataset: HubDataset | None = None
    draft: HubSource | None = None
    stored: StoredSource | None = None
    if spec.target.repository is not None:
        target = HubSource.model_validate(
            _source(obj, {"repository": spec.target.repository, "revision": spec.target.revision}, attempt=attempt)
        )
    if spec.data is not None and spec.data.dataset is not None:
        dataset = HubDataset.model_validate(_source(obj, spec.data.dataset.to_json(), attempt=attempt, drift=drift))
    if spec.draft.repository is not None:
        draft = HubSource.model_validate(
            _source(obj, {"repository": spec.draft.repository, "revision": spec.draft.revision}, attempt=attempt)
        )
    if spec.draft.address is not None:
        stored = StoredSource.model_validate(_source(obj, {"address": spec.draft.address}, attempt=attempt))
    # The retry is in the sources' keys, and by them in this one
    return replace(FETCH.link(Sources(obj, target, dataset, draft, stored)), attempt=attempt)


def _source(obj: Eagle3Draft, source: dict[str, object], **anew: str | None) -> dict[str, object]:
    key = key_of("fetched/1", source | anew)
    where = folder(MODELS_ROOT, obj.metadata.namespace, obj.metadata.name, StageName.FETCH, key)
    return source | {"key": key, "folder": str(where)}
