"""What determines an extraction's output, as it stands in its manifest."""

import json
from collections.abc import Sequence

from eagle3_api.jobs import DataConfig


def extraction_inputs(
    data: DataConfig,
    *,
    target_digest: str,
    data_digest: str,
    chat_template_digest: str,
    layers: Sequence[int],
    dtype: str,
) -> dict[str, str]:
    """By name, as text; two extractions with the same inputs have the same output."""
    return {
        "target": target_digest,
        "data": data_digest,
        "chatTemplate": chat_template_digest,
        "layers": json.dumps(list(layers)),
        "dtype": dtype,
        "maxLength": str(data.max_length),
        "maxSamples": str(data.max_samples),
        "holdout": str(data.holdout),
    }
