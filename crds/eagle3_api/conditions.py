"""Condition types, and the reasons of conditions and of Events: documented constants, part of the API.

A condition is an observation, not a state: it says what is so, with a reason a program can match and a message a person
can act on. The order of ``ORDER`` is the order in which a person reads them.
"""

from enum import StrEnum
from typing import Literal

from eagle3_api.word import Word


class Type(Word):
    """The conditions of an ``Eagle3Draft``; each is present from first sight, unless it does not apply."""

    READY = "Ready"
    ACCEPTED = "Accepted"
    FEATURES_READY = "FeaturesReady"
    DRAFT_TRAINED = "DraftTrained"
    DRAFT_CONVERTED = "DraftConverted"
    DRAFT_PUBLISHED = "DraftPublished"
    REVISION_PROVEN = "RevisionProven"
    SERVER_AVAILABLE = "ServerAvailable"
    SPECULATION_ACTIVE = "SpeculationActive"
    DRAFT_HEALTHY = "DraftHealthy"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


ORDER = tuple(Type)


class Reason(Word):
    """Why a condition is what it is."""

    # Under way
    PENDING = "Pending"
    FETCHING = "Fetching"
    INSPECTING = "Inspecting"
    EXTRACTING = "Extracting"
    TRAINING = "Training"
    CONVERTING = "Converting"
    PUBLISHING = "Publishing"
    SERVER_STARTING = "ServerStarting"
    MEASURING_BASELINE = "MeasuringBaseline"
    PROBING = "Probing"
    ROLLING_OUT = "RollingOut"
    AWAITING_APPROVAL = "AwaitingApproval"
    MAKING_ROOM = "MakingRoom"
    SUSPENDED = "Suspended"
    UNSCHEDULABLE = "Unschedulable"
    QUEUED = "Queued"
    POD_NOT_STARTED = "PodNotStarted"
    HELD_BY_SIDECAR = "HeldBySidecar"
    SERVER_EDITED = "ServerEdited"
    REFUSED = "Refused"

    # Good
    ACCEPTED = "Accepted"
    ARTIFACT_PUBLISHED = "ArtifactPublished"
    PROVEN = "Proven"
    AVAILABLE = "Available"
    SCALED_TO_ZERO = "ScaledToZero"
    ACTIVE = "Active"
    SERVING = "Serving"
    DRAFT_HEALTHY = "DraftHealthy"
    SETTLED = "Settled"

    # The object, its target and its data
    HUB_NOT_FOUND = "HubNotFound"
    HUB_ACCESS_DENIED = "HubAccessDenied"
    HUB_UNREACHABLE = "HubUnreachable"
    TARGET_UNREADABLE = "TargetUnreadable"
    TARGET_UNSUPPORTED = "TargetUnsupported"
    DATA_UNREADABLE = "DataUnreadable"
    NO_USABLE_DATA = "NoUsableData"
    TEMPLATE_MISSING = "TemplateMissing"
    LAYERS_REQUIRED = "LayersRequired"
    LAYER_CONVENTION = "LayerConvention"
    STORAGE_TOO_SMALL = "StorageTooSmall"
    STORAGE_UNAVAILABLE = "StorageUnavailable"
    STORAGE_NOT_SHARED = "StorageNotShared"
    VERSION_UNSUPPORTED = "VersionUnsupported"
    NAME_CONFLICT = "NameConflict"
    INVALID_CONFIGURATION = "InvalidConfiguration"

    # Extraction, training, conversion
    FEATURES_MISALIGNED = "FeaturesMisaligned"
    FEATURE_MISMATCH = "FeatureMismatch"
    NON_FINITE = "NonFinite"
    CHECKPOINT_UNREADABLE = "CheckpointUnreadable"
    CHECKPOINT_INCOMPLETE = "CheckpointIncomplete"
    CONFIG_INVALID = "ConfigInvalid"
    VOCABULARY_MAP = "VocabularyMap"
    CONTEXT_TOO_SHORT = "ContextTooShort"
    UNSUPPORTED_DRAFT = "UnsupportedDraft"
    CORRUPT_ARTIFACT = "CorruptArtifact"
    REGISTRY_DENIED = "RegistryDenied"
    REGISTRY_UNAVAILABLE = "RegistryUnavailable"
    INTERRUPTED = "Interrupted"
    JOB_STALLED = "JobStalled"
    HOOK_TIMED_OUT = "HookTimedOut"
    JOB_FAILED = "JobFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    IMAGE_PULL = "ImagePull"
    INTERNAL_ERROR = "InternalError"

    # Serving and judgement
    START_FAILED = "StartFailed"
    STARTUP_HUNG = "StartupHung"
    WRONG_ALGORITHM = "WrongAlgorithm"
    ARGUMENT_MISMATCH = "ArgumentMismatch"
    TEMPLATE_MISMATCH = "TemplateMismatch"
    SPECULATION_INACTIVE = "SpeculationInactive"
    LOW_ACCEPT_LENGTH = "LowAcceptLength"
    SLOWER_THAN_BASELINE = "SlowerThanBaseline"
    PARITY_MISMATCH = "ParityMismatch"
    NOT_LOSSLESS = "NotLossless"
    FOREIGN_TRAFFIC = "ForeignTraffic"
    PROBE_ERROR = "ProbeError"
    SERVED_WITHOUT_SPECULATION = "ServedWithoutSpeculation"
    UNAVAILABLE = "Unavailable"
    NO_TRAFFIC = "NoTraffic"
    LOW_TRAFFIC = "LowTraffic"
    OTHER_LOAD = "OtherLoad"
    METRICS_UNAVAILABLE = "MetricsUnavailable"
    WARMING_UP = "WarmingUp"
    DRIFTING = "Drifting"


