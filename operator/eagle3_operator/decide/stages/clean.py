"""Clean: what nobody needs any more."""

from collections.abc import Mapping
from dataclasses import dataclass

from eagle3_api.jobs import CleanConfig, StageName
from eagle3_api.spec import Eagle3Draft
from eagle3_operator.decide.stages.configuration import object_store, owner
from eagle3_operator.decide.stages.stage import Link, Stage


@dataclass(frozen=True)
class _Needless:
    """What Clean is made from.

    Attributes:
        obj: the object.
        since: keys of the stages since which nobody needs them.
        features: the folder of the present ones, as far as it is known.
    """

    obj: Eagle3Draft
    since: Mapping[str, str]
    features: str | None


def _config(needless: _Needless, key: str) -> CleanConfig:
    return CleanConfig(owner=owner(needless.obj), key=key, object_store=object_store(needless.obj.spec))


CLEAN = Stage[_Needless](
    StageName.CLEAN, 1, lambda needless: {**needless.since}, _config, lambda needless, _key: needless.features
)


def clean(obj: Eagle3Draft, extract: Link, train: Link) -> Link:
    """Clean belongs to no chain: it removes all features of the object, and the checkpoints, once Train is finished.

    Those of former keys too: of the object's extractions and trainings none is under way then. Its ``artifact`` is the
    present one of those that it removes.
    """
    return CLEAN.link(_Needless(obj, {"features": extract.key, "trained": train.key}, extract.artifact))


def clean_for_adopted(obj: Eagle3Draft, convert: Link, features: str | None) -> Link:
    """The same where a draft is adopted, once that is converted: nothing is extracted or trained any more.

    Args:
        obj: the object.
        convert: of the draft that is adopted.
        features: the last of those that it removes, as far as they are known.
    """
    return CLEAN.link(_Needless(obj, {"adopted": convert.key}, features))
