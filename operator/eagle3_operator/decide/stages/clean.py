"""Clean: what nobody needs any more."""

from eagle3_api.jobs import CleanConfig, StageName, TrainConfig
from eagle3_api.spec import Eagle3Draft
from eagle3_operator.decide.keys import key_of
from eagle3_operator.decide.stages.configuration import object_store, owner
from eagle3_operator.decide.stages.stage import Link


def clean(obj: Eagle3Draft, extract: Link, train: Link) -> Link:
    """Clean belongs to no chain: it removes Extract's artifact and Train's scratch once Train is finished.

    Its ``artifact`` is the one that it removes.
    """
    config = train.config
    # In an object store there are features alone
    stored = obj.spec.storage.features.object_store is not None
    scratch = [config.scratch] if isinstance(config, TrainConfig) and not stored else []
    key = key_of("clean/1", {"features": extract.key, "trained": train.key})
    folders = [extract.artifact or "", *scratch]
    return Link(
        StageName.CLEAN,
        key,
        CleanConfig(owner=owner(obj), key=key, folders=folders, object_store=object_store(obj.spec)),
        extract.artifact,
    )
