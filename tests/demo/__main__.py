"""Apply an Eagle3Draft, get a served draft; roll out a broken one, see it rejected.

usage: python -m demo [--keep]
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

import yaml

from testbed import Testbed, broken, loop, tiny, traffic
from testbed.bed import say
from testcluster import build

NAME = "tiny"


def main() -> int:
    """The whole demo; 0 when everything is as promised."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster up until Enter is pressed")
    keep = parser.parse_args().keep
    begin = time.monotonic()
    with Testbed.up() as bed:
        checks = [*_good_draft(bed), *_broken_draft(bed)]
        if keep:
            print(f"\nexport KUBECONFIG={bed.cluster.kubeconfig} PATH={build.kubectl().parent}:$PATH")
            input(f"The namespace is {bed.namespace}. Enter ends the cluster. ")
    print(f"\nThe demo took {(time.monotonic() - begin) / 60:.1f} minutes.")
    return _verdict(checks)


Check = tuple[str, bool]


def _good_draft(bed: Testbed) -> list[Check]:
    manifest = tiny.manifest(NAME)
    _title("kubectl apply -f tiny.yaml")
    print(yaml.safe_dump(manifest, sort_keys=False))
    bed.create(manifest)
    with _watching(bed):
        bed.wait(NAME, lambda draft: draft.ready, seconds=25 * loop.MINUTE, what="the draft to be proven and serving")
        say("traffic for the watch: the held-out prompts, again and again, through the public Service")
        ready = loop.send_until(bed, NAME, loop.held_out_prompts(bed, bed.get(NAME)), "DraftHealthy")
    _show(bed)
    status = ready.status
    probe = ready.revision(1).probe
    assert probe is not None
    assert probe.accept_length is not None
    expected = ready.revision(1).expected_accept_length or 0.0
    baseline = probe.baseline_tokens_per_second or 0.0
    print(
        f"\nAccept length {probe.accept_length:.2f} measured, {expected:.2f} expected from training; "
        f"{probe.tokens_per_second:.1f} tok/s against {baseline:.1f} without speculation "
        f"({probe.tokens_per_second / baseline:.2f}x); break-even accept length {probe.break_even or 0:.2f}."
    )
    return [
        ("Ready is True", ready.ready),
        ("r1, the revision with the draft trained here, is serving", status.serving_revision == 1),
        (f"its measured accept length {probe.accept_length:.2f} is above 1.5", probe.accept_length > 1.5),
        (
            f"it is within a quarter of the expected {expected:.2f}",
            abs(probe.accept_length - expected) <= 0.25 * expected,
        ),
        ("both servers' tokens/s were measured", probe.tokens_per_second > 0 and baseline > 0),
        ("greedy answers are those of the server without speculation", probe.compared > 0 and probe.different == 0),
    ]


def _broken_draft(bed: Testbed) -> list[Check]:
    before = bed.get(NAME).status.artifact
    assert before is not None
    good = loop.host_folder(bed, before.folder)
    broken.permuted(good, bed.folder("data") / "broken-draft")
    _title("a draft that is broken where no file shows it: kubectl patch, draft.checkpoint: /data/broken-draft")
    bed.edit(NAME, draft={"checkpoint": "/data/broken-draft", "vocabularySize": None})
    with _watching(bed):
        wanted = "the broken draft to be rejected"
        last = bed.wait(
            NAME, lambda draft: draft.says("RevisionProven", "False"), seconds=10 * loop.MINUTE, what=wanted
        )
    _show(bed)
    answered = traffic.chat(bed.service_url(NAME), loop.held_out_prompts(bed, last)[:2])
    rejected = last.revision(max(revision.number for revision in last.status.revisions))
    return [
        (f"r{rejected.number}, the broken draft, is Rejected", rejected.state == "Rejected"),
        ("Ready is False and says why", last.says("Ready", "False")),
        ("r1, the proven revision, is serving", last.status.serving_revision == 1),
        ("it answers through the public Service", answered > 0),
    ]


# ------------------------------------------------------------------------------------------------------- output


@contextlib.contextmanager
def _watching(bed: Testbed) -> Iterator[None]:
    """``kubectl get e3d -w`` beside what happens, as a user has it in another terminal; without lines that only grow older."""
    _title(f"kubectl get e3d -n {bed.namespace} -w")
    command = [str(build.kubectl()), "get", "e3d", "-n", bed.namespace, "-w"]
    environment = {**os.environ, "KUBECONFIG": str(bed.cluster.kubeconfig)}
    watch = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    printing = threading.Thread(target=_print_changes, args=(watch.stdout,))
    printing.start()
    try:
        yield
    finally:
        watch.terminate()
        watch.wait()
        printing.join()


def _print_changes(lines: Iterable[str]) -> None:
    """Each line that differs from the one before it in more than its last word, the age."""
    before: list[str] = []
    for line in lines:
        *words, _ = line.split()
        if words != before:
            print(line, end="", flush=True)
        before = words


def _show(bed: Testbed) -> None:
    _title(f"kubectl get e3d -n {bed.namespace} -o wide")
    print(bed.kubectl("get", "e3d", "-o", "wide"))
    _title(f"kubectl describe e3d {NAME}: conditions and events")
    print(bed.get(NAME))
    events = json.loads(
        bed.kubectl("get", "events", "-o", "json", "--field-selector", "involvedObject.kind=Eagle3Draft")
    )
    for event in sorted(events["items"], key=lambda e: e.get("lastTimestamp") or e["metadata"]["creationTimestamp"]):
        print(f"  {event['type']:8} {event['reason']:20} {event['message']}")


def _title(text: str) -> None:
    print(f"\n$ {text}" if text.startswith("kubectl") else f"\n# {text}", flush=True)


def _verdict(checks: Sequence[Check]) -> int:
    print("\nChecked on the object's JSON:")
    for text, good in checks:
        print(f"  {'ok  ' if good else 'FAIL'} {text}")
    return 0 if all(good for _, good in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
