"""What every Job has: a stage, an owner, an end, and where its files are."""

from enum import IntEnum, StrEnum

from eagle3_api.base import Model

CONFIG_ANNOTATION = "eagle3.dev/config"
CONFIG_FILE = "/eagle3/config/config.json"
LIBRARY = "/eagle3/lib"
TERMINATION_LOG = "/dev/termination-log"


class StageName(StrEnum):
    """The stages, in order."""

    FETCH = "fetch"
    INSPECT = "inspect"
    EXTRACT = "extract"
    TRAIN = "train"
    CLEAN = "clean"
    CONVERT = "convert"
    PUBLISH = "publish"
    HOOK = "hook"
    PROBE = "probe"


class ExitCode(IntEnum):
    """How a stage ends. 10-19 mean that trying again cannot help: ``podFailurePolicy`` fails the Job at once."""

    DONE = 0
    BAD_CONFIGURATION = 10
    BAD_INPUT = 11
    NON_FINITE = 12
    REFUSED = 13
    DOES_NOT_FIT = 14
    INTERNAL_ERROR = 19
    INTERRUPTED = 20
    ENGINE_CRASHED = 21


FATAL_EXIT_CODES = tuple(range(10, 20))


class ObjectReference(Model):
    """Whose Job this is."""

    namespace: str
    name: str
    uid: str
