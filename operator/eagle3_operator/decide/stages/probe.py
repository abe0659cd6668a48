"""Probe: what a server does before it gets traffic."""

from dataclasses import dataclass
from typing import Any

from eagle3_api.jobs import Facts, ProbeConfig, StageName
from eagle3_api.spec import Eagle3Draft, Eagle3DraftSpec
from eagle3_api.status import RevisionStatus
from eagle3_operator.decide.revisions import Revision, Wanted
from eagle3_operator.decide.stages.configuration import owner
from eagle3_operator.decide.stages.stage import Stage, drafts_folder
from eagle3_operator.manifests import flags, names


@dataclass(frozen=True)
class Probed:
    """What Probe is made from.

    A measurement is of servers, unlike an artifact: those of another object, of the same name even, ran on other hardware,
    or with another image of the same tag. So the object is one of the inputs, and the number of tries, so that a probe that
    could not measure is run anew under another name.

    Attributes:
        obj: the object.
        revision: what is measured.
        plain: the proven plain revision that it is compared with.
        wanted: what the object wants served.
        facts: what Inspect found.
    """

    obj: Eagle3Draft
    revision: Revision
    plain: Revision | None
    wanted: Wanted
    facts: Facts

    @property
    def baseline(self) -> str | None:
        """Where the measurement of the plain revision lies."""
        return self.plain.status.probe_folder if self.plain is not None else None


def _inputs(probed: Probed) -> dict[str, Any]:
    spec, status = probed.obj.spec, probed.revision.status
    return {
        "object": probed.obj.metadata.uid,
        "revision": status.key,
        "number": status.number,
        "prompts": probed.wanted.draft.prompts_digest,
        "concurrency": spec.probe.concurrency,
        "loads": spec.probe.further_loads or None,
        "count": spec.probe.prompts,
        "maxTokens": spec.probe.max_tokens,
        "baseline": probed.baseline,
        "tries": status.probe_errors,
        "retried": status.retried,
    }


def _folder(probed: Probed, key: str) -> str:
    return drafts_folder(probed.obj, StageName.PROBE, key)


def _config(probed: Probed, key: str) -> ProbeConfig:
    spec, metadata, revision, wanted = probed.obj.spec, probed.obj.metadata, probed.revision, probed.wanted
    server = names.revision_name(metadata.name, revision.number)
    return ProbeConfig(
        owner=owner(probed.obj),
        key=key,
        folder=_folder(probed, key),
        revision=revision.number,
        url=f"http://{server}.{metadata.namespace}.svc:{revision.serve.port}",
        prompts=wanted.artifact,
        prompts_digest=wanted.draft.prompts_digest,
        baseline=probed.baseline,
        expected_arguments=_expected(revision.status, spec, probed.facts),
        concurrency=spec.probe.concurrency,
        loads=spec.probe.further_loads,
        count=spec.probe.prompts,
        max_tokens=spec.probe.max_tokens,
    )


def _expected(
    status: RevisionStatus, spec: Eagle3DraftSpec, facts: Facts
) -> dict[str, str | int | float | bool | None]:
    """What the server must say of itself. It reads the target where that lay when its Deployment was made.

    Of a Deployment that was made by an earlier version that is only known of targets that nobody fetches.
    """
    expected = flags.expected_server_info(spec, facts, draft=status.artifact)
    if status.model is not None:
        return expected | {"model_path": status.model}
    return {name: value for name, value in expected.items() if name != "model_path" or facts.fetched is None}


PROBE = Stage(StageName.PROBE, 1, _inputs, _config, _folder)
