"""Artifacts: where a stage's output lies, and the names of its files. What the manifest says is ``manifest``'s.

A stage writes ``<root>/<namespace>/<name>/<stage>/<key>/`` and, last and atomically, its ``manifest.json``. A folder with
a valid manifest is finished for ever; a folder without one is rubbish or resumable. The page ``docs/artifacts.md`` is the
format's specification.
"""

from pathlib import PurePosixPath

#: Where the roots are mounted in every pod that needs them.
FEATURES_ROOT = PurePosixPath("/eagle3/features")
DRAFTS_ROOT = PurePosixPath("/eagle3/drafts")
MODELS_ROOT = PurePosixPath("/eagle3/models")

MANIFEST = "manifest.json"
FORMAT = "eagle3.dev/artifact/v1"

#: Files with these names, so that readers need no search.
PROMPTS = "prompts.jsonl"
CHAT_TEMPLATE = "chat_template.jinja"
VOCABULARY = "vocabulary.safetensors"
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
REPORT = "report.json"
REPORT_PAGE = "report.html"
PROVENANCE = "provenance.json"
STATEMENT = "statement.json"
PREDICATE = "predicate.json"
HELD_OUT = "held_out.safetensors"
ANSWERS = "answers.jsonl"
DATA = "data.jsonl"


def folder(root: PurePosixPath, namespace: str, name: str, stage: str, key: str) -> PurePosixPath:
    """The folder of an artifact under one of the roots."""
    return root.joinpath(namespace, name, stage, key)
