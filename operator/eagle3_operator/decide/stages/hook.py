"""Hook: a command of the user's, once the draft is where it was to go."""

from dataclasses import dataclass
from typing import Any

from eagle3_api.jobs import HookConfig, PublishResult, StageName
from eagle3_api.spec import Eagle3Draft, Hook
from eagle3_operator.decide.stages.configuration import owner
from eagle3_operator.decide.stages.stage import Link, Stage


@dataclass(frozen=True)
class Pushed:
    """What Hook is made from. It is no part of Publish: what was pushed is not pushed again where a signature fails.

    Attributes:
        obj: the object.
        hook: what it says to run.
        publish: the finished stage.
        result: what it pushed.
    """

    obj: Eagle3Draft
    hook: Hook
    publish: Link
    result: PublishResult


def _inputs(pushed: Pushed) -> dict[str, Any]:
    return {"published": pushed.publish.key, "image": pushed.hook.image, "command": pushed.hook.command}


def _config(pushed: Pushed, key: str) -> HookConfig:
    result = pushed.result
    return HookConfig(
        owner=owner(pushed.obj),
        key=key,
        published=pushed.publish.artifact or "",
        command=pushed.hook.command,
        digest=f"sha256:{result.subject[1]}",
        reference=result.reference,
        address=result.stored.address if result.stored else None,
    )


HOOK = Stage(StageName.HOOK, 1, _inputs, _config)
