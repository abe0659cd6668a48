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
from eagle3_draft import artifacts
from eagle3_draft.convert import run
from eagle3_draft.convert.answers import ANSWER_TOKENS
from eagle3_draft.inspect.target import target_digest
from eagle3_draft.model import Draft, DraftConfig
from eagle3_draft.model.config import draft_config
from eagle3_draft.train import held_out
from eagle3_draft.train.batches import pack
from eagle3_draft.train.loss import Teacher, right_rows
from eagle3_draft.train.replay import accepted, replay
from eagle3_draft.train.vocabulary import Vocabulary
from published.layouts import LAYOUTS, Original
from served import drafts
from served.proposals import expected, recorded, recording
from served.reference import Reference
from served.server import generate, sglang, speculating
from served.stage import run_stage
from tiny.flags import AUXILIARY_LAYERS, SERVE_ARGUMENTS
from tiny.grammar import conversations
from tiny.make import cached
from unit.convert.drafts import accuracy
from unit.train import corpus

pytestmark = pytest.mark.timeout(900)

LAYERS = list(AUXILIARY_LAYERS)
STEPS = 3
#: Long enough for some dozens of verify steps, and for a draft whose cache is wrong to lose its way.
ANSWER = 48


@pytest.fixture(scope="module")
def tiny() -> Reference:
    return Reference(cached() / "models" / "tiny-target", LAYERS)


@pytest.fixture(scope="module")
def prompts(tiny: Reference) -> list[list[int]]:
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny.folder)
    return [
        tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=False)
        for messages in conversations(seed=23, count=8)
    ]


def deepened(weights: dict[str, torch.Tensor], sizes: DraftConfig) -> dict[str, torch.Tensor]:
    """A draft of more switches that still says something: what is new changes a little."""
    draft = Draft(sizes)
    draft.initialise(3)
    state = draft.state_dict() | weights
    for name in draft.state_dict().keys() - weights.keys():
        state[name] = state[name] + 0.05 * torch.randn(state[name].shape, generator=torch.Generator().manual_seed(4))
    return state


@pytest.fixture(scope="module", params=["EAGLE-3", "EAGLE-3.1, two layers"])
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
    newer = request.param != "EAGLE-3"
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
    proposals = corpus.proposed(draft, Vocabulary(ids, size), samples, tiny.folder, steps=2)
    held_out.save(folder / HELD_OUT, samples, torch.float32, proposals)
    result = TrainResult(
        steps=1,
        tokens=1,
        loss=1.0,
        accuracy=accuracy(draft, Vocabulary(ids, size), samples, tiny.folder),
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
        **source,
    )


@pytest.fixture(scope="module")
def converted(tiny: Reference, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ConvertResult]:
    folder = tmp_path_factory.mktemp("converted") / "draft"
    return folder, run(convert_config(tiny, folder, trained=str(trained), trained_key="7e" * 32))


@pytest.mark.parametrize("trained", ["EAGLE-3"], indirect=True)
@pytest.mark.parametrize("layout", ["speculators", "NeMo Automodel", "SpecForge training state"])
def test_what_is_served_below_is_also_what_a_published_draft_becomes(
    tiny: Reference, trained: Path, converted: tuple[Path, ConvertResult], tmp_path: Path, layout: str
) -> None:
    sizes = DraftConfig.model_validate_json((trained / CONFIG).read_bytes())
    layer = {
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "rms_norm_eps": sizes.rms_norm_eps,
        "rope_theta": sizes.rope_theta,
        "max_position_embeddings": sizes.max_position_embeddings,
        "vocab_size": sizes.vocabulary_size,
    }
    original = Original(load_file(trained / WEIGHTS), Vocabulary.load(trained / VOCABULARY).ids, layer, tuple(LAYERS))
    published = tmp_path / "published"
    published.mkdir()
    LAYOUTS[layout](original, published)
    result = run(convert_config(tiny, tmp_path / "adopted", checkpoint=str(published)), load=None)
    assert result.digest == converted[1].digest


@pytest.fixture(scope="module")
def adopted(
    tiny: Reference,
    trained: Path,
    converted: tuple[Path, ConvertResult],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, ConvertResult] | None:
    """The same draft, adopted: its conversion runs the target in SGLang to ask the draft about it.

    Of one layer alone: what is asked is the same forward that the server's proposals are held against, and a start takes long.
    """
    if DraftConfig.model_validate_json((trained / CONFIG).read_bytes()).depth > 1:
        return None
    folder = tmp_path_factory.mktemp("adopted")
    data = DataConfig(
        conversations=str(cached() / "data" / "train.jsonl"), max_samples=200, max_length=128, holdout=0.05
    )
    config = convert_config(tiny, folder / "draft", checkpoint=str(converted[0]), data=data)
    report = run_stage(config.model_copy(update={"arguments": list(SERVE_ARGUMENTS)}), folder)
    assert report.ok, f"{report.reason}: {report.message}\n{(folder / 'log').read_text()}"
    return folder / "draft", ConvertResult.model_validate(report.result)


