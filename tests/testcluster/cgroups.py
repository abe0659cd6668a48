"""The node's control groups, in every hierarchy of the machine: version 1, version 2, or both side by side."""

import contextlib
import os
from pathlib import Path


def hierarchies() -> list[tuple[Path, bool]]:
    """The mount point of each hierarchy, and whether it is of version 2."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind = after.split()[0]
        if kind in ("cgroup", "cgroup2"):
            found.append((Path(before.split()[4]), kind == "cgroup2"))
    return found


def make(name: str) -> None:
    """Makes an empty group below the root of each hierarchy, ready for the kubelet's own below it."""
    for top, is_version_2 in hierarchies():
        group = top / name
        group.mkdir(exist_ok=True)
        if is_version_2:
            # Only what the parent hands down can be limited; the kubelet hands it on to its groups itself.
            controllers = (top / "cgroup.controllers").read_text().split()
            (top / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in controllers))
        elif (top / "cpuset.cpus").exists():
            # A cpuset of version 1 begins empty, and takes no process before it has processors and memory.
            for file in ("cpuset.cpus", "cpuset.mems"):
                (group / file).write_text((top / file).read_text())


def existing(name: str) -> list[Path]:
    return [top / name for top, _ in hierarchies() if (top / name).is_dir()]


def remove(name: str) -> bool:
    """Removes the groups; returns whether all are gone. Killed processes leave theirs a moment after they end."""
    for group in existing(name):
        with contextlib.suppress(OSError):
            for folder, _, _ in os.walk(group, topdown=False):
                Path(folder).rmdir()
    return not existing(name)
