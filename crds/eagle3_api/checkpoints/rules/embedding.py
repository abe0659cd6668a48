"""An embedding that was trained with the draft, and that no server uses."""

from collections.abc import Iterator

from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.rules.rule import Found, HeaderRule, Level, Served


def _embedding(form: Form, _: Served) -> Iterator[Found]:
    if form.embedding_trained and not form.own_embedding:
        yield Found(
            Level.WARNING,
            "embed_requires_grad is true: its embedding was trained with it, and is lost. SGLang sets the target's in its place",
        )


EMBEDDING = HeaderRule(
    "embedding",
    "whose embedding it was trained with",
    "SGLang puts the target's in place of a draft's that is as wide: what was trained into it is lost",
    "Train it with the target's embedding, frozen (speculators: embed_requires_grad false).",
    _embedding,
)
