"""The target's own answers to the probe's prompts, and its states over them: features for a draft that brought none.

A small extraction, by the engine and with the flags of the large one. Greedy answers make the replay exact: it walks the very
tokens that a server would verify.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle3_api.features import FeatureDtype
from eagle3_api.jobs import ConvertConfig, DataConfig, ExtractConfig
from eagle3_draft.data.dialogue import Answer
from eagle3_draft.extract.engine import Answering, Engine, Sampling
from eagle3_draft.features import Sample
from eagle3_draft.inspect.target import end_tokens
from eagle3_draft.runtime.progress import ProgressReporter

#: Bounds of what is asked: minutes on a GPU for the largest target, some gigabytes of states at most.
PROMPTS, PROMPT_TOKENS, ANSWER_TOKENS = 32, 1024, 64

#: Of one wait for an answer.
WAIT_SECONDS = 10.0

#: Makes the engine.
Load = Callable[[ExtractConfig], Engine]


@dataclass
class Question:
    """A prompt of the probe, and the target's one answer to it.

    Attributes:
        ids: the prompt's tokens.
        answer: None until there is one.
    """

    ids: list[int]
    answer: list[int] | None = None

    @property
    def prompt(self) -> list[int] | None:
        """It, until it is answered."""
        return self.ids if self.answer is None else None

    @property
    def room(self) -> int:
        """Tokens of the answer at most."""
        return ANSWER_TOKENS

    def seed(self, base: int) -> int:
        """Nothing is drawn."""
        return base

    def take(self, answer: Answer) -> None:
        """The answer, the token that ends it included."""
        self.answer = list(answer.ids)


def hear(
    config: ConvertConfig, prompts: Sequence[Sequence[int]], dtype: FeatureDtype, load: Load, layers: Sequence[int]
) -> list[Sample]:
    """Have the target answer, and take down what it computes.

    Args:
        config: of the stage.
        prompts: token ids; the first ones that are short enough are asked.
        dtype: of the states: bf16 or fp32.
        load: makes the engine.
        layers: whose outputs are taken down, ascending.

    Returns:
        A sample for each prompt, its loss mask over the answer. States that are not finite are the target's own fault, and left
        out.

    Raises:
        StageError: the target cannot be run.
    """
    asked = [Question(list(prompt)) for prompt in prompts if len(prompt) <= PROMPT_TOKENS][:PROMPTS]
    if not asked:
        return []
    progress = ProgressReporter(len(asked), "answers of the target")
    with closing(load(_extraction(config, dtype, layers))) as engine:
        greedily = Sampling(temperature=0, top_p=1, seed=0, end_tokens=tuple(end_tokens(Path(config.target))))
        answering: Answering[Question] = engine.converse(greedily)
        with closing(answering):
            answering.ask(asked)
            unfinished = len(asked)
            while unfinished:
                unfinished -= len(answering.finished(WAIT_SECONDS))
        texts = [question.ids + (question.answer or []) for question in asked]
        samples = []
        for number, (question, text, states) in enumerate(zip(asked, texts, engine.states(texts), strict=True), 1):
            mask = torch.zeros(len(text), dtype=torch.uint8)
            mask[len(question.ids) :] = 1
            samples.append(Sample(torch.tensor(text, dtype=torch.int32), mask, states.hidden, states.teaching))
            progress.update(number)
    return [one for one in samples if one.is_finite()]


def _extraction(config: ConvertConfig, dtype: FeatureDtype, layers: Sequence[int]) -> ExtractConfig:
    """The configuration of an extraction that would run the target as this one must be run."""
    return ExtractConfig(
        owner=config.owner,
        key=config.key,
        folder=str(Path(config.folder)),
        target=config.target,
        target_digest=config.target_digest,
        trust_remote_code=config.trust_remote_code,
        data=DataConfig(conversations="", max_length=PROMPT_TOKENS + ANSWER_TOKENS, holdout=1),
        data_digest="",
        layers=list(layers),
        dtype=dtype,
        sglang_version=config.sglang_version,
        arguments=config.arguments,
        tensor_parallel_size=config.tensor_parallel_size,
    )
