"""Runs inside of SGLang's environment: engines that are refused before they start, and whether a capture point is a name there.

    python refusing.py POINTS CONFIG...

POINTS are names, separated by commas. Prints a JSON list for each file of an extraction's configuration: code, reason and message.
"""

import json
import pkgutil
import sys
from pathlib import Path

from eagle3_api.jobs import ExtractConfig
from eagle3_draft.extract.stage import load_engine
from eagle3_draft.stage import StageError


def main(points: str, *files: str) -> None:
    """See the module's text."""
    for name in points.split(","):
        assert callable(pkgutil.resolve_name(name)), name
    for file in files:
        try:
            load_engine(ExtractConfig.model_validate_json(Path(file).read_bytes()))
        except StageError as error:
            print(json.dumps([error.code, error.reason, str(error)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
