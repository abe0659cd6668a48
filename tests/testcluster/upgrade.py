"""Another version of Kubernetes: `python -m testcluster upgrade 1.37.2` writes go/kube/go.mod and go.sum anew.

k8s.io/kubernetes is not made to be imported: its go.mod requires its sister modules at v0.0.0 and replaces them by
folders of its own repository, which no module proxy serves and which do not count for an importer. Each is replaced
here by the version that was published beside it: v0.MINOR.PATCH beside v1.MINOR.PATCH.
"""

import json
import re
from pathlib import Path

from testcluster.build import MODULES
from testcluster.processes import run

KUBERNETES, ETCD = "k8s.io/kubernetes", "go.etcd.io/etcd/server/v3"
SISTERS_IMPORTED = ("k8s.io/component-base", "k8s.io/kubectl")


def go_mod(upstream: str, version: str) -> str:
    """The go.mod of the kube module, from the go.mod of k8s.io/kubernetes VERSION (`1.34.4`). `go mod tidy` fills it."""
    sister_version = "v0" + version.removeprefix("1")
    sisters = re.findall(r"^\s*(k8s\.io/\S+) => \./staging/", upstream, re.MULTILINE)
    go = re.search(r"^go (\S+)", upstream, re.MULTILINE)
    etcd = re.search(rf"^\s*{re.escape(ETCD)} (\S+)", upstream, re.MULTILINE)
    if not (sisters and go and etcd):
        raise ValueError(f"the go.mod of {KUBERNETES} {version} is not as expected: no sister modules, Go or etcd")
    required = {KUBERNETES: f"v{version}", ETCD: etcd[1], **dict.fromkeys(SISTERS_IMPORTED, sister_version)}
    lines = ["module kube", "", f"go {go[1]}", "", "require ("]
    lines += [f"\t{module} {wanted}" for module, wanted in required.items()]
    lines += [")", "", "replace ("]
    lines += [f"\t{sister} => {sister} {sister_version}" for sister in sisters]
    return "\n".join([*lines, ")", ""])


def upgrade(version: str, folder: Path = MODULES / "kube") -> None:
    """Changes the module in `folder` to another version of Kubernetes; needs a module proxy."""
    downloaded = json.loads(run("go", "mod", "download", "-json", f"{KUBERNETES}@v{version}"))
    (folder / "go.mod").write_text(go_mod(Path(downloaded["GoMod"]).read_text(), version))
    (folder / "go.sum").unlink(missing_ok=True)
    run("go", "-C", folder, "mod", "tidy")
