"""What is extracted is what the target computes, whole or not at all, and is not computed twice."""

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers  # type: ignore[import-untyped]
from transformers import AutoModelForCausalLM, GraniteConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from eagle3_api.artifacts import MANIFEST, PROMPTS, REPORT
from eagle3_api.checkpoints.safetensors import read_header
from eagle3_api.conditions import Reason
from eagle3_api.jobs import (
    DataConfig,
    ExitCode,
    ExtractConfig,
    ExtractResult,
    ObjectReference,
    ObjectStoreConfig,
    Progress,
    Report,
    StageName,
)
from eagle3_api.manifest import File, Manifest
from eagle3_draft.data.conversations import Conversations
from eagle3_draft.data.tokenizer_files import template_digest, tokenizer_digest
from eagle3_draft.errors import StageError
from eagle3_draft.extract import parts, run, whole
from eagle3_draft.extract.engine import Answering, AskerT, Engine, Sampling, States
from eagle3_draft.extract.handover import folder_on_disk
from eagle3_draft.extract.inputs import Inputs
from eagle3_draft.extract.space import require_part
from eagle3_draft.extract.texts import AsTheyStand
from eagle3_draft.extract.transformers_engine import TransformersEngine
from eagle3_draft.features import Features, LastState, Sample, TopK
from eagle3_draft.files import write_atomic
from eagle3_draft.inspect.target import target_digest
from eagle3_draft.runtime import progress
from eagle3_draft.runtime.child import failure
from eagle3_draft.storage import artifacts
from eagle3_draft.storage.places import Volume
from served.volume import small_volume
from testcluster.wait import wait_for

pytestmark = pytest.mark.stages  # each goes through a whole stage, which takes seconds

KEY = "ec" * 32
WORDS = ["<unk>", "<s>", "<end>", "<user>", "<assistant>", *(f"w{i}" for i in range(59))]
TEMPLATE = (
    "<s>{% for m in messages %} <{{ m.role }}> {{ m.content }} <end>{% endfor %}"
    "{% if add_generation_prompt %} <assistant>{% endif %}"
)
SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}


def save_target(folder: Path, config: Any) -> Path:
    """A target of random weights, with a tokenizer of whole words."""
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config)
    model.save_pretrained(folder)
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(WORDS[1:5])
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="<end>", chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    return folder


def talks(count: int) -> list[list[dict[str, str]]]:
    draw = random.Random(7)

    def say() -> str:
        return " ".join(f"w{draw.randrange(50)}" for _ in range(draw.randrange(1, 12)))

    return [
        [{"role": role, "content": say()} for _ in range(draw.randrange(1, 3)) for role in ("user", "assistant")]
        for _ in range(count)
    ]


class World:
    def __init__(self, folder: Path, target: Path) -> None:
        self.folder = folder
        self.target = target
        self.data = folder / "train.jsonl"
        self.write(talks(60))

    def write(self, conversations: Sequence[Sequence[dict[str, str]]]) -> None:
        self.data.write_text("".join(json.dumps({"messages": one}) + "\n" for one in conversations))

    def config(self, **changes: Any) -> ExtractConfig:
        return ExtractConfig(
            **{
                "owner": ObjectReference(namespace="llm", name="tiny", uid="u"),
                "key": KEY,
                "folder": str(self.folder / "features"),
                "target": str(self.target),
                "target_digest": target_digest(self.target),
                "data": DataConfig(conversations=str(self.data), max_length=64, holdout=0.2),
                "data_digest": Conversations.read(self.data).sha256,
                "layers": [-1, 0, 2],
                "dtype": "fp32",
                "sglang_version": "0.5.21",
                **changes,
            }
        )

    def features(self) -> Features:
        return Features.open(self.folder / "features")

    def files(self) -> list[File]:
        """All that was published, of the parts and of the whole."""
        folder = self.folder / "features"
        whole = artifacts.read(folder)
        of_parts = (file.within(part) for part, of in artifacts.parts(folder, whole).items() for file in of.files)
        return [*whole.files, *of_parts]


@pytest.fixture
def world(tmp_path: Path, target: Path) -> World:
    return World(tmp_path, target)


def engine(config: ExtractConfig) -> TransformersEngine:
    return TransformersEngine.load(Path(config.target), config.layers, arguments=config.arguments)


class FaultyEngine:
    """An engine that does something else at one of its conversations, to inject a fault."""

    def __init__(self, real: Engine, at: int, fault: Callable[[States], States]) -> None:
        self.hidden_size, self.vocabulary_size, self.provenance = (
            real.hidden_size,
            real.vocabulary_size,
            real.provenance,
        )
        self.calls = 0
        self._real, self._at, self._fault = real, at, fault

    def states(self, conversations: Sequence[Sequence[int]]) -> Iterator[States]:
        for states in self._real.states(conversations):
            self.calls += 1
            yield self._fault(states) if self.calls == self._at else states

    def converse(self, sampling: Sampling) -> Answering[AskerT]:
        return self._real.converse(sampling)

    def close(self) -> None:
        self._real.close()


