"""What the target answers inside an extraction is what its server answers, and what is stored of it is what that server's draft gets."""

import json
import signal
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import environment
import pytest
import torch

from eagle3_api.conditions import Reason
from eagle3_api.jobs import DataConfig, ExitCode, ExtractConfig, SamplingDefaults
from eagle3_api.spec import Regenerate
from eagle3_draft.data.conversations import Conversations
from eagle3_draft.features import Features, Sample
from eagle3_draft.inspect.target import end_tokens
from served import drafts
from served.extraction import TOLERANCE, Extraction, conversations, every, in_sglang, python_path
from served.injection import injected
from served.server import sglang, speculating
from testcluster.wait import wait_for
from tiny import grammar
from tiny.flags import SERVE_ARGUMENTS
from tiny.make import cached

pytestmark = pytest.mark.timeout(600)

ANSWER_TOKENS = 40

#: Two kernels of SGLang's seeded sampler that need a GPU: the one hashes, the other adds up alike in every batch.
STAND_INS = {
    "sglang.kernels.ops.sampling.murmur_hash": """
def murmur_hash32(seed, positions, col_indices):
    mixed = seed[:, None].long() * 0x9E3779B1 + positions[:, None].long() * 0x85EBCA6B + col_indices.long() * 0xC2B2AE35
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed = mixed & 0xFFFFFFFF
        mixed = (mixed ^ (mixed >> shift)) * factor
    return mixed & 0xFFFFFFFF
""",
    "sglang.srt.batch_invariant_ops": "enable_batch_invariant_mode = lambda: None",
}

#: In SGLang's draft: leaves the states of the target that it is given, of the only request that is served at a time.
RECEIVED = """
def received(self, input_ids, positions, forward_batch, *args, forward=LlamaModel.forward, **kwargs):
    states = forward_batch.spec_info.hidden_states
    if states.shape[-1] > self.config.hidden_size:  # a draft's own, which a chain feeds on, are as wide as one layer's
        name = "%08d.pt" % len(os.listdir({folder!r}))
        torch.save((forward_batch.rids, positions, input_ids, states), os.path.join({folder!r}, name))
    return forward(self, input_ids, positions, forward_batch, *args, **kwargs)
import os
LlamaModel.forward = received
"""


@pytest.fixture(scope="module")
def tiny() -> Path:
    return cached(environment.ensure() / "bin" / "python3")


