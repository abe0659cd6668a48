"""A plug-in of SGLang that writes down what the draft proposes: a JSON line for each request of each verify step.

SGLang finds it by its entry point when this folder is on PYTHONPATH. It hooks the place where a step's proposals, from a graph
or not, become what the target verifies; 0.5.17 to 0.5.23 have it under this name.
"""

import json
import os
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

PLACE = "sglang.srt.speculative.eagle_worker_v2.build_eagle_verify_input"


def install() -> None:
    """Register the hook; called in every process of SGLang's."""
    HookRegistry.register(PLACE, _record, HookType.BEFORE)


def _record(batch: Any, draft_input: Any, parents: Any, scores: Any, tokens: Any, *_: Any, **__: Any) -> None:
    with open(os.environ["EAGLE3_PROPOSALS"], "a", encoding="utf-8") as file:  # noqa: PTH123
        for request, proposed in zip(batch.reqs, tokens.tolist(), strict=False):
            file.write(json.dumps({"request": request.rid, "proposed": proposed}) + "\n")
