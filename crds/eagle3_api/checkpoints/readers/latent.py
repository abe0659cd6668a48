"""Drafts with multi-head latent attention, for DeepSeek and Kimi targets (lightseekorg/kimi-k2.5-eagle3-mla and the like).

SGLang's ``Eagle3DeepseekV2ForCausalLM``: one layer, ``layers.0.*``, sizes in the terms of DeepSeek's configuration. ModelOpt
exports them too, with its own fields in ``eagle_config``, and names layers by their output. TorchSpec's configurations have these
fields as well, and its exports an embedding, which ModelOpt's never have; before 11 April 2026 that is all that tells them apart.
Elsewhere the ids are what SGLang reads.
Source: SGLang 0.5.21, ``models/kimi_k25_eagle3.py``.
"""

from dataclasses import replace

from eagle3_api.checkpoints.files import Folder
from eagle3_api.checkpoints.form import LATENT_SIZES, Form, Latent, Notation
from eagle3_api.checkpoints.readers import modelopt, torchspec
from eagle3_api.checkpoints.readers.llama import read_llama, size
from eagle3_api.checkpoints.rope import SGLANGS_YARN
from eagle3_api.sglang import LATENT_DRAFT

FAMILY = "latent attention"


def recognises(folder: Folder) -> bool:
    """SGLang's architecture, or a projection that no other attention has."""
    named = any(".kv_a_proj_with_mqa." in name for name in folder.tensors)
    return named or LATENT_DRAFT in folder.architectures


def read(folder: Folder) -> Form:
    """The draft in the folder."""
    exported = modelopt.recognises(folder)
    notation = Notation.OUTPUT if exported else Notation.SERVER
    by_torchspec = torchspec.recognises(folder) or (exported and "embed_tokens.weight" in folder.tensors)
    if by_torchspec:
        notation = torchspec.notation(folder)
    form = read_llama(
        folder,
        FAMILY,
        notation=notation,
        shares_head=exported and not by_torchspec,
        architecture=LATENT_DRAFT,
    )
    sizes = Latent(
        **{name: size(folder.config, name) for name in LATENT_SIZES},
        rope_interleave=folder.config.get("rope_interleave") is not False,
    )
    if form.rope.get("rope_type") == SGLANGS_YARN:
        what = f"rope_type {SGLANGS_YARN} becomes yarn, its name outside of SGLang"
        form = replace(form, rope={**form.rope, "rope_type": "yarn"}, mended=(*form.mended, what))
    plain, turned = sizes.qk_nope_head_dim, sizes.qk_rope_head_dim
    return replace(form, latent=sizes, kv_heads=form.heads, head_dim=plain + turned if plain and turned else None)