#: Where it goes on from depends on the answer before, of which the data has another one than the target gives.
GONE_ON = [
    [
        {"role": "user", "content": f"count from {number} in threes"},
        {"role": "assistant", "content": "5 6 7"},
        {"role": "user", "content": "go on in fives"},
        {"role": "assistant", "content": "12 17"},
    ]
    for number in (63, 90, 105, 111, 117)
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return conversations(
        tmp_path_factory.mktemp("data") / "data.jsonl", [*GONE_ON, *grammar.conversations(seed=37, count=13)]
    )


@dataclass(frozen=True)
class Answered:
    """Extractions in which the target answered, by one engine: at temperature 0, and drawn five times, once with another seed and
    twice of the likeliest tokens alone, as the object says or as the target's own defaults do."""

    greedy: ExtractConfig
    drawn: ExtractConfig
    again: ExtractConfig
    otherwise: ExtractConfig
    narrow: ExtractConfig
    by_default: ExtractConfig


@pytest.fixture(scope="module")
def answered(tiny: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Answered:
    folder = tmp_path_factory.mktemp("answered")
    asked = Extraction(folder, tiny / "models" / "tiny-target", data)

    def config(name: str, samples: int, defaults: SamplingDefaults | None = None, **how: Any) -> ExtractConfig:
        of_data = DataConfig(
            conversations=str(data),
            max_length=256,
            holdout=0.2,
            max_samples=samples,
            regenerate=Regenerate(max_tokens=ANSWER_TOKENS, **how),
        )
        return asked.config(
            data=of_data,
            folder=str(folder / name),
            end_tokens=end_tokens(asked.target),
            sampling_defaults=defaults,
            arguments=[*SERVE_ARGUMENTS, "--enable-deterministic-inference"],
        )

    all_of_them = Answered(
        config("greedy", 18),
        config("drawn", 4, temperature=0.8),
        config("again", 4, temperature=0.8),
        config("otherwise", 4, temperature=0.8, seed=1),
        config("narrow", 4, temperature=0.8, top_p=1e-6),
        config("by-default", 4, SamplingDefaults(top_k=1), temperature=0.8),
    )
    files = []
    for name, of_one in vars(all_of_them).items():
        files.append(folder / f"{name}.json")
        files[-1].write_text(of_one.model_dump_json(by_alias=True))
    command, env = in_sglang(
        Path(__file__).with_name("answering.py"),
        *files,
        PYTHONPATH=python_path(injected(folder / "site", STAND_INS)),
    )
    found = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return all_of_them


def answers(config: ExtractConfig) -> dict[str, list[dict[str, Any]]]:
    """The recorded answers of each conversation, by its digest."""
    return {
        line["conversation"]: line["answers"]
        for path in sorted(Path(config.folder).glob("part-*/answers.jsonl"))
        for line in map(json.loads, path.open())
    }


def test_answers_that_are_drawn_are_drawn_the_same_by_the_same_seed_and_recorded_with_it(answered: Answered) -> None:
    drawn, again, otherwise, narrow, greedy = map(
        answers, (answered.drawn, answered.again, answered.otherwise, answered.narrow, answered.greedy)
    )
    assert drawn == again
    assert drawn.keys() == otherwise.keys() < greedy.keys()
    assert drawn != otherwise
    assert drawn != narrow == answers(answered.by_default) == {digest: greedy[digest] for digest in drawn}
    features = Features.open(Path(answered.otherwise.folder))
    how = json.loads(features.manifest.made_from["regenerate"])
    assert (how["temperature"], how["seed"]) == (0.8, 1)
    # Learned from are the tokens that were drawn, not those that are likeliest
    learned = [sample.input_ids[sample.loss_mask.bool()].tolist() for sample in every(features)]
    assert sorted(learned) == sorted(
        [token for answer in of_one for token in answer["ids"]] for of_one in otherwise.values()
    )


@dataclass(frozen=True)
class Served:
    """What a server of the same target with a draft said to the same questions, one after the other.

    Attributes:
        replies: to each turn of each conversation, given the recorded answers before it.
        otherwise: to the second turn of some, given the data's own first answer; and what was recorded there.
        received: files of what the draft got, one a forward.
    """

    replies: Mapping[str, list[dict[str, Any]]]
    otherwise: Sequence[tuple[str, str]]
    received: Path


@pytest.fixture(scope="module")
def served(answered: Answered, tiny: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("served")
    received = folder / "received"
    received.mkdir()
    site = injected(folder / "site", {"sglang.srt.models.llama_eagle3": RECEIVED.format(folder=str(received))})
    recorded = answers(answered.greedy)
    # In the data's own, answers stand between the questions
    own = {
        tuple(
            message["content"] for message in conversation.messages if message["role"] == "user"
        ): conversation.messages
        for conversation in Conversations.read(data)
    }
    replies: dict[str, list[dict[str, Any]]] = {}
    otherwise = []
    flags = [*speculating(drafts.trained(tiny), 3), "--disable-radix-cache"]
    target, path = tiny / "models" / "tiny-target", {"PYTHONPATH": str(site)}
    with sglang(target, folder / "server.log", *flags, variables=path) as url:
        for conversation in Conversations.of(answered.greedy.data):
            of_one = recorded[conversation.digest.hex()]
            said: list[dict[str, str]] = []
            replies[conversation.digest.hex()] = []
            for question, answer in zip(conversation.messages, of_one, strict=False):
                said.append(question)
                replies[conversation.digest.hex()].append(chat(url, said))
                said.append({"role": "assistant", "content": answer["text"]})
            theirs = own[tuple(message["content"] for message in conversation.messages)]
            if theirs in GONE_ON:
                otherwise.append((chat(url, theirs[:3])["message"]["content"], of_one[1]["text"]))
    return Served(replies, otherwise, received)


def test_answers_are_the_servers_own_each_given_those_before_it(answered: Answered, served: Served) -> None:
    """A second question is asked after the target's own first answer: after the one in the data it is answered otherwise."""
    recorded = answers(answered.greedy)
    for digest, of_one in recorded.items():
        replies = served.replies[digest]
        assert [reply["message"]["content"] for reply in replies] == [answer["text"] for answer in of_one]
        assert [reply["finish_reason"] == "stop" for reply in replies] == [answer["ended"] for answer in of_one]
    assert {answer["ended"] for of_one in recorded.values() for answer in of_one} == {True, False}
    assert len(served.otherwise) == len(GONE_ON)
    assert all(reply != answer for reply, answer in served.otherwise)


def test_the_states_that_the_servers_draft_gets_are_those_that_are_stored(answered: Answered, served: Served) -> None:
    """Of prompts, from their prefill, and of answers, from their verification."""
    stored = list(every(Features.open(Path(answered.greedy.folder))))
    rows = received(served.received)
    rows_of_answers = 0
    for replies in served.replies.values():
        for reply in replies:
            known = reply["prompt"] + reply["tokens"] - 1  # the last token's row is never computed
            got = {position: row for position, row in rows[reply["request"]].items() if position < known}
            sample = the_one_that_begins(stored, [got[position][0] for position in sorted(got)])
            assert set(range(reply["prompt"])) <= got.keys()
            rows_of_answers += len(got) - reply["prompt"]
            states = torch.stack([got[position][1] for position in sorted(got)])
            assert float((states - sample.hidden[sorted(got)]).abs().max()) < TOLERANCE
    assert rows_of_answers > 200


def received(folder: Path) -> dict[str, dict[int, tuple[int, torch.Tensor]]]:
    """Of each request, at each position the next token and the state that the draft got with it.

    What was proposed and not accepted is at the positions of what came instead, which is told later.
    """
    found: dict[str, dict[int, tuple[int, torch.Tensor]]] = {}
    for path in sorted(folder.iterdir()):
        (request, *_), positions, following, states = torch.load(path)
        rows = zip(positions.tolist(), following.tolist(), states, strict=True)
        found.setdefault(request, {}).update({position: (token, state) for position, token, state in rows})
    return found


def the_one_that_begins(samples: Sequence[Sample], following: Sequence[int]) -> Sample:
    """The sample whose tokens, from the second on, are these."""
    (found,) = {
        id(sample): sample for sample in samples if sample.input_ids[1 : len(following) + 1].tolist() == following
    }.values()
    return found


@pytest.mark.long
def test_sigterm_while_it_answers_ends_it_resumably_and_what_was_answered_stays(tiny: Path, tmp_path: Path) -> None:
    found = Extraction(tmp_path, tiny / "models" / "tiny-target", tiny / "data" / "train.jsonl")
    data = DataConfig(
        conversations=str(found.data), max_length=256, holdout=0.2, max_samples=64, regenerate=Regenerate()
    )
    config = found.config(data=data, end_tokens=end_tokens(found.target))
    process = found.start(config)
    working = found.folder / "features/part-00000-of-00001/.answers.jsonl"
    wait_for("an answer", 120, lambda: working.is_file() and working.read_bytes().count(b"conversation") > 4)
    process.send_signal(signal.SIGTERM)
    ending = found.end(process)
    assert (ending.code, ending.report.reason) == (ExitCode.INTERRUPTED, Reason.INTERRUPTED)
    assert "last words" not in ending.report.message
    before = working.read_bytes().strip().splitlines()
    assert 4 < len(before) < 64
    assert found.run(config).result.conversations == 64
    after = (working.with_name("answers.jsonl")).read_bytes().splitlines()
    assert set(before) <= set(after)


def chat(url: str, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """The server's greedy answer, as a client gets it, with its request's id and the tokens of both."""
    body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": ANSWER_TOKENS}
    request = urllib.request.Request(  # noqa: S310 - our own server's
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        found = json.load(answer)
    choice: dict[str, Any] = found["choices"][0]
    tokens = found["usage"]
    return choice | {"request": found["id"], "prompt": tokens["prompt_tokens"], "tokens": tokens["completion_tokens"]}
