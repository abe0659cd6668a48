"""What makes a target of DeepSeek V3's architecture one of Kimi-K2.5's, whose language model it is."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

ARCHITECTURE = "KimiK25ForConditionalGeneration"

#: Its words for pictures come as Python with the checkpoint, as Kimi's do. Nothing is asked of them here.
_OF_PICTURES = """
from types import SimpleNamespace
from transformers import ProcessorMixin

class Pictures(ProcessorMixin):
    image_processor = None
    media_processor = SimpleNamespace(media_proc_cfg={
        "patch_size": 14, "merge_kernel_size": 2, "in_patch_limit": 64, "patch_limit_on_one_side": 8,
        "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    })

    def __init__(self, tokenizer=None, chat_template=None):
        super().__init__(tokenizer, chat_template=chat_template)
"""

_EYES = {
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "vt_hidden_size": 32,
    "intermediate_size": 64,
    "init_pos_emb_height": 4,
    "init_pos_emb_width": 4,
}


def see(folder: Path) -> None:
    """Make the language model in a folder that of a target which sees, with eyes that have no weights: no picture is shown."""
    weights = folder / "model.safetensors"
    named = {f"language_model.{name}": tensor for name, tensor in load_file(weights).items()}
    save_file(named, weights, metadata={"format": "pt"})
    file = folder / "config.json"
    language: dict[str, Any] = json.loads(file.read_bytes())
    config = {
        "architectures": [ARCHITECTURE],
        "model_type": "kimi_k25",
        "dtype": language["dtype"],
        "text_config": {**language, "model_type": "kimi_k2"},
        "vision_config": {**_EYES, "text_hidden_size": language["hidden_size"]},
        "media_placeholder_token_id": 120,
        "tie_word_embeddings": False,
    }
    file.write_text(json.dumps(config))
    (folder / "pictures.py").write_text(_OF_PICTURES)
    processor = {"processor_class": "Pictures", "auto_map": {"AutoProcessor": "pictures.Pictures"}}
    (folder / "processor_config.json").write_text(json.dumps(processor))
