"""What a converted draft proposes on a real SGLang server, against the reference forward. By hand, not by pytest.

    PYTHONPATH=crds:images/draft:images/sglang-cpu:tests python tests/gpu/served_parity.py TARGET|--latent
        [--out FOLDER] [--prompts 8] [--tokens 64] [--steps 3] [--layers 1 14 26] [--flags SGLANG FLAGS]

It is run by the Python of an environment with SGLang 0.5.17 or newer, on a GPU, or where there is none as SGLang for the CPU
is run. TARGET is any Llama-like target with a tokenizer. The draft has random weights: it need not be accepted, only be the same on
both sides, and a wrong tensor, layer, position or vocabulary map shows at once. It is published in three layouts, adopted from each,
and served once; the digests of the three conversions must be one.

With --latent the target is a DeepSeek V3 of four layers with random weights, made here, and the draft has latent attention in its
sizes; it comes as the trainer leaves it, since most layouts have no such drafts.

The server is ended before the reference runs on the same device. Prints a JSON line, which FOLDER/parity.json has too: proposals in
all, those that are the reference's own, those that are ties, of logits that rounding in bfloat16 moves past each other (in float32
there should be none), and the seconds of each part. Exit code 1 where fewer than 98 % are one or the other.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from sglang.version import __version__

from eagle3_api.checkpoints import Served, check, read_folder, read_form, report
from eagle3_api.sglang import Version, default_layers
from eagle3_draft import convert
from eagle3_draft.convert.emit import emit
from eagle3_draft.convert.parity import read_converted
from eagle3_draft.extract.transformers_engine import TransformersEngine
from eagle3_draft.features import Sample
from eagle3_draft.inspect.checkpoint import checkpoint_digest
from eagle3_draft.inspect.target import target_facts
from eagle3_draft.model.config import draft_config
from eagle3_draft.model.draft import Draft
from eagle3_draft.model.target import Target
from published.layouts import LAYOUTS, Original
from served import deepseek
from served.proposals import behind, recorded, recording
from served.reference import Reference
from served.server import generate, launched, sglang, speculating
from unit.convert import drafts
from unit.train import corpus

PUBLISHED = ("SpecForge", "speculators", "NeMo Automodel")
START_SECONDS = 400.0

#: Requests come one by one: a server that is told so captures few graphs.
FEW_REQUESTS = ("--max-running-requests", "2", "--cuda-graph-max-bs-decode", "2")

#: Standard deviations of the logits within which the reference's own proposal and the server's are one up to rounding in
#: bfloat16; where something is wrong they are several apart. And the share of proposals that must be.
TIE, LEAST_ALIKE = 0.25, 0.98


@dataclass
class Clock:
    """Seconds of each part."""

    seconds: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def ended(self, part: str) -> None:
        """A part has ended, and the next one begins."""
        now = time.monotonic()
        self.seconds[part], self.began = round(now - self.began, 1), now


def main() -> int:
    """Make, convert, serve and compare; returns the exit code."""
    given, clock = _arguments(), Clock()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.latent:
        given.target, layers, draft = _latent(given.out)
    else:
        chosen = given.layers or default_layers(target_facts(given.target).num_layers)
        assert chosen is not None, "a target of fewer than seven layers has no default ones: give --layers"
        layers, draft = chosen, _published(given, chosen)
    clock.ended("conversion")
    found = _compared(given, layers, draft, clock)
    same, alike = sum(far == 0 for far in found), sum(far <= TIE for far in found)
    said = {
        "sglang": __version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "draft": "latent" if given.latent else "heads",
        "flags": given.flags,
        "proposals": len(found),
        "same": same,
        "ties": alike - same,
        "farthest": round(max(found, default=0.0), 3),
        "seconds": clock.seconds,
    }
    print(json.dumps(said), flush=True)
    (given.out / "parity.json").write_text(json.dumps(said) + "\n")
    return 0 if found and alike >= LEAST_ALIKE * len(found) else 1


def _published(given: argparse.Namespace, layers: Sequence[int]) -> Path:
    """A draft of heads, adopted from several layouts and converted to one."""
    original = _random_draft(Target(given.target).config, layers)
    folders = [
        _adopted(original, layout, given.target, layers, given.out / str(n)) for n, layout in enumerate(PUBLISHED)
    ]
    digests = {checkpoint_digest(folder) for folder in folders}
    assert len(digests) == 1, f"three layouts of one draft became {len(digests)} drafts"
    return folders[0]


def _latent(out: Path) -> tuple[Path, Sequence[int], Path]:
    """A target with latent attention, the layers that its draft reads, and the draft, converted."""
    target = Reference(
        deepseek.new_target(out / "target", hidden=256, heads=16, latent=deepseek.OF_DEEPSEEK), deepseek.LAYERS
    )
    config = target.model.config.to_dict()
    sizes = draft_config(config, layers=deepseek.LAYERS, draft_vocabulary_size=64, latent=True)
    made = drafts.Made(target.folder, out / "trained")
    prompts = torch.randint(3, corpus.VOCABULARY, (3, 24)).tolist()
    drafts.train(made.trained, sizes, made.target, [target.sample(prompt, prompt) for prompt in prompts])
    version = {"layers": deepseek.LAYERS, "sglang_version": __version__}
    convert.run(drafts.convert_config(made, out / "converted", **version))
    return target.folder, deepseek.LAYERS, out / "converted"


def _compared(given: argparse.Namespace, layers: Sequence[int], folder: Path, clock: Clock) -> list[float]:
    """Serve a draft; returns of each proposal how far the reference is from it."""
    record = given.out / "proposals.jsonl"
    record.unlink(missing_ok=True)
    vocabulary = target_facts(given.target).vocabulary_size
    torch.manual_seed(1)
    prompts = torch.randint(vocabulary // 10, vocabulary * 9 // 10, (given.prompts, 24)).tolist()
    with _server(given, folder, record) as url:
        clock.ended("start")
        answers = [generate(url, prompt, given.tokens, ignore_eos=True) for prompt in prompts]
        clock.ended("answers")
    proposed = recorded(record)
    clock.ended("end")

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    served, ids = read_converted(folder, layers)
    draft, ids = served.float().to(device), ids.to(device)
    embedding = Target(given.target).embedding().float().to(device)
    engine = TransformersEngine.load(given.target, layers, arguments=["--dtype", "float32"])
    found: list[float] = []
    for prompt, answer in zip(prompts, answers, strict=True):
        text = prompt + answer["output_ids"]
        states = next(iter(engine.states([text])))
        sample = Sample(torch.tensor(text), torch.ones(len(text)), states.hidden.float().to(device), states.teaching)
        steps = behind(draft, ids, sample, embedding, len(prompt), proposed[answer["meta_info"]["id"]])
        found += [far for step in steps for far in step]
    clock.ended("reference")
    return found


def _server(given: argparse.Namespace, draft: Path, record: Path) -> AbstractContextManager[str]:
    """A server's address, once it is healthy."""
    flags = [*speculating(draft, given.steps), *given.flags]
    log, variables = given.out / "server.log", recording(record)
    if not torch.cuda.is_available():
        return sglang(given.target, log, *flags, variables=variables)
    python = Path(sys.executable)
    return launched(python, given.target, log, *FEW_REQUESTS, *flags, variables=variables, seconds=START_SECONDS)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    targets = parser.add_mutually_exclusive_group(required=True)
    targets.add_argument("target", type=Path, nargs="?")
    targets.add_argument("--latent", action="store_true", help="make a target with latent attention, and such a draft")
    parser.add_argument("--out", type=Path, default=Path("served-parity"))
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--layers", type=int, nargs="+", help="decoder layers whose outputs the draft reads")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="of the server; they come last")
    return parser.parse_args()


