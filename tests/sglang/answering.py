"""Runs inside of SGLang's environment: extractions in which the target answers, one after the other with one engine.

    python answering.py CONFIG...

Each CONFIG is a file of an extraction's configuration; they differ in nothing that an engine is told. A part has one conversation,
so that SGLang answers to the next ones while the states of one are taken.
"""

import sys
from pathlib import Path
from typing import Any

from eagle3_api.jobs import ExtractConfig
from eagle3_draft.extract.stage import load_engine, run


class Kept:
    """An engine that is not closed between two extractions."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def close(self) -> None:
        """Not yet."""


def main(*files: str) -> None:
    """See the module's text."""
    configs = [ExtractConfig.model_validate_json(Path(file).read_bytes()) for file in files]
    engine = load_engine(configs[0])
    try:
        for config in configs:
            run(config, load=lambda _: Kept(engine), part_conversations=1)
    finally:
        engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
