"""The probe and the judge on real SGLang: what they say of a good draft, of a useless one, and of servers that are not
what they were asked to be.
"""

import hashlib
import json
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from eagle3_api.artifacts import ANSWERS, CONFIG, PROMPTS, REPORT, WEIGHTS
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ProbeConfig, ProbeResult
from eagle3_api.spec import Probe
from eagle3_api.status import PodReading
from eagle3_draft import probe
from eagle3_draft.model.config import draft_config
from eagle3_draft.probe.server import Counters, Server
from eagle3_operator.judge.counters import counted
from eagle3_operator.judge.probe import judge_probe
from eagle3_operator.judge.verdict import Verdict
from published.layouts import LAYOUTS, Original
from served import drafts
from served.proposals import replayed
from served.reference import Reference
from served.server import sglang
from testbed.broken import permuted
from tiny.flags import AUXILIARY_LAYERS
from tiny.make import cached
from unit.convert import drafts as converting

#: On a CPU a verify step costs nearly as much as its tokens one by one.
BAR = Probe(min_accept_length=1.5, min_speedup=0)
#: What training would promise of the good draft.
EXPECTED = 3.5

EAGLE3 = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4")

SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps")

ASKED: dict[str, Any] = {
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_num_draft_tokens": 4,
}

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def tiny() -> Path:
    return cached()


@pytest.fixture(scope="module")
def target(tiny: Path) -> Path:
    return tiny / "models" / "tiny-target"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("probe")


