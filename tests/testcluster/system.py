"""The Debian packages that a cluster uses, installed when they are missing."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import once

# A command, or a file, and the package that has it.
CONTROL_PLANE = {"openssl": "openssl", "setpriv": "util-linux"}
NODE = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "iptables": "iptables",
    "nft": "nftables",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "/usr/bin/python3": "python3",  # which containers see
}
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POLICY = Path("/usr/sbin/policy-rc.d")


def missing(wanted: dict[str, str]) -> list[str]:
    """The packages of the commands that are not there."""
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
    return sorted({package for command, package in wanted.items() if shutil.which(command, path=path) is None})


def promtool() -> str:
    """Prometheus's own tool, with which rules and queries are tested without a server."""
    require({"promtool": "prometheus"})
    return "promtool"


def require(wanted: dict[str, str]) -> None:
    """Installs what is missing of `wanted`; raises RuntimeError with what to do where that is not possible."""
    if not missing(wanted):
        return
    once.cache().mkdir(parents=True, exist_ok=True)
    with (once.cache() / "packages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # apt-get waits for one that installs, and fails beside one that updates
        if packages := missing(wanted):
            _install(packages)
    if still := missing(wanted):
        raise RuntimeError(f"these are installed and yet missing: {' '.join(still)}")


def _install(packages: list[str]) -> None:
    command = f"apt-get install --no-install-recommends {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        raise RuntimeError(f"the test cluster needs what Debian's packages {' '.join(packages)} have; install it")
    if os.geteuid() != 0:
        raise RuntimeError(f"the test cluster needs, as root: {command}")
    print(f"testcluster: {command}", file=sys.stderr, flush=True)
    with _no_services():
        _apt_get("update")
        _apt_get("install", "--yes", "--no-install-recommends", *packages)


def _apt_get(*arguments: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # Another apt-get may be at work: its lock is waited for.
    command = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", *arguments]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {(done.stderr or done.stdout)[-2000:]}")


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Only the programs are wanted: no package may start its service (prometheus and containerd would)."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
