"""Stand-ins for the CUDA libraries that PyPI's torch names, so that it can be imported without 2.7 GB of nvidia packages.

torch's shared objects list CUDA libraries as needed and bind all their symbols when they are loaded, although a process
without a GPU never calls one.  For each such library that is absent this writes a stub of a few kilobytes beside torch,
where torch's own search path looks.  Every function of a stub returns 100, cudaErrorNoDevice.  Libraries that are there
are left alone.  Needs gcc and readelf.

    python cuda_stubs.py        (in the environment that holds torch)
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

# Which symbols belong to which library, by the beginning of its name.
SYMBOLS = {
    "libcublas": "cublas(?!Lt)",
    "libcublasLt": "cublasLt",
    "libcudnn": "cudnn",
    "libcufft": "cufft",
    "libcufile": "cuFile",
    "libcurand": "curand",
    "libcusparse": "cusparse(?!Lt)",
    "libcusparseLt": "cusparseLt",
    "libnccl": "nccl|pnccl",
    "libnvrtc": "nvrtc",
    "libnvshmem_host": "nvshmem",
}


def readelf(option: str, library: Path) -> str:
    """readelf's words about a shared object."""
    command = ["readelf", "--wide", option, str(library)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def wanted(libraries: list[Path]) -> tuple[set[str], set[str], dict[str, str]]:
    """The libraries that ``libraries`` need, the symbols they leave undefined, and the version of each library's symbols."""
    needed: set[str] = set()
    undefined: set[str] = set()
    versions: dict[str, str] = {}
    for library in libraries:
        needed.update(re.findall(r"NEEDED.*\[(.*?)\]", readelf("--dynamic", library)))
        symbols = readelf("--dyn-syms", library)
        undefined.update(re.findall(r"(?:FUNC|NOTYPE|OBJECT)\s+GLOBAL\s+DEFAULT\s+UND\s+(\w+)", symbols))
        version_needs = readelf("--version-info", library)
        versions.update(re.findall(r"File: (lib\S+)\s+Cnt: 1\n.*?Name: (\S+)", version_needs))
    return needed, undefined, versions


def write_stub(path: Path, functions: list[str], version: str) -> None:
    """Compile a shared object with ``functions`` under one symbol version, without which the loader refuses it."""
    source = "".join(f"int {name}(void) {{ return 100; }}\n" for name in functions) or "int nothing;\n"
    with tempfile.TemporaryDirectory() as folder:
        code, script = Path(folder, "stub.c"), Path(folder, "stub.map")
        code.write_text(source)
        script.write_text(f"{version} {{ global: *; }};\n")
        options = [
            "-w",
            "-fno-builtin",
            "-shared",
            "-fPIC",
            f"-Wl,-soname,{path.name}",
            f"-Wl,--version-script={script}",
        ]
        subprocess.run(["gcc", *options, "-o", str(path), str(code)], check=True)


def main() -> int:
    """Write the stubs that this environment's torch lacks."""
    packages = Path(sysconfig.get_paths()["platlib"])
    folder = packages / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    needed, undefined, versions = wanted(sorted((packages / "torch" / "lib").glob("*.so")))
    made = 0
    for soname in sorted(needed):
        pattern = SYMBOLS.get(soname.split(".so")[0])
        if pattern is not None and not any((packages / "nvidia").glob(f"**/{soname}")):
            functions = sorted(symbol for symbol in undefined if re.match(pattern, symbol))
            write_stub(folder / soname, functions, versions.get(soname, soname))
            made += 1
    sys.stdout.write(f"{made} stub libraries in {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
