"""The whole train stage on a feature store on the disk: the launcher, its ranks, their readers, copies and checkpoints."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from eagle3_api.jobs import PROGRESS_MARK, JobEnvelope, Progress
from eagle3_draft.model.config import DraftConfig
from gpu import store
from unit.train.corpus import train_config

#: Steps of the training, and the share of them after which it is timed: what is compiled is compiled then.
STEPS, WARM = 48, 0.25

#: Different tokens in the conversations.
ALPHABET = 4096


def measure(
    draft: DraftConfig, documents: Sequence[int], *, unroll: int, precision: str, gpus: int
) -> dict[str, float]:
    """Train for some steps of ``documents`` on each GPU, as a container does; how fast it was, by its progress lines.

    The features were written just before, so that they are in the page cache if that is large enough.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder, began = Path(temporary), time.perf_counter()
        lengths = list(documents) * STEPS * gpus
        corpus = store.make(
            folder,
            draft,
            train=lengths,
            held_out=list(documents[:1]) * gpus,
            alphabet=min(ALPHABET, draft.vocabulary_size),
        )
        written = time.perf_counter() - began
        config = train_config(
            corpus,
            folder / "out",
            vocabulary_size=draft.draft_vocabulary_size,
            layers=draft.layers,
            epochs=1,
            tokens_per_step=sum(documents) * gpus,
            learning_rate=1e-4,
            unroll_steps=unroll,
            precision=precision,
            processes=gpus,
        )
        (folder / "config.json").write_text(JobEnvelope(config=config).model_dump_json(by_alias=True))
        log = subprocess.run(
            [sys.executable, "-m", "eagle3_draft", "train"],
            env=os.environ
            | {"EAGLE3_CONFIG": str(folder / "config.json"), "EAGLE3_TERMINATION_LOG": str(folder / "termination-log")},
            capture_output=True,
            text=True,
            check=False,
        )
        if log.returncode:
            raise RuntimeError(
                f"{log.stdout[-1000:]}\n{log.stderr[-2000:]}\n{(folder / 'termination-log').read_text()}"
            )
        took = time.perf_counter() - began - written
    marked = (line.removeprefix(PROGRESS_MARK) for line in log.stdout.splitlines() if line.startswith(PROGRESS_MARK))
    timed = [line for line in map(Progress.model_validate_json, marked) if WARM <= line.done < 1 - 1.5 / STEPS]
    share, seconds = timed[-1].done - timed[0].done, timed[-1].time - timed[0].time
    return {
        "tokens_per_second": round(share * sum(lengths) / seconds),
        "timed_s": round(seconds, 1),
        "store_gib": round(sum(lengths) * 2 * (len(draft.layers) + 1) * draft.target_hidden_size / 2**30, 1),
        "writing_s": round(written, 1),
        "stage_s": round(took, 1),
    }
