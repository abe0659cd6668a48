"""SGLang on a machine without a GPU, through SGLang's own plug-in entry point.

SGLang's scheduler, draft worker, verification, KV pools, Triton attention backend (the part that prepares metadata) and
models run unchanged.  What cannot run without a GPU are its Triton kernels, except in Triton's interpreter, which takes
5-260 ms a call.  The kernels on the serving path are therefore replaced by a torch function each, which has the kernel's
name and the kernel's arguments:

    slots.py       the request table, positions, the slots of the KV cache
    tree.py        the draft tree and its greedy verification
    attention.py   the two attention launchers: extend (prefill, draft extend, verify) and decode
    dispatch.py    how a call of a Triton kernel reaches its replacement
    plugin.py      the entry point that SGLang calls in every process

A kernel without a replacement still runs in the interpreter and says so once in the log: slow, not wrong.

Environment: TRITON_INTERPRET=1 and TORCHDYNAMO_DISABLE=1 are needed from the start of the process.
SGLANG_CPU_CHECK=1 runs every replaced kernel in the interpreter as well, on copies, and compares the results.
"""
