"""What a stage is, whatever the object: one value for each, so that a new one is asked for all of it.

What an object makes of a stage stands beside it: what its pods need in ``manifests.sizing``, what determines its output in
``decide.stages``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from eagle3_api.conditions import Reason
from eagle3_api.jobs import StageName
from eagle3_api.status import Phase

#: What a large pod asks for at least. One that asks for no memory is the first to be killed when its node runs out of it, and is
#: not taken at all where a namespace has a quota.
LARGE: Mapping[str, str] = {"cpu": "200m", "memory": "1Gi"}


class Part(Enum):
    """What a stage is a part of."""

    #: Each waits for the one before, and what serves for the last.
    CHAIN = auto()
    #: What follows when the chain has come so far. No draft waits for it.
    BESIDE = auto()
    #: A revision begins it, and tries it again.
    REVISION = auto()


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a stage is.

    Attributes:
        part: of what.
        requests: what its pods ask for where the placement says nothing.
        grace: seconds that they have between SIGTERM and SIGKILL where the placement says nothing.
        own_image: they run our own image, because they need neither torch nor the engine.
        only_looks: they write nothing to the user's volumes.
        features: they make, read or remove features.
        fetched: they see what came from a hub.
        reason: of its condition while it is under way, if it has one.
        phase: of the object meanwhile.
    """

    part: Part
    requests: Mapping[str, str]
    grace: int = 30
    own_image: bool = False
    only_looks: bool = False
    features: bool = False
    fetched: bool = False
    reason: Reason = Reason.PENDING
    phase: Phase | None = None


#: Seconds to write a checkpoint, or a shard, after SIGTERM.
_TO_SAVE = 120

TRAITS: Mapping[StageName, Traits] = {
    StageName.FETCH: Traits(
        part=Part.CHAIN,
        requests={"cpu": "200m", "memory": "512Mi"},
        own_image=True,
        only_looks=True,
        fetched=True,
        reason=Reason.FETCHING,
        phase=Phase.FETCHING,
    ),
    StageName.INSPECT: Traits(
        part=Part.CHAIN,
        requests={"cpu": "100m", "memory": "256Mi"},
        own_image=True,
        only_looks=True,
        features=True,
        fetched=True,
        reason=Reason.INSPECTING,
        phase=Phase.INSPECTING,
    ),
    StageName.EXTRACT: Traits(
        part=Part.CHAIN,
        requests=LARGE,
        grace=_TO_SAVE,
        features=True,
        fetched=True,
        reason=Reason.EXTRACTING,
        phase=Phase.EXTRACTING,
    ),
    StageName.TRAIN: Traits(
        part=Part.CHAIN,
        requests=LARGE,
        grace=_TO_SAVE,
        features=True,
        fetched=True,
        reason=Reason.TRAINING,
        phase=Phase.TRAINING,
    ),
    StageName.CLEAN: Traits(
        part=Part.BESIDE,
        requests={"cpu": "50m", "memory": "64Mi"},
        own_image=True,
        features=True,
    ),
    StageName.CONVERT: Traits(
        part=Part.CHAIN,
        requests=LARGE,
        fetched=True,
        reason=Reason.CONVERTING,
        phase=Phase.CONVERTING,
    ),
    StageName.PUBLISH: Traits(
        part=Part.BESIDE,
        requests={"cpu": "100m", "memory": "256Mi"},
        own_image=True,
        reason=Reason.PUBLISHING,
        phase=Phase.PUBLISHING,
    ),
    StageName.HOOK: Traits(
        part=Part.BESIDE,
        requests={"cpu": "100m", "memory": "128Mi"},
        reason=Reason.PUBLISHING,
        phase=Phase.PUBLISHING,
    ),
    StageName.PROBE: Traits(
        part=Part.REVISION,
        requests={"cpu": "100m", "memory": "256Mi"},
        own_image=True,
    ),
}


def stages_of(part: Part) -> frozenset[StageName]:
    """The stages of a part, to ask of a name that another version of the operator may have given."""
    return frozenset(name for name, traits in TRAITS.items() if traits.part is part)
