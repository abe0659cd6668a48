"""The cluster's programs, built from their Go modules and kept by content.

Each lies in `$EAGLE3_CACHE/NAME-KEY/` (default ~/.cache/eagle3-operator), where KEY hashes whatever decides what comes
out: sources, flags and Go's version.
"""

import collections
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import once

MODULES = Path(__file__).parent / "go"
HEARTBEAT = 20  # seconds
OBJECT_STORE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
ORAS = "oras.land/oras/cmd/oras@v1.3.6"
COSIGN = "github.com/sigstore/cosign/v2/cmd/cosign@v2.6.5"
JOBSET = "sigs.k8s.io/jobset"
JOBSET_MANIFESTS = (
    "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
    "config/components/webhook/manifests.yaml",
)
KUEUE = "sigs.k8s.io/kueue/cmd/kueue"
KUEUE_MANIFESTS = (
    *(
        f"config/components/crd/bases/kueue.x-k8s.io_{kind}.yaml"
        for kind in (
            *("admissionchecks", "clusterqueues", "cohorts", "localqueues", "multikueueclusters", "multikueueconfigs"),
            *("provisioningrequestconfigs", "resourceflavors", "topologies", "workloadpriorityclasses", "workloads"),
        )
    ),
    "config/components/webhook/manifests.yaml",
)
SMALL = ("-s", "-w")  # no symbol table, no debugging information


@dataclass(frozen=True)
class Program:
    """One binary. `source` is a folder below `go/`, or a package with its version, which `go install` fetches.

    A folder may hold no program itself and only say which version of another module's `package` is meant. `manifests`,
    files of that module, are then kept beside the binary.
    """

    name: str
    source: str
    needs_go: tuple[int, int]
    about: str
    links: tuple[str, ...] = ()  # other names for it
    in_advance: bool = True  # or else by the first test that wants it
    package: str = "."
    manifests: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        return "@" not in self.source


# The cheap ones first: they are there while the dear one builds.
PROGRAMS = {
    program.name: program
    for program in (
        Program("pause", "pause", (1, 24), "the first process of every pod"),
        Program("registry", "registry", (1, 25), "an OCI registry"),
        Program("dns", "dns", (1, 24), "CoreDNS"),
        Program("versitygw", OBJECT_STORE, (1, 25), "S3-compatible object storage on a folder"),
        Program("helm", HELM, (1, 26), "Helm"),
        Program("jobset", "jobset", (1, 25), "JobSet's controller", package=JOBSET, manifests=JOBSET_MANIFESTS),
        Program("kube", "kube", (1, 24), "etcd, Kubernetes and kubectl in one; cold 7 to 20 minutes", ("kubectl",)),
        Program("oras", ORAS, (1, 26), "what others pull artifacts with; cold 2 minutes", in_advance=False),
        Program(
            "kueue",
            "kueue",
            (1, 25),
            "Kueue's controller; cold 6 minutes",
            in_advance=False,
            package=KUEUE,
            manifests=KUEUE_MANIFESTS,
        ),
        Program("cosign", COSIGN, (1, 25), "what others sign artifacts with; cold 10 minutes", in_advance=False),
    )
}

#: Those that the suites of every change need.
IN_ADVANCE = tuple(name for name, program in PROGRAMS.items() if program.in_advance)


class GoMissingError(RuntimeError):
    """There is no Go compiler, or one that is too old."""


def binary(name: str) -> Path:
    """The path of a program, which is built first if it is not there."""
    program = PROGRAMS[name]
    version = go_version()

    def make(folder: Path) -> None:
        require_go(program, version)
        _build(program, folder)

    return once.made(f"{name}-{key(program, version)}", make) / name


def kubectl() -> Path:
    return binary("kube").with_name("kubectl")


def go_version() -> str:
    """What `go version` prints, without its first words: `go1.26.8 linux/amd64`."""
    if shutil.which("go") is None:
        raise GoMissingError("the test cluster is built from Go modules, and there is no `go` in PATH: install Go 1.26")
    printed = subprocess.run(["go", "version"], check=True, capture_output=True, text=True).stdout
    return printed.removeprefix("go version ").strip()


