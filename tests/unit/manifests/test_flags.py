import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_api.jobs import Facts
from eagle3_api.sglang import flag_values
from eagle3_api.spec import Eagle3Draft
from eagle3_operator.manifests.flags import ADAPTIVE_FILE, expected_server_info, server_flags
from unit.samples import DRAFT, FACTS, KIMI, draft


def words(obj: Eagle3Draft, facts: Facts = FACTS, *, folder: str | None = DRAFT, number: int = 1) -> list[str]:
    flags = server_flags(
        obj.spec, facts, namespace=obj.metadata.namespace, name=obj.metadata.name, number=number, draft=folder
    )
    return [word for flag in flags for word in flag.words]


def value(obj: Eagle3Draft, flag: str, facts: Facts = FACTS, *, folder: str | None = DRAFT) -> str | None:
    given_values = [said for word, said in pairwise(words(obj, facts, folder=folder)) if word == flag]
    assert len(given_values) <= 1, f"{flag} is rendered twice"
    return given_values[0] if given_values else None


def speculative() -> st.SearchStrategy[dict[str, int]]:
    chains = st.integers(1, 31).map(lambda n: {"numSteps": n, "topK": 1, "numDraftTokens": n + 1})
    trees = st.fixed_dictionaries(
        {"numSteps": st.integers(2, 8), "topK": st.integers(2, 8), "numDraftTokens": st.integers(2, 4)}
    )
    return chains | trees


@given(spec=speculative(), folder=st.none() | st.just(DRAFT), facts=st.sampled_from([FACTS, KIMI]))
def test_a_server_speculates_with_eagle3_and_all_three_numbers_or_not_at_all(
    spec: dict[str, int], folder: str | None, facts: Facts
) -> None:
    rendered = words(draft(serve={"speculative": spec}), facts, folder=folder)
    numbers = [
        flag_values(rendered, flag)
        for flag in ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens")
    ]
    if folder is None:
        assert [word for word in rendered if word.startswith("--speculative")] == []
    else:
        assert flag_values(rendered, "--speculative-algorithm") == ["EAGLE3"]
        assert flag_values(rendered, "--speculative-draft-model-path") == [DRAFT]
        assert numbers == [[str(spec["numSteps"])], [str(spec["topK"])], [str(spec["numDraftTokens"])]]


def test_the_chat_template_that_the_draft_learned_is_served() -> None:
    given = {"conversations": "/data/train.jsonl", "chatTemplate": "/data/template.jinja"}
    assert flag_values(words(draft(data=given)), "--chat-template") == ["/data/template.jinja"]
    assert "--chat-template" not in words(draft())


@given(arguments=st.lists(st.sampled_from(["--dtype", "bfloat16", "--enable-torch-compile", "--seed=1"]), max_size=6))
def test_the_arguments_of_the_user_come_last_as_they_were_given(arguments: list[str]) -> None:
    rendered = words(draft(serve={"arguments": arguments}))
    assert rendered[len(rendered) - len(arguments) :] == arguments


def test_the_arguments_of_the_user_are_told_apart_flag_by_flag() -> None:
    obj = draft(serve={"arguments": ["--dtype", "bfloat16", "--cuda-graph-bs", "1", "2", "--enable-torch-compile"]})
    flags = server_flags(obj.spec, FACTS, namespace="llm", name="llama-8b", number=0, draft=None)
    assert [flag.words for flag in flags if flag.why == "serve.arguments"] == [
        ("--dtype", "bfloat16"),
        ("--cuda-graph-bs", "1", "2"),
        ("--enable-torch-compile",),
    ]


def test_every_flag_has_its_reason() -> None:
    obj = draft(serve={"arguments": ["--dtype", "bfloat16"]}, target={"model": "/m/kimi", "trustRemoteCode": True})
    flags = server_flags(obj.spec, KIMI, namespace="llm", name="kimi", number=1, draft=DRAFT)
    assert [flag for flag in flags if not flag.why or "\n" in flag.why] == []


def test_the_draft_never_inherits_the_quantization_of_the_target() -> None:
    obj = draft(serve={"arguments": ["--quantization", "awq"]})
    assert value(obj, "--speculative-draft-model-quantization") == "unquant"


def test_the_number_of_running_requests_is_never_left_to_sglang() -> None:
    assert value(draft(), "--max-running-requests") == "48"
    assert value(draft(serve={"maxRunningRequests": 200}), "--max-running-requests", folder=None) == "200"


def test_the_context_is_that_of_the_target_unless_the_object_says_otherwise() -> None:
    assert value(draft(), "--context-length") == "8192"
    assert value(draft(serve={"contextLength": 4096}), "--context-length") == "4096"