def _random_draft(config: dict[str, Any], layers: Sequence[int]) -> Original:
    """A draft with weights as large as trained ones, that knows every third token of the target."""
    torch.manual_seed(0)
    vocabulary = int(config["vocab_size"])
    ids = torch.arange(0, vocabulary, 3)
    ids = ids[: len(ids) // 64 * 64]
    sizes = draft_config(config, layers=list(layers), draft_vocabulary_size=len(ids))
    draft = Draft(sizes)
    draft.initialise(0)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    layer = {
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "rms_norm_eps": sizes.rms_norm_eps,
        "rope_theta": sizes.rope_theta,
        "max_position_embeddings": sizes.max_position_embeddings,
        "vocab_size": vocabulary,
    }
    return Original(dict(draft.state_dict()), ids, layer, tuple(layers))


def _adopted(original: Original, layout: str, target: Path, layers: Sequence[int], folder: Path) -> Path:
    """The draft in a published layout, converted."""
    published, out = folder / "published", folder / "converted"
    published.mkdir(parents=True, exist_ok=True)
    out.mkdir(exist_ok=True)
    LAYOUTS[layout](original, published)
    facts, version = target_facts(target), Version.parse(__version__)
    form = read_form(read_folder(published))
    served = Served(version, facts.of_draft, tuple(layers), facts.context_length)
    findings = check(form, served)
    assert report.refusal(findings) is None, report.table(findings)
    emit(form, served, facts.capture_ids(layers, version), target, facts.dtype, out)
    return out


if __name__ == "__main__":
    sys.exit(main())
