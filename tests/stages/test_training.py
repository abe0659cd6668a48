"""Training on one process and on several, interrupted and not, ends at the same draft."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eagle3_api.artifacts import CONFIG, HELD_OUT, PROMPTS, REPORT, REPORT_PAGE, VOCABULARY, WEIGHTS
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode, Progress, Report, TrainConfig
from eagle3_draft import convert
from eagle3_draft.errors import StageError
from eagle3_draft.features import Features
from eagle3_draft.inspect.checkpoint import checkpoint_digest
from eagle3_draft.model.config import DraftConfig, draft_config
from eagle3_draft.model.draft import Draft
from eagle3_draft.model.target import Target
from eagle3_draft.storage import artifacts
from eagle3_draft.train import held_out, run
from eagle3_draft.train.begin import first_weights
from eagle3_draft.train.vocabulary import Vocabulary
from published.layouts import LAYOUTS, Original
from stages.supervised import PATIENCE, descendants, has_ended, kill, ranks, supervised, wait_for, wait_for_step
from unit.convert import drafts
from unit.train import corpus

EPOCHS = 6

#: Steps of a training that is killed after each of them: one early, one in a later epoch.
KILLED = (2, 12)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> corpus.Corpus:
    return corpus.make(tmp_path_factory.mktemp("corpus"), train=48, held_out=6)


@pytest.fixture(scope="module")
def whole(made: corpus.Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training on one process that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole")
    run(short(made, out))
    return out / "draft"


def short(made: corpus.Corpus, out: Path, **changes: Any) -> TrainConfig:
    settings = {
        "epochs": EPOCHS,
        "tokens_per_step": 200,
        "learning_rate": 1e-2,
        "checkpoint_interval": 0.0,
        "evaluations_per_epoch": 2,
    } | changes
    return corpus.train_config(made, out, **settings)


def report(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / REPORT).read_text())
    return read


def losses(folder: Path) -> list[float]:
    return [point["loss"] for point in report(folder)["training"]]


def wait_for_progress(process: subprocess.Popen[str], pod: Path) -> None:
    """Wait for the first progress line."""
    wait_for(process, lambda: Progress.last((pod / "log").read_text()) is not None, "the first step")


def free_port() -> int:
    """Where pods may meet."""
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
    return port


def said(pod: Path) -> Report:
    """The report in the termination message."""
    read = Report.parse((pod / "termination-log").read_text())
    assert read is not None
    return read


def killed_at(step: int, config: TrainConfig, pod: Path) -> None:
    """Train up to this step or one of the next, and lose a rank there, which can say nothing."""
    with supervised(config, pod) as process:
        wait_for_step(process, config, step)
        kill(ranks(process.pid)[-1])
        assert process.wait(PATIENCE) == ExitCode.ENGINE_CRASHED
    assert said(pod).reason == Reason.JOB_FAILED


def test_the_draft_learns(whole: Path) -> None:
    held_out = report(whole)["heldOut"]
    assert len(held_out) == 2 * EPOCHS
    before, after = held_out[0], next(one for one in held_out if one["step"] == report(whole)["result"]["bestStep"])
    assert after["accept_length"][2] > 1.3
    assert after["loss"] < before["loss"]
    # More draft steps can only add to what is accepted
    assert after["accept_length"] == sorted(after["accept_length"])


def test_precision_reaches_the_products_and_changes_little(made: corpus.Corpus, whole: Path, tmp_path: Path) -> None:
    run(short(made, tmp_path, precision="fp8"))
    found = losses(tmp_path / "draft")
    assert found != losses(whole)
    assert found == pytest.approx(losses(whole), rel=0.01)


def test_stored_probabilities_teach_what_the_last_state_does(whole: Path, tmp_path: Path) -> None:
    made = corpus.make(tmp_path / "corpus", train=48, held_out=6, teacher="TopK")  # the same conversations
    run(short(made, tmp_path, epochs=1))
    found = losses(tmp_path / "draft")
    assert found == pytest.approx(losses(whole)[: len(found)], rel=0.1)
    assert report(tmp_path / "draft")["heldOut"][0]["vocabulary_mass"] == pytest.approx(
        report(whole)["heldOut"][0]["vocabulary_mass"], abs=0.05
    )


def test_the_artifact_holds_all_that_conversion_and_probing_need(made: corpus.Corpus, whole: Path) -> None:
    manifest = artifacts.finished(whole, "4e" * 32)
    assert manifest is not None
    assert {file.path for file in manifest.files} == {
        CONFIG,
        HELD_OUT,
        PROMPTS,
        REPORT,
        VOCABULARY,
        WEIGHTS,
        REPORT_PAGE,
    }
    assert manifest.made_from == {
        "features": corpus.FEATURES_KEY,
        "target": made.target_digest,
        "extraction.target": made.target_digest,
    }
    assert manifest.numbers["layers"] == corpus.LAYERS
    assert (whole / PROMPTS).read_text() == (made.features / PROMPTS).read_text()
    weights = load_file(whole / WEIGHTS)
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert "embed_tokens.weight" not in weights
    assert len(held_out.read(whole).samples) == 6
    assert_recorded(made, whole)
    assert 0 < report(whole)["heldOut"][0]["vocabulary_mass"] < 1
    assert report(whole)["result"]["steps"] == len(losses(whole))


def assert_recorded(made: corpus.Corpus, trained: Path) -> None:
    """Train's artifact has what its own weights propose, but for a tie between ways of adding up."""
    recorded = held_out.read(trained).proposals
    assert recorded is not None
    said, found = torch.cat(recorded), corpus.proposed_by(trained, made, recorded[0].shape[1])
    assert torch.equal(said == held_out.NONE, found == held_out.NONE)
    assert (said == found).float().mean() > 0.99