class EventReason(StrEnum):
    """What an Event about an ``Eagle3Draft`` tells: that something has happened, where a condition says what is so."""

    # Of the stages
    FETCH_STARTED = "FetchStarted"
    FETCH_SUCCEEDED = "FetchSucceeded"
    FETCH_FAILED = "FetchFailed"
    INSPECT_STARTED = "InspectStarted"
    INSPECT_SUCCEEDED = "InspectSucceeded"
    INSPECT_FAILED = "InspectFailed"
    EXTRACT_STARTED = "ExtractStarted"
    EXTRACT_SUCCEEDED = "ExtractSucceeded"
    EXTRACT_FAILED = "ExtractFailed"
    TRAIN_STARTED = "TrainStarted"
    TRAIN_SUCCEEDED = "TrainSucceeded"
    TRAIN_FAILED = "TrainFailed"
    CONVERT_STARTED = "ConvertStarted"
    CONVERT_SUCCEEDED = "ConvertSucceeded"
    CONVERT_FAILED = "ConvertFailed"
    CLEAN_STARTED = "CleanStarted"
    CLEAN_SUCCEEDED = "CleanSucceeded"
    CLEAN_FAILED = "CleanFailed"
    PUBLISH_STARTED = "PublishStarted"
    PUBLISH_SUCCEEDED = "PublishSucceeded"
    PUBLISH_FAILED = "PublishFailed"
    HOOK_STARTED = "HookStarted"
    HOOK_SUCCEEDED = "HookSucceeded"
    HOOK_FAILED = "HookFailed"

    # Of serving
    REVISION_STARTED = "RevisionStarted"
    REVISION_PROVEN = "RevisionProven"
    SLOWER_AT_LOAD = "SlowerAtLoad"
    REVISION_REJECTED = "RevisionRejected"
    REVISION_STALLED = "RevisionStalled"
    PROMOTED = "Promoted"
    ROLLED_BACK = "RolledBack"
    MAKING_ROOM = "MakingRoom"
    ROOM_ENDED = "RoomEnded"
    SCALE_OVERRULED = "ScaleOverruled"
    SERVER_EDITED = "ServerEdited"
    RETRY_UNKNOWN = "RetryUnknown"

    # Of what stands in the way
    REFUSED = "Refused"
    INVALID_CONFIGURATION = "InvalidConfiguration"
    INTERNAL_ERROR = "InternalError"


Status = Literal["True", "False", "Unknown"]
