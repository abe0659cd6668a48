"""What every Job has: a stage, an owner, and where its files are."""

from eagle3_api.base import Model
from eagle3_api.word import Word

CONFIG_ANNOTATION = "eagle3.dev/config"
CONFIG_FILE = "/eagle3/config/config.json"
LIBRARY = "/eagle3/lib"
TERMINATION_LOG = "/dev/termination-log"


class StageName(Word):
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


class ObjectReference(Model):
    """Whose Job this is."""

    namespace: str
    name: str
    uid: str