def require_go(program: Program, version: str) -> None:
    """Raises GoMissingError if `version` is older than the program needs."""
    if found := re.match(r"go(\d+)\.(\d+)", version):
        here = int(found[1]), int(found[2])
        if here < program.needs_go:
            wanted = ".".join(map(str, program.needs_go))
            raise GoMissingError(f"{program.name} needs Go {wanted} or newer, and `go` in PATH is {version}")


def key(program: Program, version: str, modules: Path = MODULES) -> str:
    """The hash of all that decides what the binary is."""
    digest = hashlib.sha256()

    def add(text: bytes) -> None:
        digest.update(len(text).to_bytes(8, "big") + text)

    add(f"{program.source} {program.links} {version}".encode())
    for argument in arguments(program, modules):
        add(argument.encode())
    if program.package != ".":
        add(" ".join([program.package, *program.manifests]).encode())
    if program.is_local:
        for path in sorted((modules / program.source).rglob("*")):
            if path.is_file():
                add(str(path.relative_to(modules)).encode())
                add(path.read_bytes())
    return digest.hexdigest()[:16]


def arguments(program: Program, modules: Path = MODULES) -> list[str]:
    """Flags of `go build` and `go install`. Those that reach the compiler decide what Go's own cache can reuse."""
    stamps = kubernetes_stamps(modules / program.source / "go.mod") if program.name == "kube" else []
    return ["-trimpath", "-buildvcs=false", "-ldflags", " ".join([*SMALL, *stamps])]


def kubernetes_stamps(go_mod: Path) -> list[str]:
    """Linker flags that tell Kubernetes its own version, which its release scripts stamp in."""
    found = re.search(r"^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)", go_mod.read_text(), re.MULTILINE)
    if not found:
        raise ValueError(f"{go_mod} requires no k8s.io/kubernetes")
    values = {"gitVersion": found[1], "gitMajor": found[2], "gitMinor": found[3], "gitTreeState": "archive"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return [f"-X {package}.{name}={value}" for package in packages for name, value in values.items()]


def _build(program: Program, out: Path) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    if program.is_local:
        command = ["go", "build", "-v", *arguments(program), "-o", str(out / program.name), program.package]
        folder = MODULES / program.source
    else:
        command = ["go", "install", "-v", *arguments(program), program.source]
        folder = out
        environment["GOBIN"] = str(out)
    _run_with_heartbeat(program, command, folder, environment)
    for path in _manifests(program, folder):
        shutil.copy(path, out)
    for link in program.links:
        (out / link).symlink_to(program.name)


def _manifests(program: Program, folder: Path) -> list[Path]:
    """Where the module of a program's package has its manifests."""
    if not program.manifests:
        return []
    command = ["go", "list", "-f", "{{.Module.Dir}}", program.package]
    module = Path(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip())
    return [module / name for name in program.manifests]


def _run_with_heartbeat(program: Program, command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Runs a build, and says every 20 s how far it is."""
    begin = time.monotonic()
    _say(f"building {program.name} ({program.about})")
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    last_lines: collections.deque[str] = collections.deque(maxlen=40)
    compiled = 0

    def read() -> None:
        nonlocal compiled
        assert process.stderr is not None
        for line in process.stderr:
            last_lines.append(line.rstrip())
            compiled += not line.startswith(("go:", "#", " ", "\t"))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while True:
            try:
                status = process.wait(HEARTBEAT)
                break
            except subprocess.TimeoutExpired:
                _say(f"{program.name}: {compiled} packages compiled, {time.monotonic() - begin:.0f} s")
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # and its compilers
    reader.join()
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} in {folder}: status {status}:\n" + "\n".join(last_lines))
    _say(f"built {program.name} in {time.monotonic() - begin:.0f} s")


def _say(text: str) -> None:
    print(f"testcluster: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":  # by its path: before the Python environment is there, which the package needs
    for program_name in sys.argv[1:] or IN_ADVANCE:
        print(binary(program_name))
