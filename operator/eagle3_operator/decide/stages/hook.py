"""Hook: a command of the user's, once the draft is where it was to go."""

from eagle3_api.jobs import HookConfig, PublishResult, StageName
from eagle3_api.spec import Eagle3Draft
from eagle3_operator.decide.keys import key_of
from eagle3_operator.decide.stages.configuration import owner
from eagle3_operator.decide.stages.stage import Link


def hook(obj: Eagle3Draft, publish: Link, result: PublishResult, attempt: str | None) -> Link:
    """Hook follows Publish, and is no part of it: what was pushed is not pushed again where a signature fails.

    Args:
        obj: the object, which says what to run.
        publish: the finished stage.
        result: what it pushed.
        attempt: the token of a retry that made a finished hook run again.
    """
    wanted = obj.spec.publish.hook if obj.spec.publish is not None else None
    if wanted is None:
        raise ValueError("an object without publish.hook runs nothing after a push")
    ran = {"image": wanted.image, "command": wanted.command}
    key = key_of("hook/1", {"published": publish.key, **ran, "attempt": attempt})
    config = HookConfig(
        owner=owner(obj),
        key=key,
        published=publish.artifact or "",
        command=wanted.command,
        digest=f"sha256:{result.subject[1]}",
        reference=result.reference,
        address=result.stored.address if result.stored else None,
    )
    return Link(StageName.HOOK, key, config, None, attempt)
