"""What SGLang must be told to serve the tiny target on a CPU, one item a word, for ``serve.arguments`` of an object.

- ``--device``, ``--attention-backend``: on the CPU only the Triton backend's code can draft, once its kernels are replaced.
- ``--dtype``: ``auto`` would make float16 of float32 weights.
- ``--cuda-graph-backend-*``: capturing a graph needs a GPU.
- ``--sleep-on-idle``: a server that waits would keep a core busy, which another one is being measured on.
- ``--max-total-tokens``: SGLang would give most of the machine's memory to the KV cache.

Everything else may stay at its default.
"""

SERVE_ARGUMENTS: tuple[str, ...] = (
    "--device",
    "cpu",
    "--dtype",
    "float32",
    "--attention-backend",
    "triton",
    "--cuda-graph-backend-decode",
    "disabled",
    "--cuda-graph-backend-prefill",
    "disabled",
    "--sleep-on-idle",
    "--max-total-tokens",
    "8192",
)

#: The decoder layers whose outputs a draft for the tiny target reads, 0-based; it is too small to have default ones.
AUXILIARY_LAYERS: tuple[int, ...] = (0, 1, 2)
