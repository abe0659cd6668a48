import json
import tarfile
from pathlib import Path

import pytest

from testcluster import images

NAME = "kit.local/app:1"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir(mode=0o700)
    (folder / "main.py").write_text("print('hello')\n")
    (folder / "main.py").chmod(0o600)
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o700)
    return folder


def test_the_archive_is_what_docker_save_writes(program: Path) -> None:
    with images.archive(NAME, [(program, "/app")], ["/app/run"], {}, []) as path, tarfile.open(path) as tar:
        manifest = json.load(tar.extractfile("manifest.json") or pytest.fail("no manifest"))
        assert manifest[0]["RepoTags"] == [NAME]
        assert {manifest[0]["Config"], *manifest[0]["Layers"]} <= set(tar.getnames())


def test_everybody_can_read_what_was_added_whatever_its_mode_was(program: Path, tmp_path: Path) -> None:
    with images.archive(NAME, [(program, "/app")], ["/app/run"], {}, []) as path, tarfile.open(path) as tar:
        tar.extract("layer.tar", tmp_path, filter="data")
    with tarfile.open(tmp_path / "layer.tar") as layer:
        modes = {name: layer.getmember(name).mode for name in ("app", "app/main.py", "app/run")}
        assert modes == {"app": 0o755, "app/main.py": 0o644, "app/run": 0o755}
        assert layer.getmember("app/run").uid == 0
        passwd = (layer.extractfile("etc/passwd") or pytest.fail("no passwd")).read().decode()

    assert {line.split(":")[2]: line.split(":")[5] for line in passwd.splitlines()} == {
        "0": "/root",
        "65534": "/",
        "65532": "/tmp",
    }


def test_the_path_begins_with_what_the_caller_names() -> None:
    configuration = images.configuration("0" * 64, ["python3"], {"HOME": "/tmp"}, ["/opt/env/bin"])["config"]

    assert configuration == {
        "Entrypoint": ["python3"],
        "Env": ["PATH=/opt/env/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/tmp"],
    }


def test_a_name_that_the_kubelet_would_not_pull_is_taken() -> None:
    images.check_name("kit.local/team/app:1")
    images.check_name("localhost.localdomain:5000/app:v1")


@pytest.mark.parametrize("name", ["app", "app:1", "kit.local/app", "kit.local/app:latest", "team/app:1"])
def test_a_name_that_the_kubelet_would_try_to_pull_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="needs a registry and a tag other than latest"):
        images.check_name(name)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError),
        images.archive(NAME, [(tmp_path / "missing", "/app")], [], {}, []),
    ):
        pass
