"""How fast and how large the operator is, against a real API server: the numbers of docs and design.

    python tests/bench/bench_operator.py [--objects 1000] [--steady 60]

It starts a control plane without a node and prints, for so many objects:

- new: from the start of the operator's process until each has its first status and its Job, and its memory;
- cold start: from the start of the process until each settled object was looked at, and that nothing was written;
- steady: the operator's share of a core while nothing happens but the resync, ten times as often as by default.

Processor time is told beside each: of the operator, and of the control plane (API server, etcd, controllers, scheduler),
which shares the cores. On a machine that does other work it is the number to look at.

The objects adopt a checkpoint and do not serve; their Jobs' pods are ended by a stand-in for the kubelet.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from eagle3_api import API_VERSION, GROUP, PLURAL, crd
from eagle3_operator.settings import Settings
from operating import OperatorProcess, Site
from testcluster import processes, wait_for
from testcluster.cluster import Cluster
from testcluster.provide import provided
from unit.samples import SPEC, merged

OBJECT = merged(SPEC, {"watch": None, "serve": None, "draft": {"checkpoint": "/drafts/mine"}})
#: A tenth of the default.
RESYNC_SECONDS = 60
SETTLED = 'reconciles_total{result="settled"}'
WRITTEN = 'reconciles_total{result="written"}'


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=1000)
    parser.add_argument("--only-new", action="store_true")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    parser.add_argument("--steady", type=int, default=60, help="seconds")
    arguments = parser.parse_args()
    with provided(node=False) as cluster, tempfile.TemporaryDirectory() as folder:
        cluster.apply(crd.definition())
        definition = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}"
        wait_for("the definition", 30, lambda: cluster.request("GET", definition)["status"].get("conditions"))
        wait_for("the kind", 30, lambda: cluster.request("GET", f"/apis/{API_VERSION}"))
        site = Site(cluster, cluster.create_namespace("bench"))
        operator = OperatorProcess(cluster.kubeconfig, Path(folder), resyncSeconds=RESYNC_SECONDS)
        try:
            new(site, operator, arguments.objects)
            if not arguments.only_new:
                settled(site, operator, arguments.objects, arguments.steady)
        finally:
            operator.kill()


def new(site: Site, operator: OperatorProcess, count: int) -> None:
    """How long until each new object has its first status and its Job."""
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {count} objects", flush=True)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: site.create(f"object-{number}", OBJECT), range(count)))

    begin, before = time.monotonic(), control_plane_seconds(site)
    operator.start()
    # Its own count first: listing all objects again and again would be the larger part of the API server's load.
    poll(lambda: operator.metric(WRITTEN) >= count)
    poll(lambda: objects_told(site) == count and len(site.all("jobs")) >= count)
    print(
        f"new: each has a status and a Job after {time.monotonic() - begin:.1f} s; {cost(operator, site, before)}",
        flush=True,
    )
    print(f"requests for each: {requests(operator, count)}", flush=True)


def settled(site: Site, operator: OperatorProcess, count: int, steady: int) -> None:
    """Let all objects settle, then measure a restart and the time after it."""
    begin, spent = time.monotonic(), control_plane_seconds(site)
    poll(lambda: all_finished(site, count))
    poll(lambda: operator.metric("queue_length") == 0)
    print(f"all settled after {time.monotonic() - begin:.0f} s; {cost(operator, site, spent)}", flush=True)
    print(f"requests for each until then: {requests(operator, count)}", flush=True)
    before = versions(site)
    operator.kill()

    begin, spent = time.monotonic(), control_plane_seconds(site)
    operator.start()
    poll(lambda: operator.metric(SETTLED) >= count)
    print(
        f"cold start: all looked at after {time.monotonic() - begin:.1f} s; {cost(operator, site, spent)}", flush=True
    )
    print(f"writes: {operator.metric(WRITTEN):.0f}; unchanged: {versions(site) == before}", flush=True)

    time.sleep(RESYNC_SECONDS)  # from then on it resyncs
    used, looked, spent = cpu_seconds(operator.pid), operator.metric(SETTLED), control_plane_seconds(site)
    time.sleep(steady)
    used = cpu_seconds(operator.pid) - used
    looks = operator.metric(SETTLED) - looked
    usual = used / max(looks, 1) * count / Settings().resync_seconds
    print(
        f"steady: {used / steady:.2%} of a core for {looks:.0f} looks in {steady} s, {usual:.2%} for a look at each in ten minutes"
    )
    print(f"at the end: {cost(operator, site, spent)}")


def poll(check: Callable[[], bool], seconds: float = 1800) -> None:
    """Once in half a second: the questions load the API server that is measured."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise SystemExit("it took too long")
        time.sleep(0.5)


def all_finished(site: Site, count: int) -> bool:
    """Whether all are published, after another step towards it."""
    site.kubelet.step()
    return objects_told(site, phase="Published") == count


def objects_told(site: Site, *, phase: str | None = None) -> int:
    """Objects with a status, or in a phase."""
    phases = [obj.get("status", {}).get("phase") for obj in site.all(PLURAL)]
    return sum(found is not None and phase in (None, found) for found in phases)


def versions(site: Site) -> dict[str, Any]:
    """The versions of all objects."""
    return {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in site.all(PLURAL)}


def cost(operator: OperatorProcess, site: Site, before: float) -> str:
    """CPU time and resident memory of the operator's process, and CPU time of the control plane since ``before``."""
    lines = Path(f"/proc/{operator.pid}/status").read_text().splitlines()
    sizes = {line.split()[0]: int(line.split()[1]) // 1024 for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return (
        f"{cpu_seconds(operator.pid):.1f} CPU-s, memory {sizes['VmRSS:']} MiB, at most {sizes['VmHWM:']} MiB; "
        f"control plane {control_plane_seconds(site) - before:.1f} CPU-s"
    )


def requests(operator: OperatorProcess, count: int) -> str:
    """What the operator has asked of the API server so far, for each object, the most frequent first."""
    asked = operator.metrics("requests_total")
    told = [f"{asked[labels] / count:.2f} {labels}" for labels in sorted(asked, key=asked.__getitem__, reverse=True)]
    return f"{sum(asked.values()) / count:.1f}: {', '.join(told)}"


def control_plane_seconds(site: Site) -> float:
    """CPU time so far of the processes of a cluster that is this machine's own; of another one nothing is known."""
    if not isinstance(site.cluster, Cluster):
        return 0.0
    return sum(cpu_seconds(pid) for pid in processes.marked(site.cluster.layout.folder))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
