"""Runs inside of SGLang's environment: the product's own engine over one target after the other, or why it takes none.

    python capturing.py POINTS JOBS

POINTS are the names of capture points, separated by commas: each must be one here. JOBS is a file with a JSON list of
``{"config": of an extraction, "conversations": lists of tokens, "out": a path without suffix, "code": by the name of a module, to
run in its names beforehand}``. A job leaves ``out.safetensors``
with ``<number>.hidden`` and ``<number>.last`` of each conversation, or what the engine was refused for in ``out.json``: code,
reason and message; and in any case ``out.log``.

Each job has a process, forked from this one: to import SGLang takes several times as long as everything else, and SGLang keeps
the settings of its only engine in globals.
"""

import importlib
import json
import os
import pkgutil
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from sglang.srt.models.registry import ModelRegistry  # noqa: F401  (imports every model, once)
from torch import Tensor

from eagle3_api.jobs import ExtractConfig
from eagle3_draft.errors import StageError
from eagle3_draft.extract.sglang_engine import SGLangEngine
from eagle3_draft.features import LastState


def capture(config: ExtractConfig, conversations: Sequence[Sequence[int]], out: Path) -> None:
    """Run the engine over a target."""
    found: dict[str, Tensor] = {}
    try:
        with closing(SGLangEngine(config)) as engine:
            for number, states in enumerate(engine.states(conversations)):
                assert isinstance(states.teaching, LastState)
                found |= {f"{number}.hidden": states.hidden.clone(), f"{number}.last": states.teaching.last.clone()}
    except StageError as error:
        out.with_suffix(".json").write_text(json.dumps([error.code, error.reason, str(error)]))
    else:
        save_file(found, out.with_suffix(".safetensors"))


def forked(job: Any) -> int:
    """Do a job in a process of its own; returns what that ends with."""
    if process := os.fork():
        _, status = os.waitpid(process, 0)
        return os.waitstatus_to_exitcode(status)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # by which SGLang's other processes end this one
    out = Path(job["out"])
    log = os.open(out.with_suffix(".log"), os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        for module, text in job["code"].items():
            exec(text, vars(importlib.import_module(module)))  # noqa: S102
        capture(ExtractConfig.model_validate(job["config"]), job["conversations"], out)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)


def main(points: str, jobs: str) -> None:
    """See the module's text."""
    for name in points.split(","):
        assert callable(pkgutil.resolve_name(name)), name
    for job in json.loads(Path(jobs).read_bytes()):
        if code := forked(job):
            print(f"{job['out']}: {code}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