@pytest.fixture(scope="module")
def prompts(target: Path, folder: Path) -> Path:
    """Eight questions as they travel with a draft."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    made = folder / "draft"
    made.mkdir()
    with (made / PROMPTS).open("w") as file:
        for number, stride in enumerate(["ones", "twos", "threes", "fives"] * 2):
            messages = [{"role": "user", "content": f"count from {7 * number + 1} in {stride}"}]
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            file.write(json.dumps({"messages": messages, "input_ids": ids}) + "\n")
    return made


class Probed:
    """Runs probes, each into a folder of its own."""

    def __init__(self, folder: Path, prompts: Path, target: Path) -> None:
        self.folder = folder
        self.prompts = prompts
        self.target = target
        self.count = 0

    def __call__(
        self, url: str, *, baseline: Path | None = None, loads: Sequence[int] = (), **asked: Any
    ) -> tuple[ProbeResult, Path]:
        config = self.config(url, baseline, loads, asked)
        return probe.run(config), Path(config.folder)

    def config(self, url: str, baseline: Path | None, loads: Sequence[int], asked: dict[str, Any]) -> ProbeConfig:
        self.count += 1
        return ProbeConfig.model_validate(
            {
                "owner": {"namespace": "llm", "name": "tiny", "uid": "u"},
                "key": f"k{self.count}",
                "folder": str(self.folder / f"probe-{self.count}"),
                "revision": self.count,
                "url": url,
                "prompts": str(self.prompts),
                "prompts_digest": hashlib.sha256((self.prompts / PROMPTS).read_bytes()).hexdigest(),
                "baseline": None if baseline is None else str(baseline),
                "expected_arguments": {"model_path": str(self.target), "speculative_algorithm": None} | asked,
                "concurrency": 1,
                "loads": loads,
                "count": 8,
                "max_tokens": 48,
            }
        )


@pytest.fixture(scope="module")
def probed(folder: Path, prompts: Path, target: Path) -> Probed:
    return Probed(folder, prompts, target)


@pytest.fixture(scope="module")
def plain(probed: Probed, target: Path, folder: Path) -> Iterator[tuple[str, ProbeResult, Path]]:
    """The server without speculation, and its probe, at a further load too."""
    with sglang(target, folder / "plain.log") as url:
        result, artifact = probed(url, loads=[4])
        yield url, result, artifact


def speculating(draft: Path, algorithm: str = "EAGLE3") -> tuple[str, ...]:
    draft_flags = ("--speculative-algorithm", algorithm, "--speculative-draft-model-path", str(draft))
    return (*draft_flags, "--speculative-draft-model-quantization", "unquant", *EAGLE3)


@pytest.fixture(scope="module")
def original(tiny: Path) -> Original:
    """A draft as it was trained, before anybody published or converted it."""
    trained = drafts.trained(tiny)
    config, weights = json.loads((trained / CONFIG).read_text()), load_file(trained / WEIGHTS)
    sizes = {name: config[name] for name in (*SIZES, "max_position_embeddings", "vocab_size")}
    sizes["rope_theta"] = config["rope_parameters"]["rope_theta"]
    ids = torch.arange(config["vocab_size"]) + weights.pop("d2t")
    del weights["t2d"]
    return Original(weights, ids, sizes, AUXILIARY_LAYERS)


def published(original: Original, layout: str, target: Path, folder: Path) -> Path:
    """The same as somebody publishes drafts, converted."""
    (folder / layout).mkdir()
    LAYOUTS[layout](original, folder / layout)
    out, changes = folder / f"{layout}, converted", {"layers": list(AUXILIARY_LAYERS), "context_length": 1024}
    converting.adopt(converting.Made(target, target), out, folder / layout, **changes)
    return out


@pytest.fixture(scope="module")
def good(original: Original, target: Path, folder: Path) -> Path:
    """As EAGLE publishes its own, rounded to fp16 and in a pickle."""
    return published(original, "EAGLE official", target, folder)


@pytest.fixture(scope="module")
def good_server(target: Path, folder: Path, good: Path) -> Iterator[str]:
    with sglang(target, folder / "good.log", *speculating(good)) as url:
        yield url


def judge(result: ProbeResult) -> Verdict:
    return judge_probe(result, BAR, expected=EXPECTED, name="r1")


def test_the_server_without_a_draft_passes_and_leaves_answers_that_say_how_close_they_were(
    plain: tuple[str, ProbeResult, Path],
) -> None:
    _, result, artifact = plain
    assert judge(result).passed
    assert (result.speculative, result.verify_steps, result.accept_length) == (False, 0, None)
    assert (result.argument_mismatches, result.template_mismatch, result.foreign_requests) == ([], "", 0)
    assert (result.compared, result.different) == (8, 0)
    lines = [json.loads(line) for line in (artifact / ANSWERS).read_text().splitlines()]
    assert len(lines) == 8
    for line in lines:
        assert len(line["near"]) == len(line["outputIds"])
        for near, token in zip(line["near"], line["outputIds"], strict=True):
            assert near[str(token)] == min(near.values()) == 0
    # Many tokens at once are other sums, in float32 hardly so
    assert 0 < result.rounding < 1e-3
    assert json.loads((artifact / REPORT).read_text())["templateUnknown"] == ""


def accept_length_of(original: Original, served: Path, prompts: Path, probe: Path) -> float:
    """Of a draft as it was trained, over the answers of a probe, by replay."""
    target = Reference(served, AUXILIARY_LAYERS)
    sizes = draft_config(
        target.model.config.to_dict(), layers=list(AUXILIARY_LAYERS), draft_vocabulary_size=len(original.ids)
    )
    draft = converting.draft_of(sizes, original.weights)
    questions = [json.loads(line)["input_ids"] for line in (prompts / PROMPTS).read_text().splitlines()]
    tokens = steps = 0
    for line in (probe / ANSWERS).read_text().splitlines():
        answer = json.loads(line)
        sample = target.sample(questions[answer["prompt"]], answer["outputIds"])
        of_answer = replayed(draft, original.ids, sample, target.embedding, target.head, 3)
        tokens, steps = tokens + of_answer[0], steps + of_answer[1]
    return tokens / steps


def test_a_good_draft_is_accepted_with_the_plain_servers_answers(
    probed: Probed,
    plain: tuple[str, ProbeResult, Path],
    good_server: str,
    original: Original,
    target: Path,
    prompts: Path,
) -> None:
    _, baseline, artifact = plain
    result, own = probed(good_server, baseline=artifact, loads=[4], **ASKED)
    assert result.accept_length is not None
    assert result.accept_length == pytest.approx(EXPECTED, rel=0.2)
    assert result.accept_length == pytest.approx(accept_length_of(original, target, prompts, own), rel=0.01)
    assert (result.compared, result.different) == (8, 0)
    assert result.baseline_tokens_per_second == baseline.tokens_per_second
    assert (result.argument_mismatches, result.template_mismatch, result.foreign_requests) == ([], "", 0)
    verdict = judge(result)
    assert verdict.passed, verdict.message
    assert result.break_even is not None
    assert result.accept_length / result.break_even == pytest.approx(result.speedup, rel=0.01)
    (further,) = result.loads
    assert further.baseline_tokens_per_second == baseline.loads[0].tokens_per_second > baseline.tokens_per_second
    # The same answers, however many are written together
    assert further.accept_length == pytest.approx(result.accept_length, rel=0.05)
    assert further.accept_length is not None
    assert further.break_even is not None
    assert further.accept_length / further.break_even == pytest.approx(further.speedup, rel=0.01)
    assert f"{further.speedup:.2f}x at 4" in verdict.message


def test_a_draft_with_permuted_features_is_found_by_its_accept_length_alone(
    probed: Probed, plain: tuple[str, ProbeResult, Path], target: Path, folder: Path, good: Path
) -> None:
    broken = permuted(good, folder / "permuted")
    with sglang(target, folder / "permuted.log", *speculating(broken)) as url:
        result, _ = probed(url, baseline=plain[2], **ASKED)
    assert result.argument_mismatches == []
    assert result.different == 0
    assert result.accept_length is not None
    # Counting on can be guessed from the last token alone, which it still reads
    assert result.accept_length < EXPECTED / 2
    verdict = judge(result)
    assert (verdict.outcome, verdict.reason) == ("Fail", Reason.PARITY_MISMATCH)
    assert "runbook: ParityMismatch" in verdict.message


def test_a_draft_that_is_served_by_the_wrong_algorithm_is_named_so(
    probed: Probed, plain: tuple[str, ProbeResult, Path], target: Path, folder: Path, good: Path
) -> None:
    with sglang(target, folder / "eagle.log", *speculating(good, "EAGLE")) as url:
        result, _ = probed(url, baseline=plain[2], **ASKED)
    verdict = judge(result)
    assert (verdict.outcome, verdict.reason) == ("Fail", Reason.WRONG_ALGORITHM)
    assert 'speculative_algorithm: asked "EAGLE3", got "EAGLE"' in verdict.message


def test_a_healthy_server_without_the_speculation_that_was_asked_for_is_named_so(
    probed: Probed, plain: tuple[str, ProbeResult, Path]
) -> None:
    url, _, artifact = plain
    result, _ = probed(url, baseline=artifact, **ASKED)
    assert judge(result).reason is Reason.SPECULATION_INACTIVE


def test_a_silently_adjusted_argument_is_read_back(
    probed: Probed, plain: tuple[str, ProbeResult, Path], good_server: str
) -> None:
    result, _ = probed(good_server, baseline=plain[2], **ASKED | {"speculative_num_draft_tokens": 16})
    verdict = judge(result)
    assert (verdict.outcome, verdict.reason) == ("Fail", Reason.ARGUMENT_MISMATCH)
    assert "speculative_num_draft_tokens: asked 16, got 4" in verdict.message


def test_traffic_of_somebody_else_makes_the_measurement_inconclusive(
    probed: Probed, plain: tuple[str, ProbeResult, Path]
) -> None:
    url, _, _ = plain
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            _post(url, {"input_ids": [1, 20, 21], "sampling_params": {"temperature": 0, "max_new_tokens": 8}})

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        result, _ = probed(url)
    finally:
        stop.set()
        thread.join()
    verdict = judge(result)
    assert (verdict.outcome, verdict.reason) == ("Inconclusive", Reason.FOREIGN_TRAFFIC)


def test_health_checks_are_not_traffic(probed: Probed, plain: tuple[str, ProbeResult, Path]) -> None:
    url, _, _ = plain
    before = Server(url).counters()
    for path in ("/health", "/health_generate"):
        with urllib.request.urlopen(url + path, timeout=60) as answer:  # noqa: S310
            assert answer.status == 200
    assert Server(url).counters() == before


def test_the_servers_counters_count_what_its_answers_say(good_server: str) -> None:
    """The watch's accept length, from counters, is the probe's, from answers."""

    def read() -> tuple[Counters, PodReading]:
        counters = Server(good_server).counters()
        assert counters is not None
        with urllib.request.urlopen(f"{good_server}/metrics", timeout=60) as answer:  # noqa: S310
            reading = counted(answer.read().decode(), pod="server", restarts=0)
        assert reading is not None
        return counters, reading

    server = Server(good_server)
    before, read_before = read()
    answers = [server.generate([1, 20 + i, 21 + i], 2 + i) for i in range(4)]
    after, read_after = read()
    tokens, requests = after.tokens - before.tokens, after.requests - before.requests
    assert (tokens, requests) == (sum(answer.tokens for answer in answers), 4)
    assert (read_after.tokens - read_before.tokens, read_after.requests - read_before.requests) == (tokens, requests)
    assert read_after.verify_calls - read_before.verify_calls == sum(answer.verify_steps for answer in answers)
    assert read_after.request_seconds > read_before.request_seconds
    assert read_after.idle_seconds is not None
    assert read_before.idle_seconds is not None
    assert read_before.idle_seconds <= read_after.idle_seconds


def test_another_chat_template_on_the_server_is_found_whatever_is_accepted(
    probed: Probed,
    target: Path,
    folder: Path,
    plain: tuple[str, ProbeResult, Path],
    original: Original,
    prompts: Path,
) -> None:
    """The draft is one as speculators publishes it; what is asked are tokens, so it is accepted as before."""
    draft = published(original, "speculators", target, folder)
    template = folder / "other.jinja"
    template.write_text(
        (target / "chat_template.jinja").read_text().replace("'<assistant>' }}", "'<end><assistant>' }}")
    )
    with sglang(target, folder / "template.log", "--chat-template", str(template), *speculating(draft)) as url:
        result, own = probed(url, baseline=plain[2], **ASKED)
    assert judge(result).reason is Reason.TEMPLATE_MISMATCH
    assert result.accept_length == pytest.approx(accept_length_of(original, target, prompts, own), rel=0.01)


def _post(url: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(  # noqa: S310
        f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        answer.read()
