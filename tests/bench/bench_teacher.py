"""What storing less of a target costs in accept length: the table of docs/benchmarks/store.md.

    PYTHONPATH=tests python tests/bench/bench_teacher.py [fp32/LastState fp8/TopK ...] [--seeds 2] [--epochs 3]

Features of the tiny target (tests/tiny) are extracted in each way of storing them, a draft is trained from each with the
product's own step, and all drafts are measured by replay on the same held-out conversations, from states that nobody rounded, as
a server has them.
"""

import argparse
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from eagle3_api.estimate import bytes_per_token, ways_to_store
from eagle3_api.features import FeatureDtype, TeacherKind
from eagle3_api.jobs import DataConfig, ExtractConfig, ObjectReference
from eagle3_draft.data.conversations import Conversations
from eagle3_draft.extract import run
from eagle3_draft.extract.engine import Engine
from eagle3_draft.extract.transformers_engine import TransformersEngine
from eagle3_draft.features import Features
from eagle3_draft.inspect.target import target_digest
from eagle3_draft.model.config import draft_config
from eagle3_draft.model.factor import Factor
from eagle3_draft.model.target import Target
from eagle3_draft.train.batches import Batch, epoch_steps, pack
from eagle3_draft.train.evaluate import Evaluation, evaluate
from eagle3_draft.train.held_out import Recorder
from eagle3_draft.train.learning import Learning
from eagle3_draft.train.loss import CROSS_ENTROPY
from eagle3_draft.train.loss_kernel import UnrollLoss
from eagle3_draft.train.schedule import learning_rate
from eagle3_draft.train.vocabulary import Usage, choose
from tiny.flags import AUXILIARY_LAYERS
from tiny.make import cached
from unit.train.corpus import step_on

CPU = torch.device("cpu")

#: Of the training: those of the end-to-end test.
TOKENS, RATE, UNROLL, VOCABULARY = 2048, 2e-3, 3, 512


@dataclass(frozen=True)
class Tiny:
    """The tiny target, with its conversations."""

    model: Path
    data: Path

    def extract(self, folder: Path, dtype: FeatureDtype, teacher: TeacherKind) -> Features:
        """Its features."""

        def load(config: ExtractConfig) -> Engine:
            return TransformersEngine.load(self.model, config.layers, teacher=teacher, arguments=["--dtype", "float32"])

        config = ExtractConfig(
            owner=ObjectReference(namespace="bench", name="tiny", uid="u"),
            key="bench",
            folder=str(folder),
            target=str(self.model),
            target_digest=target_digest(self.model),
            data=DataConfig(conversations=str(self.data), max_length=256, holdout=0.1),
            data_digest=Conversations.read(self.data).sha256,
            layers=list(AUXILIARY_LAYERS),
            dtype=dtype,
            teacher=teacher,
            sglang_version="0.5.21",
        )
        run(config, load=load)
        return Features.open(folder)

    def learn(self, features: Features, seed: int, epochs: int, factor: type[Factor] = Factor) -> Learning:
        """A draft that was trained from them, with such products."""
        target = Target(self.model)
        usage = Usage.of(features.train.texts(), features.header.vocabulary_size)
        ids = choose(usage.supervised, VOCABULARY, target.framing_tokens()).ids
        learning = Learning(
            draft_config(target.config, layers=features.header.layers, draft_vocabulary_size=len(ids)),
            CPU,
            embedding=target.embedding(),
            head=target.head(),
            ids=ids,
            seed=seed,
            factor=factor,
        )
        lengths = features.train.lengths.tolist()
        steps = [step for epoch in range(epochs) for step in epoch_steps(lengths, TOKENS, seed=seed, epoch=epoch)]
        for number, step in enumerate(steps):
            batch = pack(features.train.read(step), UNROLL)
            step_on(learning, batch, rate=learning_rate(number, len(steps), RATE), notes=torch.zeros(2))
        return learning


def measured(learning: Learning, exact: Features) -> Evaluation:
    """A draft on the held-out conversations of exact features."""

    def unroll_loss(batch: Batch) -> UnrollLoss:
        return learning.unroll_loss(batch, torch.ones(len(batch.wanted)))

    return evaluate(
        unroll_loss,
        learning.model,
        exact.held_out,
        tokens_per_step=TOKENS,
        unroll_steps=UNROLL,
        replay_steps=UNROLL,
        multiple=1,
        loss=CROSS_ENTROPY,
        device=CPU,
        recorder=Recorder(exact.held_out.lengths.tolist(), UNROLL),
        before_batch=lambda _: None,
    )


def main() -> None:
    """Extract, train, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = {f"{way.dtype}/{way.teacher}": way for way in ways_to_store("fp32", "LastState")}
    parser.add_argument("ways", nargs="*", default=list(ways), metavar="DTYPE/TEACHER", help="all by default")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo")
    made = cached()
    tiny = Tiny(made / "models" / "tiny-target", made / "data" / "train.jsonl")
    with tempfile.TemporaryDirectory() as name:
        exact = tiny.extract(Path(name) / "exact", "fp32", "LastState")
        for way in map(ways.__getitem__, given.ways):
            features = tiny.extract(Path(name) / f"{way.dtype}-{way.teacher}", way.dtype, way.teacher)
            found = [measured(tiny.learn(features, seed, given.epochs), exact) for seed in range(given.seeds)]
            row = {
                "dtype": way.dtype,
                "teacher": way.teacher,
                "bytes a token": bytes_per_token(
                    exact.header.hidden_size, len(AUXILIARY_LAYERS), way.dtype, way.teacher
                ),
                "accept length": [round(one.accept_length[-1], 3) for one in found],
                "first step right": [round(one.accuracy[0], 4) for one in found],
            }
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
