"""How a call of a Triton kernel reaches the torch function that replaces it.

A replacement stands for the kernel, or the launcher of kernels, of the same name and the same argument names.  Where
the names differ SGLang is not the one it was written for; where it returns NotImplemented it does not cover the case.
Both times the interpreter runs the original.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

CHECK = os.environ.get("SGLANG_CPU_CHECK") == "1"

Grid = tuple[int, ...]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Replacement:
    """A torch function in place of a kernel.

    ``written`` names the arguments whose contents are the result; None means every tensor, an empty tuple that the result
    cannot be compared.  ``rtol`` and ``atol`` apply to floating point results; integers are compared exactly.
    """

    function: Callable[..., Any]
    written: tuple[str, ...] | None = None
    rtol: float = 0.0
    atol: float = 0.0

    @property
    def name(self) -> str:
        return self.function.__name__

    def takes(self, names: list[str]) -> bool:
        """Whether the function takes exactly the arguments ``names``, in this order, apart from the grid."""
        return [p for p in inspect.signature(self.function).parameters if p != "grid"] == names


KERNELS: dict[str, Replacement] = {}

#: Names of the replacements that were compared with the interpreter, and found the same, in this process.
COMPARED: set[str] = set()


def replaces(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register the decorated function for the Triton kernel of its name; it gets the grid as its first argument."""
    KERNELS[function.__name__] = Replacement(function)
    return function


def replaces_uncomparable(function: Callable[..., Any]) -> Callable[..., Any]:
    """As ``replaces``, for a kernel that writes through raw addresses."""
    KERNELS[function.__name__] = Replacement(function, written=())
    return function


def run_or_interpret(
    replacement: Replacement | None, arguments: dict[str, Any], interpret: Callable[[dict[str, Any]], Any], name: str
) -> Any:
    """Run the replacement with ``arguments`` by name; ``interpret`` runs the original with arguments by name."""
    if replacement is None:
        say_interpreted(name)
        return interpret(arguments)
    wanted: dict[str, Any] = {}
    if CHECK and replacement.written != ():
        wanted = copied(arguments)
        interpret(wanted)
    result = replacement.function(**arguments)
    if result is NotImplemented:
        say_interpreted(name)
        return interpret(arguments)
    if wanted:
        assert_same(replacement, arguments, wanted)
        COMPARED.add(replacement.name)
    return result


@functools.cache
def say_interpreted(name: str) -> None:
    """Once a kernel: a line that tells why a server may be slow."""
    logger.warning("sglang-cpu: %s runs in Triton's interpreter", name)


def copied(arguments: dict[str, Any]) -> dict[str, Any]:
    """Copies of the tensors among the arguments; layout, and storage shared between them, are kept."""
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        storage = value.untyped_storage()
        if storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = storage.clone()  # type: ignore[no-untyped-call]
        target = storages[storage.data_ptr()]
        return value.new_empty(0).set_(target, value.storage_offset(), value.size(), value.stride())

    return {name: copy(value) for name, value in arguments.items()}


def assert_same(replacement: Replacement, got: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Compare what the replacement and the interpreter wrote."""
    names = replacement.written if replacement.written is not None else tuple(wanted)
    for name in names:
        want = wanted[name]
        if isinstance(want, torch.Tensor):
            rtol, atol = (replacement.rtol, replacement.atol) if want.is_floating_point() else (0.0, 0.0)
            try:
                torch.testing.assert_close(got[name], want, rtol=rtol, atol=atol, equal_nan=True)
            except AssertionError as error:
                raise AssertionError(f"{replacement.name}: {name}: {error}") from None


def patch_interpreter() -> None:
    """Have every call of a ``@triton.jit`` function look for a replacement first."""
    from triton.runtime.interpreter import InterpretedFunction

    original = InterpretedFunction.run

    @functools.cache
    def known(kernel: Any) -> tuple[inspect.Signature, Replacement | None]:
        replacement = KERNELS.get(kernel.fn.__name__)
        if replacement is not None and not replacement.takes(kernel.arg_names):
            replacement = None
        return inspect.signature(kernel.fn), replacement

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        signature, replacement = known(self)
        options = {name: value for name, value in kwargs.items() if name not in self.arg_names}
        bound = signature.bind(*args, **{name: value for name, value in kwargs.items() if name in self.arg_names})
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        sizes = tuple(grid(arguments)) if callable(grid) else tuple(grid)

        def interpret(values: dict[str, Any]) -> Any:
            return original(
                self, grid=sizes, warmup=warmup, **{k: v for k, v in values.items() if k != "grid"}, **options
            )

        if replacement is not None:
            arguments = {"grid": sizes, **arguments}
        return run_or_interpret(replacement, arguments, interpret, self.fn.__name__)

    InterpretedFunction.run = run
