"""Which of the target's tokens a draft knows: its map read, and told apart from its other spelling.

SGLang reads d2t as offsets, target id = draft id + d2t[draft id], and checks nothing. Published maps are offsets or absolute ids,
and rows need not be in order of the ids (ModelOpt's are in order of frequency), so that offsets can be negative.
"""

from array import array
from dataclasses import dataclass

from eagle3_api.checkpoints.files import StoredTensor, UnreadableError
from eagle3_api.checkpoints.form import Form, MapKind

#: No tokenizer has more tokens.
_LIMIT = 2**20

_CODES = {"I64": "q", "I32": "i", "BOOL": "b", "U8": "B", "I8": "b"}


@dataclass(frozen=True)
class MapReading:
    """What a map means.

    Attributes:
        ids: the target's id of each row of the draft's head.
        problem: why it means nothing; empty where it does.
        absolute: it was spelled in absolute ids.
    """

    ids: list[int]
    problem: str = ""
    absolute: bool = False


def read_integers(stored: StoredTensor) -> list[int]:
    """The values of a map, straight from its file.

    Raises:
        UnreadableError: it is not a list of integers, or cannot be read.
    """
    if stored.dtype not in _CODES or len(stored.shape) != 1 or not stored.contiguous or stored.elements > _LIMIT:
        raise UnreadableError(
            f"{stored.name} of {stored.path} is {stored.dtype} {list(stored.shape)}, not a list of integers"
        )
    values = array(_CODES[stored.dtype])
    try:
        with stored.path.open("rb") as file:
            file.seek(stored.begin)
            values.fromfile(file, stored.elements)
    except (OSError, EOFError) as error:
        raise UnreadableError(f"{stored.path} cannot be read: {error}") from None
    return values.tolist()


def understand_map(
    values: list[int], kind: MapKind, vocabulary_size: int, members: list[int] | None = None
) -> MapReading:
    """Find out what a map means.

    Args:
        values: of the map.
        kind: how its family spells it.
        vocabulary_size: the target's.
        members: t2d where the checkpoint has one: true for each token of the target that the draft knows.

    Without t2d a map that both readings accept is refused where the family does not say which it is: offsets without any
    two alike would mean that no two neighbouring tokens are in the vocabulary.
    """
    offsets = [draft + value for draft, value in enumerate(values)]
    named = None if members is None else {token for token, known in enumerate(members) if known}
    fits = {
        "offsets": kind is not MapKind.ABSOLUTE and _is_map(offsets, vocabulary_size),
        "absolute": kind is not MapKind.OFFSETS and _is_map(values, vocabulary_size),
    }
    agrees = {
        "offsets": fits["offsets"] and named in (None, set(offsets)),
        "absolute": fits["absolute"] and named in (None, set(values)),
    }
    if agrees["offsets"] and agrees["absolute"] and values != offsets:
        return MapReading(
            [], "d2t can be read as offsets and as absolute ids, and there is no t2d to tell which it is: add it"
        )
    if agrees["offsets"]:
        return MapReading(offsets)
    if agrees["absolute"]:
        return MapReading(values, absolute=True)
    if any(fits.values()):
        return MapReading([], "d2t and t2d name different tokens: one of them was regenerated")
    return MapReading(
        [], f"d2t is not a set of distinct ids below {vocabulary_size}, as offsets (d2t + index) or as absolute ids"
    )


def _is_map(ids: list[int], vocabulary_size: int) -> bool:
    return len(set(ids)) == len(ids) and all(0 <= i < vocabulary_size for i in ids)


def read_map(form: Form, vocabulary_size: int) -> MapReading | None:
    """What the draft's vocabulary map means; None where it has none.

    Raises:
        UnreadableError: it cannot be read.
    """
    ids, members = form.vocabulary.ids, form.vocabulary.members
    if ids is None:
        return None
    known = read_integers(members) if members is not None else None
    return understand_map(read_integers(ids), form.vocabulary.kind, vocabulary_size, known)
