"""Names of tensors: every prefix and every spelling, to the one that SGLang loads in all versions."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Where a draft's tensors stand inside of something larger, unless ``fc.weight`` tells.
_PREFIXES = ("", "model.", "draft_model.", "eagle_module.")

_LAYER = re.compile(r"(?:midlayer|layers)\.(?:(\d+)\.)?(.+)")
_TOP = frozenset(
    {"fc.weight", "fc.bias", "norm.weight", "lm_head.weight", "embed_tokens.weight", "input_norm.weight", "d2t", "t2d"}
)
_FC_NORM = re.compile(r"fc_norm\.\d+\.weight")

#: Older names: SGLang's of EAGLE-3.1, ModelOpt's first ones.
_OLD = {
    "aux_norm_low.weight": "fc_norm.0.weight",
    "aux_norm_mid.weight": "fc_norm.1.weight",
    "aux_norm_high.weight": "fc_norm.2.weight",
    "eagle_lm_head.weight": "lm_head.weight",
    "hidden_norm.weight": "midlayer.hidden_norm.weight",
    "input_embeds_norm.weight": "midlayer.input_layernorm.weight",
}

#: Buffers that are computed anew.
_COMPUTED = ("rotary_emb.inv_freq",)


@dataclass(frozen=True)
class Names:
    """What the names of a checkpoint mean.

    Attributes:
        found: the stored name of each tensor, by its canonical one.
        extra: stored names that mean nothing, or what another one means already.
        depth: decoder layers.
        prefix: that stands before a draft's names.
    """

    found: Mapping[str, str]
    extra: tuple[str, ...]
    depth: int
    prefix: str


def understand(names: Iterable[str]) -> Names:
    """Bring names into their canonical spelling."""
    stored = sorted(names)
    prefix = _prefix(stored)
    found: dict[str, str] = {}
    extra: list[str] = []
    layers = {0}
    for name in stored:
        if name.endswith(_COMPUTED):
            continue
        canonical, layer = _canonical(name.removeprefix(prefix))
        layers.add(layer)
        if canonical and canonical not in found:
            found[canonical] = name
        else:
            extra.append(name)
    return Names(found, tuple(extra), max(layers) + 1, prefix)


def _prefix(names: list[str]) -> str:
    ends = [name.removesuffix("fc.weight") for name in names if name == "fc.weight" or name.endswith(".fc.weight")]
    if len(ends) == 1:
        return ends[0]
    return next(
        (
            prefix
            for prefix in _PREFIXES
            if any(name.startswith((f"{prefix}midlayer.", f"{prefix}layers.")) for name in names)
        ),
        "",
    )


def _canonical(name: str) -> tuple[str, int]:
    """The canonical spelling, or nothing where it is none of a draft's; and the decoder layer that it belongs to."""
    name = _OLD.get(name, name)
    if name in _TOP or _FC_NORM.fullmatch(name):
        return name, 0
    if (layer := _LAYER.fullmatch(name)) is not None:
        number = int((layer[1] or "0")[:4])
        return f"layers.{number}.{layer[2]}" if number else f"midlayer.{layer[2]}", number
    return "", 0
