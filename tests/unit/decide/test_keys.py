"""Keys are for ever: an upgrade must not run again what is finished, nor forget a revision's proof."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from eagle3_api.jobs import ExtractConfig, SamplingDefaults, StageName
from eagle3_api.status import Handled
from eagle3_operator.decide.keys import draft_key, plain_key
from eagle3_operator.decide.stages import INSPECT, Attempts, Look, after_inspection
from unit.decide.world import World, trained
from unit.samples import FACTS

#: Golden. A change here re-runs everybody's stages: raise the stage's version on purpose, or leave the key alone.
GOLDEN = {
    "inspect": "160281f53494aee0",
    "extract": "f73477ff7e5c0842",
    "train": "a3623607abf42cf5",
    "convert": "d6a09bf269d71902",
    "plain": "c07b71625e3d7638",
    "draft": "f43e6abc4752e090",
}


def keys(world: World) -> dict[str, str]:
    obj = world.obj
    chain = {link.stage.value: link.key for link in after_inspection(obj, FACTS, Attempts())}
    return {
        "inspect": INSPECT.link(Look(obj, Handled())).key,
        **chain,
        "plain": plain_key(obj.spec, FACTS),
        "draft": draft_key(obj.spec, FACTS, "d" * 64),
    }


def changed(**edits: object) -> set[str]:
    """Which keys an edit of the spec changes."""
    before, after = keys(World()), keys(World().edit(**edits))
    return {name for name in before if before[name] != after[name]}


def test_the_keys_are_those_of_former_versions() -> None:
    assert keys(World()) == GOLDEN


def test_the_key_of_a_probe_at_one_load_is_as_it_was_and_that_of_one_at_several_is_of_these() -> None:
    def key(**asked: Any) -> str:
        return trained(World().edit(probe=asked)).ready(0).job("probe").key

    assert key() == key(loads=[1]) == "d31d90bf868e2bb6"
    assert len({key(), key(loads=[8]), key(loads=[8, 32])}) == 3
    assert key(loads=[8, 32]) == key(loads=[32, 8])


def test_what_does_not_change_the_output_is_in_no_key_of_a_stage() -> None:
    chain = {"extract", "train", "convert"}
    assert (
        not changed(train={"gpus": 8, "nodes": 4, "tokensPerPass": 4096}, extract={"gpus": 8, "retain": True}) & chain
    )
    assert not changed(train={"gpus": 8, "nodes": 4, "sharding": "Hybrid"})
    assert not changed(train={"deterministic": True})
    assert not changed(image="lmsysorg/sglang:v0.5.23-cu130") & chain
    assert not changed(placement={"nodeSelector": {"gpu": "h200"}}) & chain
    assert not changed(train={"stallTimeout": "1h", "checkpointInterval": "1m"})
    assert not changed(train={"logging": {"tensorBoard": True, "weightsAndBiases": {"project": "drafts"}}})


def test_a_default_spelt_out_changes_no_key() -> None:
    assert not changed(train={"loss": {"kind": "CrossEntropy", "decay": 0.8}})
    assert not changed(draft={"depth": 1, "variant": "EAGLE-3", "attention": "Heads"})
    assert not changed(
        train={"epochs": 3, "precision": "bf16", "evaluationsPerEpoch": 1},
        probe={"prompts": 32},
        extract={"dtype": "bf16"},
    )
    assert not changed(serve={"speculative": {"mode": "Fixed"}, "whileTraining": "Keep"})


def test_the_draft_that_a_training_goes_on_from_is_in_its_key_by_content() -> None:
    obj = World().edit(draft={"initFrom": "/drafts/published"}).obj

    def trained(digest: str | None) -> str:
        links = after_inspection(obj, FACTS.model_copy(update={"init_digest": digest}), Attempts())
        return next(link.key for link in links if link.stage is StageName.TRAIN)

    assert len({trained(None), trained("a" * 64), trained("b" * 64)}) == 3
    elsewhere = World().edit(draft={"initFrom": "/drafts/copy"}).obj
    facts = FACTS.model_copy(update={"init_digest": "a" * 64})
    assert [link.key for link in after_inspection(elsewhere, facts, Attempts())] == [
        link.key for link in after_inspection(obj, facts, Attempts())
    ]


def test_the_size_of_the_features_claim_is_told_to_extract_and_is_in_no_key() -> None:
    obj = World().obj
    of_size = after_inspection(obj, FACTS, Attempts(), 10**9)
    assert [link.key for link in of_size] == [link.key for link in after_inspection(obj, FACTS, Attempts())]
    (extract,) = (link.config for link in of_size if isinstance(link.config, ExtractConfig))
    assert extract.features_capacity == 10**9


def test_an_edit_changes_its_stage_and_what_follows() -> None:
    assert changed(train={"epochs": 4}) == {"train", "convert"}
    assert changed(train={"precision": "fp8"}) == {"train", "convert"}
    assert changed(train={"evaluationsPerEpoch": 2}) == {"train", "convert"}
    trainer = {"image": "specforge", "command": ["train"]}
    assert changed(train={"trainer": trainer}) == {"train", "convert"}
    assert changed(train={"earlyStop": {}}) == {"train", "convert"}
    assert changed(data={"maxLength": 1024}) == {"inspect", "extract", "train", "convert"}
    assert changed(train={"loss": {"kind": "LKAlpha"}}) == {"train", "convert"}
    assert changed(draft={"attention": "Latent"}) == {"inspect", "train", "convert"}
    assert changed(draft={"depth": 2}) == changed(draft={"variant": "EAGLE-3.1"}) == {"inspect", "train", "convert"}
    assert changed(serve={"speculative": {"numSteps": 2, "numDraftTokens": 3}}) == {"draft"}
    assert changed(serve={"speculative": {"mode": "Auto"}}) == {"draft"}
    assert changed(serve={"maxRunningRequests": 8}) == {"plain", "draft"}


def test_flags_of_the_server_that_change_what_the_target_computes_make_other_features() -> None:
    chain = {"inspect", "extract", "train", "convert"}
    serving = {"plain", "draft"}
    for flags in (["--quantization", "fp8"], ["--kv-cache-dtype=fp8_e4m3"], ["--json-model-override-args", '{"a": 1}']):
        assert changed(serve={"arguments": flags}) == chain | serving
    assert changed(serve={"arguments": ["--attention-backend", "fa3", "--mem-fraction-static=0.8"]}) == serving
    assert changed(serve={"arguments": ["--dtype", "auto", "--kv-cache-dtype=auto"]}) == serving
    one = keys(World().edit(serve={"arguments": ["--dtype", "float16", "--quantization=fp8", "--log-level", "info"]}))
    same = keys(World().edit(serve={"arguments": ["--quantization", "fp8", "--dtype=float16"]}))
    assert {name: one[name] for name in chain} == {name: same[name] for name in chain}


def test_the_type_that_is_served_in_is_that_of_a_draft_that_is_adopted() -> None:
    def adopted(*arguments: str) -> str:
        world = World().edit(
            draft={"checkpoint": "/drafts/mine"}, serve={"arguments": list(arguments)}, extract=None, train=None
        )
        return keys(world)["convert"]

    assert adopted("--dtype", "bfloat16") == adopted("--dtype=bfloat16", "--quantization", "fp8")
    assert len({adopted(), adopted("--dtype", "bfloat16"), adopted("--dtype", "float16")}) == 3
    assert adopted() == adopted("--dtype", "auto") == adopted("--quantization", "fp8")


def test_answers_of_the_targets_own_are_other_data() -> None:
    asking = {"inspect", "extract", "train", "convert"}
    assert changed(data={"regenerate": {}}) == asking
    assert changed(data={"regenerate": {"enabled": False}}) == {"inspect"}
    own = keys(World().edit(data={"regenerate": {}}))
    assert keys(World().edit(data={"regenerate": {"temperature": 0.7}}))["extract"] != own["extract"]
    assert keys(World().edit(data={"regenerate": {"enabled": True, "topP": 1.0, "seed": 0}})) == own
    prompts = World().edit(data={"conversations": None, "prompts": "/data/train.jsonl"})
    assert keys(prompts)["extract"] == own["extract"]


def test_how_a_target_draws_its_answers_by_itself_makes_other_features() -> None:
    obj = World().edit(data={"regenerate": {"temperature": 0.7}}).obj

    def extracted(defaults: SamplingDefaults | None) -> ExtractConfig:
        facts = FACTS.model_copy(update={"sampling_defaults": defaults})
        links = after_inspection(obj, facts, Attempts())
        return next(link.config for link in links if isinstance(link.config, ExtractConfig))

    assert extracted(None).key != extracted(SamplingDefaults(top_k=20)).key
    assert extracted(SamplingDefaults(top_k=20)).sampling_defaults == SamplingDefaults(top_k=20)


def test_replicas_policy_and_patience_are_no_new_way_of_serving() -> None:
    serve: dict[str, object] = {
        "replicas": 3,
        "bakeTime": "1m",
        "surge": "Never",
        "startRetries": 5,
        "startTimeout": "1h",
    }
    serve |= {"whileTraining": "ScaleToZero"}
    assert not changed(serve=serve, probe={"minSpeedup": 2.0}, watch={"minTokens": 5})


@given(st.integers(1, 1000), st.integers(0, 2**31 - 1))
def test_the_same_wish_has_the_same_key(epochs: int, seed: int) -> None:
    train = {"epochs": epochs, "seed": seed}
    assert keys(World().edit(train=train)) == keys(World().edit(train=train))


def test_inspect_is_told_where_sglang_takes_a_context_that_it_would_refuse_by_itself() -> None:
    allowed = [{"name": "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "value": "1"}]
    told = INSPECT.config(Look(World().edit(placement={"env": allowed}).obj, Handled()), "k")
    assert told.to_json()["longerContext"] is True
    assert "longerContext" not in INSPECT.config(Look(World().obj, Handled()), "k").to_json()