def published(whole: Path, layout: str, there: Path) -> Path:
    """The draft of a training as others publish it."""
    there.mkdir()
    sizes = DraftConfig.model_validate_json((whole / CONFIG).read_bytes())
    layer = {
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "rms_norm_eps": sizes.rms_norm_eps,
        "max_position_embeddings": sizes.max_position_embeddings,
        "vocab_size": sizes.vocabulary_size,
    }
    ids = Vocabulary.load(whole / VOCABULARY).ids
    LAYOUTS[layout](Original(load_file(whole / WEIGHTS), ids, layer, tuple(corpus.LAYERS)), there)
    return there


def test_a_training_goes_on_from_a_published_draft_with_its_vocabulary(
    made: corpus.Corpus, whole: Path, tmp_path: Path
) -> None:
    there = published(whole, "ModelOpt", tmp_path / "there")
    digest = checkpoint_digest(there)
    run(short(made, tmp_path, epochs=1, learning_rate=1e-3, init_from=str(there), init_digest=digest))
    draft = tmp_path / "draft"
    assert losses(draft)[0] < (losses(whole)[0] + losses(whole)[-1]) / 2  # not where fresh weights begin
    assert (
        Vocabulary.load(draft / VOCABULARY).offsets.tolist() == load_file(there / "model.safetensors")["d2t"].tolist()
    )
    assert artifacts.read(draft).made_from["initFrom"] == digest


def test_a_training_that_only_makes_the_draft_worse_publishes_it_as_it_was_and_warns(
    made: corpus.Corpus, whole: Path, tmp_path: Path
) -> None:
    there = published(whole, "ModelOpt", tmp_path / "there")
    config = short(
        made, tmp_path, epochs=1, learning_rate=1.0, init_from=str(there), init_digest=checkpoint_digest(there)
    )
    killed_at(2, config, tmp_path / "killed")  # what was best is known to the next try
    result = run(config)
    draft = tmp_path / "draft"
    first, *others = report(draft)["heldOut"]
    assert (first["step"], first["epoch"]) == (0, 0)
    assert all(first["accept_length"] > other["accept_length"] for other in others)
    assert (result.best_step, result.expected_accept_lengths) == (0, first["accept_length"])
    begun = first_weights(config, Target(made.target))
    assert begun is not None
    assert {name: tensor.tolist() for name, tensor in load_file(draft / WEIGHTS).items()} == {
        name: tensor.tolist() for name, tensor in begun.items()
    }
    assert "no step made the draft of draft.initFrom better, which is published as it was" in result.warning
    assert "those that it began with, which none of" in (draft / REPORT_PAGE).read_text()


