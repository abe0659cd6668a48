"""Clean: what nobody needs any more."""

from collections.abc import Mapping

from eagle3_api.jobs import CleanConfig, StageName
from eagle3_api.spec import Eagle3Draft
from eagle3_operator.decide.keys import key_of
from eagle3_operator.decide.stages.configuration import object_store, owner
from eagle3_operator.decide.stages.stage import Link


def clean(obj: Eagle3Draft, extract: Link, train: Link) -> Link:
    """Clean belongs to no chain: it removes all features of the object, and the checkpoints, once Train is finished.

    Those of former keys too: of the object's extractions and trainings none is under way then. Its ``artifact`` is the
    present one of those that it removes.
    """
    return _clean(obj, {"features": extract.key, "trained": train.key}, extract.artifact)


def clean_for_adopted(obj: Eagle3Draft, convert: Link, features: str | None) -> Link:
    """The same where a draft is adopted, once that is converted: nothing is extracted or trained any more.

    Args:
        obj: the object.
        convert: of the draft that is adopted.
        features: the last of those that it removes, as far as they are known.
    """
    return _clean(obj, {"adopted": convert.key}, features)


def _clean(obj: Eagle3Draft, inputs: Mapping[str, str], features: str | None) -> Link:
    key = key_of("clean/1", inputs)
    return Link(
        StageName.CLEAN, key, CleanConfig(owner=owner(obj), key=key, object_store=object_store(obj.spec)), features
    )
