"""What a draft needs of its target: the configuration, the embedding and the head, read straight from the checkpoint."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.model.config import text_config
from eagle3_draft.stage import StageError

_INDEX = "model.safetensors.index.json"
_EMBEDDING = "embed_tokens.weight"
_HEAD = "lm_head.weight"


class Target:
    """A target's checkpoint folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = self._json("config.json")
        self._files = self._tensor_files()

    def embedding(self) -> Tensor:
        """(vocabulary, hidden), as stored."""
        return self._tensor(self._name(_EMBEDDING))

    def head(self) -> Tensor:
        """(vocabulary, hidden), as stored: what the final-normed hidden state is multiplied with."""
        tied = text_config(self.config).get("tie_word_embeddings", self.config.get("tie_word_embeddings", False))
        if tied or not self._named(_HEAD):
            return self.embedding()
        return self._tensor(self._name(_HEAD))

    def framing_tokens(self) -> list[int]:
        """Ids that begin, end or pad a text, by config.json and generation_config.json; ascending."""
        generation = self._json("generation_config.json") if (self.folder / "generation_config.json").exists() else {}
        found: set[int] = set()
        for config in (self.config, text_config(self.config), generation):
            for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
                ids = config.get(name)
                found.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
        return sorted(found)

    def _tensor(self, name: str) -> Tensor:
        try:
            with safe_open(self._files[name], framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise self._unreadable(f"{self._files[name].name}: {error}") from error
        if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise StageError(
                ExitCode.BAD_INPUT,
                Reason.TARGET_UNSUPPORTED,
                f"{name} of the target is stored as {tensor.dtype}: a quantized embedding or head cannot be read",
            )
        return tensor

    def _name(self, ending: str) -> str:
        names = self._named(ending)
        if len(names) != 1:
            raise self._unreadable(f"it has {len(names)} tensors named *{ending}, not one")
        return names[0]

    def _named(self, ending: str) -> list[str]:
        return [name for name in self._files if name == ending or name.endswith("." + ending)]

    def _tensor_files(self) -> dict[str, Path]:
        """The file of each tensor."""
        if (self.folder / _INDEX).exists():
            return {name: self.folder / file for name, file in self._json(_INDEX)["weight_map"].items()}
        return dict(self._scan())

    def _scan(self) -> Iterator[tuple[str, Path]]:
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                with safe_open(path, framework="pt") as file:
                    yield from ((name, path) for name in file.keys())  # noqa: SIM118  not a mapping
            except (OSError, SafetensorError) as error:
                raise self._unreadable(f"{path.name}: {error}") from error

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads((self.folder / name).read_text())
        except (OSError, ValueError) as error:
            raise self._unreadable(f"{name}: {error}") from error
        return value

    def _unreadable(self, what: str) -> StageError:
        return StageError(
            ExitCode.BAD_INPUT,
            Reason.TARGET_UNREADABLE,
            f"the target in {self.folder} cannot be read: {what}. target.model must name a folder with config.json and "
            "the safetensors of a complete checkpoint",
        )
