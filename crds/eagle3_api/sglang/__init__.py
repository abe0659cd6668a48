"""Facts and rules about SGLang, by version: the one place that knows them.

Layers. Everywhere in this product a layer is *the index of the decoder layer whose output is taken, 0-based; -1 is the
embedding's output*; what SGLang calls it elsewhere only ``layers`` knows. ``drafts`` and ``flags`` have what serving takes,
``capture`` what extraction does. The names that others use are here too.
"""

from eagle3_api.sglang.capture import (
    CAPTURE_KNOWN,
    CapturePoints,
    capture_arguments,
    capture_known,
    capture_points,
    forward_arguments,
)
from eagle3_api.sglang.drafts import (
    DEEPER_SINCE,
    FC_NORM_SINCE,
    LATENT_DRAFT,
    LLAMA_DRAFT,
    NORM_BEFORE_FC_SINCE,
    adaptive_config,
    adaptive_tier,
    draft_attention_backend,
)
from eagle3_api.sglang.dtypes import served_dtype
from eagle3_api.sglang.flags import (
    HIDING_FLAGS,
    IGNORES_DEFAULTS,
    NUMERIC_FLAGS,
    OVERRIDE_FLAG,
    OWNED_FLAGS,
    UNSUPPORTED_FLAGS,
    flag_values,
    numeric_arguments,
)
from eagle3_api.sglang.layers import (
    EMBEDDING_SINCE,
    KNOWN_TARGETS,
    LATENT_ATTENTION,
    RAW_IF_LAST_IS_ALL,
    RAW_UNLESS_FIRST_IS_ONE,
    UNFIT,
    WHOLE_SINCE,
    UnsupportedLayersError,
    capture_ids,
    captured_layers,
    convention,
    default_layers,
    log_ids,
    supports_target,
    why_unsupported,
)
from eagle3_api.sglang.versions import NEWEST, OLDEST, Version

__all__ = [
    "CAPTURE_KNOWN",
    "DEEPER_SINCE",
    "EMBEDDING_SINCE",
    "FC_NORM_SINCE",
    "HIDING_FLAGS",
    "IGNORES_DEFAULTS",
    "KNOWN_TARGETS",
    "LATENT_ATTENTION",
    "LATENT_DRAFT",
    "LLAMA_DRAFT",
    "NEWEST",
    "NORM_BEFORE_FC_SINCE",
    "NUMERIC_FLAGS",
    "OLDEST",
    "OVERRIDE_FLAG",
    "OWNED_FLAGS",
    "RAW_IF_LAST_IS_ALL",
    "RAW_UNLESS_FIRST_IS_ONE",
    "UNFIT",
    "UNSUPPORTED_FLAGS",
    "WHOLE_SINCE",
    "CapturePoints",
    "UnsupportedLayersError",
    "Version",
    "adaptive_config",
    "adaptive_tier",
    "capture_arguments",
    "capture_ids",
    "capture_known",
    "capture_points",
    "captured_layers",
    "convention",
    "default_layers",
    "draft_attention_backend",
    "flag_values",
    "forward_arguments",
    "log_ids",
    "numeric_arguments",
    "served_dtype",
    "supports_target",
    "why_unsupported",
]