def test_a_training_goes_on_from_a_draft_that_is_narrower_than_its_target_and_keeps_its_embedding(
    made: corpus.Corpus, tmp_path: Path
) -> None:
    sizes = draft_config(Target(made.target).config, layers=corpus.LAYERS, draft_vocabulary_size=corpus.VOCABULARY)
    sizes = sizes.model_copy(update={"hidden_size": 24, "head_dim": 8})
    draft = Draft(sizes)
    draft.initialise(0)
    ids, own = torch.arange(corpus.VOCABULARY), torch.randn(corpus.VOCABULARY, 24)
    there = tmp_path / "there"
    there.mkdir()
    LAYOUTS["SpecForge"](
        Original(dict(draft.state_dict()), ids, drafts.as_transformers(sizes), tuple(corpus.LAYERS), own), there
    )
    config = short(made, tmp_path, epochs=2, init_from=str(there), init_digest=checkpoint_digest(there))
    killed_at(2, config, tmp_path / "killed")
    assert run(config).resumed == 1
    trained = tmp_path / "draft"
    assert losses(trained)[-1] < losses(trained)[0]
    assert torch.equal(load_file(trained / WEIGHTS)["embed_tokens.weight"], own)
    assert_recorded(made, trained)

    converted = convert.run(
        drafts.convert_config(drafts.Made(made.target, trained), tmp_path / "converted", trained_key=config.key)
    )
    assert converted.parity_error == 0.0
    assert torch.equal(load_file(tmp_path / "converted" / WEIGHTS)["embed_tokens.weight"], own)


def test_a_finished_training_is_not_done_again(made: corpus.Corpus, whole: Path) -> None:
    result = run(short(made, whole.parent, features="nowhere"))
    assert result.to_json() == report(whole)["result"]
    assert not (whole.parent / "scratch").exists()


