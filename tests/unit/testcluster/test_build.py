import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testcluster import build

GO = "go1.26.8 linux/amd64"
KUBE, PAUSE, HELM = (build.PROGRAMS[name] for name in ("kube", "pause", "helm"))


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A copy of the sources, to change."""
    return Path(shutil.copytree(build.MODULES, tmp_path / "go"))


def test_the_same_sources_flags_and_compiler_have_the_same_key(modules: Path) -> None:
    for program in build.PROGRAMS.values():
        assert build.key(program, GO) == build.key(program, GO, modules)


@pytest.mark.parametrize("file", ["kube/main.go", "kube/go.mod", "kube/go.sum"])
def test_a_changed_source_changes_the_key_of_its_program_only(modules: Path, file: str) -> None:
    with (modules / file).open("a") as source:
        source.write("// changed\n")

    assert build.key(KUBE, GO, modules) != build.key(KUBE, GO)
    assert build.key(PAUSE, GO, modules) == build.key(PAUSE, GO)


def test_a_new_source_file_changes_the_key(modules: Path) -> None:
    (modules / "pause" / "more.go").write_text("package main\n")

    assert build.key(PAUSE, GO, modules) != build.key(PAUSE, GO)


def test_another_compiler_or_another_version_changes_the_key() -> None:
    newer = dataclasses.replace(HELM, source=HELM.source + "1")

    assert build.key(HELM, GO) != build.key(HELM, "go1.27.0 linux/amd64")
    assert build.key(HELM, GO) != build.key(newer, GO)


def test_kubernetes_is_told_the_version_that_its_module_names() -> None:
    stamps = build.kubernetes_stamps(build.MODULES / "kube" / "go.mod")

    assert "-X k8s.io/component-base/version.gitVersion=v1.34.4" in stamps
    assert "-X k8s.io/client-go/pkg/version.gitMinor=34" in stamps


def test_a_machine_without_go_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(build.GoMissingError, match=r"no `go` in PATH: install Go 1\.26"):
        build.binary("pause")


@pytest.mark.parametrize("version", ["go1.23.4 linux/amd64", "go0.9 linux/amd64"])
def test_a_go_that_is_too_old_is_refused_with_both_versions(version: str) -> None:
    with pytest.raises(build.GoMissingError, match=f"kube needs Go 1.24 or newer, and `go` in PATH is {version}"):
        build.require_go(KUBE, version)


def test_a_newer_go_is_taken() -> None:
    build.require_go(KUBE, "go1.24 linux/amd64")
    build.require_go(KUBE, "go2.0 linux/amd64")
    build.require_go(KUBE, "devel go1.99-abcdef linux/amd64")


def test_a_program_is_built_once_even_by_two_processes_and_then_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EAGLE3_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(build.MODULES.parents[1]))
    with subprocess.Popen([sys.executable, "-m", "testcluster", "build", "pause"]) as other:
        built = build.binary("pause")
    assert other.returncode == 0
    kept = build.binary("pause")

    assert built == kept
    assert os.access(kept, os.X_OK)
    printed, said = capfd.readouterr()
    assert printed == f"{built}\n"
    assert said.count("built pause in") == 1
    assert not list(tmp_path.glob("*.part"))


def test_a_build_that_fails_tells_what_the_compiler_said_and_publishes_nothing(
    modules: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (modules / "pause" / "main.go").write_text("package main\n\nfunc main() { nothing() }\n")
    monkeypatch.setattr(build, "MODULES", modules)
    monkeypatch.setenv("EAGLE3_CACHE", str(tmp_path / "cache"))

    with pytest.raises(RuntimeError, match=r"undefined: nothing"):
        build.binary("pause")

    assert not list((tmp_path / "cache").glob("pause-*/pause"))
