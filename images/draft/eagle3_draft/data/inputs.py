"""What determines an extraction's output, as it stands in its manifest."""

import json
from collections.abc import Mapping, Sequence

from eagle3_api.features import FeatureDtype, TeacherKind
from eagle3_api.jobs import DataConfig, SamplingDefaults

#: Before the names of an extraction's inputs, in the manifest of a training from it: the features may be gone by then.
_INHERITED = "extraction."


def inherited(extraction: Mapping[str, str]) -> dict[str, str]:
    """An extraction's inputs as they stand in the manifest of a training from it."""
    return {f"{_INHERITED}{name}": value for name, value in extraction.items()}


def of_extraction(training: Mapping[str, str]) -> dict[str, str]:
    """The inverse of ``inherited``: what is not an extraction's is left out."""
    return {name.removeprefix(_INHERITED): value for name, value in training.items() if name.startswith(_INHERITED)}


def extraction_inputs(
    data: DataConfig,
    *,
    target_digest: str,
    data_digest: str,
    chat_template_digest: str,
    template_day: str | None = None,
    layers: Sequence[int],
    dtype: FeatureDtype,
    teacher: TeacherKind,
    end_tokens: Sequence[int] = (),
    sampling_defaults: SamplingDefaults | None = None,
    engine: Sequence[str] = (),
) -> dict[str, str]:
    """By name, as text; two extractions with the same inputs have the same output.

    Args:
        template_day: what day it is by the template, if it asks.
        sampling_defaults: of the target, where it answers itself.
        engine: the server's flags that change what the target computes (``numeric_arguments``).
    """
    answering = {} if data.regenerate is None else data.regenerate.to_json() | {"endTokens": list(end_tokens)}
    if sampling_defaults is not None:
        answering |= sampling_defaults.to_json()
    return {
        "target": target_digest,
        "data": data_digest,
        "chatTemplate": chat_template_digest,
        **({"templateDay": template_day} if template_day is not None else {}),
        "layers": json.dumps(list(layers)),
        "dtype": dtype,
        "teacher": teacher,
        "maxLength": str(data.max_length),
        "maxSamples": str(data.max_samples),
        "holdout": str(data.holdout),
        **({"regenerate": json.dumps(answering, sort_keys=True)} if answering else {}),
        **({"engine": json.dumps(list(engine))} if engine else {}),
    }
