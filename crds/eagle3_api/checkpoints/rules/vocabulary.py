"""Which tokens the draft can propose."""

from collections.abc import Iterator

from eagle3_api.checkpoints.files import UnreadableError
from eagle3_api.checkpoints.form import Form, MapKind
from eagle3_api.checkpoints.rules.rule import Found, HeaderRule, Level, Served, refused
from eagle3_api.checkpoints.vocabulary import read_map
from eagle3_api.conditions import Reason


def _map(form: Form, served: Served) -> Iterator[Found]:
    vocabulary_size = served.target.vocabulary_size if served.target else form.vocabulary_size
    draft = form.draft_vocabulary_size
    if vocabulary_size is None or draft is None:
        return
    ids = form.vocabulary.ids
    if ids is None:
        if draft != vocabulary_size:
            yield refused(
                Reason.VOCABULARY_MAP,
                f"d2t is missing although the draft knows {draft} of {vocabulary_size} tokens; its ids would be taken for "
                "the target's",
            )
        return
    if ids.elements != draft:
        yield refused(Reason.VOCABULARY_MAP, f"{ids.name} has {list(ids.shape)} entries, the draft's head {draft} rows")
        return
    try:
        reading = read_map(form, vocabulary_size)
    except UnreadableError as error:
        yield refused(Reason.VOCABULARY_MAP, str(error))
        return
    if reading is not None and reading.problem:
        yield refused(Reason.VOCABULARY_MAP, reading.problem)
    elif reading is not None and reading.absolute:
        yield Found(Level.MENDED, f"{ids.name} holds absolute ids, which become offsets")
    if form.vocabulary.members is None and form.vocabulary.kind is not MapKind.ABSOLUTE:
        yield Found(Level.MENDED, "t2d is missing, and derived from d2t")


VOCABULARY_MAP = HeaderRule(
    "vocabulary-map",
    "which of the target's tokens each row of the head is",
    "SGLang takes d2t for offsets whatever it is; a wrong map proposes other words",
    "Store offsets (d2t[i] = target id - i) of the same training as t2d.",
    _map,
)


def _padding(form: Form, _: Served) -> Iterator[Found]:
    if form.draft_vocabulary_size and form.draft_vocabulary_size % 64:
        yield Found(
            Level.WARNING,
            f"its vocabulary of {form.draft_vocabulary_size} tokens is not a multiple of 64; some SGLang versions then fail at graph "
            "capture",
        )


PADDING = HeaderRule(
    "padding",
    "the size of its vocabulary",
    "heads are padded to multiples of 64 (SGLang issue 10106)",
    "Take a vocabulary that is a multiple of 64.",
    _padding,
)
