"""What the commands print."""

from collections.abc import Sequence

from eagle3_api.estimate import Estimate, Shape, estimate, readable_bytes, ways_to_store
from eagle3_api.features import TOP_K, FeatureDtype, TeacherKind
from eagle3_api.quantity import quantity
from eagle3_api.sglang import default_layers
from eagle3_api.spec import Data, Eagle3DraftSpec

TEACHERS: dict[TeacherKind, str] = {
    "LastState": "LastState: every probability that the draft can learn",
    "TopK": f"TopK: the {TOP_K} most likely tokens",
}


def grid(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under titles, as kubectl prints them. An empty cell is one of spaces; the last column is as wide as it wants."""
    lines = [titles, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    return "\n".join(
        "   ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def estimate_table(
    spec: Eagle3DraftSpec, shape: Shape, tokens_per_second: float, answer_tokens_per_second: float
) -> str:
    """The estimate of an object's extraction, one line a fact.

    Args:
        spec: of the object.
        shape: of its target.
        tokens_per_second: of one pod.
        answer_tokens_per_second: of one pod, where the target answers itself.
    """
    data = spec.data
    if spec.draft.checkpoint is not None or data is None:
        return "nothing is extracted: draft.checkpoint adopts a draft that was trained elsewhere"
    layers = spec.draft.auxiliary_layers or default_layers(shape.layers)
    if layers is None:
        return f"a target of {shape.layers} layers has no default ones; name draft.auxiliaryLayers"

    def of(dtype: FeatureDtype, teacher: TeacherKind) -> Estimate | None:
        return estimate(
            hidden_size=shape.hidden_size,
            layers=len(layers),
            dtype=dtype,
            teacher=teacher,
            expected_tokens=data.expected_tokens,
            max_samples=data.max_samples,
            max_length=data.max_length,
        )

    dtype, teacher = spec.extract.dtype, spec.extract.teacher
    chosen = of(dtype, teacher)
    if chosen is None:
        return (
            "nothing bounds the data: count its tokens into data.expectedTokens or set data.maxSamples. Inspect counts in "
            "any case before a GPU is taken"
        )
    rows = [
        ("target", f"{spec.target.model}: hidden {shape.hidden_size:,}, {shape.layers} layers"),
        ("states", f"layers {', '.join(map(str, layers))}{' and the last' if teacher == 'LastState' else ''}, {dtype}"),
        ("teacher", TEACHERS[teacher]),
        ("tokens", f"{chosen.tokens / 1e6:,.1f} M ({chosen.source})"),
        ("a token", f"{chosen.per_token:,} bytes"),
        ("features", f"{readable_bytes(chosen.bytes)}{_against_claim(spec, chosen)}"),
        *(
            (f"{way.dtype} {way.teacher}", readable_bytes(other.bytes))
            for way in ways_to_store(dtype, teacher)
            if way.change and (other := of(way.dtype, way.teacher))
        ),
        ("time", _time(spec, chosen, tokens_per_second)),
        *_answering(data, chosen, answer_tokens_per_second, spec.extract.shards),
        ("kept", "as extract.retain says" if spec.extract.retain else "until the draft is trained"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _time(spec: Eagle3DraftSpec, chosen: Estimate, tokens_per_second: float) -> str:
    pods = spec.extract.shards
    hours = chosen.hours(tokens_per_second, pods)
    each = f"{spec.extract.gpus} GPUs at {tokens_per_second:,.0f} tokens/s"
    return f"{hours:.1f} h on " + (f"{pods} pods, each of {each}" if pods > 1 else f"a pod of {each}")


def _answering(data: Data, chosen: Estimate, tokens_per_second: float, pods: int) -> list[tuple[str, str]]:
    """What comes on top where the target answers itself: nobody knows beforehand how long its answers will be."""
    asked = data.regeneration
    if asked is None:
        return []
    hours = chosen.hours(tokens_per_second, pods)
    count = f"at most {asked.max_tokens:,} tokens each, and the tokens above must have counted them"
    return [
        ("answers", f"the target's own, {count}; up to {hours:.1f} h more at {tokens_per_second:,.0f} tokens/s a pod")
    ]


def _against_claim(spec: Eagle3DraftSpec, chosen: Estimate) -> str:
    """Whether a claim that the operator is to make is large enough; a user's own is not known here."""
    size, store = spec.storage.features.size, spec.storage.features.object_store
    if store is not None:
        return f"; in {store.url}"
    if size is None:
        return f"; claim {spec.storage.features.claim} must have them free"
    missing = chosen.bytes - quantity(size)
    return f"; storage.features.size {size} " + (f"lacks {readable_bytes(missing)}" if missing > 0 else "holds them")
