"""The GPU's kernels run here on the CPU, by Triton's interpreter. It must be chosen before Triton is imported."""

import os

os.environ["TRITON_INTERPRET"] = "1"
