"""One object's whole way, from ``kubectl apply`` to Ready, as the end-to-end tests run it once and look at it often."""

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed import tiny, traffic
from testbed.bed import Testbed
from testbed.draft import Draft

MINUTE = 60.0
Conversation = list[dict[str, str]]


@dataclass
class Loop:
    """What was seen on the way, and how it ended."""

    name: str
    ready: Draft
    #: Phases at whose first sight the operator's pod was killed.
    killed_in: list[str] = field(default_factory=list)
    #: UIDs of the Jobs that completed, by name.
    completed: dict[str, set[str]] = field(default_factory=dict)
    #: Indexes that are complete in those of them that have several pods, by name.
    indexes: dict[str, str] = field(default_factory=dict)


class _Observer:
    """Looks at an object until it is ready, kills the operator once in each phase, and keeps count of Jobs."""

    def __init__(self, bed: Testbed, name: str) -> None:
        self._bed, self._name = bed, name
        self.killed_in: list[str] = []
        self.completed: dict[str, set[str]] = {}
        self.indexes: dict[str, str] = {}

    def ready(self, draft: Draft) -> bool:
        phase = str(draft.status.phase)
        if draft.json.get("status") and phase not in (*self.killed_in, "Pending", "Serving"):
            self.killed_in.append(phase)
            self._bed.kill_operator()
        self._count()
        return draft.ready

    def _count(self) -> None:
        for job in json.loads(self._bed.kubectl("get", "jobs", "-o", "json"))["items"]:
            done = any(c["type"] == "Complete" and c["status"] == "True" for c in job["status"].get("conditions", []))
            if done and job["metadata"]["labels"]["eagle3.dev/name"] == self._name:
                self.completed.setdefault(job["metadata"]["name"], set()).add(job["metadata"]["uid"])
                if indexes := job["status"].get("completedIndexes"):
                    self.indexes[job["metadata"]["name"]] = indexes


def run(bed: Testbed, name: str, **sections: Any) -> Loop:
    """Create the tiny object and see it through, with the operator killed in every phase. Two pods share its extraction.

    ``sections`` replace those of the tiny object's spec.
    """
    observer = _Observer(bed, name)
    wanted = tiny.manifest(name, **sections)
    wanted["spec"]["extract"]["shards"] = 2
    bed.create(wanted)
    what = "the draft to be proven and serving"
    ready = bed.wait(name, observer.ready, seconds=25 * MINUTE, what=what)
    return Loop(name, ready, observer.killed_in, observer.completed, observer.indexes)


def host_folder(bed: Testbed, artifact: str) -> Path:
    """The folder of a draft's artifact on this machine."""
    return bed.folder("drafts") / Path(artifact).relative_to("/eagle3/drafts")


def held_out_prompts(bed: Testbed, draft: Draft) -> list[Conversation]:
    """The held-out conversations that travelled with the converted draft."""
    artifact = draft.status.artifact
    assert artifact is not None, "no draft is converted yet"
    lines = (host_folder(bed, artifact.folder) / "prompts.jsonl").read_text().splitlines()
    return [json.loads(line)["messages"] for line in lines]


def send_until(
    bed: Testbed, name: str, conversations: Sequence[Conversation], reason: str, *, seconds: float = 5 * MINUTE
) -> Draft:
    """Traffic through the public Service until Ready has this reason."""
    url, end = bed.service_url(name), time.monotonic() + seconds
    for messages in itertools.cycle(conversations):
        traffic.chat(url, [messages])
        draft = bed.get(name)
        condition = draft.condition("Ready")
        if condition is not None and condition.reason == reason:
            return draft
        assert time.monotonic() < end, f"Ready never said {reason}:\n{draft}"
    raise AssertionError("there are no conversations to send")