def truth(target: Path, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Outputs of the modules themselves, by hooks: what transformers calls hidden states is not asked."""
    model = LlamaForCausalLM.from_pretrained(target)
    inner: Any = model.model
    seen: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[[Any, Any, Any], None]:
        def hook(_: Any, __: Any, output: Any) -> None:
            seen[name] = (output[0] if isinstance(output, tuple) else output).reshape(len(ids), -1)

        return hook

    inner.embed_tokens.register_forward_hook(keep("-1"))
    for index, layer in enumerate(inner.layers):
        layer.register_forward_hook(keep(str(index)))
    inner.norm.register_forward_hook(keep("last"))
    with torch.inference_mode():
        seen["logits"] = model(input_ids=ids[None].long()).logits[0]
    seen["head"] = model.lm_head.weight.detach()
    return seen


def every(features: Features) -> Iterator[Sample]:
    yield from features.train
    yield from features.held_out


def test_features_are_the_outputs_of_the_layers_that_were_asked_for(world: World) -> None:
    """Of the last layer, too, before the final norm."""
    run(world.config(layers=[-1, 0, 2, 3]))
    sample = max(world.features().train, key=len)
    seen = truth(world.target, sample.input_ids)
    expected = torch.cat([seen["-1"], seen["0"], seen["2"], seen["3"]], dim=-1)
    torch.testing.assert_close(sample.hidden, expected, rtol=1e-5, atol=1e-6)
    off_by_one = torch.cat([seen["0"], seen["1"], seen["3"], seen["last"]], dim=-1)
    assert all(
        (part - other).abs().max() > 1e-2
        for part, other in zip(sample.hidden.chunk(4, -1), off_by_one.chunk(4, -1), strict=True)
    )
    told = sample.teaching
    assert isinstance(told, LastState)
    torch.testing.assert_close(told.last, seen["last"], rtol=1e-5, atol=1e-6)
    assert (told.last - seen["3"]).abs().max() > 1e-2
    torch.testing.assert_close(told.last @ seen["head"].T, seen["logits"], rtol=1e-4, atol=1e-5)
    assert torch.equal(told.greedy.long(), seen["logits"].argmax(-1))
    torch.testing.assert_close(told.log_normaliser, seen["logits"].logsumexp(-1), rtol=1e-5, atol=1e-5)


def test_with_top_k_only_the_most_likely_tokens_are_kept_of_the_answers(world: World) -> None:
    run(world.config(teacher="TopK"))
    sample = max(world.features().train, key=len)
    logits = truth(world.target, sample.input_ids)["logits"]
    told = sample.teaching
    assert isinstance(told, TopK)
    assert torch.equal(told.greedy.long(), logits.argmax(-1))
    expected = logits.log_softmax(-1).gather(-1, told.top_tokens.long())
    torch.testing.assert_close(told.top_log_probabilities.float(), expected, rtol=1e-3, atol=1e-3)
    assert bool((told.top_log_probabilities.diff(dim=-1) <= 0).all())
    names = {file.path for file in world.files() if file.path.endswith("train-00000.safetensors")}
    assert all("last" not in read_header(world.folder / "features" / name).tensors for name in names)


def test_every_conversation_is_there_once_and_knows_which_tokens_are_the_assistants(world: World) -> None:
    result = run(world.config())
    features = world.features()
    found = {" ".join(WORDS[i] for i in sample.input_ids.tolist()): sample for sample in every(features)}
    for messages in talks(60):
        words, mask = ["<s>"], [0]
        for message in messages:
            content = message["content"].split()
            words += [f"<{message['role']}>", *content, "<end>"]
            spoken = message["role"] == "assistant"
            mask += [0, *[int(spoken)] * (len(content) + 1)]
        assert found[" ".join(words)].loss_mask.tolist() == mask
    assert len(found) == 60
    assert (result.conversations, result.held_out) == (60, len(features.held_out))
    assert result.tokens == sum(len(sample) for sample in every(features))
    assert result.supervised_tokens == sum(int(sample.loss_mask.sum()) for sample in every(features))
    assert 1 <= result.held_out <= 25
    assert result.tokens_per_second > 0
    held = {tuple(sample.input_ids.tolist()) for sample in features.held_out}
    assert not held & {tuple(sample.input_ids.tolist()) for sample in features.train}


def test_the_manifest_says_what_the_features_are_and_were_made_from(world: World) -> None:
    config = world.config(dtype="bf16", target_revision="c0ffee")
    run(config)
    features = world.features()
    numbers = features.manifest.numbers
    assert numbers["layers"] == [-1, 0, 2]
    assert (numbers["hidden_size"], numbers["dtype"], numbers["last_norm"]) == (32, "bf16", "final")
    assert numbers["vocabulary_size"] == 64
    assert features.train[0].hidden.dtype == torch.bfloat16
    made_from = features.manifest.made_from
    assert (made_from["target"], made_from["data"]) == (config.target_digest, config.data_digest)
    assert not {"engine", "templateDay"} & made_from.keys()
    assert made_from["chatTemplate"] == template_digest(TEMPLATE) == numbers["chat_template_digest"]
    assert numbers["tokenizer_digest"] == tokenizer_digest(world.target)
    provenance = features.manifest.provenance
    assert provenance["targetRevision"] == "c0ffee"
    assert provenance["layerConvention"] == "output of the decoder layer, from 0; -1 is the embedding's"
    assert features.manifest.provenance["engine"].startswith("transformers ")


def test_the_manifest_says_by_which_settings_of_the_engine_the_states_were_computed(world: World) -> None:
    run(world.config(arguments=["--kv-cache-dtype=fp8_e4m3", "--dtype", "float32", "--log-level", "info"]))
    assert json.loads(world.features().manifest.made_from["engine"]) == [
        "--dtype float32",
        "--kv-cache-dtype fp8_e4m3",
    ]


def test_the_template_that_rendered_the_conversations_is_kept_though_the_objects_own_is_edited_later(
    world: World,
) -> None:
    own = world.folder / "own.jinja"
    own.write_text(text := TEMPLATE + "{# häßlich #}{{ strftime_now('') }}\n")
    run(
        world.config(data=DataConfig(conversations=str(world.data), max_length=64, holdout=0.2, chat_template=str(own)))
    )
    own.write_text("another")
    folder = world.folder / "features"
    assert artifacts.verified(folder, "chat_template.jinja").read_text() == text
    of_file = artifacts.read(folder).file("chat_template.jinja")
    made_from = artifacts.read(folder).made_from
    assert of_file.sha256 == made_from["chatTemplate"]
    assert made_from["templateDay"] == "2026-06-15"  # it asks what day it is
    prompts = artifacts.verified(folder, "prompts.jsonl").read_text().splitlines()
    assert {json.loads(line)["day"] for line in prompts} == {"2026-06-15"}


def test_prompts_are_held_out_conversations_up_to_the_assistants_last_turn(world: World) -> None:
    run(world.config())
    path = artifacts.verified(world.folder / "features", "prompts.jsonl")
    prompts = [json.loads(line) for line in path.read_text().splitlines()]
    held = world.features().held_out
    assert len(prompts) == len(held)
    for prompt, sample in zip(prompts, held, strict=True):
        assert prompt["messages"][-1]["role"] == "user"
        ids = prompt["input_ids"]
        assert sample.input_ids[: len(ids)].tolist() == ids
        assert int(sample.loss_mask[len(ids)]) == 1
        assert int(sample.loss_mask[len(ids) - 1]) == 0


def no_engine(_: ExtractConfig) -> Engine:
    raise AssertionError("the target was loaded")


def test_a_finished_extraction_is_not_done_again(world: World) -> None:
    first = run(world.config())
    assert run(world.config(), load=no_engine) == first


def test_sigterm_ends_it_between_conversations_and_the_next_run_goes_on(world: World, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = World(tmp_path / "whole", world.target)
    run(whole.config(), shard_bytes=20_000)

    def terminated(states: States) -> States:
        os.kill(os.getpid(), signal.SIGTERM)
        return states

    stopped = FaultyEngine(engine(world.config()), 30, terminated)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StageError) as raised:
        run(world.config(), load=lambda _: stopped, shard_bytes=20_000)
    assert (raised.value.code, raised.value.reason) == (ExitCode.INTERRUPTED, Reason.INTERRUPTED)
    assert signal.getsignal(signal.SIGTERM) == before
    assert stopped.calls == 30

    rest = FaultyEngine(engine(world.config()), 0, terminated)
    result = run(world.config(), load=lambda _: rest, shard_bytes=20_000)
    assert 30 <= rest.calls < 60
    assert result.conversations == 60
    assert tensors_of(world) == tensors_of(whole)


def test_a_pod_looks_before_each_conversation_that_it_renders_whether_it_is_to_end(world: World) -> None:
    """One with many calls takes seconds to render, and dozens of them longer than a pod is given to end."""
    looks: list[int] = []

    def look() -> None:
        looks.append(len(looks))
        if len(looks) == 3:
            raise InterruptedError

    inputs = Inputs.open(world.config())
    (part,) = parts.cut(len(inputs.conversations))
    texts = AsTheyStand(inputs, [part], look, progress.ProgressReporter(1, "conversations"))
    with pytest.raises(InterruptedError):
        texts.of(part)
    texts.close()


def test_a_killed_extraction_leaves_no_artifact_and_goes_on(world: World) -> None:
    config = world.config()
    real = engine(config)

    def killed(_: States) -> States:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")

    child = os.fork()
    if child == 0:
        run(config, load=lambda _: FaultyEngine(real, 30, killed), shard_bytes=20_000)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert artifacts.finished(world.folder / "features", KEY) is None
    assert len(list((world.folder / "features").rglob("train-*.safetensors"))) > 1
    rest = FaultyEngine(real, 0, killed)
    assert run(config, load=lambda _: rest, shard_bytes=20_000).conversations == 60
    assert 30 < rest.calls < 60


def extract(world: World, shards: int, index: int, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> ExtractResult:
    """One pod of an Indexed Job, with parts of ten conversations."""
    monkeypatch.setenv("JOB_COMPLETION_INDEX", str(index))
    return run(world.config(shards=shards), part_conversations=10, **changes)


def tensors_of(world: World) -> dict[str, str]:
    """Digests of all files with tensors, by their paths."""
    return {file.path: file.sha256 for file in world.files() if file.path.endswith(".safetensors")}


def test_pods_share_the_parts_and_the_last_one_publishes_the_whole(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alone").mkdir()
    alone = World(tmp_path / "alone", world.target)
    whole = extract(alone, 1, 0, monkeypatch)
    assert (whole.whole, whole.parts, whole.conversations) == (True, 6, 60)

    first = extract(world, 2, 0, monkeypatch)
    assert (first.whole, first.parts) == (False, 3)
    assert artifacts.finished(world.folder / "features", KEY) is None
    second = extract(world, 2, 1, monkeypatch)
    assert second.whole
    assert tensors_of(world) == tensors_of(alone)
    assert [len(sample) for sample in every(world.features())] == [len(sample) for sample in every(alone.features())]
    assert (second.conversations, second.held_out, second.tokens) == (60, whole.held_out, whole.tokens)
    assert extract(world, 2, 0, monkeypatch) == second


def test_another_number_of_pods_goes_on_with_the_same_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    extract(world, 3, 1, monkeypatch)
    counting = FaultyEngine(engine(world.config()), 0, infinite)
    result = extract(world, 1, 0, monkeypatch, load=lambda _: counting)
    assert result.whole
    assert counting.calls == 40


def test_the_whole_is_published_though_every_pod_left_before_it_saw_the_last_part(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in (0, 1):
        extract(world, 2, index, monkeypatch)
    (world.folder / "features" / "manifest.json").unlink()
    assert extract(world, 2, 0, monkeypatch, load=no_engine).whole


def test_a_pod_whose_files_another_one_cleaned_up_while_it_published_the_same_publishes_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has not come to its manifest yet."""
    extract(world, 2, 0, monkeypatch)
    write, lost = write_atomic, list[Path]()

    def loses_the_first(path: Path, data: bytes) -> None:
        if path == world.folder / "features" / REPORT and not lost:
            lost.append(path)
            raise FileNotFoundError(path)
        write(path, data)

    monkeypatch.setattr("eagle3_draft.extract.whole.write_atomic", loses_the_first)
    assert extract(world, 2, 1, monkeypatch).whole
    assert lost
    assert artifacts.finished(world.folder / "features", KEY) is not None


def test_many_parts_are_asked_for_side_by_side(tmp_path: Path) -> None:
    """One after the other, those of a large store in a slow bucket would take so long that the Job counts as hung."""
    together = threading.Barrier(artifacts.READ_TOGETHER)

    class Far(Volume):
        def finished(self, folder: Path, key: str) -> Manifest | None:
            together.wait(30)
            return super().finished(folder, key)

    every = parts.cut(artifacts.READ_TOGETHER, 1)
    for part in every[::2]:
        (tmp_path / part.name).mkdir()
        artifacts.publish(
            tmp_path / part.name, stage="extract", key=KEY, made_from={}, numbers={"of": part.number}, provenance={}
        )
    found = whole.finished(tmp_path, Far(), every, KEY)
    assert {part: manifest.numbers["of"] for part, manifest in found.items()} == {
        part: part.number for part in every[::2]
    }


def test_parts_of_another_cut_are_no_part_of_the_store(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what a user calls so; where a link leads to stays."""
    extract(world, 2, 0, monkeypatch)
    theirs = world.folder / "theirs"
    theirs.mkdir()
    (theirs / MANIFEST).write_text("{}")
    (world.folder / "features" / "part-of-mine").symlink_to(theirs)
    (world.folder / "features" / "part-list.txt").write_text("00000")
    assert run(world.config()).parts == 1
    assert (theirs / MANIFEST).exists()
    assert [path.name for path in (world.folder / "features").glob("part-*")] == ["part-00000-of-00001"]


def test_space_that_will_not_do_is_missed_before_the_target_is_loaded(world: World) -> None:
    with pytest.raises(StageError, match=" short") as raised:
        run(world.config(), load=no_engine, part_conversations=20, free_bytes=lambda _: 100_000)
    assert (raised.value.code, raised.value.reason) == (ExitCode.DOES_NOT_FIT, Reason.STORAGE_TOO_SMALL)
    assert "60 conversations" in raised.value.message


def test_the_first_conversations_tell_whether_the_others_fit(world: World) -> None:
    """Of 150, 64 are rendered; five before them cannot be used, and need no room."""
    world.write([*([{"role": "user", "content": f"w{i}"}] for i in range(5)), *talks(150)])
    with pytest.raises(StageError, match=" short") as raised:
        run(world.config(), load=no_engine, free_bytes=lambda _: 100_000)
    ((looked_at, needed),) = re.findall(r"by the first (\d+), need ([\d.]+) MiB more", raised.value.message)
    assert 64 <= int(looked_at) <= 64 + 5
    run(world.config(), free_bytes=lambda _: int(float(needed) * 2**20) + 2**14)
    stored = sum(file.size for file in world.files())
    assert stored == pytest.approx(float(needed) * 2**20, rel=0.2)


def with_last(world: World, words: int) -> None:
    """Fifty short conversations, and in their order behind them one whose answer has so many words."""
    short = [[{"role": "user", "content": f"w{i}"}, {"role": "assistant", "content": "w0"}] for i in range(50)]
    for number in range(1000):
        said = " ".join(f"w{(number + i * i) % 50}" for i in range(words))
        odd = [{"role": "user", "content": f"w{number % 50} w{number // 50}"}, {"role": "assistant", "content": said}]
        world.write([*short, odd])
        if Conversations.read(world.data)[50].messages == odd:
            return
    raise AssertionError("no such order was found")


def test_a_pod_with_one_conversation_does_not_speak_for_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with_last(world, 40)
    token_bytes = 4 * (3 + 1) * 32 + 13
    with pytest.raises(StageError, match=r"1 conversations of 4\d tokens each, by the first 1, need .* short"):
        extract(world, 6, 5, monkeypatch, load=no_engine, free_bytes=lambda _: 20 * token_bytes)
    result = extract(world, 6, 5, monkeypatch, free_bytes=lambda _: 60 * token_bytes)
    assert (result.parts, result.conversations) == (1, 1)


def test_the_first_conversations_are_taken_of_several_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is of ten."""
    world.write(talks(150))
    with pytest.raises(StageError, match=r"150 conversations of .* by the first 64, need .* short"):
        extract(world, 2, 1, monkeypatch, load=no_engine, free_bytes=lambda _: 100_000)


def test_what_the_claim_leaves_counts_though_its_file_system_has_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inspect saw it for bytes of the data; these are the tokens that there are."""
    root = world.folder / "volume"
    root.mkdir()
    (root / "of another object").write_bytes(bytes(500_000))
    with pytest.raises(StageError, match=r"has 48[0-9].* KiB free and is"):
        run(world.config(features_capacity=1_000_000), load=no_engine, features_root=root)
    assert run(world.config(features_capacity=3_000_000), features_root=root).whole


def test_what_a_pod_s_disk_may_take_counts_where_the_parts_go_to_a_bucket(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may be far larger than the emptyDir, whose limit ends the pod. The bucket itself is not reached here."""
    bucket = ObjectStoreConfig(url="s3://features/team", endpoint="http://127.0.0.1:9", cache_bytes=100_000)

    class Elsewhere(Volume):
        keeps = False

    monkeypatch.setattr("eagle3_draft.extract.stage.place_of", lambda store, folder: Elsewhere())
    with pytest.raises(StageError, match=r"20 conversations .* pod's disk .* short.*objectStore[.]cache"):
        run(world.config(object_store=bucket), load=no_engine, part_conversations=20, features_root=world.folder)
    roomy = bucket.model_copy(update={"cache_bytes": 10**9})
    assert run(world.config(object_store=roomy), part_conversations=20, features_root=world.folder).whole


def test_a_part_that_is_larger_than_the_first_conversations_told_is_held_against_the_pod_s_disk_too() -> None:
    require_part(0, 3, 100 * 2**20, 100 * 2**20)
    with pytest.raises(
        StageError,
        match=r"part 2 of 3 takes 101.00 MiB .* has room for 100.00 MiB and is 1.00 MiB short.*objectStore[.]cache",
    ) as raised:
        require_part(1, 3, 101 * 2**20, 100 * 2**20)
    assert (raised.value.code, raised.value.reason) == (ExitCode.DOES_NOT_FIT, Reason.STORAGE_TOO_SMALL)


def test_what_was_handed_over_before_the_pod_was_killed_goes_whichever_engine_is_next(world: World) -> None:
    left = folder_on_disk(world.folder / "features", 0)
    (left / "0.safetensors").write_bytes(bytes(1000))
    seen = []

    def free(_: Path) -> int:
        seen.append(left.exists())
        return 10**9

    run(world.config(), free_bytes=free)
    assert seen == [False], "also before the free space is looked at"


def spoken(messages: Sequence[dict[str, str]]) -> str:
    return " ".join(message["content"] for message in messages)


def test_a_part_that_is_nearly_there_needs_room_for_its_rest_alone(world: World) -> None:
    def killed(_: States) -> States:
        raise RuntimeError("the engine is killed")

    with pytest.raises(RuntimeError, match="killed"):
        run(world.config(), load=lambda config: FaultyEngine(engine(config), 55, killed), shard_bytes=20_000)
    whole = sum(len(text.split()) for text in map(spoken, talks(60))) * 4 * (3 + 1) * 32
    assert run(world.config(), shard_bytes=20_000, free_bytes=lambda _: whole // 4).whole


def test_what_is_stored_already_needs_no_space_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    extract(world, 2, 0, monkeypatch)
    result = extract(world, 2, 1, monkeypatch, free_bytes=lambda _: 700_000)
    stored = sum(file.size for file in world.files())
    assert result.whole
    assert stored > 700_000


def test_what_killed_runs_left_half_written_takes_no_space_of_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, theirs = (
        world.folder / "features" / f"part-0000{number}-of-00006" / ".train-00000.safetensors.0f0f0f0f.partial"
        for number in (0, 1)
    )
    for path in (own, theirs):
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(1000))
    seen = []

    def free(_: Path) -> int:
        seen.append((own.exists(), theirs.exists()))
        return 10**9

    extract(world, 2, 0, monkeypatch, free_bytes=free)
    assert seen == [(False, True)]  # the other pod may be at work


def test_what_was_begun_under_another_key_and_never_finished_is_removed(world: World, tmp_path: Path) -> None:
    extractions = tmp_path / "extract"
    (extractions / "abandoned" / "part-00000-of-00001").mkdir(parents=True)
    (extractions / "finished").mkdir()
    (extractions / "finished" / MANIFEST).write_text("{}")
    run(world.config(folder=str(extractions / "mine")))
    assert {path.name for path in extractions.iterdir()} == {"finished", "mine"}


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    with small_volume(tmp_path / "volume", mebibytes=4) as volume:
        yield volume


def test_a_volume_that_fills_up_ends_the_extraction_by_name_and_the_next_run_goes_on(
    world: World, volume: Path
) -> None:
    config = world.config(folder=str(volume / "features"))
    filler = volume / "somebody-else"

    def fill(states: States) -> States:
        *former, third = (volume / "features" / f"part-0000{number}-of-00003" for number in range(3))
        # Threads write them, and publish a part beside the next one
        wait_for("two parts", 20, lambda: all((part / MANIFEST).exists() for part in former))
        wait_for("a shard of the third", 20, lambda: list(third.glob(".*.safetensors.json")))
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        return states

    full = FaultyEngine(engine(config), 45, fill)
    with pytest.raises(OSError, match="No space") as raised:
        run(config, load=lambda _: full, shard_bytes=20_000, part_conversations=20)
    outcome = failure(StageName.EXTRACT, KEY, raised.value)
    assert (outcome.code, outcome.report.reason) == (ExitCode.DOES_NOT_FIT, Reason.STORAGE_TOO_SMALL)
    assert "the volume is full" in outcome.report.message

    filler.unlink()
    again = FaultyEngine(engine(config), 0, infinite)
    result = run(config, load=lambda _: again, shard_bytes=20_000, part_conversations=20)
    assert (result.whole, result.conversations) == (True, 60)
    assert again.calls < 60 - 40  # two parts and the shards before the last one were there
    assert len(Features.open(volume / "features").train) == 60 - result.held_out


class AskedAhead(FaultyEngine):
    """Computes all that it is asked for at once, beside who takes it, as SGLang does."""

    def __init__(self, real: Engine, at: int, fault: Callable[[States], States]) -> None:
        super().__init__(real, at, fault)
        self.asked: list[Future[States]] = []
        self._computing = ThreadPoolExecutor(1)

    def states(self, conversations: Sequence[Sequence[int]]) -> Iterator[States]:
        found = [self._computing.submit(next, self._real.states([ids])) for ids in conversations]
        self.asked += found
        return self._taken(found)

    def _taken(self, found: Sequence[Future[States]]) -> Iterator[States]:
        for number, states in enumerate(found, 1):
            yield self._fault(states.result()) if number == self._at else states.result()

    def close(self) -> None:
        self._computing.shutdown(cancel_futures=True)
        super().close()


def test_a_part_that_cannot_be_stored_ends_the_next_one_that_was_asked_for_and_leaves_nothing_of_it(
    world: World, tmp_path: Path
) -> None:
    def full(states: States) -> States:
        raise OSError(errno.ENOSPC, "No space left on device")

    config = world.config(folder=str(tmp_path / "one"))
    ahead = AskedAhead(engine(config), 15, full)
    with pytest.raises(OSError, match="No space"):
        run(config, load=lambda _: ahead, shard_bytes=20_000, part_conversations=20)
    assert len(ahead.asked) > 20, "the second part was asked for"
    assert all(one.done() for one in ahead.asked), "and is not computed on for nobody"
    assert not (tmp_path / "one" / "part-00001-of-00003" / MANIFEST).exists()
    assert run(config, load=engine, shard_bytes=20_000, part_conversations=20).whole
    assert run(world.config(folder=str(tmp_path / "two")), load=engine, shard_bytes=20_000, part_conversations=20).whole
    assert shards(tmp_path / "one") == shards(tmp_path / "two")


def shards(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.safetensors")}


def refused(act: Callable[[], object], code: ExitCode, reason: Reason, *words: str) -> None:
    with pytest.raises(StageError) as raised:
        act()
    assert (raised.value.code, raised.value.reason) == (code, reason)
    for word in words:
        assert word in raised.value.message


def test_a_row_that_an_engine_lost_is_noticed(world: World) -> None:
    losing = FaultyEngine(engine(world.config()), 3, lambda states: States(states.hidden[1:], states.teaching))
    refused(lambda: run(world.config(), load=lambda _: losing), ExitCode.REFUSED, Reason.FEATURES_MISALIGNED)


def infinite(states: States) -> States:
    states.hidden[0, 0] = float("inf")
    return states


def test_a_conversation_whose_states_are_not_finite_is_left_out_and_counted(world: World) -> None:
    world.write(talks(150))
    result = run(world.config(), load=lambda config: FaultyEngine(engine(config), 5, infinite))
    assert result.conversations == 149
    assert result.dropped == {"hidden states not finite": 1}
    assert all(bool(sample.hidden.isfinite().all()) for sample in every(world.features()))


def test_many_states_that_are_not_finite_are_no_accident(world: World) -> None:
    bad = FaultyEngine(engine(world.config()), 5, infinite)
    refused(lambda: run(world.config(), load=lambda _: bad), ExitCode.NON_FINITE, Reason.NON_FINITE, "1 of 60")
    assert artifacts.finished(world.folder / "features", KEY) is None


def test_what_each_pod_bears_is_borne_no_more_in_their_sum(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.write(talks(150))

    def pod(index: int) -> ExtractResult:
        bad = FaultyEngine(engine(world.config()), 5, infinite)
        return extract(world, 2, index, monkeypatch, load=lambda _: bad)

    assert pod(0).dropped == {"hidden states not finite": 1}
    for _ in range(2):  # another try makes no other parts
        refused(lambda: pod(1), ExitCode.NON_FINITE, Reason.NON_FINITE, "2 of 150")
    assert artifacts.finished(world.folder / "features", KEY) is None


def test_inputs_that_changed_since_the_inspection_are_refused(world: World) -> None:
    config = world.config()
    world.write(talks(61))
    refused(lambda: run(config), ExitCode.BAD_INPUT, Reason.DATA_UNREADABLE, "must be inspected again")
    stale = world.config(target_digest="0" * 64)
    refused(lambda: run(stale), ExitCode.BAD_INPUT, Reason.TARGET_UNREADABLE, "must be inspected again")


def test_data_without_a_usable_conversation_says_what_was_left_out(world: World) -> None:
    world.write([[{"role": "user", "content": f"w{i}"}] for i in range(9)])
    refused(lambda: run(world.config()), ExitCode.BAD_INPUT, Reason.NO_USABLE_DATA, "9 no answer of the assistant")


def test_unusable_conversations_are_counted_by_why(world: World) -> None:
    unasked = [*talks(1)[0], {"role": "tool", "content": "w1"}]
    world.write([*talks(60), [{"role": "user", "content": "w1"}], talks(1)[0], unasked])
    with world.data.open("a") as file:
        file.write(json.dumps({"messages": calling("w2")}) + "\n")
        file.write(json.dumps({"messages": talks(1)[0], "tools": TOOLS}) + "\n")
    assert run(world.config()).dropped == {
        "duplicate": 1,
        "no answer of the assistant": 1,
        "tool calls that are not clear": 1,
        "tool calls left out by the chat template": 1,
        "tools left out by the chat template": 1,
    }


TOOLS = [{"type": "function", "function": {"name": "w7"}}]

#: As the target's own, with tools and calls.
CALLING = (
    "<s>{% for tool in tools or [] %} {{ tool.function.name }}{% endfor %}"
    "{% for m in messages %} <{{ 'user' if m.role == 'tool' else m.role }}> {{ m.content }}"
    "{% for call in m.tool_calls %} w8 {{ call.function.name }} w9 {{ call.function.arguments.values() | join(' ') }}{% endfor %}"
    " <end>{% endfor %}{% if add_generation_prompt %} <assistant>{% endif %}"
)


def calling(word: str) -> list[dict[str, Any]]:
    """A question, a call, what it resulted in, and an answer."""
    call = {"id": "x", "type": "function", "function": {"name": "w7", "arguments": json.dumps({"of": word})}}
    return [
        {"role": "user", "content": word},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "w3 w4", "tool_call_id": "x"},
        {"role": "assistant", "content": "w5"},
    ]


def test_calls_are_learned_from_and_what_they_result_in_is_not(world: World) -> None:
    words = [f"w{number}" for number in range(10, 40)]
    world.data.write_text("".join(json.dumps({"messages": calling(word), "tools": TOOLS}) + "\n" for word in words))
    template = world.folder / "tools.jinja"
    template.write_text(CALLING)
    data = DataConfig(conversations=str(world.data), max_length=64, holdout=0.2, chat_template=str(template))
    result = run(world.config(data=data))
    assert (result.conversations, result.dropped) == (30, {})
    found = set()
    for sample in every(world.features()):
        said = [WORDS[token] for token in sample.input_ids.tolist()]
        learned = [word for word, marked in zip(said, sample.loss_mask.tolist(), strict=True) if marked]
        asked = said[3]
        assert said[:3] == ["<s>", "w7", "<user>"]
        assert learned == ["w8", "w7", "w9", asked, "<end>", "w5", "<end>"]
        found.add(asked)
    assert found == {*words}
    lines = [json.loads(line) for line in (world.folder / "features" / PROMPTS).read_text().splitlines()]
    assert len(lines) == result.held_out
    assert all(line["tools"] == TOOLS and len(line["messages"]) == 1 for line in lines)


def test_what_conversations_lose_at_the_longest_length_is_counted(world: World, tmp_path: Path) -> None:
    """Beside what an extraction has that cuts none of them."""
    whole = run(world.config(data=DataConfig(conversations=str(world.data), max_length=128, holdout=0.2)))
    lengths = [len(sample) for sample in every(world.features())]
    assert (whole.cut, whole.lost_tokens) == (0, 0)
    world.folder = tmp_path / "cut"
    world.folder.mkdir()
    longest = sorted(lengths)[-4]
    result = run(world.config(data=DataConfig(conversations=str(world.data), max_length=longest, holdout=0.2)))
    assert result.cut == sum(length > longest for length in lengths) > 0
    assert result.lost_tokens == whole.tokens - result.tokens == sum(max(0, length - longest) for length in lengths)


def test_a_conversation_is_cut_at_one_token_less_than_the_target_s_positions_reach(world: World) -> None:
    """A server of it takes no more: it makes one token of what it is given."""
    reach = SHAPE["max_position_embeddings"]
    said = {"role": "assistant", "content": "w1 " * reach}
    world.write([[{"role": "user", "content": f"w{i}"}, said] for i in range(4)])
    run(world.config(data=DataConfig(conversations=str(world.data), max_length=10 * reach, holdout=0.2)))
    assert {len(sample) for sample in every(world.features())} == {reach - 1}


def test_a_tokenizer_of_another_model_is_noticed(world: World, tmp_path: Path) -> None:
    world.target = save_target(tmp_path / "small", LlamaConfig(**{**SHAPE, "vocab_size": 20}))
    refused(lambda: run(world.config()), ExitCode.BAD_INPUT, Reason.TARGET_UNREADABLE, "do not belong together")


def test_logits_that_are_not_the_heads_of_the_last_state_are_refused(world: World, tmp_path: Path) -> None:
    world.target = save_target(tmp_path / "scaled", GraniteConfig(**SHAPE, logits_scaling=8.0))
    refused(lambda: run(world.config()), ExitCode.REFUSED, Reason.FEATURE_MISMATCH, "Granite", "lm_head")


def test_weights_that_would_be_random_are_refused(world: World, tmp_path: Path) -> None:
    world.target = save_target(tmp_path / "holed", LlamaConfig(**SHAPE))
    path = world.target / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    refused(lambda: run(world.config()), ExitCode.BAD_INPUT, Reason.TARGET_UNREADABLE, "layers.1.mlp.up_proj")


@pytest.mark.parametrize("arguments", [["--dtype", "bfloat16"], ["--dtype=bfloat16"]])
def test_the_target_is_run_in_the_dtype_that_the_server_is_told(world: World, arguments: list[str]) -> None:
    assert engine(world.config(arguments=arguments)).provenance["dtype"] == "torch.bfloat16"
    assert engine(world.config(arguments=["--mem-fraction-static"])).provenance["dtype"] == "torch.float32"


def test_the_stage_runs_as_a_container_runs_it(world: World) -> None:
    (world.folder / "config.json").write_text(json.dumps({"config": world.config().to_json()}))
    files = {
        "EAGLE3_CONFIG": str(world.folder / "config.json"),
        "EAGLE3_TERMINATION_LOG": str(world.folder / "message"),
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.run(
        [sys.executable, "-m", "eagle3_draft", "extract"],
        env=os.environ | files,
        check=False,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    report = Report.parse((world.folder / "message").read_text())
    assert report is not None
    assert report.ok
    assert ExtractResult.model_validate(report.result).conversations == 60
    last = Progress.last(process.stdout)
    assert last is not None
    assert last.done == 1.0
