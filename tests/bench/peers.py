# mypy: ignore-errors
"""One optimizer step of SpecForge and of speculators, driven as their own trainers drive it, on the inputs of bench_training.

Neither is installed by this project: PEERS names a folder with both packages as published (and what they import of pure
Python). Only what reads files, and clients that make data, are left out. SpecForge v0.3 keeps bfloat16 weights with
float32 masters; speculators 0.9.0 keeps float32 weights, computes under autocast, and trains ``lm_head`` only if told to.
"""

import copy
import os
import sys
import types
from unittest.mock import MagicMock

import torch

CUDA = torch.device("cuda", 0)


def specforge(shape, inputs, *, unroll):
    """Its TrainerCore, Eagle3TrainStrategy, OnlineEagle3Model and BF16Optimizer, unwrapped, with the whole teacher."""
    sys.path.insert(0, os.environ["PEERS"])
    import specforge.algorithms.eagle3.model as online
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
    from specforge.modeling.target.target_head import TargetHead
    from specforge.optimizer import BF16Optimizer
    from specforge.runtime.contracts import TrainBatch
    from specforge.training.backend import FSDPTrainingBackend, ParallelConfig
    from specforge.training.controller import TrainerCore
    from specforge.training.strategies.base import Eagle3TrainStrategy
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        num_hidden_layers=1,
        vocab_size=shape.vocabulary,
        max_position_embeddings=inputs["ids"].shape[1],
        rms_norm_eps=1e-5,
        pad_token_id=0,
        tie_word_embeddings=False,
        draft_vocab_size=shape.draft_vocabulary,
        pretraining_tp=1,
    )
    with CUDA:
        draft = LlamaForCausalLMEagle3(config, attention_backend="flex_attention")
    draft.t2d.copy_(inputs["members"])
    draft.d2t.copy_(inputs["offsets"])
    draft.freeze_embedding()
    model = online.OnlineEagle3Model(draft, length=unroll, attention_backend="flex_attention")
    model = model.to(device=CUDA, dtype=torch.bfloat16)
    head = TargetHead.__new__(TargetHead)  # its __init__ reads a model's folder
    torch.nn.Module.__init__(head)
    head.config = types.SimpleNamespace(vocab_size=shape.vocabulary)
    with torch.device("meta"):
        head.fc = torch.nn.Linear(shape.hidden, shape.vocabulary, bias=False)
    head.fc.weight = torch.nn.Parameter(inputs["head"], requires_grad=False)

    def optimizer(target):
        return BF16Optimizer(
            target, lr=1e-4, weight_decay=0.0, max_grad_norm=0.5, total_steps=10000, warmup_ratio=0.015
        )

    backend = FSDPTrainingBackend(ParallelConfig(sharding_strategy="NO_SHARD"), optimizer_factory=optimizer)
    wrapped = backend.prepare_model(model, wrap=False, optimizer_target=draft)
    core = TrainerCore(Eagle3TrainStrategy(wrapped, target_head=head, compact_teacher=False), backend)
    batch = TrainBatch(
        sample_ids=[],
        strategy="eagle3",
        metadata={"target_repr": "hidden_state"},
        tensors={
            "input_ids": inputs["ids"],
            "attention_mask": torch.ones_like(inputs["mask"]),
            "loss_mask": inputs["mask"],
            "hidden_state": inputs["hidden"],
            "target": inputs["last"],
        },
    )
    return lambda: core.train_step(batch).metrics["loss"]


def speculators(shape, inputs, *, unroll):
    """Its Eagle3DraftModel, fused loss and optimizers, in the body of its Trainer's loop; ``lm_head`` is trained."""
    sys.path.insert(0, os.environ["PEERS"])
    for client in (
        "openai",
        "openai.types",
        "openai.types.chat",
        "openai.types.completion",
        "datasets",
        "hs_connectors",
    ):
        sys.modules.setdefault(client, MagicMock(name=client))
    try:
        import httpx  # noqa: F401
    except ImportError:
        sys.modules["httpx"] = MagicMock(name="httpx")
    import speculators.losses.fused as fused
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.train.optimizers import build_optimizers
    from transformers import LlamaConfig

    # Both of its loss kernels hold one list of configurations, which the compiler of torch 2.11 refuses
    fused.loss_backward_kernel.configs = copy.deepcopy(fused.loss_backward_kernel.configs)
    layer = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        num_hidden_layers=1,
        vocab_size=shape.vocabulary,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        sliding_window=2048,
        layer_types=["sliding_attention"],
    )
    layer._attn_implementation = "simple_flex_attention"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=shape.draft_vocabulary,
        norm_before_residual=True,
        norm_before_fc=True,
        norm_output=True,
        eagle_aux_hidden_state_layer_ids=[2, 16, 29],
    )
    with CUDA:
        model = Eagle3DraftModel(config)
    model.load_vocab_mappings(inputs["members"], inputs["offsets"])
    with torch.no_grad():
        model.embed_tokens.weight.normal_(std=0.02)
        head = inputs["head"][inputs["members"]].float()
        model.lm_head.weight.copy_(head)
        model.verifier_lm_head.weight.copy_(head)
    model.lm_head.weight.requires_grad_(True)
    model.train()
    optimizers = build_optimizers(
        model,
        types.SimpleNamespace(
            optimizer="adamw",
            lr=1e-4,
            weight_decay=0.01,
            muon_lr=1e-3,
            muon_momentum=0.95,
            muon_weight_decay=0.1,
            muon_ns_steps=5,
            muon_adjust_lr_fn="match_rms_adamw",
        ),
    )
    options, _ = Eagle3DraftModel.get_trainer_kwargs(
        loss_fn="kl_div", loss_implementation="fused", ttt_steps=unroll, ttt_step_loss_decay=1.0
    )
    documents, length = inputs["ids"].shape
    batch = {
        "hidden_states": inputs["hidden"].flatten(0, 1)[None],
        "input_ids": inputs["ids"].reshape(1, -1),
        "verifier_last_hidden_states": inputs["last"].flatten(0, 1)[None],
        "loss_mask": inputs["mask"].reshape(1, -1).bool(),
        "position_ids": torch.arange(1, length + 1, device=CUDA).repeat(documents)[None],
        "document_ids": torch.arange(documents, device=CUDA).repeat_interleave(length)[None],
        "error_records": 0,
    }

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            _tokens, loss, _metrics = model(**batch, **options)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach()

    return step
