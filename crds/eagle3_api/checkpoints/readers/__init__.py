"""Readers of published drafts: one module a family, each recognising its layout and bringing it into the one form.

The first that recognises a folder reads it; the order goes from the particular to the general.
"""

from collections.abc import Callable
from dataclasses import dataclass

from eagle3_api.checkpoints.files import Folder
from eagle3_api.checkpoints.form import Form
from eagle3_api.checkpoints.readers import (
    angelslim,
    automodel,
    eagle,
    latent,
    modelopt,
    refused,
    specforge,
    speculators,
    torchspec,
    training_state,
)


@dataclass(frozen=True)
class Reader:
    """One family."""

    recognises: Callable[[Folder], bool]
    read: Callable[[Folder], Form]


READERS = (
    Reader(refused.is_parallel, refused.read_parallel),
    *(
        Reader(family.recognises, family.read)
        for family in (latent, speculators, torchspec, automodel, angelslim, modelopt, training_state, eagle, specforge)
    ),
)


def read_form(folder: Folder) -> Form:
    """The draft in a folder. One of an unknown family has the reason in ``unsupported``."""
    for reader in READERS:
        if reader.recognises(folder):
            return reader.read(folder)
    return refused.read_unknown(folder)
