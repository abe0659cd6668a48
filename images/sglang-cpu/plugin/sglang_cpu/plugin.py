"""The entry point: SGLang calls ``install`` at start, before it builds its workers, in every process of its own."""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import torch

from sglang_cpu import slots, tree  # noqa: F401  (importing them registers the kernels)
from sglang_cpu.attention import LAUNCHERS
from sglang_cpu.dispatch import Replacement, patch_interpreter, run_or_interpret

SGLANG_VERSION = "0.5.21"
_NEEDED = ("TRITON_INTERPRET", "TORCHDYNAMO_DISABLE")


def install() -> None:
    """Replace the kernels, choose the code paths that use them, and fork workers.

    A mistake ends the process: SGLang only logs what a plug-in raises as an ``Exception``, and would then fail in a way
    that nobody can read.
    """
    from sglang.version import __version__

    if __version__ != SGLANG_VERSION:
        raise SystemExit(f"sglang-cpu is made for SGLang {SGLANG_VERSION}, not {__version__}")
    for name in _NEEDED:
        if os.environ.get(name) != "1":
            raise SystemExit(f"sglang-cpu needs {name}=1 in the environment from the start of the process")
    patch_interpreter()
    _hook_launchers()
    _choose_kernels()
    _let_latent_attention_be_plain()
    _fork_workers()


def _hook_launchers() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, replacement in LAUNCHERS.items():
        HookRegistry.register(target, functools.partial(_launch, replacement), HookType.AROUND)


def _launch(replacement: Replacement, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    signature = inspect.signature(original)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    known = replacement if replacement.takes(list(signature.parameters)) else None
    return run_or_interpret(known, dict(bound.arguments), lambda values: original(**values), replacement.name)


def _choose_kernels() -> None:
    """Without a GPU SGLang looks for compiled CPU kernels that PyPI does not have; XPU's paths use the Triton kernels."""
    from sglang.kernels.ops.speculative import cache_locs
    from sglang.srt.layers.rotary_embedding import base as rotary
    from sglang.srt.speculative import eagle_utils

    cache_locs._is_xpu = True
    eagle_utils._is_xpu = True
    rotary._is_cpu = True


def _let_latent_attention_be_plain() -> None:
    """What keeps latent attention from a CPU besides kernels.

    Its rotary embedding is made by a function of its own there, which knows YaRN only; the general one knows it without.
    And its drafts wait for the GPU once they have the target's embedding.
    """
    from sglang.srt.layers.rotary_embedding import factory

    of_yarn = factory.get_rope_cpu

    def get_rope_cpu(
        head_size: int,
        rotary_dim: int,
        max_position: int,
        base: int,
        is_neox_style: bool,
        rope_scaling: dict[str, Any] | None,
        dtype: torch.dtype | None,
        partial_rotary_factor: float,
        device: str,
    ) -> Any:
        sizes = (head_size, rotary_dim, max_position, base, is_neox_style, rope_scaling, dtype, partial_rotary_factor)
        return factory.get_rope(*sizes) if rope_scaling is None else of_yarn(*sizes, device)

    factory.get_rope_cpu = get_rope_cpu
    torch.cuda.synchronize = lambda device=None: None  # type: ignore[assignment]


def _fork_workers() -> None:
    """Fork the scheduler and the detokenizer, which SGLang spawns for CUDA's sake.

    Forked, they inherit this installation and need not import SGLang again, which is most of a start on a CPU.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def fork(result: Any, *args: Any, **kwargs: Any) -> None:
        multiprocessing.set_start_method("fork", force=True)

    HookRegistry.register("sglang.srt.entrypoints.engine._set_envs_and_config", fork, HookType.AFTER)
