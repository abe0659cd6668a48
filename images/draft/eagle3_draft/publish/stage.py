"""The stage: a converted draft to each place that the object names, a registry first."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from platform import node

from eagle3_api import times
from eagle3_api.artifacts import PREDICATE, REPORT, STATEMENT
from eagle3_api.jobs import REGISTRY_LOGIN, PublishConfig, PublishResult
from eagle3_api.references import Reference
from eagle3_draft.files import write_atomic
from eagle3_draft.publish import oci, store
from eagle3_draft.publish.draft import canonical, read_draft, stated
from eagle3_draft.storage import artifacts


def run(config: PublishConfig, *, login: Path = Path(REGISTRY_LOGIN)) -> PublishResult:
    """Push a converted draft and where it comes from.

    Args:
        config: of the stage.
        login: docker's configuration, where the object names a Secret.

    Raises:
        StageError: the draft is not what was converted (CorruptArtifact); a place refuses or cannot be reached, as ``oci.push``
            and ``store.push`` say. The next run pushes what is missing.
    """
    folder = Path(config.folder)
    if (manifest := artifacts.finished(folder, config.key)) is not None and not _has_tag(config.reference):
        return artifacts.numbers(folder, manifest, PublishResult)
    started = datetime.now(UTC)
    folder.mkdir(parents=True, exist_ok=True)
    draft = read_draft(config)
    pushed = (
        asdict(oci.push(draft, config.reference, login if config.login else None, plain_http=config.plain_http))
        if config.reference is not None
        else {}
    )
    stored = store.push(draft, config.object_store) if config.object_store is not None else None
    result = PublishResult(**pushed, stored=stored, bytes=draft.bytes)
    write_atomic(folder / REPORT, json.dumps(result.to_json(), indent=1).encode())
    # For publish.hook: the very statement that was pushed, and its predicate, which is what cosign takes
    write_atomic(folder / STATEMENT, canonical(stated(draft.statement, *result.subject)))
    write_atomic(folder / PREDICATE, canonical(draft.statement["predicate"]))
    artifacts.publish(
        folder,
        stage=config.stage,
        key=config.key,
        made_from={"converted": config.converted_key, "draft": config.draft},
        numbers=result.to_json(),
        provenance={
            "node": node(),
            "started": times.text(started),
            "finished": times.now(),
        },
    )
    return result


def _has_tag(reference: str | None) -> bool:
    """Whether the place is a name of the user's, which another draft may bear since: the next push gives it back."""
    return reference is not None and Reference.parse(reference).tag is not None
