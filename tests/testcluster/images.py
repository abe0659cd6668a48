"""Container images without a docker engine: one layer, made of what an image adds to this machine's own /usr."""

import contextlib
import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from testcluster.processes import run

PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
EMPTY_FOLDERS = ("usr", "etc", "proc", "sys", "dev", "run", "var", "root", "home")
# Debian's merged /usr.
LINKS = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}
PASSWD = """\
root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/:/usr/sbin/nologin
nonroot:x:65532:65532:nonroot:/tmp:/usr/sbin/nologin
"""
GROUP = """\
root:x:0:
nogroup:x:65534:
nonroot:x:65532:
"""


def configuration(
    layer_digest: str, entrypoint: Sequence[str], env: Mapping[str, str], path: Sequence[str]
) -> dict[str, object]:
    """The image's configuration; `path` stands before the usual folders in PATH."""
    variables = {"PATH": ":".join([*path, *PATH]), **env}
    return {
        "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
        "os": "linux",
        "config": {
            "Entrypoint": list(entrypoint),
            "Env": [f"{name}={value}" for name, value in variables.items()],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
    }


@contextlib.contextmanager
def archive(
    name: str,
    add: Sequence[tuple[str | Path, str]],
    entrypoint: Sequence[str],
    env: Mapping[str, str],
    path: Sequence[str],
) -> Iterator[Path]:
    """A file in `docker save`'s format, there while the context lasts.

    `add` names files and folders of this machine (links are followed at the top) and where they lie in the image.
    There everybody may read them, whatever their mode here.
    """
    with tempfile.TemporaryDirectory(prefix="eagle3-test-image-") as folder:
        layer = Path(folder, "layer.tar")
        with layer.open("wb") as file:
            _write_layer(file, add)
        with layer.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        config = json.dumps(configuration(digest, entrypoint, env, path)).encode()
        manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
        whole = Path(folder, "image.tar")
        with tarfile.open(whole, "w") as tar:
            _entry(tar, "config.json", data=config)
            tar.add(layer, "layer.tar")
            _entry(tar, "manifest.json", data=manifest)
        layer.unlink()
        yield whole


def import_into(containerd_socket: Path, image: Path) -> None:
    """Gives an image to a containerd, where the kubelet finds it."""
    run("ctr", "--address", containerd_socket, "--namespace", "k8s.io", "images", "import", image)


def check_name(name: str) -> None:
    """Refuses a name that the kubelet would try to pull."""
    repository, _, tag = name.rpartition(":")
    if "/" not in repository or "." not in repository.split("/")[0] or not tag or "/" in tag or tag == "latest":
        raise ValueError(f"image {name}: needs a registry and a tag other than latest, such as kit.local/app:1")


def _write_layer(file: IO[bytes], add: Sequence[tuple[str | Path, str]]) -> None:
    with tarfile.open(fileobj=file, mode="w") as tar:
        for folder in EMPTY_FOLDERS:
            _entry(tar, folder, kind=tarfile.DIRTYPE, mode=0o755)
        _entry(tar, "tmp", kind=tarfile.DIRTYPE, mode=0o1777)
        for link, target in LINKS.items():
            _entry(tar, link, kind=tarfile.SYMTYPE, mode=0o777, target=target)
        _entry(tar, "etc/passwd", data=PASSWD.encode())
        _entry(tar, "etc/group", data=GROUP.encode())
        # Programs of /usr find their libraries as they do here.
        _entry(tar, "etc/ld.so.cache", data=Path("/etc/ld.so.cache").read_bytes())
        for source, target in add:
            tar.add(Path(source).resolve(strict=True), target.lstrip("/"), filter=_readable)


def _readable(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    executable = info.isdir() or info.mode & 0o100
    info.mode |= 0o555 if executable else 0o444
    return info


def _entry(
    tar: tarfile.TarFile,
    path: str,
    *,
    kind: bytes = tarfile.REGTYPE,
    mode: int = 0o644,
    target: str = "",
    data: bytes = b"",
) -> None:
    info = tarfile.TarInfo(path)
    info.type, info.mode, info.linkname, info.size = kind, mode, target, len(data)
    tar.addfile(info, io.BytesIO(data))
