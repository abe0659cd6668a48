"""``probe``: the bar."""

from typing import Annotated

from pydantic import Field

from eagle3_api.base import Model

#: A probe measures at so many further loads, at most: its report has room for these.
LOADS = 4


class Probe(Model):
    """What a revision has to prove before it gets traffic."""

    min_accept_length: float = Field(1.5, ge=1, le=64, description="Tokens per verify step, the target's own included.")
    min_speedup: float = Field(
        1.05, ge=0, le=100, description="Tokens/s with speculation over tokens/s of the same server without."
    )
    concurrency: int = Field(
        1, ge=1, le=256, description="Requests in flight while measuring: as many as a server answers together."
    )
    loads: list[Annotated[int, Field(ge=1, le=256)]] = Field(
        default_factory=list,
        max_length=LOADS,
        description="Further loads, as requests in flight, at which tokens/s and break-even are measured. The watch "
        "judges a window by the measurements nearest to the window's load. Whether a revision passes is "
        "decided at concurrency alone.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    prompts: int = Field(32, ge=1, le=64, description="Held-out prompts that are sent.")
    max_tokens: int = Field(128, ge=8, le=4096, description="Longest answer in tokens.")
    lossless: bool = Field(
        True, description="Greedy answers must equal those of the server without speculation, ties excepted."
    )
    parity_band: float = Field(
        0.25,
        gt=0,
        le=1,
        description="How far the measured accept length may fall below the one expected from training, as a share of it.",
    )

    @property
    def further_loads(self) -> list[int]:
        """The loads to measure at besides ``concurrency``, in order."""
        return sorted({*self.loads} - {self.concurrency})
