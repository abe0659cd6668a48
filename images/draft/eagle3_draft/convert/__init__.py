"""Convert: a trained or adopted draft to the folder that SGLang loads, checked.

SGLang's loader verifies nothing: it drops keys that it does not know, leaves parameters that get nothing at random values,
and serves the result at accept length 1.0. So everything is checked here, before a server is started. Whatever family a draft
is of, ``eagle3_api.checkpoints`` brings it into one form and looks at that by its rules; here it is written:

    stage         what is done, and in which order
    source        where the draft comes from: Train, or somebody else
    trained       Train's artifact in the one form
    sglang_config config.json, written and read
    weights       tensors, streamed and hashed in passing
    values        values that no trained draft has
    emit          the folder that SGLang loads
    export        the folder that others load
    prompts       what the probe will send
    answers       what the target says to them, and its states
    parity        the converted draft's numbers against the trained one's
    proposals     its proposals against those that its trainer recorded
    accuracy      its accuracy against what its trainer said
    head          what both multiply with
    agreement     how often a draft proposes what its target says
    reading       whether it reads the layers that it is taken to read
    proof         these five, judged
    provenance    where the draft comes from, as others read it
    publish       what is said of it, and its manifest
"""

from eagle3_draft.convert.stage import run

__all__ = ["run"]
