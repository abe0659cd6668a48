"""A draft that knows nothing of its target is told from one that does before a server is started."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from eagle3_api.artifacts import PROMPTS, REPORT, WEIGHTS
from eagle3_api.checkpoints import Finding, Level
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ConvertResult, DataConfig, ExitCode, TrainResult
from eagle3_api.sglang import Version
from eagle3_draft.convert import accuracy, prompts, run
from eagle3_draft.convert.agreement import FEWEST_POSITIONS, Agreement, judge, measure
from eagle3_draft.convert.answers import ANSWER_TOKENS, hear
from eagle3_draft.convert.parity import read_converted
from eagle3_draft.convert.reading import Reading, neighbours, of_layers
from eagle3_draft.convert.reading import judge as judge_reading
from eagle3_draft.errors import StageError
from eagle3_draft.extract.stage import load_engine
from eagle3_draft.features import LastState, Sample
from eagle3_draft.model.draft import Draft
from eagle3_draft.model.target import Target
from eagle3_draft.storage import artifacts
from eagle3_draft.train import held_out
from eagle3_draft.train.batches import pack
from eagle3_draft.train.loss import Teacher, step_sums
from published.layouts import LAYOUTS, Original
from unit.convert import drafts
from unit.train import corpus

#: The layers, and the one below.
HEARD = [-1, *corpus.LAYERS]

pytestmark = pytest.mark.stages  # each goes through a whole stage, which takes seconds


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    """A dozen conversations, of which half are held out."""
    file = tmp_path_factory.mktemp("data") / "train.jsonl"
    turns = [
        [{"role": "user", "content": f"w{3 + i} w{5 + 2 * i}"}, {"role": "assistant", "content": "w4"}]
        for i in range(16)
    ]
    file.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in turns))
    return DataConfig(conversations=str(file), max_length=100, holdout=0.5)


@pytest.fixture(scope="module")
def questions(made: drafts.Made, data: DataConfig, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """The prompts that a conversion asks with these data."""
    folder = tmp_path_factory.mktemp("questions")
    prompts.put(drafts.adopt_config(made, folder, folder, data=data), folder)
    return [json.loads(line)["input_ids"] for line in (folder / PROMPTS).read_text().splitlines()]


@pytest.fixture(scope="module")
def heard(made: drafts.Made, questions: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """What the target says to them, with the states of the layers and of their neighbours."""
    config = drafts.convert_config(made, tmp_path_factory.mktemp("heard"))
    return hear(config, questions, "fp32", load_engine, HEARD)


@pytest.fixture(scope="module")
def answered(heard: list[Sample]) -> list[Sample]:
    """The same with the layers' states alone."""
    return of_layers(heard, HEARD, corpus.LAYERS)


@pytest.fixture(scope="module")
def knowing(made: drafts.Made, answered: list[Sample]) -> Original:
    """A draft that learned what this target says."""
    return learn(made, answered)