def test_every_series_is_stamped_with_the_revision() -> None:
    stamped = flag_values(words(draft(), number=7), "--extra-metric-labels")[0]
    assert json.loads(stamped) == {
        "eagle3_namespace": "llm",
        "eagle3_name": "llama-8b",
        "eagle3_revision": "r7",
    }


@pytest.mark.parametrize(
    ("serve", "facts", "expected"),
    [
        pytest.param({}, FACTS, "600", id="a small model: as long as SGLang itself waits for a slow rank, and some"),
        pytest.param({}, KIMI, "895", id="a large one: half of its start budget"),
        pytest.param({"startTimeout": "1h"}, FACTS, "1800", id="half of the start budget that the user gave"),
        pytest.param({"arguments": ["--dist-timeout", "77"]}, FACTS, "77", id="what the user said"),
    ],
)
def test_a_collective_that_hangs_becomes_a_crash(serve: dict[str, Any], facts: Facts, expected: str) -> None:
    assert value(draft(serve=serve), "--dist-timeout", facts) == expected


@pytest.mark.parametrize(
    "arguments", [["--watchdog-timeout", "1200"], ["--watchdog-timeout=1200"], ["--watchdog-time", "1200"]]
)
def test_the_watchdog_of_the_user_wins(arguments: list[str]) -> None:
    assert value(draft(), "--watchdog-timeout") == "300"
    user_wins = words(draft(serve={"arguments": arguments}))
    assert flag_values(user_wins, "--watchdog-timeout") == ["1200"]


@pytest.mark.parametrize(
    ("facts", "arguments", "expected"),
    [
        pytest.param(FACTS, [], None, id="ordinary attention: the draft can do what the target can"),
        pytest.param(
            KIMI, [], "flashinfer", id="latent attention: SGLang may pick a backend that the draft cannot take"
        ),
        pytest.param(KIMI, ["--attention-backend", "trtllm_mla"], "flashinfer", id="such a backend was asked for"),
        pytest.param(KIMI, ["--attention-backend=triton"], None, id="the user's backend serves both"),
        pytest.param(
            KIMI,
            ["--prefill-attention-backend", "fa3", "--decode-attention-backend", "flashmla"],
            "flashinfer",
            id="one of the user's two does not serve both",
        ),
    ],
)
def test_a_draft_on_latent_attention_gets_a_backend_that_it_can_use(
    facts: Facts, arguments: list[str], expected: str | None
) -> None:
    obj = draft(serve={"arguments": arguments})
    assert value(obj, "--speculative-draft-attention-backend", facts) == expected
    assert value(obj, "--speculative-draft-attention-backend", facts, folder=None) is None
    latent = facts.model_copy(update={"draft_attention": "Latent"})
    assert value(obj, "--speculative-draft-attention-backend", latent) is None


def test_the_server_is_expected_to_say_what_it_was_told() -> None:
    obj = draft(serve={"speculative": {"numSteps": 5, "topK": 4, "numDraftTokens": 16}, "contextLength": 4096})
    assert expected_server_info(obj.spec, FACTS, draft=DRAFT) == {
        "model_path": "/models/target",
        "tp_size": 1,
        "trust_remote_code": False,
        "context_length": 4096,
        "max_running_requests": 48,
        "enable_metrics": True,
        "decode_log_interval": 10,
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": DRAFT,
        "speculative_num_steps": 5,
        "speculative_eagle_topk": 4,
        "speculative_num_draft_tokens": 16,
        "speculative_adaptive": False,
    }


def test_a_server_that_adapts_its_steps_starts_with_the_most_and_reads_the_others_from_its_pod() -> None:
    obj = draft(serve={"speculative": {"mode": "Auto", "numSteps": 5, "numDraftTokens": 6}})
    assert value(obj, "--speculative-num-steps") == "5"
    assert value(obj, "--speculative-adaptive-config") == ADAPTIVE_FILE
    assert "--speculative-adaptive" in words(obj)
    assert expected_server_info(obj.spec, FACTS, draft=DRAFT)["speculative_adaptive"] is True
    assert "--speculative-adaptive" not in words(draft())
    assert value(obj, "--speculative-adaptive-config", folder=None) is None


def test_a_plain_server_is_expected_not_to_speculate() -> None:
    expected = expected_server_info(draft().spec, FACTS, draft=None)
    assert expected["speculative_algorithm"] is None
    assert [name for name in expected if name.startswith("speculative")] == ["speculative_algorithm"]


def test_an_object_that_only_trains_has_no_servers() -> None:
    with pytest.raises(ValueError, match="has no servers"):
        words(draft(serve=None))
