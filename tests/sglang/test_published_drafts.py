"""Converted drafts in SGLang's own draft worker: every parameter gets its value, and chains are what the reference says, step by step,
after a prompt and after the target has accepted some of a chain."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import environment
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3_api.artifacts import WEIGHTS
from eagle3_api.sglang import served_dtype
from eagle3_draft.convert import run
from eagle3_draft.convert.emit import weight_type
from eagle3_draft.model.config import DynamicScaling, LinearScaling, Llama3Scaling, LongScaling, YarnScaling
from eagle3_draft.model.draft import Draft
from eagle3_draft.model.target import Target
from eagle3_draft.train import held_out
from published.kinds import KINDS, LATENT, LATENT_SIZES
from published.layouts import LAYOUTS, ROUNDED, Original
from served.proposals import unrolled
from unit.convert import drafts
from unit.train import corpus

pytestmark = pytest.mark.timeout(600)

LATENT_TARGET = "DeepseekV3ForCausalLM"
#: Of a chain: what a step leaves to the next one shows in that one alone.
STEPS = 4
TOLERANCE = 1e-4

#: Frequencies so many and so close together that YaRN's ramp lies among them.
CLOSE: dict[str, object] = {"head_dim": 32, "rope_theta": 100.0}
YARN = YarnScaling(rope_type="yarn", factor=8.0, original_max_position_embeddings=256)

#: Of whose target's 128 positions the text has less than the original ones.
LONG = LongScaling(
    rope_type="longrope",
    short_factor=[1.0, 1.5, 2.0, 3.0],
    long_factor=[4.0, 5.0, 6.0, 7.0],
    original_max_position_embeddings=64,
)

#: Drafts of our own, each with what EAGLE-3's has not.
VARIANTS: dict[str, dict[str, object]] = {
    "a norm for each state": {"fc_norm": True},
    "a norm before fc": {"norm_before_fc": True},
    "normed states fed back": {"norm_output": True},
    "biases": {"fc_bias": True, "output_bias": True},
    "a bias of fc alone": {"fc_bias": True},
    "no groups, narrow heads": {"heads": 2, "head_dim": 24},
    "groups, wide heads": {"heads": 4, "kv_heads": 2, "head_dim": 24},
    "linear rope": {"rope_scaling": LinearScaling(rope_type="linear", factor=4.0)},
    "llama3 rope": {
        "rope_scaling": Llama3Scaling(
            factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
        )
    },
    "yarn rope": CLOSE | {"rope_scaling": YARN},
    "yarn rope, all said": CLOSE
    | {
        "rope_scaling": YarnScaling(
            rope_type="yarn",
            factor=4.0,
            original_max_position_embeddings=256,
            beta_fast=4.0,
            beta_slow=2.0,
            attn_factor=0.9,
            mscale=0.7,
            mscale_all_dim=0.4,
            extrapolation_factor=0.8,
            truncate=False,
        )
    },
    "dynamic rope": CLOSE | {"rope_scaling": DynamicScaling(rope_type="dynamic", factor=4.0)},
    "dynamic rope, by alpha": CLOSE | {"rope_scaling": DynamicScaling(rope_type="dynamic", alpha=50.0)},
    "longrope": {"rope_theta": 100.0} | {"rope_scaling": LONG},
    "longrope, its stretch said": {"rope_theta": 100.0}
    | {"rope_scaling": LONG.model_copy(update={"short_mscale": 0.8, "long_mscale": 3.0})},
    "one state": {"layers": [0]},
    "one state, with norms and biases that nobody reads": {
        "layers": [0],
        "fc_norm": True,
        "norm_before_fc": True,
        "fc_bias": True,
    },
    "two states, both norms, biases, yarn": {
        "layers": [0, 1],
        "fc_norm": True,
        "norm_before_fc": True,
        "fc_bias": True,
        "output_bias": True,
        "rope_scaling": YARN,
    },
    "three layers": {"depth": 3},
    "latent attention": LATENT,
    "latent attention, plain rope": LATENT | {"rope_scaling": None},
    "latent attention, plain rope, halves turned": LATENT
    | {"rope_scaling": None, "latent": LATENT_SIZES.model_copy(update={"rope_interleave": False})},
    "latent attention, EAGLE-3.1": LATENT
    | {
        "fc_norm": True,
        "norm_output": True,
        "fc_bias": True,
        "rope_theta": 100.0,
        "rope_scaling": YarnScaling(
            rope_type="yarn",
            factor=8.0,
            original_max_position_embeddings=256,
            beta_fast=4.0,
            mscale=1.0,
            mscale_all_dim=0.6,
        ),
    },
    "narrower than its target": {"hidden_size": 24, "head_dim": 8},
    "all": {"depth": 2, "fc_norm": True, "norm_before_fc": True, "norm_output": True, "output_bias": True},
}


@pytest.fixture(scope="module")
def text(made: drafts.Made) -> dict[str, Tensor]:
    """One held-out conversation: its tokens, and the target's states at all of them but the last."""
    sample = held_out.read(made.trained).samples[0]
    return {"input_ids": sample.input_ids.long(), "features": sample.hidden[:-1].contiguous()}


