"""A target that forwards and answers in milliseconds."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder, which nobody changes. Imported here is only what pytest has imported as a test already."""
    import torch
    from transformers import LlamaConfig

    from unit.extract.test_extract import SHAPE, save_target

    torch.manual_seed(0)
    torch.set_num_threads(1)
    return save_target(tmp_path_factory.mktemp("target"), LlamaConfig(**SHAPE))