def learn(made: drafts.Made, answered: list[Sample], own: Tensor | None = None) -> Original:
    """A draft that learned what the target says, from these states; published as one that reads the layers.

    Args:
        made: has the target.
        answered: what it said.
        own: (vocabulary, hidden), the draft's own embedding, by which its states are as wide; the target's where left out.
    """
    torch.manual_seed(0)
    ids = torch.arange(corpus.VOCABULARY)
    target = Target(made.target)
    embedding, teacher = target.embedding() if own is None else own, Teacher(target.head(), ids)
    sizes = made.sizes.model_copy(update={"hidden_size": embedding.shape[1]})
    draft = Draft(sizes.model_copy(update={"draft_vocabulary_size": len(ids)}))
    draft.initialise(0)
    batch = pack(answered, 2)
    labels = teacher.soft_labels(batch.teaching)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=5e-3)
    for _ in range(60):
        logits = draft(batch.features, embedding[batch.input_ids], batch.documents, batch.wanted)
        losses = step_sums(logits, labels, batch.label_rows, ids).losses
        optimizer.zero_grad()
        (losses * torch.tensor([1.0, 0.8])).sum().div(len(batch.labelled)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    weights = {name: value.detach().contiguous() for name, value in draft.state_dict().items()}
    return Original(weights, ids, drafts.as_transformers(sizes), tuple(corpus.LAYERS), own)


def adopt(
    made: drafts.Made,
    data: DataConfig,
    draft: Original,
    folder: Path,
    spoil: Callable[[dict[str, Tensor]], object] | None = None,
    **changes: Any,
) -> ConvertResult:
    """Convert a draft as a checkpoint of SpecForge, and ask it about its target."""
    checkpoint = folder / "published"
    checkpoint.mkdir(parents=True)
    LAYOUTS["SpecForge"](draft, checkpoint)
    if spoil is not None:
        tensors = load_file(checkpoint / WEIGHTS)
        spoil(tensors)
        save_file(tensors, checkpoint / WEIGHTS)
    return run(drafts.adopt_config(made, folder / "out", checkpoint, data=data, **changes))


def test_an_adopted_draft_is_asked_on_the_targets_own_answers(
    made: drafts.Made, data: DataConfig, knowing: Original, tmp_path: Path
) -> None:
    result = adopt(made, data, knowing, tmp_path)
    assert result.accuracy is not None
    assert result.chance is not None
    assert result.accuracy[0] > result.chance + 0.2
    assert result.expected_accept_lengths is not None
    assert result.expected_accept_lengths == sorted(result.expected_accept_lengths)
    assert result.expected_accept_lengths[0] == pytest.approx(1 + result.accuracy[0], abs=0.15)
    checks = json.loads((tmp_path / "out" / REPORT).read_text())["checks"]
    assert [check["verdict"] for check in checks if check["rule"] == "agreement"] == ["ok"]


#: Below, the embedding cannot be captured on a Llama, so that there is no lower reading to compare with.
NEWER = "0.5.23"


def test_a_draft_on_a_llama_whose_layers_are_named_by_their_inputs_is_told_from_its_agreement(
    made: drafts.Made, data: DataConfig, heard: list[Sample], knowing: Original, tmp_path: Path
) -> None:
    """Row 6: neither the checkpoint's family nor the object says which notation is meant."""
    one_lower = learn(made, of_layers(heard, HEARD, HEARD[:3]))
    words = r"outputs of layers \[0, 1, 2\], and from those of \[-1, 0, 1\] its first proposal is the target's token in"
    with pytest.raises(StageError, match=words) as no:
        adopt(made, data, one_lower, tmp_path / "misread", sglang_version=NEWER)
    assert (no.value.code, no.value.reason) == (ExitCode.REFUSED, Reason.LAYER_CONVENTION)
    assert artifacts.finished(tmp_path / "misread" / "out", drafts.KEY) is None
    adopt(made, data, knowing, tmp_path / "right", sglang_version=NEWER)
    checks = json.loads((tmp_path / "right" / "out" / REPORT).read_text())["checks"]
    assert [check["verdict"] for check in checks if check["rule"] == "reading"] == ["ok"]


@pytest.mark.parametrize(
    ("layers", "architecture", "version", "others"),
    [
        ([1, 15, 28], "LlamaForCausalLM", "0.5.21", [[0, 14, 27], [2, 16, 29]]),
        ([2, 16, 30], "LlamaForCausalLM", "0.5.21", [[1, 15, 29]]),
        ([0, 1, 2], "LlamaForCausalLM", "0.5.21", [[1, 2, 3]]),
        ([0, 1, 2], "LlamaForCausalLM", "0.5.23", [[-1, 0, 1], [1, 2, 3]]),
        ([1, 15, 28], "DeepseekV3ForCausalLM", "0.5.21", [[2, 16, 29]]),
    ],
)
def test_a_draft_is_compared_with_the_neighbours_that_this_sglang_can_capture(
    layers: list[int], architecture: str, version: str, others: list[list[int]]
) -> None:
    assert neighbours(layers, architecture, 32, Version.parse(version)) == others


def test_of_two_readings_the_better_one_counts_only_beyond_chance() -> None:
    positions = torch.arange(1000)
    own, slightly, much = (Reading([n], positions % 10 < right) for n, right in enumerate((5, 5, 7)))
    slightly.right[positions[positions % 10 == 9][:15]] = True
    assert [found.level for found in judge_reading(own, [slightly])] == [Level.PASSED]
    assert [found.level for found in judge_reading(own, [slightly, much])] == [Level.REFUSED]
    assert [found.level for found in judge_reading(much, [own])] == [Level.PASSED]
    assert list(judge_reading(own, [])) == []


def shuffled_columns(tensors: dict[str, Tensor]) -> None:
    order = torch.randperm(tensors["fc.weight"].shape[1], generator=torch.Generator().manual_seed(1))
    tensors["fc.weight"] = tensors["fc.weight"][:, order].contiguous()


def another_vocabulary(tensors: dict[str, Tensor]) -> None:
    tensors["lm_head.weight"] = tensors["lm_head.weight"].roll(7, 0).contiguous()


def test_a_draft_of_another_vocabulary_that_every_rule_passes_is_refused_by_what_it_proposes(
    made: drafts.Made, data: DataConfig, knowing: Original, tmp_path: Path
) -> None:
    with pytest.raises(StageError, match=r"first proposal is the target's token in .* by chance it would be") as no:
        adopt(made, data, knowing, tmp_path, another_vocabulary)
    assert (no.value.code, no.value.reason) == (ExitCode.REFUSED, Reason.LOW_ACCEPT_LENGTH)
    assert artifacts.finished(tmp_path / "out", drafts.KEY) is None


def test_one_that_is_narrower_than_its_target_is_asked_with_its_own_embedding(
    made: drafts.Made, data: DataConfig, answered: list[Sample], tmp_path: Path
) -> None:
    own = torch.randn(corpus.VOCABULARY, 24, generator=torch.Generator().manual_seed(4))
    result = adopt(made, data, learn(made, answered, own), tmp_path)
    assert result.accuracy is not None
    assert result.accuracy[0] > 0.8


def test_an_untrained_draft_is_refused(made: drafts.Made, data: DataConfig, tmp_path: Path) -> None:
    with pytest.raises(StageError) as no:
        adopt(made, data, drafts.original_of(made), tmp_path)
    assert no.value.reason == Reason.LOW_ACCEPT_LENGTH


def test_shuffled_states_cost_a_draft_its_agreement(
    made: drafts.Made, knowing: Original, answered: list[Sample], tmp_path: Path
) -> None:
    weights = dict(knowing.weights)
    shuffled_columns(weights)
    for name, draft in (("whole", knowing), ("shuffled", replace(knowing, weights=weights))):
        (tmp_path / name).mkdir()
        LAYOUTS["SpecForge"](draft, tmp_path / name)
        drafts.adopt(made, tmp_path / f"{name}-out", tmp_path / name)
    whole, shuffled = (agreement(made, tmp_path / f"{name}-out", answered) for name in ("whole", "shuffled"))
    assert whole.accuracy[0] > 0.8
    assert shuffled.accuracy[0] < whole.accuracy[0] / 2


def agreement(made: drafts.Made, converted: Path, samples: list[Sample]) -> Agreement:
    target = Target(made.target)
    return measure(*read_converted(converted, corpus.LAYERS), samples, target.embedding())


def test_the_engine_hears_the_whole_greedy_answer_and_nothing_else(
    made: drafts.Made, questions: list[list[int]], answered: list[Sample]
) -> None:
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(made.target).eval()
    for question, sample in zip(questions[:3], answered[:3], strict=True):
        tokens = list(question)
        while len(tokens) < len(question) + ANSWER_TOKENS and tokens[-1] != corpus.END:
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        assert sample.input_ids.tolist() == tokens
        assert sample.loss_mask.tolist() == [0] * len(question) + [1] * (len(tokens) - len(question))


# --------------------------------------------------------------------------------------------------- the measure


def test_its_accuracy_is_the_trainers(made: drafts.Made, tmp_path: Path) -> None:
    result = run(drafts.convert_config(made, tmp_path / "out"))
    said = artifacts.read(made.trained).numbers["accuracy"]
    assert result.accuracy is not None
    assert result.accuracy[: len(said)] == pytest.approx(said)
    samples = held_out.read(made.trained).samples
    assert agreement(made, tmp_path / "out", samples).positions == sum(int(s.loss_mask[2:].sum()) for s in samples)


def test_a_draft_that_always_says_the_targets_favourite_word_agrees_by_chance_however_often(
    made: drafts.Made,
) -> None:
    draft = Draft(made.sizes)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.zero_()
    loop = torch.tensor([3, 5, 7, 8] * 30, dtype=torch.int32)
    target = Target(made.target)
    last = torch.zeros(len(loop), corpus.HIDDEN)
    features = torch.zeros(len(loop), corpus.HIDDEN * len(corpus.LAYERS))
    told = LastState.of(last, last @ target.head().T)
    constant = Sample(loop, torch.ones(len(loop), dtype=torch.uint8), features, told)
    found = measure(draft, torch.arange(drafts.DRAFT_VOCABULARY), [constant], target.embedding())
    # Both say token 0 at every position: no logit is larger than another
    assert found.accuracy[0] == found.chance == 1.0
    assert found.beyond_chance == 0.0
    assert next(judge(found)).level is Level.REFUSED


@pytest.mark.parametrize(
    ("accuracy", "chance", "positions", "level"),
    [
        (0.6, 0.1, 2000, Level.PASSED),
        (0.16, 0.1, 2000, Level.PASSED),
        (0.12, 0.1, 2000, Level.REFUSED),
        (0.0, 0.0, 2000, Level.REFUSED),
        (0.0, 0.0, FEWEST_POSITIONS - 1, Level.WARNING),
    ],
)
def test_what_lies_between_chance_and_always_decides(
    accuracy: float, chance: float, positions: int, level: Level
) -> None:
    found = list(judge(Agreement([accuracy] * 8, [1 + accuracy] * 8, chance, positions)))
    assert [finding.level for finding in found] == [level]
    assert (found[0].reason == Reason.LOW_ACCEPT_LENGTH) == (level is Level.REFUSED)


# ----------------------------------------------------------------------------------------- against the trainer


@pytest.mark.parametrize(
    ("said", "measured_on", "conversations", "level"),
    [
        (0.07, 3, 3, Level.PASSED),
        (0.1, 3, 3, Level.REFUSED),
        (0.9, 3, 3, Level.REFUSED),
        (0.747, 500, 64, Level.REFUSED),
        (0.3, 500, 64, Level.REFUSED),
        (0.15, 500, 64, Level.PASSED),
        (0.3, 500, 3, Level.PASSED),
    ],
)
def test_a_draft_that_is_not_as_good_as_its_trainer_said_is_noticed_beyond_what_a_part_of_the_measured_set_explains(
    made: drafts.Made, said: float, measured_on: int, conversations: int, level: Level
) -> None:
    numbers = artifacts.read(made.trained).numbers
    result = TrainResult.model_validate(numbers | {"accuracy": [said] * 2, "heldOut": measured_on})
    here = Agreement([0.05] * 8, [1.0] * 8, 0.0, 100)
    samples = (held_out.read(made.trained).samples * conversations)[:conversations]
    found: list[Finding] = list(accuracy.against_the_trainer(here, result, accuracy.Asked(samples, thinned=False)))
    assert [finding.level for finding in found] == [level]
    words = f"right in 5.0% of 100 held-out positions, of the trained one they were in {said:.1%}"
    assert words in found[0].message
    assert ("on 64 of the conversations" in found[0].message) == (conversations == 64)
