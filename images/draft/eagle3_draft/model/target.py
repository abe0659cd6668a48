"""What a draft needs of its target: the configuration, the embedding and the head, read straight from the checkpoint."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle3_api.checkpoints.target import language_config
from eagle3_draft.target_files import Vocabulary, find_vocabulary, unreadable


class Target:
    """A target's checkpoint folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = self._json("config.json")

    def embedding(self) -> Tensor:
        """(vocabulary, hidden), as stored."""
        return self._tensor(self._vocabulary.embedding)

    def embedding_rows(self, start: int, end: int) -> Tensor:
        """(end - start, hidden), as stored; fewer where the table ends."""
        return self._tensor(self._vocabulary.embedding, slice(start, end))

    def head(self) -> Tensor:
        """(vocabulary, hidden), as stored: what the final-normed hidden state is multiplied with."""
        return self._tensor(self._vocabulary.head)

    def framing_tokens(self) -> list[int]:
        """Ids that begin, end or pad a text, by config.json and generation_config.json; ascending."""
        generation = self._json("generation_config.json") if (self.folder / "generation_config.json").exists() else {}
        found: set[int] = set()
        for config in (self.config, language_config(self.config), generation):
            for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
                ids = config.get(name)
                found.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
        return sorted(found)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return find_vocabulary(self.folder, self.config)

    def _tensor(self, name: str, rows: slice | None = None) -> Tensor:
        path = self._vocabulary.files[name]
        try:
            with safe_open(path, framework="pt") as file:
                tensor: Tensor = file.get_tensor(name) if rows is None else file.get_slice(name)[rows]
        except (OSError, SafetensorError) as error:
            raise unreadable(self.folder, f"{path.name}: {error}") from error
        return tensor

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads((self.folder / name).read_text())
        except (OSError, ValueError) as error:
            raise unreadable(self.folder, f"{name}: {error}") from error
        return value