@dataclass(frozen=True)
class Served:
    """What a real server with the converted draft said.

    Attributes:
        answers: to the prompts of this module, each as long as it may be.
        asked: the prompts that came with the adopted draft, if it was, and the answers to them.
        proposals: of each request by its id, those of every verify step.
    """

    answers: list[Any]
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
    with sglang(
        tiny.folder, folder / "server.log", *speculating(converted[0], STEPS), variables=recording(record)
    ) as url:
        answers = [generate(url, prompt, ANSWER, ignore_eos=True) for prompt in prompts]
        asked = [(prompt, generate(url, prompt, ANSWER_TOKENS)) for prompt in of_adopted]
    return Served(answers, asked, recorded(record))


@pytest.fixture(scope="module")
def reference(trained: Path) -> tuple[Draft, torch.Tensor]:
    """The draft as the trainer left it, and the ids that it knows."""
    ids = Vocabulary.load(trained / VOCABULARY).ids
    draft = Draft(DraftConfig.model_validate_json((trained / CONFIG).read_bytes()))
    draft.load_state_dict(load_file(trained / WEIGHTS))
    return draft, ids


def test_the_server_proposes_at_every_step_what_the_trained_draft_does(
    tiny: Reference, reference: tuple[Draft, torch.Tensor], prompts: list[list[int]], served: Served
) -> None:
    """All proposals of all verify steps, each chain fed on its own; so also the first ones after a prompt."""
    for prompt, answer in zip(prompts, served.answers, strict=True):
        sample = tiny.sample(prompt, answer["output_ids"])
        steps = list(expected(*reference, sample, tiny.embedding, len(prompt), STEPS))
        assert served.proposals[answer["meta_info"]["id"]][: len(steps)] == steps
        assert len(steps) == answer["meta_info"]["spec_verify_ct"]


@torch.no_grad()
def test_the_server_takes_as_many_verify_steps_as_the_replay_says(
    tiny: Reference,
    converted: tuple[Path, ConvertResult],
    reference: tuple[Draft, torch.Tensor],
    prompts: list[list[int]],
    served: Served,
) -> None:
    assert converted[1].parity_error == 0.0
    draft, ids = reference
    teacher = Teacher(tiny.head, ids)
    measured, replayed = [], []
    for prompt, answer in zip(prompts, served.answers, strict=True):
        sample = tiny.sample(prompt, answer["output_ids"])
        batch = pack([sample], STEPS)
        logits = draft(batch.features, tiny.embedding[batch.input_ids], batch.documents, batch.wanted)
        said = teacher.labels(batch.teaching)
        proposed = zip(logits, batch.label_rows, strict=True)
        right = batch.table([right_rows(of_step, said, rows, ids) for of_step, rows in proposed], missing=False)
        replayed.append(replay(accepted(right, STEPS).tolist(), sample.loss_mask.tolist()))
        measured.append((len(answer["output_ids"]) - 1, answer["meta_info"]["spec_verify_ct"]))
    assert measured == replayed
    tokens, steps = map(sum, zip(*measured, strict=True))
    assert 1.2 < tokens / steps < STEPS + 0.5  # neither useless nor perfect, or it would show little


@pytest.mark.parametrize("trained", ["EAGLE-3"], indirect=True)
def test_an_adopted_draft_is_accepted_as_its_conversion_expected(
    adopted: tuple[Path, ConvertResult] | None, served: Served
) -> None:
    """The conversion asked SGLang's engine and ran the draft itself; here a server does both, on the same prompts."""
    assert adopted is not None
    result = adopted[1]
    assert result.expected_accept_lengths is not None
    assert result.accuracy is not None
    assert result.chance is not None
    assert result.accuracy[0] > result.chance + 0.2
    tokens = sum(len(answer["output_ids"]) - 1 for _, answer in served.asked)
    steps = sum(answer["meta_info"]["spec_verify_ct"] for _, answer in served.asked)
    assert tokens / steps == pytest.approx(result.expected_accept_lengths[STEPS - 1])
