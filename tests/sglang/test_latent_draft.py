"""A draft with latent attention, on a real server of a target that has it too."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eagle3_api.artifacts import VOCABULARY, WEIGHTS
from eagle3_draft.convert import run
from eagle3_draft.model.config import draft_config
from eagle3_draft.train.vocabulary import Vocabulary
from served.deepseek import LAYERS, new_target
from served.proposals import expected, recorded, recording
from served.reference import Reference
from served.server import generate, sglang, speculating
from unit.convert import drafts
from unit.train import corpus

pytestmark = pytest.mark.timeout(600)

STEPS = 3


def test_the_server_proposes_at_every_step_what_the_trained_latent_draft_does(tmp_path: Path) -> None:
    target = Reference(new_target(tmp_path / "target"), LAYERS)
    prompts = torch.randint(3, corpus.VOCABULARY, (3, 9)).tolist()
    sizes = draft_config(target.model.config.to_dict(), layers=LAYERS, draft_vocabulary_size=64, latent=True)
    made = drafts.Made(target.folder, tmp_path / "trained")
    drafts.train(made.trained, sizes, made.target, [target.sample(prompt, prompt) for prompt in prompts])
    run(drafts.convert_config(made, tmp_path / "converted", layers=LAYERS))

    record = tmp_path / "proposals.jsonl"
    flags = speculating(tmp_path / "converted", STEPS)
    with sglang(target.folder, tmp_path / "server.log", *flags, variables=recording(record)) as url:
        answers = [generate(url, prompt, 24, ignore_eos=True) for prompt in prompts]

    draft = drafts.draft_of(sizes, load_file(made.trained / WEIGHTS))
    ids = Vocabulary.load(made.trained / VOCABULARY).ids
    for prompt, answer in zip(prompts, answers, strict=True):
        sample = target.sample(prompt, answer["output_ids"])
        steps = list(expected(draft, ids, sample, target.embedding, len(prompt), STEPS))
        assert recorded(record)[answer["meta_info"]["id"]][: len(steps)] == steps
        assert len(steps) == answer["meta_info"]["spec_verify_ct"]
    assert "interpreter" not in (tmp_path / "server.log").read_text()
