"""The product by hand, on the test cluster that outlives this process: `make cluster-up`, `make cluster-install`."""

import argparse
import sys
import time

import yaml
from image import recipe as sglang_image
from image import require_seen_by_pods

from testbed import Testbed, tiny
from testbed.bed import NAMESPACE
from testcluster import Cluster, build

GPUS = 2


def up() -> None:
    """Start a cluster with a node and GPUs that are not there, on which SGLang can run."""
    require_seen_by_pods()
    begin, cluster = time.monotonic(), Cluster()
    cluster.up(node=True, gpus=GPUS, share=sglang_image().share)
    print(f"up in {time.monotonic() - begin:.1f} s", file=sys.stderr)
    _tell(cluster)


def install() -> None:
    """Install the operator of this working tree on it, with claims, a tiny target and its data; again after a change."""
    cluster = Cluster()
    if not cluster.kubeconfig.exists():
        sys.exit("no cluster runs: make cluster-up")
    Testbed.on(cluster)
    print(
        f"try it: PYTHONPATH=tests:images/sglang-cpu .venv/bin/python -m testbed tiny | kubectl apply -n {NAMESPACE} -f -",
        file=sys.stderr,
    )
    _tell(cluster)


def print_tiny() -> None:
    """Print an object that is trained and served there in minutes."""
    yaml.safe_dump(tiny.manifest(), sys.stdout, sort_keys=False)


def _tell(cluster: Cluster) -> None:
    print(f"export KUBECONFIG={cluster.kubeconfig} PATH={build.kubectl().parent}:$PATH")


COMMANDS = {"up": up, "install": install, "tiny": print_tiny}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m testbed", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.__doc__, description=command.__doc__)
    COMMANDS[parser.parse_args().command]()


if __name__ == "__main__":
    main()
