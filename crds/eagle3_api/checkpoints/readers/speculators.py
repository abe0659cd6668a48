"""speculators (vLLM, Red Hat AI): the layer's configuration nested, layers at the top level and by their *input*.

Without layers vLLM takes the inputs of 2, n//2 and n-3. Drafts with ``norm_before_residual``, its default, are refused: SGLang does
not compute it. Source: vllm-project/speculators, ``Eagle3SpeculatorConfig``.
"""

from collections.abc import Mapping

from eagle3_api.checkpoints.files import Folder
from eagle3_api.checkpoints.form import Form, Notation
from eagle3_api.checkpoints.readers.llama import LAYER_IDS, layers_of, read_llama

FAMILY = "speculators"

_ARCHITECTURES = frozenset({"Eagle3Speculator", "Eagle3DraftModel"})


def recognises(folder: Folder) -> bool:
    """Its own field, or its architectures."""
    return "speculators_model_type" in folder.config or bool(_ARCHITECTURES & set(folder.architectures))


def read(folder: Folder) -> Form:
    """The draft in the folder; what it keeps of the target (``verifier_*``) stays behind."""
    config = folder.config
    nested = config.get("transformer_layer_config")
    layer = dict(nested) if isinstance(nested, Mapping) else {}
    own = {name: value for name, value in config.items() if name not in ("transformer_layer_config", "architectures")}
    layer.pop("tie_word_embeddings", None)  # of the target, whose configuration was copied
    unsupported = []
    if config.get("speculators_model_type", "eagle3") != "eagle3":
        unsupported.append(f"speculators_model_type is {config['speculators_model_type']!r:.40}, not eagle3")
    if "norm_before_residual" not in config:
        unsupported.append(
            "config.json does not say norm_before_residual. With true, speculators' own default in training, SGLang would serve "
            "it at accept length 1.0; if it was trained with false, write that"
        )
    return read_llama(
        folder,
        FAMILY,
        config={**layer, **own},
        layers=layers_of(config.get(LAYER_IDS), Notation.INPUT, LAYER_IDS),
        ignore=["verifier_"],
        unsupported=unsupported,
    )
