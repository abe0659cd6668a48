"""Clean: what nobody needs any more."""

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
    key = key_of("clean/1", {"features": extract.key, "trained": train.key})
    config = CleanConfig(owner=owner(obj), key=key, object_store=object_store(obj.spec))
    return Link(StageName.CLEAN, key, config, extract.artifact)
