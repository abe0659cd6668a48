"""SGLang's draft is ours: a converted draft is accepted on a real server step by step as the replay says."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from eagle3_api.artifacts import CONFIG, HELD_OUT, PROMPTS, VOCABULARY, WEIGHTS
from eagle3_api.jobs import ConvertConfig, ConvertResult, DataConfig, ObjectReference, TrainResult
from eagle3_draft.convert import run
from eagle3_draft.convert.answers import ANSWER_TOKENS
from eagle3_draft.inspect.target import target_digest
from eagle3_draft.model.config import DraftConfig, draft_config
from eagle3_draft.model.draft import Draft
from eagle3_draft.storage import artifacts
from eagle3_draft.train import held_out
from eagle3_draft.train.vocabulary import Vocabulary
from published.layouts import LAYOUTS, Original
from served import drafts
from served.proposals import expected, recorded, recording, replayed
from served.reference import Reference
from served.server import generate, sglang, speculating
from served.stage import run_stage
from served.trees import Shape
from served.trees import expected as expected_trees
from tiny.flags import AUXILIARY_LAYERS, SERVE_ARGUMENTS
from tiny.grammar import conversations
from tiny.make import cached
from unit.convert.drafts import accuracy, as_transformers
from unit.train import corpus

pytestmark = pytest.mark.timeout(900)

LAYERS = list(AUXILIARY_LAYERS)
STEPS = 3
#: Long enough for some dozens of verify steps, and for a draft whose cache is wrong to lose its way.
ANSWER = 48


#: A draft of EAGLE-3, which comes as ModelOpt publishes it and drafts chains; and one of EAGLE-3.1 with two layers, which comes from its training
#: and grows trees.
CHAIN, TREES = "EAGLE-3", "EAGLE-3.1, two layers"
TREE = Shape(steps=STEPS, topk=4, size=16)
#: Prompts, and those that are asked where trees grow: the reference takes ten times as long to grow one.
PROMPTS_ASKED, FOR_TREES = 8, 4


@pytest.fixture(scope="module")
def tiny() -> Reference:
    return Reference(cached() / "models" / "tiny-target", LAYERS)


@pytest.fixture(scope="module")
def prompts(tiny: Reference) -> list[list[int]]:
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny.folder)
    return [
        tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=False)
        for messages in conversations(seed=23, count=PROMPTS_ASKED)
    ]


def deepened(weights: dict[str, torch.Tensor], sizes: DraftConfig) -> dict[str, torch.Tensor]:
    """A draft of more switches that still says something: what is new changes a little."""
    draft = Draft(sizes)
    draft.initialise(3)
    state = draft.state_dict() | weights
    for name in draft.state_dict().keys() - weights.keys():
        state[name] = state[name] + 0.05 * torch.randn(state[name].shape, generator=torch.Generator().manual_seed(4))
    return state


@pytest.fixture(scope="module", params=[CHAIN, TREES])
def trained(
    tiny: Reference, prompts: list[list[int]], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Train's artifact of a draft that does not know every eleventh token, though the target says it."""
    folder = tmp_path_factory.mktemp("trained")
    weights = load_file(drafts.trained(cached()) / WEIGHTS)
    size = len(tiny.embedding)
    ids = torch.tensor([token for token in range(size) if token % 11])[: (size - size // 8) // 64 * 64]
    weights = {name: tensor for name, tensor in weights.items() if name not in ("d2t", "t2d")}
    weights["lm_head.weight"] = weights["lm_head.weight"][ids].contiguous()
    newer = request.param == TREES
    sizes = draft_config(
        tiny.model.config.to_dict(),
        layers=LAYERS,
        draft_vocabulary_size=len(ids),
        depth=2 if newer else 1,
        newer=newer,
    )
    weights = deepened(weights, sizes) if newer else weights
    save_file(weights, folder / WEIGHTS)
    Vocabulary(ids, size).save(folder / VOCABULARY)
    (folder / CONFIG).write_text(json.dumps(sizes.to_json()))
    (folder / PROMPTS).write_text("{}\n")
    samples = [tiny.sample(prompt, prompt) for prompt in prompts]
    draft = Draft(sizes)
    draft.load_state_dict(weights)
    proposals = corpus.proposed(draft, Vocabulary(ids, size), samples, tiny.embedding, steps=2)
    held_out.save(folder / HELD_OUT, samples, torch.float32, proposals)
    result = TrainResult(
        steps=1,
        tokens=1,
        loss=1.0,
        accuracy=accuracy(draft, Vocabulary(ids, size), samples, tiny.folder, tiny.embedding),
        expected_accept_lengths=[1.0],
        held_out=len(prompts),
        vocabulary_size=len(ids),
        vocabulary_coverage=0.9,
        tokens_per_second=1.0,
    )
    artifacts.publish(
        folder,
        stage="train",
        key="7e" * 32,
        made_from={"target": target_digest(tiny.folder)},
        numbers=result.to_json(),
        provenance={},
    )
    return folder


def made_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


def convert_config(tiny: Reference, folder: Path, **source: Any) -> ConvertConfig:
    return ConvertConfig(
        owner=ObjectReference(namespace="n", name="draft", uid="u"),
        key="c0" * 32,
        folder=str(folder),
        target=str(tiny.folder),
        target_digest=target_digest(tiny.folder),
        layers=LAYERS,
        sglang_version="0.5.21",
        context_length=1024,
        arguments=["--dtype", "float32"],  # as the reference is served
        **source,
    )


@pytest.fixture(scope="module")
def converted(tiny: Reference, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ConvertResult]:
    folder = tmp_path_factory.mktemp("converted") / "draft"
    return folder, run(convert_config(tiny, folder, trained=str(trained), trained_key="7e" * 32))


@pytest.fixture(scope="module")
def original(trained: Path) -> Original:
    """The draft as others would publish it."""
    sizes = as_transformers(DraftConfig.model_validate_json((trained / CONFIG).read_bytes()))
    return Original(load_file(trained / WEIGHTS), Vocabulary.load(trained / VOCABULARY).ids, sizes, tuple(LAYERS))


@pytest.mark.parametrize("trained", [CHAIN], indirect=True)
@pytest.mark.parametrize("layout", ["speculators", "NeMo Automodel", "SpecForge training state"])
def test_a_published_draft_becomes_the_very_folder_that_its_training_would(
    tiny: Reference, original: Original, converted: tuple[Path, ConvertResult], tmp_path: Path, layout: str
) -> None:
    LAYOUTS[layout](original, made_folder(tmp_path / "published"))
    result = run(convert_config(tiny, tmp_path / "adopted", checkpoint=str(tmp_path / "published")), load=None)
    assert result.digest == converted[1].digest


@pytest.fixture(scope="module")
def adopted(
    tiny: Reference, trained: Path, original: Original, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, ConvertResult] | None:
    """The same draft as ModelOpt publishes it, rows of the head in another order: its conversion runs the target in SGLang to ask it.

    Of one layer alone: what is asked is the same forward that the server's proposals are held against, and a start takes long.
    """
    if DraftConfig.model_validate_json((trained / CONFIG).read_bytes()).depth > 1:
        return None
    folder = tmp_path_factory.mktemp("adopted")
    LAYOUTS["ModelOpt"](original, made_folder(folder / "published"))
    data = DataConfig(
        conversations=str(cached() / "data" / "train.jsonl"), max_samples=200, max_length=128, holdout=0.05
    )
    config = convert_config(tiny, folder / "draft", checkpoint=str(folder / "published"), data=data)
    report = run_stage(config.model_copy(update={"arguments": list(SERVE_ARGUMENTS)}), folder)
    assert report.ok, f"{report.reason}: {report.message}\n{(folder / 'log').read_text()}"
    return folder / "draft", ConvertResult.model_validate(report.result)


@dataclass(frozen=True)
class Served:
    """What a real server with the draft said.

    Attributes:
        answers: prompts of this module and the answers to them, each as long as it may be.
        asked: the same of the prompts that came with the adopted draft, if it was.
        proposals: of each request by its id, those of every verify step.
    """

    answers: list[tuple[list[int], Any]]
    asked: list[tuple[list[int], Any]]
    proposals: Mapping[str, list[list[int]]]


@pytest.fixture(scope="module")
def served(
    tiny: Reference,
    converted: tuple[Path, ConvertResult],
    adopted: tuple[Path, ConvertResult] | None,
    prompts: list[list[int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Served:
    folder = tmp_path_factory.mktemp("served")
    lines = (adopted[0] / PROMPTS).read_text().splitlines() if adopted is not None else []
    of_adopted = [json.loads(line)["input_ids"] for line in lines]
    record = folder / "proposals.jsonl"
    flags, asked = speculating(converted[0], TREE.steps, TREE.topk, TREE.size), prompts[:FOR_TREES]
    if adopted is not None:
        flags, asked = speculating(adopted[0], STEPS), prompts
    with sglang(tiny.folder, folder / "server.log", *flags, variables=recording(record)) as url:
        answers = [generate(url, prompt, ANSWER, ignore_eos=True) for prompt in asked]
        said = [(prompt, generate(url, prompt, ANSWER_TOKENS)) for prompt in of_adopted]
    return Served(list(zip(asked, answers, strict=True)), said, recorded(record))


@pytest.fixture(scope="module")
def reference(trained: Path) -> tuple[Draft, torch.Tensor]:
    """The draft as the trainer left it, and the ids that it knows."""
    ids = Vocabulary.load(trained / VOCABULARY).ids
    draft = Draft(DraftConfig.model_validate_json((trained / CONFIG).read_bytes()))
    draft.load_state_dict(load_file(trained / WEIGHTS))
    return draft, ids


def test_the_server_proposes_at_every_step_what_the_trained_draft_does(
    tiny: Reference, reference: tuple[Draft, torch.Tensor], served: Served
) -> None:
    """All proposals of all verify steps, each fed on the draft's own; so also the first ones after a prompt."""
    trees = reference[0].config.depth > 1
    for prompt, answer in served.answers:
        sample = tiny.sample(prompt, answer["output_ids"])
        of_draft = (*reference, sample, tiny.embedding, len(prompt))
        steps = list(expected_trees(*of_draft, TREE) if trees else expected(*of_draft, STEPS))
        assert served.proposals[answer["meta_info"]["id"]][: len(steps)] == steps
        assert len(steps) == answer["meta_info"]["spec_verify_ct"]


def test_the_server_takes_as_many_verify_steps_as_the_replay_says_and_with_trees_fewer(
    tiny: Reference,
    converted: tuple[Path, ConvertResult],
    reference: tuple[Draft, torch.Tensor],
    served: Served,
) -> None:
    assert converted[1].parity_error == 0.0
    assert set(converted[1].equal_proposals or []) == {1.0}
    measured, by_replay = [], []
    for prompt, answer in served.answers:
        sample = tiny.sample(prompt, answer["output_ids"])
        by_replay.append(replayed(*reference, sample, tiny.embedding, tiny.head, STEPS))
        measured.append((len(answer["output_ids"]) - 1, answer["meta_info"]["spec_verify_ct"]))
    tokens, steps = map(sum, zip(*measured, strict=True))
    assert 1.2 < tokens / steps < STEPS + 0.5  # neither useless nor perfect, or it would show little
    if reference[0].config.depth == 1:
        assert measured == by_replay
    else:
        assert steps < sum(of_answer for _, of_answer in by_replay)


@pytest.mark.parametrize("trained", [CHAIN], indirect=True)
def test_an_adopted_draft_is_accepted_as_its_conversion_expected(
    adopted: tuple[Path, ConvertResult] | None, converted: tuple[Path, ConvertResult], served: Served
) -> None:
    """The conversion asked SGLang's engine and ran the draft itself; here a server does both, on the same prompts."""
    assert adopted is not None
    assert adopted[1].digest != converted[1].digest
    result = adopted[1]
    assert result.expected_accept_lengths is not None
    assert result.accuracy is not None
    assert result.chance is not None
    assert result.accuracy[0] > result.chance + 0.2
    tokens = sum(len(answer["output_ids"]) - 1 for _, answer in served.asked)
    steps = sum(answer["meta_info"]["spec_verify_ct"] for _, answer in served.asked)
    assert tokens / steps == pytest.approx(result.expected_accept_lengths[STEPS - 1])
