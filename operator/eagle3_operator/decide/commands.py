"""Commands that messages offer: whole, so that they can be copied and run as they stand."""

from eagle3_api.spec import Metadata
from eagle3_operator.decide.retries import RETRY_ANNOTATION


def annotate(metadata: Metadata, annotation: str, word: str) -> str:
    """The command that annotates an object."""
    return f"kubectl annotate e3d {metadata.name} -n {metadata.namespace} {annotation}={word} --overwrite"


def scale(metadata: Metadata, replicas: int) -> str:
    """The command that says how many servers an object has."""
    return f"kubectl scale e3d/{metadata.name} -n {metadata.namespace} --replicas={replicas}"


def retry(metadata: Metadata, what: str, since: str | None) -> str:
    """The command that has a stage or a revision tried again.

    Args:
        metadata: of the object.
        what: ``train``, ``r3``.
        since: when the try that failed ended or began. That makes the word one that was not used before.
    """
    return annotate(metadata, RETRY_ANNOTATION, f"{what}@{since or 'again'}")
