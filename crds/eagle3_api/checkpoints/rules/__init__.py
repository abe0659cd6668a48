"""The rules that a draft must pass, each small and with a name: what it looks at, why that matters, how to mend it.

SGLang drops unknown tensors, leaves missing ones at random values, and takes silent defaults where a configuration does not say
what it should; such a server is healthy and its accept length is 1.0. Every rule here sees one of these before a server is
started. They look at the form, at headers and at the vocabulary's map: neither torch nor the weights' values are needed.

Source: SGLang 0.5.16 to 0.5.23, ``models/llama_eagle3.py``, ``models/kimi_k25_eagle3.py`` and ``speculative/eagle_worker_v2.py``.
"""

from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.rules.embedding import EMBEDDING
from eagle3_api.checkpoints.rules.kind import KIND, LAYOUT, MEANING, SIZES, VERSION
from eagle3_api.checkpoints.rules.layers import FEATURES, LAYERS, resolve_layers
from eagle3_api.checkpoints.rules.positions import CONTEXT, ROPE, WINDOW
from eagle3_api.checkpoints.rules.rule import Finding, HeaderRule, Level, Rule, Served
from eagle3_api.checkpoints.rules.target import TARGET
from eagle3_api.checkpoints.rules.tensors import COMPLETE, HEAD, NOTHING_ELSE, SHAPES, TYPES
from eagle3_api.checkpoints.rules.vocabulary import PADDING, VOCABULARY_MAP

__all__ = ["RULES", "Finding", "HeaderRule", "Level", "Rule", "Served", "check", "resolve_layers"]

RULES = (
    KIND,
    LAYOUT,
    MEANING,
    VERSION,
    SIZES,
    TARGET,
    COMPLETE,
    NOTHING_ELSE,
    SHAPES,
    TYPES,
    HEAD,
    EMBEDDING,
    VOCABULARY_MAP,
    FEATURES,
    LAYERS,
    ROPE,
    CONTEXT,
    WINDOW,
    PADDING,
)


def check(form: Form, served: Served) -> list[Finding]:
    """Every rule's findings, in the order of the rules; one that found nothing has passed."""
    findings: list[Finding] = []
    for rule in RULES:
        found = [Finding(rule, one.level, one.message, one.reason) for one in rule.look(form, served)]
        findings += found or [Finding(rule, Level.PASSED)]
    return findings
