"""Train's artifact in the one form."""

from pathlib import Path

from eagle3_api.artifacts import VOCABULARY, WEIGHTS
from eagle3_api.checkpoints.files import StoredTensor
from eagle3_api.checkpoints.form import Form, Latent, Layers, MapKind, Notation, Vocabulary
from eagle3_api.checkpoints.safetensors import HeaderError, read_header
from eagle3_api.conditions import Reason
from eagle3_api.jobs import ExitCode
from eagle3_draft.errors import StageError
from eagle3_draft.model.config import DraftConfig, rope_parameters
from eagle3_draft.storage import artifacts


def trained_form(trained: Path, draft: DraftConfig) -> Form:
    """The form of a draft that this product trained. Whether its weights are those that were published is left to the caller: they
    are gigabytes.

    Args:
        trained: Train's artifact.
        draft: its sizes.

    Raises:
        StageError: a file is not what was published (CorruptArtifact, CheckpointUnreadable).
    """
    maps = stored(artifacts.verified(trained, VOCABULARY))
    return Form(
        family="Train's artifact",
        path=trained,
        hidden_size=draft.hidden_size,
        intermediate_size=draft.intermediate_size,
        heads=draft.heads,
        kv_heads=draft.kv_heads,
        head_dim=draft.head_dim,
        target_hidden_size=draft.target_hidden_size,
        vocabulary_size=draft.vocabulary_size,
        draft_vocabulary_size=draft.draft_vocabulary_size,
        max_position_embeddings=draft.max_position_embeddings,
        rms_norm_eps=draft.rms_norm_eps,
        activation="silu",
        rope=rope_parameters(draft),
        layers=Layers(tuple(draft.layers), Notation.OUTPUT, "layers"),
        vocabulary=Vocabulary(maps.get("d2t"), MapKind.OFFSETS, maps.get("t2d")),
        tensors=stored(trained / WEIGHTS),
        depth=draft.depth,
        norm_before_fc=draft.norm_before_fc,
        fc_norm=draft.fc_norm,
        norm_output=draft.norm_output,
        fc_bias=draft.fc_bias,
        output_bias=draft.output_bias,
        latent=None if draft.latent is None else Latent(**draft.latent.model_dump()),
    )


def stored(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file, by name.

    Raises:
        StageError: it cannot be read (CheckpointUnreadable).
    """
    try:
        header = read_header(path)
    except (HeaderError, OSError) as error:
        raise StageError(ExitCode.BAD_INPUT, Reason.CHECKPOINT_UNREADABLE, str(error)) from None
    return {
        name: StoredTensor(path, name, tensor.dtype, tensor.shape, tensor.begin)
        for name, tensor in header.tensors.items()
    }