@pytest.mark.timeout(600)  # five trainings, each of which begins with a launcher
def test_a_training_survives_kill_and_eviction_to_the_same_bits_and_goes_on_with_more_processes(
    made: corpus.Corpus, whole: Path, tmp_path: Path
) -> None:
    config = short(made, tmp_path)
    for step in KILLED:
        killed_at(step, config, tmp_path / f"killed at {step}")

    rare = config.model_copy(update={"checkpoint_interval": 3600.0})
    with supervised(rare, tmp_path / "evicted") as process:
        wait_for_progress(process, tmp_path / "evicted")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == ExitCode.INTERRUPTED
    assert said(tmp_path / "evicted").reason == Reason.INTERRUPTED
    assert "the next try" in said(tmp_path / "evicted").message  # after a step or in a measure
    assert not (tmp_path / "draft" / "manifest.json").exists()

    shutil.copytree(tmp_path / "scratch", tmp_path / "two" / "scratch")
    result = run(rare)
    assert result.resumed == len(KILLED) + 1
    assert losses(tmp_path / "draft") == losses(whole)
    assert (tmp_path / "draft" / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()

    result = run(short(made, tmp_path / "two", processes=2))
    assert result.resumed == len(KILLED) + 1
    assert_recorded(made, tmp_path / "two" / "draft")
    assert_same_to_rounding(tmp_path / "two" / "draft", whole)


def assert_same_to_rounding(draft: Path, whole: Path) -> None:
    """Two trainings had the same losses in every step, and measured the same."""
    assert losses(draft) == pytest.approx(losses(whole), abs=1e-3)
    for ours, theirs in zip(report(draft)["heldOut"], report(whole)["heldOut"], strict=True):
        for measure in ("accuracy", "prefix_survival", "accept_length"):
            assert ours[measure] == pytest.approx(theirs[measure], abs=0.02)


def test_a_training_goes_on_with_more_processes_and_then_with_fewer_again(
    made: corpus.Corpus, whole: Path, tmp_path: Path
) -> None:
    config = short(made, tmp_path)
    killed_at(3, config, tmp_path / "one")
    killed_at(12, config.model_copy(update={"processes": 2}), tmp_path / "two")
    result = run(config)
    assert result.resumed == 2
    assert_recorded(made, tmp_path / "draft")
    assert_same_to_rounding(tmp_path / "draft", whole)


def test_a_volume_that_hangs_for_one_rank_ends_the_training_in_time_and_the_next_try_goes_on(
    made: corpus.Corpus, whole: Path, tmp_path: Path
) -> None:
    config = short(made, tmp_path, processes=2, stall_timeout=5.0)
    with supervised(config, tmp_path / "hung") as process:
        wait_for_step(process, config, 3)
        for rank in ranks(process.pid):
            os.kill(rank, signal.SIGSTOP)
        for step in range(1, 200):
            hang(Path(config.scratch) / f".step-{step}.partial" / "__1_0.distcp")
        for rank in ranks(process.pid):
            os.kill(rank, signal.SIGCONT)
        assert process.wait(PATIENCE) == ExitCode.ENGINE_CRASHED
    assert said(tmp_path / "hung").reason == Reason.STORAGE_UNAVAILABLE
    assert "was not written within 5 seconds: the volume of" in said(tmp_path / "hung").message
    result = run(config)
    assert result.resumed == 1
    assert_same_to_rounding(tmp_path / "draft", whole)


def hang(path: Path) -> None:
    """Whoever opens this file, unless it is there, waits as for a server that is away: nobody is at the pipe's other end."""
    path.parent.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        os.mkfifo(path)


def test_two_ranks_are_evicted_in_time_whichever_is_told_and_the_kill_of_one_may_be_tried_again(
    made: corpus.Corpus, tmp_path: Path
) -> None:
    config = short(made, tmp_path, hosts=["127.0.0.1", "127.0.0.2"], meeting_port=free_port(), epochs=500)
    pods = [tmp_path / "first", tmp_path / "second"]
    with supervised(config, pods[0]) as other, supervised(config, pods[1], index=1) as drained:
        wait_for_step(other, config, 2)
        drained.send_signal(signal.SIGTERM)  # and rank 0's pod hears nothing
        assert drained.wait(config.grace_seconds) == ExitCode.INTERRUPTED
        assert other.wait(config.grace_seconds) == ExitCode.INTERRUPTED
    for pod in pods:
        assert said(pod).reason == Reason.INTERRUPTED
        assert "the next try" in said(pod).message  # after a step or in a measure

    config = config.model_copy(update={"processes": 2, "hosts": []})  # both in one pod
    with supervised(config, tmp_path / "killed") as process:
        wait_for_progress(process, tmp_path / "killed")
        launcher, (first, second) = descendants(process.pid)[0], ranks(process.pid)
        # The launcher looks again once both have ended, the second by the kill and the first of the second's silence
        os.kill(launcher, signal.SIGSTOP)
        kill(second)
        wait_for(process, lambda: has_ended(first) and has_ended(second), "the end of both ranks")
        os.kill(launcher, signal.SIGCONT)
        assert process.wait(PATIENCE) == ExitCode.ENGINE_CRASHED
    assert "rank 1 of the training died and said nothing" in said(tmp_path / "killed").message


def test_an_eviction_is_heard_while_the_draft_is_measured_however_long_that_takes(
    made: corpus.Corpus, tmp_path: Path
) -> None:
    read = Features.open(made.features)
    long = replace(made, features=tmp_path / "features")
    corpus.write_features(long, list(read.train), 500 * list(read.held_out))
    # A checkpoint is made before each measure, and no other
    config = short(long, tmp_path, processes=2, checkpoint_interval=3600.0)
    with supervised(config, tmp_path / "evicted") as process:
        wait_for_step(process, config, 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(config.grace_seconds) == ExitCode.INTERRUPTED
    assert "interrupted while the draft was measured after step" in said(tmp_path / "evicted").message


def test_two_processes_survive_a_kill_to_the_same_bits(made: corpus.Corpus, tmp_path: Path) -> None:
    # The deterministic mode changes nothing on a CPU, and must run there
    settings = {"processes": 2, "epochs": 2, "deterministic": True}
    whole, config = (short(made, tmp_path / name, **settings) for name in ("whole", "killed"))
    run(whole)
    killed_at(5, config, tmp_path / "pod")
    assert run(config).resumed == 1
    assert losses(Path(config.folder)) == losses(Path(whole.folder))
    assert (Path(config.folder) / WEIGHTS).read_bytes() == (Path(whole.folder) / WEIGHTS).read_bytes()


@pytest.mark.timeout(900)  # ten processes that import torch
def test_pods_on_several_nodes_end_together_go_on_together_and_make_the_draft_of_one(
    made: corpus.Corpus, whole: Path, tmp_path: Path
) -> None:
    config = short(made, tmp_path, hosts=["127.0.0.1", "127.0.0.2"], meeting_port=free_port())
    pods = [tmp_path / "first", tmp_path / "second"]
    with supervised(config, pods[0]) as first, supervised(config, pods[1], index=1) as second:
        wait_for_step(first, config, 3)
        kill(ranks(second.pid)[-1])  # a node is lost
        assert second.wait(PATIENCE) == ExitCode.ENGINE_CRASHED
        assert first.wait(PATIENCE) == ExitCode.ENGINE_CRASHED  # and nothing that forbids another try
    assert said(pods[0]).reason == Reason.JOB_FAILED

    # With more GPUs a node, and a copy of the draft on each
    config = config.model_copy(update={"processes": 2, "sharding": "Hybrid"})
    with supervised(config, pods[1], index=1) as second:  # it waits for the first, which comes later
        with supervised(config, pods[0]) as first:
            assert first.wait(PATIENCE) == ExitCode.DONE
        assert second.wait(PATIENCE) == ExitCode.DONE
    assert said(pods[0]).result == said(pods[1]).result
    assert Progress.last((pods[1] / "log").read_text()) is not None
    assert report(tmp_path / "draft")["result"]["resumed"] == 1
    assert losses(tmp_path / "draft") == pytest.approx(losses(whole), abs=1e-3)


def test_features_that_are_not_finite_stop_all_ranks_with_step_conversation_and_shard(tmp_path: Path) -> None:
    made = corpus.make(tmp_path, train=5, held_out=1, spoil=3)
    said = r"step \d+ of \d+ .*conversation 3 \(number 3 of .*00000\S*\) are not finite"
    with pytest.raises(StageError, match=said) as stopped:
        run(short(made, tmp_path, epochs=1, processes=2))
    assert stopped.value.code == ExitCode.NON_FINITE
    assert stopped.value.reason == Reason.NON_FINITE


#: A trainer that keeps the contract: it reads the configuration, looks at the features, and leaves a checkpoint.
TRAINER = """
import json, os, pathlib, shutil, sys
config = json.load(open(os.environ["EAGLE3_CONFIG"]))["config"]
shards = json.load(open(pathlib.Path(config["features"]) / "manifest.json"))["numbers"]["shards"]["train"]
print("trained on", len(shards), "shards, layers", config["layers"], flush=True)
shutil.copytree(sys.argv[1], os.environ["EAGLE3_OUTPUT"], dirs_exist_ok=True)
"""


def test_what_another_trainer_leaves_is_measured_and_published_like_a_draft_of_our_own(
    made: corpus.Corpus, whole: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    there = published(whole, "SpecForge", tmp_path / "there")
    config = short(made, tmp_path, trainer=[sys.executable, str(script), str(there)])
    with supervised(config, tmp_path / "pod") as process:
        assert process.wait(PATIENCE) == ExitCode.DONE
    log = (tmp_path / "pod" / "log").read_text()
    assert "trained on 1 shards, layers [0, 1, 2]" in log
    assert Progress.last(log) is not None
    own, theirs = report(whole), report(tmp_path / "draft")
    assert theirs["result"]["steps"] == 0
    assert theirs["result"]["expectedAcceptLengths"] == pytest.approx(own["result"]["expectedAcceptLengths"], abs=0.05)
    weights, original = load_file(tmp_path / "draft" / WEIGHTS), load_file(whole / WEIGHTS)
    assert set(weights) == set(original)
    for name, weight in original.items():  # SpecForge publishes bfloat16
        torch.testing.assert_close(weights[name], weight, rtol=0.01, atol=1e-3)
    assert not (tmp_path / "scratch").exists()
