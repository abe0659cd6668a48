"""What SGLang and Transformers mean differently by a rotary embedding.

YaRN's stretch stands in different fields. Queries and keys that were turned are multiplied by a number that grows with the factor. SGLang and vLLM have ``attn_factor``, beside that
growth; Transformers has ``attention_factor``, the whole, and knows no other. Each ignores the other's.
Source: SGLang 0.5.21, ``rotary_embedding/factory.py`` and ``yarn.py``; Transformers 5.12, ``modeling_rope_utils.py``.
"""

import math
from collections.abc import Mapping
from typing import Any

#: What SGLang's class for latent attention makes of every scaling that it is given, in the configuration itself: one that is saved
#: there says so.
SGLANGS_YARN = "deepseek_yarn"

#: Kinds that turn as they should in SGLang alone, and why.
_SGLANGS_ALONE = {
    SGLANGS_YARN: "SGLang's class of it is made for latent attention, and what it makes of other heads depends on the platform",
}

_WHOLE, _BESIDE = "attention_factor", "attn_factor"
_WEIGHTS = ("mscale", "mscale_all_dim")


def magnitude(factor: float, weight: float = 1.0) -> float:
    """YaRN's answer to softmaxes that get flatter over more positions: 1 + weight / 10 for each e-fold of the factor."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def sglangs_alone(rope: Mapping[str, Any]) -> str | None:
    """Why a rotary embedding that passed the rules turns as it should in SGLang alone; None where this product turns as SGLang does."""
    kind = rope["rope_type"]
    why = _SGLANGS_ALONE.get(kind)
    return None if why is None else f"its rotary embedding is of type {kind}: {why}"


def turned_alike(rope: Mapping[str, Any], positions: int | None) -> int | None:
    """Tokens up to which a text is turned in one way, whatever is served beside it; None where every text is.

    SGLang turns all texts of a batch by longrope's long factors as soon as one of them is longer than this, whatever it turned their
    earlier tokens by.

    Args:
        rope: that passed the rules.
        positions: that the configuration allows; SGLang takes them where the rope does not say its original ones.
    """
    return rope.get("original_max_position_embeddings", positions) if rope["rope_type"] == "longrope" else None


def in_sglangs_terms(rope: Mapping[str, Any]) -> dict[str, Any]:
    """A rotary embedding with its whole stretch, if it says that, as what SGLang multiplies beside the factor's growth."""
    said = dict(rope)
    numbers = [said.get("factor"), *(said[name] for name in (_WHOLE, *_WEIGHTS) if name in said)]
    if said["rope_type"] != "yarn" or _WHOLE not in said or not all(map(_is_usable, numbers)):
        return said
    whole = said.pop(_WHOLE)
    return said | {_BESIDE: whole / _grown(said)}


def in_transformers_terms(rope: Mapping[str, Any]) -> dict[str, Any]:
    """A rotary embedding that passed the rules, as SGLang and Transformers turn it alike. It comes back through ``in_sglangs_terms``."""
    if rope["rope_type"] == "mrope":  # default's other name, which Transformers does not know
        return {**rope, "rope_type": "default"}
    if rope["rope_type"] != "yarn":
        return dict(rope)
    said = {name: value for name, value in rope.items() if name not in (_WHOLE, _BESIDE, *_WEIGHTS)}
    whole, usual = _grown(rope) * rope.get(_BESIDE, 1.0), magnitude(rope["factor"])
    return said if whole == usual else said | {_WHOLE: whole, _BESIDE: whole / usual}


def _grown(rope: Mapping[str, Any]) -> float:
    """What the stretch grows to by the factor; one of the two weights without the other counts for nothing."""
    weight, of_all = (rope[name] for name in _WEIGHTS) if all(name in rope for name in _WEIGHTS) else (1.0, 0.0)
    return magnitude(rope["factor"], weight) / magnitude(rope["factor"], of_all)


def _is_usable(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e30
