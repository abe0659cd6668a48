"""The tensors that SGLang's class of a draft fills, from the draft's own sizes."""

from eagle3_api.checkpoints.form import LATENT_SIZES, Form


def expected_tensors(form: Form) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that SGLang's class of the draft fills, from the draft's own sizes, which must be known.

    Rows of a weight come first: ``fc.weight`` is (hidden, auxiliary states x target hidden).
    """
    hidden, inner = form.hidden_size or 0, form.intermediate_size or 0
    states, width = auxiliary_states(form), form.target_hidden_size or hidden
    whole: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, states * width),
        "norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
    }
    for number in range(form.depth):
        wide = hidden if number else 2 * hidden  # the first layer reads embeddings beside states
        layer: dict[str, tuple[int, ...]] = {
            **{f"self_attn.{name}": shape for name, shape in _attention_tensors(form, wide).items()},
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
            "hidden_norm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        }
        whole |= {f"layers.{number}.{name}" if number else f"midlayer.{name}": shape for name, shape in layer.items()}
    if form.fc_bias:
        whole["fc.bias"] = (hidden,)
    if not form.shares_head or "lm_head.weight" in form.tensors:
        whole["lm_head.weight"] = (form.draft_vocabulary_size or 0, hidden)
    if form.own_embedding:
        whole["embed_tokens.weight"] = (form.vocabulary_size or 0, hidden)
    if form.norm_before_fc:
        whole["input_norm.weight"] = (states * width,)
    if form.fc_norm:
        whole |= {f"fc_norm.{state}.weight": (width,) for state in range(states)}
    return whole


def _attention_tensors(form: Form, width: int) -> dict[str, tuple[int, ...]]:
    """Those of a layer's attention, which reads ``width`` numbers."""
    hidden, heads, kv_heads, head = (s or 0 for s in (form.hidden_size, form.heads, form.kv_heads, form.head_dim))
    if form.latent is not None:
        latent = form.latent
        queries, keys, plain, turned, value = (getattr(latent, name) or 0 for name in LATENT_SIZES)
        return {
            "q_a_proj.weight": (queries, width),
            "q_a_layernorm.weight": (queries,),
            "q_b_proj.weight": (heads * (plain + turned), queries),
            "kv_a_proj_with_mqa.weight": (keys + turned, width),
            "kv_a_layernorm.weight": (keys,),
            "kv_b_proj.weight": (heads * (plain + value), keys),
            "o_proj.weight": (hidden, heads * value),
        }
    return {
        "q_proj.weight": (heads * head, width),
        "k_proj.weight": (kv_heads * head, width),
        "v_proj.weight": (kv_heads * head, width),
        "o_proj.weight": (hidden, heads * head),
        **({"o_proj.bias": (hidden,)} if form.output_bias else {}),
    }


def auxiliary_states(form: Form) -> int:
    """How many of the target's layers the draft reads: by its layers, else by fc's width, else three, as everywhere."""
    if form.layers.ids is not None:
        return len(form.layers.ids)
    fc = form.tensors.get("fc.weight")
    if fc is not None and len(fc.shape) == 2 and form.target_hidden_size:
        return max(1, fc.shape[1] // form.target_hidden_size)
    return 3
