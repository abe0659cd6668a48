"""A target as large as the largest, of which only the names, shapes and lengths are real."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3_api.artifacts import CONFIG
from published import files

TARGET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 61,
    "hidden_size": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
}


def large_target(
    folder: Path, config: Mapping[str, Any] = TARGET, *, shards: int = 64, tensors: int = 1800, size: int = 5_200_000
) -> Path:
    """A mixture of experts of 600 GB in sparse files: the values are holes."""
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps(dict(config)))
    index = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        header = {}
        for number in range(tensors):
            tensor = f"model.layers.{shard}.mlp.experts.{number}.gate_proj.weight"
            begin = number * size
            header[tensor] = {"dtype": "U8", "shape": [size], "data_offsets": [begin, begin + size]}
            index[tensor] = name
        files.write_raw(folder / name, json.dumps(header).encode())
        os.truncate(folder / name, (folder / name).stat().st_size + tensors * size)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder
