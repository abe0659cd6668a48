"""Which of the pods of its Job this one is."""

import os

#: Kubernetes sets it in the pods of an Indexed Job.
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"


def index() -> int:
    """From 0; that of the only pod of a Job that is not indexed."""
    return int(os.environ.get(INDEX_VARIABLE, "0"))
