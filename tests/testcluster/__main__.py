"""The test cluster by hand: `PYTHONPATH=tests python -m testcluster up --node`."""

import argparse
import sys
import time
from pathlib import Path

from testcluster import build
from testcluster.cluster import Cluster
from testcluster.upgrade import upgrade


def main(arguments: list[str]) -> None:
    parser = _parser()
    if not arguments:
        parser.print_help()
        return
    told = parser.parse_args(arguments)
    if told.command == "build":
        if unknown := [name for name in told.program if name not in build.PROGRAMS]:
            parser.error(f"no program {unknown[0]}: {', '.join(build.PROGRAMS)}")
        for name in told.program or build.IN_ADVANCE:
            print(build.binary(name))
        return
    if told.command == "upgrade":
        upgrade(told.version)
        return
    cluster = Cluster(told.folder, told.slot)
    if told.command == "up":
        begin = time.monotonic()
        cluster.up(node=told.node, gpus=told.gpus, share=told.share)
        print(f"up in {time.monotonic() - begin:.1f} s; kubectl is {build.kubectl()}", file=sys.stderr)
        print(f"export KUBECONFIG={cluster.kubeconfig}")
    elif told.command == "down":
        cluster.down()
        print("down: nothing of it is left on this machine", file=sys.stderr)
    elif told.command == "kubeconfig":
        if not cluster.kubeconfig.exists():
            sys.exit(f"no cluster runs in {cluster.layout.folder}")
        print(cluster.kubeconfig)
    elif told.command == "image":
        add = [(source, target) for source, _, target in (pair.rpartition(":") for pair in told.add)]
        env = dict(pair.partition("=")[::2] for pair in told.env)
        cluster.image(told.name, add, told.entrypoint, env, told.path)
        print(f"image {told.name} is on the node", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m testcluster", description="A real Kubernetes on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, about: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=about, description=about)

    def cluster_command(name: str, about: str) -> argparse.ArgumentParser:
        made = command(name, about)
        made.add_argument("--slot", type=int, help="0 to 255 (default 0): tells clusters of one machine apart")
        made.add_argument("--folder", type=Path, help="its state (default /tmp/eagle3-testcluster-SLOT)")
        return made

    up = cluster_command("up", "start a cluster and wait until it is ready; prints the line that sets KUBECONFIG")
    up.add_argument("--node", action="store_true", help="with a node, on which pods run (needs root)")
    up.add_argument("--gpus", type=int, default=0, help="so many nvidia.com/gpu, which are not there")
    up.add_argument("--share", action="append", default=[], metavar="PATH", help="every container sees PATH, read-only")
    cluster_command("down", "end a cluster and remove what it left, also after a crash")
    cluster_command("kubeconfig", "print the path of the administrator's kubeconfig")
    image = cluster_command("image", "make an image of files of this machine and put it on the node")
    image.add_argument("--add", action="append", default=[], metavar="SOURCE:PLACE", help="a file or folder to put in")
    image.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    image.add_argument("--path", action="append", default=[], metavar="FOLDER", help="stands before the rest of PATH")
    image.add_argument("name", help="with a registry and a tag: kit.local/app:1")
    image.add_argument("entrypoint", nargs=argparse.REMAINDER)
    make = command("build", "build the programs that are not there yet, and print where they are")
    names = ", ".join(build.PROGRAMS)
    make.add_argument("program", nargs="*", help=f"of {names}; those for every change if none is named")
    command("upgrade", "change the version of Kubernetes in go.mod").add_argument("version", help="such as 1.37.2")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
