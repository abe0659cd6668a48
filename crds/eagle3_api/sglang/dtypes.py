"""In which type a server runs its target, and with it the draft."""

from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_api.sglang.flags import numeric_arguments

#: As SGLang's command line and configurations call them.
_NAMES = {
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "float32": "float32",
}


def served_dtype(config: Mapping[str, Any], arguments: Sequence[str] = ()) -> str:
    """The type that SGLang runs a target in, as torch says it (``bfloat16``).

    Without ``--dtype`` it is what the configuration names, but for float32, which SGLang also takes where nothing is named: that it runs
    in float16, and Gemma's in bfloat16. gpt-oss in MXFP4 runs in bfloat16 whatever is said.

    Source: SGLang 0.5.23, ``_get_and_verify_dtype`` and ``get_hf_text_config``; ``arg_groups/model_overrides/gpt_oss.py``.

    Args:
        config: the target's config.json; a multimodal one nests the language model's.
        arguments: of the server.
    """
    nested = config.get("text_config")
    text = nested if isinstance(nested, Mapping) else config
    if _is_gpt_oss_in_mxfp4(config):
        return "bfloat16"
    for said in numeric_arguments(arguments):
        flag, _, value = said.partition(" ")
        if flag == "--dtype" and value.lower() in _NAMES:
            return _NAMES[value.lower()]
    named = next((_NAMES.get(said, said) for part in (text, config) if (said := _named(part))), "float32")
    if named != "float32":
        return named
    return "bfloat16" if str(text.get("model_type") or "").startswith("gemma") else "float16"


def _named(config: Mapping[str, Any]) -> str:
    said = config.get("dtype") or config.get("torch_dtype")
    return said.removeprefix("torch.") if isinstance(said, str) else ""


def _is_gpt_oss_in_mxfp4(config: Mapping[str, Any]) -> bool:
    quantization = config.get("quantization_config")
    packed = isinstance(quantization, Mapping) and quantization.get("quant_method") == "mxfp4"
    return packed and "GptOssForCausalLM" in (config.get("architectures") or ())