@pytest.fixture(scope="module")
def embedding(made: drafts.Made) -> Tensor:
    """The target's."""
    return Target(made.target).embedding()


@pytest.fixture(scope="module")
def kinds(made: drafts.Made) -> dict[str, tuple[Original, Draft]]:
    return {name: drafts.original_of_kind(made, kind) for name, kind in KINDS.items()}


def made_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def loaded(
    made: drafts.Made,
    original: Original,
    kinds: dict[str, tuple[Original, Draft]],
    text: dict[str, Tensor],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, dict[str, Tensor]]:
    """What SGLang has of each draft, and the chains that it drafts with it; all in one process."""
    root = tmp_path_factory.mktemp("published")
    latent = drafts.for_architecture(made, root / "latent-target", LATENT_TARGET)
    folders = []
    for number, switches in enumerate(VARIANTS.values()):
        for_target = latent if "latent" in switches else made
        variant = drafts.with_switches(for_target, root / f"variant-{number}", switches)
        layers = switches.get("layers", corpus.LAYERS)
        run(drafts.convert_config(variant, root / f"converted-{number}", layers=layers))
        folders.append(root / f"converted-{number}")
    for name, layout in LAYOUTS.items():
        layout(original, made_folder(root / f"published {name}"))
        drafts.adopt(made, root / f"out {name}", root / f"published {name}")
        folders.append(root / f"out {name}")
    for name, kind in KINDS.items():
        kind.layout(kinds[name][0], made_folder(root / f"published {name}"))
        for_target = latent if kind.architecture == LATENT_TARGET else made
        layers = kinds[name][0].layers
        drafts.adopt(for_target, root / f"out {name}", root / f"published {name}", layers=list(layers))
        folders.append(root / f"out {name}")
    save_file(text, root / "inputs.safetensors")
    python = environment.ensure() / "bin" / "python3"
    variables = {"TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    variables |= {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    script = Path(__file__).with_name("drafting.py")
    command: list[str | Path] = [python, script, made.target, root / "inputs.safetensors", str(STEPS), root, *folders]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    trained = {f"variant {name}": load_file(root / f"variant-{n}" / WEIGHTS) for n, name in enumerate(VARIANTS)}
    names = (*VARIANTS, *LAYOUTS, *KINDS)
    return trained | {name: load_file(root / f"{number}.safetensors") for number, name in enumerate(names)}


@pytest.mark.parametrize("name", [*LAYOUTS, *KINDS, *VARIANTS])
def test_sglang_fills_every_parameter_of_a_converted_draft(loaded: dict[str, dict[str, Tensor]], name: str) -> None:
    empty = {parameter for parameter, value in loaded[name].items() if not value.isfinite().all()}
    # SGLang's deeper layers have a norm of embeddings, which they never read
    unread = re.compile(r"model\.layers\.[1-9]\.input_layernorm\.weight")
    assert not [parameter for parameter in empty if not unread.fullmatch(parameter)]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_kind_of_draft_says_in_sglang_at_every_step_what_it_said_in_training(
    made: drafts.Made,
    text: dict[str, Tensor],
    embedding: Tensor,
    loaded: dict[str, dict[str, Tensor]],
    name: str,
) -> None:
    weights = dict(loaded[f"variant {name}"])
    own = weights.pop("embed_tokens.weight", embedding)
    draft = drafts.draft_of(made.sizes.model_copy(update=VARIANTS[name]), weights)
    expected = chains(draft, text, own, loaded[name])
    torch.testing.assert_close(loaded[name]["logits"], expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_published_draft_says_in_sglang_at_every_step_what_it_said_where_it_was_trained(
    made: drafts.Made,
    original: Original,
    text: dict[str, Tensor],
    embedding: Tensor,
    loaded: dict[str, dict[str, Tensor]],
    name: str,
) -> None:
    published = {key: weight.half().float() if name in ROUNDED else weight for key, weight in original.weights.items()}
    draft = drafts.draft_of(made.sizes, published)
    torch.testing.assert_close(
        by_target_ids(loaded[name]["logits"], loaded[name]["hot_token_id"]),
        by_target_ids(chains(draft, text, embedding, loaded[name]), original.ids),
        atol=TOLERANCE,
        rtol=TOLERANCE,
    )


@pytest.mark.parametrize("name", KINDS)
def test_so_does_one_of_another_kind(
    kinds: dict[str, tuple[Original, Draft]],
    text: dict[str, Tensor],
    loaded: dict[str, dict[str, Tensor]],
    name: str,
) -> None:
    original, draft = kinds[name]
    assert original.embedding is not None
    whole = draft.config.draft_vocabulary_size == draft.config.vocabulary_size
    assert whole == ("hot_token_id" not in loaded[name])
    torch.testing.assert_close(
        by_target_ids(loaded[name]["logits"], loaded[name].get("hot_token_id", original.ids)),
        by_target_ids(chains(draft, text, original.embedding, loaded[name]), original.ids),
        atol=TOLERANCE,
        rtol=TOLERANCE,
    )


def by_target_ids(logits: Tensor, ids: Tensor) -> Tensor:
    """(..., draft vocabulary) -> (..., vocabulary); tokens that the draft does not know are impossible."""
    return torch.full((*logits.shape[:-1], corpus.VOCABULARY), float("-inf")).index_copy(-1, ids, logits)


def chains(draft: Draft, text: dict[str, Tensor], embedding: Tensor, drafted: dict[str, Tensor]) -> Tensor:
    """What the reference says of both chains from every position, (2, steps, chains, draft vocabulary).

    Args:
        draft: the reference.
        text: as the fixture says.
        embedding: that the draft reads, (vocabulary, hidden).
        drafted: where SGLang began each chain, and which tokens it fed it.
    """
    sizes, ids = draft.config, text["input_ids"].tolist()
    features = text["features"][:, : sizes.target_hidden_size * len(sizes.layers)]
    both = zip(drafted["known"].flatten().tolist(), drafted["fed"].transpose(1, 2).flatten(0, 1).tolist(), strict=True)
    logits = torch.stack(
        unrolled(draft, features, [(known, [*ids[: known + 1], *fed]) for known, fed in both], embedding)
    )
    return logits.view(len(logits), 2, -1, logits.shape[-1]).transpose(0, 1)


#: Configurations of targets: what is said, in both spellings, outside and inside of the language model's section.
NAMED: list[dict[str, str]] = [
    {},
    *({name: said} for name in ("dtype", "torch_dtype") for said in ("float32", "bfloat16", "half")),
]
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
GEMMA = {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}
NESTING = {"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"]}
TARGETS: list[dict[str, Any]] = [
    *({**kind, **named} for kind in (LLAMA, GEMMA) for named in NAMED),
    *({**NESTING, **outer, "text_config": {"model_type": "mistral", **inner}} for outer in NAMED for inner in NAMED),
]

RESOLVED = """
import json, sys, tempfile
from pathlib import Path
from typing import Any
from sglang.srt.configs.model_config import _get_and_verify_dtype
from sglang.srt.utils.hf_transformers import get_hf_text_config
from transformers import AutoConfig

def resolve(config, dtype):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        read = get_hf_text_config(AutoConfig.from_pretrained(folder))
    return str(_get_and_verify_dtype(read, dtype)).removeprefix("torch.")

print(json.dumps([resolve(*one) for one in json.load(sys.stdin)]))
"""


def test_sglang_runs_a_target_in_the_type_that_inspect_says_and_its_draft_in_the_same() -> None:
    """What is named float32, or nothing, it runs in float16. A draft in another type than its target's ends the server while it starts."""
    asked, ours = [], []
    for target in TARGETS:
        for dtype in ("auto", "half", "bfloat16", "float"):
            said = served_dtype(target, ["--dtype", dtype])
            written = str(weight_type(said)).removeprefix("torch.")
            asked += [(target, dtype), ({**LLAMA, "dtype": written, "torch_dtype": written}, dtype)]
            ours += [said, said]
    python = str(environment.ensure() / "bin" / "python3")
    done = subprocess.run([python, "-c", RESOLVED], input=json.dumps(asked), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == ours
    assert set(ours) == {"float16", "bfloat16", "float32"}
