"""The whole loop on one GPU, without a cluster: each stage as its container runs it, real servers, the probe and its verdict.

    python tests/gpu/loop.py TARGET WORK [--prompts 2800] [--epochs 10] [--flags SGLANG FLAGS]

It is run in an environment with SGLang and torch for CUDA (PYTHONPATH=crds:operator:images/draft:tests), by somebody who may
write to /eagle3, where artifacts lie. TARGET is an instruct model's folder. The target answers questions, its states are taken, a
draft is trained and converted, the target is served without and with it, and both are probed. The operator's own functions
decide every configuration, flag and verdict. It prints what each step took and said; the exit code is that of the verdict.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_api.artifacts import DRAFTS_ROOT, FEATURES_ROOT, folder
from eagle3_api.jobs import RESULTS, ConvertResult, Facts, JobEnvelope, ProbeConfig, ProbeResult, Report, StageName
from eagle3_api.spec import Eagle3Draft, Probe
from eagle3_api.status import Handled
from eagle3_operator.decide.stages import INSPECT, Attempts, Link, Look, after_inspection
from eagle3_operator.judge.probe import judge_probe
from eagle3_operator.judge.verdict import Verdict
from eagle3_operator.manifests import flags
from gpu import prompts

START_SECONDS = 400.0
NAMESPACE, NAME = "gpu", "loop"


def main() -> int:
    """Go through the loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--prompts", type=int, default=2800)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--vocabulary", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=3, help="that the server drafts")
    parser.add_argument("--set", default="{}", help="JSON that is merged over spec, a section at a time")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="of SGLang; they come last")
    given = parser.parse_args()
    for made in (given.work, Path(FEATURES_ROOT), Path(DRAFTS_ROOT)):
        made.mkdir(parents=True, exist_ok=True)
    loop = Loop(wish(given), given.work)
    verdict = loop.run()
    print(f"{verdict.outcome} {verdict.reason}: {verdict.message}", flush=True)
    return 0 if verdict.passed else 1


def wish(given: argparse.Namespace) -> Eagle3Draft:
    """The object, as a user would write it."""
    from sglang.version import __version__

    data = prompts.write(given.work / "prompts.jsonl", given.prompts)
    spec: dict[str, Any] = {
        "image": f"sglang:v{__version__}",
        "target": {"model": str(given.target)},
        "data": {"prompts": str(data), "maxLength": 1024, "regenerate": {"enabled": True, "maxTokens": 256}},
        "draft": {"vocabularySize": given.vocabulary},
        "train": {"epochs": given.epochs, "learningRate": 5e-4},
        "serve": {
            "speculative": {"numSteps": given.steps, "topK": 1, "numDraftTokens": given.steps + 1},
            "arguments": list(given.flags),
        },
        "probe": {"minAcceptLength": 1.5, "minSpeedup": 1.05},
        "storage": {"features": {"claim": "features"}, "drafts": {"claim": "drafts"}},
    }
    for name, section in json.loads(given.set).items():
        spec[name] = spec.get(name, {}) | section
    metadata = {"name": NAME, "namespace": NAMESPACE, "uid": "u"}
    return Eagle3Draft.model_validate({"metadata": metadata, "spec": spec})


@dataclass(frozen=True)
class Loop:
    """One object's way."""

    obj: Eagle3Draft
    work: Path

    def run(self) -> Verdict:
        """All of it; the verdict on the revision with the draft."""
        facts = self.stage(INSPECT.link(Look(self.obj, Handled())), Facts)
        draft, converted = "", None
        for link in after_inspection(self.obj, facts, Attempts()):
            draft, converted = link.artifact or "", self.stage(link)
        assert isinstance(converted, ConvertResult)
        plain = self.probed(0, facts, draft, converted, served=None, baseline=None)
        result = self.probed(1, facts, draft, converted, served=draft, baseline=plain)
        policy: Probe = self.obj.spec.probe
        lengths, steps = converted.expected_accept_lengths or [], self.serve.speculative.num_steps
        return judge_probe(result, policy, expected=lengths[steps - 1] if lengths else None, name="r1")

    @property
    def serve(self) -> Any:
        return flags.serving(self.obj.spec)

    def stage(self, link: Link, kind: Any = None) -> Any:
        """Run one stage to its end; SystemExit with its reason where it fails."""
        config, said = self.work / f"{link.stage}.json", self.work / f"{link.stage}.message"
        config.write_text(json.dumps(JobEnvelope(config=link.config).to_json()))
        variables = {"EAGLE3_CONFIG": str(config), "EAGLE3_TERMINATION_LOG": str(said)}
        began = time.monotonic()
        with (self.work / f"{link.stage}.log").open("w") as log:
            command = [sys.executable, "-m", "eagle3_draft", link.stage]
            subprocess.run(command, env=os.environ | variables, stdout=log, stderr=log, check=False)
        report = Report.parse(said.read_text())
        if report is None or not report.ok:
            raise SystemExit(f"{link.stage}: {report.reason if report else 'no report'}: {report and report.message}")
        print(f"{link.stage:8} {time.monotonic() - began:6.0f} s  {json.dumps(report.result)}", flush=True)
        return RESULTS[report.stage].model_validate(report.result)

    def probed(
        self,
        number: int,
        facts: Facts,
        draft: str,
        converted: ConvertResult,
        *,
        served: str | None,
        baseline: str | None,
    ) -> Any:
        """Serve a revision and probe it. The plain one's folder, or the other one's result."""
        spec = self.obj.spec
        with self.server(number, facts, served) as url:
            key = f"{number:016d}"
            config = ProbeConfig(
                owner=INSPECT.link(Look(self.obj, Handled())).config.owner,
                key=key,
                folder=str(folder(DRAFTS_ROOT, NAMESPACE, NAME, StageName.PROBE, key)),
                revision=number,
                url=url,
                prompts=draft,
                prompts_digest=converted.prompts_digest,
                baseline=baseline,
                expected_arguments=flags.expected_server_info(spec, facts, draft=served),
                concurrency=spec.probe.concurrency,
                loads=spec.probe.further_loads,
                count=spec.probe.prompts,
                max_tokens=spec.probe.max_tokens,
            )
            result: ProbeResult = self.stage(Link(StageName.PROBE, key, config, config.folder))
        return config.folder if served is None else result

    @contextmanager
    def server(self, number: int, facts: Facts, draft: str | None) -> Iterator[str]:
        """A revision's server, by the operator's own flags."""
        rendered = flags.server_flags(self.obj.spec, facts, namespace=NAMESPACE, name=NAME, number=number, draft=draft)
        words = [word for flag in rendered for word in flag.words]
        log, began = self.work / f"r{number}.log", time.monotonic()
        with log.open("w") as out:
            command = [sys.executable, "-m", "sglang.launch_server", *words]
            process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        try:
            url = f"http://127.0.0.1:{self.serve.port}"
            healthy(process, url, log)
            print(f"r{number}       {time.monotonic() - began:6.0f} s  {' '.join(words)}", flush=True)
            yield url
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def healthy(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    """Wait for a server; SystemExit with its last words where it does not come."""
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=10):  # noqa: S310
                return
        except OSError:
            time.sleep(1)
    raise SystemExit(f"no server: {last_words(log)}")


def last_words(log: Path, lines: int = 15) -> str:
    """The end of a log."""
    words: Sequence[str] = log.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join(words)


if __name__ == "__main__":
    sys.exit(main())
