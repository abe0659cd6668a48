"""The first process of the node's namespaces, run as a program of its own: `innode.py node/init.json`.

It makes the node's own view of the file system, starts containerd, kubelet, kube-proxy and DNS, and buries orphans, as
a machine's init does. When it ends, the kernel ends everything in its namespaces with it: daemons, containers, mounts,
links. It needs nothing but the standard library, and knows nothing but what the file says (`node.init_configuration`).
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn


def main() -> NoReturn:
    configuration: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    mount(configuration)
    Path(configuration["mounted"]).touch()
    waiting: list[dict[str, Any]] = configuration["daemons"]
    running: dict[int, str] = {}
    while True:
        for daemon in [daemon for daemon in waiting if all(map(is_there, daemon["after"]))]:
            waiting.remove(daemon)
            with Path(daemon["log"]).open("ab") as log:
                process = subprocess.Popen(daemon["command"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            running[process.pid] = daemon["name"]
        bury(running, block=not waiting)
        time.sleep(0.02)


def is_there(path: str) -> bool:
    """Whether a file exists; a socket must be listened on, too."""
    if not Path(path).is_socket():
        return Path(path).exists()
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def bury(running: dict[int, str], *, block: bool) -> None:
    """Takes a process off the kernel's list that has ended, an orphan perhaps; ends itself if it is a daemon's."""
    if not running:
        return
    pid, status = os.waitpid(-1, 0 if block else os.WNOHANG)
    if pid in running:
        sys.exit(f"{running[pid]} ended with status {os.waitstatus_to_exitcode(status)}: see its log")


def mount(configuration: dict[str, Any]) -> None:
    # Mounts must reach the containers' mount namespaces (this one is apart from the machine's already).
    run("mount", "--make-rshared", "/")
    for source, target in configuration["binds"].items():
        Path(target).mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", source, target)
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    for path, value in configuration["sysctls"].items():
        Path(path).write_text(value)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
