"""Code for the processes of a stage that runs elsewhere, SGLang's too: to inject a fault, or to see what one of them does."""

from collections.abc import Mapping
from pathlib import Path

#: Runs each code in the names of its module, right after that was imported: a process that never imports it does not either.
#: Then what the environment itself has of this kind, which this stands before.
_CUSTOMISATION = """
import importlib.util, pathlib, sys

class After:
    def find_spec(self, name, path=None, target=None):
        if name not in code:
            return None
        more = code.pop(name)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            exec(more, vars(module))
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, After())
for found in (pathlib.Path(folder, "sitecustomize.py") for folder in sys.path):
    if found.is_file() and found != pathlib.Path(__file__):
        exec(compile(found.read_text(), found, "exec"), {"__name__": "sitecustomize"})
        break
"""


def injected(folder: Path, code: Mapping[str, str]) -> Path:
    """A folder that stands first in PYTHONPATH of processes which are to run this.

    Args:
        folder: to be made.
        code: by the name of the module after whose import, and in whose names, it runs.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"code = {dict(code)!r}\n{_CUSTOMISATION}")
    return folder


def marking(folder: Path, method: str) -> str:
    """Code that leaves a file for each process that calls a method, ``<Class>.<method>-<process>``.

    Args:
        folder: for the files.
        method: ``<Class>.<method>``, in the names of the module that the code is for.
    """
    return (
        f"def marked(self, *args, then={method}):\n"
        "    import os\n"
        f"    open(f'{folder}/{method}-{{os.getpid()}}', 'w').close()\n"
        "    return then(self, *args)\n"
        f"{method} = marked\n"
    )


#: Of a capture: the module and method that take a forward's states, which each rank calls, and that which writes them.
TAKES = ("eagle3_draft.extract.sglang_capture", "Capture._take")
WRITES = ("eagle3_draft.extract.handover", "HandoverWriter.write")
