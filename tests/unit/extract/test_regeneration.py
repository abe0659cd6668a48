"""The target answers once, in its own tokens, and whatever interrupts it, what it has answered stays."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Generic

import pytest
import torch
from transformers import LlamaForCausalLM

from eagle3_api.conditions import Reason
from eagle3_api.jobs import DataConfig, ExitCode, ExtractConfig, Progress, SamplingDefaults
from eagle3_api.spec import Regenerate
from eagle3_draft.data.conversations import Conversations
from eagle3_draft.errors import StageError
from eagle3_draft.extract import run
from eagle3_draft.extract.engine import Answering, AskerT, Engine, Sampling, States
from eagle3_draft.features import Features, Sample
from eagle3_draft.storage import artifacts
from unit.extract.test_extract import WORDS, World, engine, every, talks

pytestmark = pytest.mark.stages  # each goes through a whole stage, which takes seconds

#: A target of random weights seldom says <end>: here every seventh token ends an answer.
ENDS = list(range(2, 64, 7))


class Asking(World):
    """A world whose target answers itself."""

    def asking(
        self, *, temperature: float = 0.0, top_p: float = 1.0, max_tokens: int = 6, **changes: Any
    ) -> ExtractConfig:
        regenerate = Regenerate(temperature=temperature, top_p=top_p, max_tokens=max_tokens)
        data = DataConfig(conversations=str(self.data), max_length=64, holdout=0.2, regenerate=regenerate)
        return self.config(**{"data": data, "end_tokens": ENDS, **changes})

    def other(self, name: str) -> "Asking":
        """One of the same conversations in a folder of its own."""
        (self.folder / name).mkdir()
        return of_talks(self.folder / name, self.target)


def of_talks(folder: Path, target: Path) -> Asking:
    made = Asking(folder, target)
    made.write(talks(24))
    return made


@pytest.fixture
def world(tmp_path: Path, target: Path) -> Asking:
    return of_talks(tmp_path, target)


class Counting:
    """An engine that counts the dialogues it is asked to finish, and stops at one of them, to inject a fault."""

    def __init__(self, real: Engine, stop_at: int = 0) -> None:
        self.hidden_size, self.vocabulary_size, self.provenance = (
            real.hidden_size,
            real.vocabulary_size,
            real.provenance,
        )
        self.asked = 0
        self.finished = 0
        self.stop_at = stop_at
        self._real = real

    def states(self, conversations: Sequence[Sequence[int]]) -> Iterator[States]:
        return self._real.states(conversations)

    def converse(self, sampling: Sampling) -> Answering[AskerT]:
        return Counted(self, self._real.converse(sampling))

    def close(self) -> None:
        self._real.close()


class Counted(Generic[AskerT]):
    """The dialogues of an engine that counts them."""

    def __init__(self, counting: Counting, real: Answering[AskerT]) -> None:
        self._counting, self._real = counting, real

    def ask(self, dialogues: Sequence[AskerT]) -> None:
        self._counting.asked += len(dialogues)
        self._real.ask(dialogues)

    def finished(self, seconds: float) -> list[AskerT]:
        found = self._real.finished(seconds)
        if found and self._counting.finished == self._counting.stop_at - 1:
            raise RuntimeError("the engine is killed")
        self._counting.finished += len(found)
        return found

    def close(self) -> None:
        self._real.close()


def runs(sample: Sample) -> list[tuple[int, int]]:
    """Beginning and end of each answer in a sample."""
    mask = [0, *sample.loss_mask.tolist(), 0]
    edges = [i for i in range(len(mask) - 1) if mask[i] != mask[i + 1]]
    return list(zip(edges[::2], edges[1::2], strict=True))


def contents(world: Asking) -> dict[str, str]:
    """Digests of features and answers."""
    files = world.files()
    return {file.path: file.sha256 for file in files if file.path.endswith((".safetensors", ".jsonl"))}


def test_what_is_learned_from_is_what_the_target_says_next_token_by_token(world: Asking) -> None:
    result = run(world.asking())
    model = LlamaForCausalLM.from_pretrained(world.target)
    samples = list(every(world.features()))
    assert result.conversations == len(samples)
    for sample in samples:
        with torch.no_grad():
            likeliest = model(sample.input_ids[None].long()).logits[0].argmax(-1)
        for start, end in runs(sample):
            assert sample.input_ids[start:end].tolist() == likeliest[start - 1 : end - 1].tolist()
            assert end - start <= 6
            assert not set(sample.input_ids[start : end - 1].tolist()) & set(ENDS)


def test_the_report_counts_answers_and_those_that_a_length_cut(world: Asking) -> None:
    result = run(world.asking())
    spoken = [sample.input_ids[start:end].tolist() for sample in every(world.features()) for start, end in runs(sample)]
    cut = sum(ids[-1] not in ENDS for ids in spoken)
    assert (result.answers, result.cut_answers) == (len(spoken), cut)
    assert 0 < cut < len(spoken)
    assert result.supervised_tokens == sum(len(ids) for ids in spoken)


@pytest.mark.parametrize(("ends", "told"), [(ENDS, True), (list(range(64)), False)])
def test_that_a_length_cuts_many_answers_is_told_while_it_runs_and_at_the_end(
    world: Asking, capsys: pytest.CaptureFixture[str], ends: list[int], told: bool
) -> None:
    """A target that reasons says what it came to behind its reasoning, and a draft would never see it."""
    result = run(world.asking(max_tokens=2, end_tokens=ends))
    assert ("raise data.regenerate.maxTokens" in result.warning) is told
    last = Progress.last(capsys.readouterr().out)
    assert last is not None
    assert ("of the first 24 conversations" in last.message) is told


def test_answers_lie_beside_the_part_with_their_tokens_and_their_text(world: Asking) -> None:
    run(world.asking())
    folder = world.folder / "features"
    lines = [
        json.loads(line)
        for line in artifacts.verified(folder / "part-00000-of-00001", "answers.jsonl").open(encoding="utf-8")
    ]
    assert len(lines) == 24
    asked = Conversations.of(world.asking().data)
    assert [line["conversation"] for line in lines] == [conversation.digest.hex() for conversation in asked]
    for answer in (answer for line in lines for answer in line["answers"]):
        spoken = answer["ids"][:-1] if answer["ended"] else answer["ids"]
        assert answer["text"].strip() == " ".join(WORDS[token] for token in spoken if token not in range(1, 5))


def test_the_answers_in_the_data_are_not_looked_at(world: Asking) -> None:
    run(world.asking())
    before = world.files()
    other = [[{**m, "content": "w1 w2"} if m["role"] == "assistant" else m for m in talk] for talk in talks(24)]
    again = world.other("again")
    again.write([*other, other[0]])
    result = run(again.asking())
    assert result.dropped == {"duplicate": 1}
    assert [file.sha256 for file in again.files() if file.path.endswith("answers.jsonl")] == [
        file.sha256 for file in before if file.path.endswith("answers.jsonl")
    ]


def test_an_interrupted_run_goes_on_with_the_dialogues_that_were_not_finished(world: Asking) -> None:
    whole = world.other("whole")
    run(whole.asking())
    killed = Counting(engine(world.asking()), stop_at=10)
    with pytest.raises(RuntimeError, match="killed"):
        run(world.asking(), load=lambda _: killed)
    assert killed.finished == 9
    working = world.folder / "features" / "part-00000-of-00001" / ".answers.jsonl"
    working.write_bytes(working.read_bytes()[:-20])  # the last line was being written
    rest = Counting(engine(world.asking()))
    run(world.asking(), load=lambda _: rest)
    assert rest.asked == 24 - 8
    assert not working.exists()
    assert contents(world) == contents(whole)


def test_parts_are_answered_once_whoever_makes_them_and_each_pod_loads_the_target_once(
    world: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Counting] = []

    def load(config: ExtractConfig) -> Counting:
        loaded.append(Counting(engine(config)))
        return loaded[-1]

    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    result = run(world.asking(shards=2), load=load, part_conversations=8)
    assert (result.whole, [pod.asked for pod in loaded]) == (False, [8])
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    result = run(world.asking(), load=load, part_conversations=8)
    assert (result.whole, [pod.asked for pod in loaded]) == (True, [8, 16])
    assert Features.open(world.folder / "features").manifest.made_from["regenerate"]


def test_prompts_are_questions_that_need_no_answer(world: Asking) -> None:
    config = world.asking()
    world.data.write_text("".join(json.dumps({"prompt": f"w{i} w{i + 1}"}) + "\n" for i in range(20)))
    data = config.data.model_copy(update={"conversations": None, "prompts": str(world.data)})
    result = run(config.model_copy(update={"data": data, "data_digest": Conversations.of(data).sha256}))
    assert result.answers == 20
    prompts = [json.loads(line) for line in (world.folder / "features" / "prompts.jsonl").open()]
    assert all(len(prompt["messages"]) == 1 and prompt["input_ids"] for prompt in prompts)


def test_what_is_drawn_is_drawn_the_same_again_and_is_not_what_is_likeliest(world: Asking) -> None:
    def spoken(name: str, temperature: float, top_p: float = 1.0, **defaults: Any) -> list[list[int]]:
        made = world.other(name)
        of_target = SamplingDefaults(**defaults) if defaults else None
        run(made.asking(temperature=temperature, top_p=top_p, sampling_defaults=of_target))
        return [sample.input_ids.tolist() for sample in every(made.features())]

    drawn = spoken("drawn", 1.5)
    assert spoken("again", 1.5) == drawn
    likeliest = spoken("likeliest", 0.0)
    assert likeliest != drawn
    assert spoken("of the likeliest alone", 1.5, top_p=1e-6) == likeliest
    assert spoken("of one, by the target's defaults", 1.5, top_k=1) == likeliest
    assert spoken("not again, by the target's defaults", 0.0, repetition_penalty=1e6) != likeliest


def test_questions_that_are_all_too_long_are_no_data(world: Asking) -> None:
    world.write([[{"role": "user", "content": " ".join(["w1"] * (70 + i))}] for i in range(9)])
    with pytest.raises(StageError) as raised:
        run(world.asking())
    assert (raised.value.code, raised.value.reason) == (ExitCode.BAD_INPUT, Reason.NO_USABLE_DATA)
    assert "9 question as long as maxLength" in raised.value.message


class Straggling(Generic[AskerT]):
    """Dialogues of which the first is told last, as one with a long answer would be, to inject the fault."""

    def __init__(self, real: Answering[AskerT], before: int) -> None:
        self._real, self._before = real, before
        self._told = 0
        self._held: list[AskerT] = []

    def ask(self, dialogues: Sequence[AskerT]) -> None:
        self._real.ask(dialogues)

    def finished(self, seconds: float) -> list[AskerT]:
        found = self._real.finished(seconds)
        if not self._told and not self._held:
            self._held, found = found, []
        self._told += len(found)
        if self._told >= self._before:
            found, self._held = [*found, *self._held], []
        return found

    def close(self) -> None:
        self._real.close()


class StragglingEngine(Counting):
    """An engine whose first dialogue takes until so many others are finished."""

    def __init__(self, real: Engine, before: int, stop_at: int = 0) -> None:
        super().__init__(real, stop_at)
        self._before = before

    def converse(self, sampling: Sampling) -> Answering[AskerT]:
        return Straggling(super().converse(sampling), self._before)


def test_the_next_parts_are_answered_while_the_longest_answer_of_a_part_is_waited_for(world: Asking) -> None:
    plain = world.other("plain")
    run(plain.asking(), part_conversations=8)
    killed = StragglingEngine(engine(world.asking()), before=18, stop_at=16)  # before the part's first is told
    with pytest.raises(RuntimeError, match="killed"):
        run(world.asking(), load=lambda _: killed, part_conversations=8)
    answered = {path.parent.name[:10] for path in (world.folder / "features").glob("part-*/.answers.jsonl")}
    assert answered == {"part-00000", "part-00001", "part-00002"}

    straggling = StragglingEngine(engine(world.asking()), before=6)
    result = run(world.asking(), load=lambda _: straggling, part_conversations=8)
    assert straggling.asked == 24 - 14  # what was told before the end was kept, whichever part it was of
    assert result.whole
    assert contents(world) == contents(plain)


class AnswersOnly(Counting):
    """An engine of which no states may be asked."""

    def states(self, conversations: Sequence[Sequence[int]]) -> Iterator[States]:
        raise AssertionError("states were computed")


@pytest.mark.parametrize("part_conversations", [512, 10])
def test_answers_that_will_not_fit_are_missed_when_the_first_ones_are_there(
    world: Asking, part_conversations: int
) -> None:
    world.write(talks(120))
    counting = AnswersOnly(engine(world.asking()))
    with pytest.raises(StageError, match="by the first 64, need") as raised:
        run(
            world.asking(),
            load=lambda _: counting,
            part_conversations=part_conversations,
            free_bytes=lambda _: 100_000,
        )
    assert (raised.value.code, raised.value.reason) == (ExitCode.DOES_NOT_FIT, Reason.STORAGE_TOO_SMALL)
    assert counting.finished == 64
