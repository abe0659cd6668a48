"""Probe: measure one revision's server before it gets traffic."""

from typing import Literal

from pydantic import Field

from eagle3_api.base import Model
from eagle3_api.jobs.contract import ObjectReference
from eagle3_api.spec.probe import LOADS

#: A report has room for so many.
MISMATCHES = 8


class ProbeConfig(Model):
    """Probe: measure one revision's server before it gets traffic."""

    stage: Literal["probe"] = "probe"
    owner: ObjectReference
    key: str
    folder: str = Field(description="The artifact's folder, under the drafts root.")
    revision: int
    url: str = Field(description="The revision's own Service.")
    prompts: str = Field(description="Folder of the converted draft, which holds the held-out prompts.")
    prompts_digest: str
    baseline: str | None = Field(
        None, description="Folder of the plain revision's probe; none when this is the plain one."
    )
    expected_arguments: dict[str, str | int | float | bool | None] = Field(
        description="What /server_info must say, by the server's own names."
    )
    concurrency: int
    loads: list[int] = Field(default_factory=list, description="Further requests in flight to measure at, in order.")
    count: int = Field(description="Prompts to send.")
    max_tokens: int


class Mismatch(Model):
    """An argument whose value on the server is not the one that was asked for."""

    name: str = Field(description="The server's own name for it.")
    asked: str = Field(description="As JSON, cut where it is long.")
    got: str = Field(description="What /server_info says, as JSON, cut where it is long; null where it says nothing.")

    @property
    def unset(self) -> bool:
        """The server runs without it."""
        return self.got == "null"

    def __str__(self) -> str:
        return f"{self.name}: asked {self.asked}, got {self.got}"


class LoadResult(Model):
    """What Probe measured at one load."""

    concurrency: int = Field(description="Requests in flight.")
    tokens_per_second: float
    accept_length: float | None = Field(None, description="(tokens - requests) / verify steps, over all requests.")
    break_even: float | None = Field(
        None, description="Accept length at which this server is as fast as the plain one."
    )
    baseline_tokens_per_second: float | None = None

    @property
    def speedup(self) -> float | None:
        """Tokens/s over the plain server's; None where those are not known."""
        plain = self.baseline_tokens_per_second
        return self.tokens_per_second / plain if plain else None


class ProbeResult(LoadResult):
    """What Probe measured: stored with the revision and judged by policy, as often as the policy changes."""

    speculative: bool
    prompts_digest: str
    requests: int
    tokens: int
    seconds: float
    verify_steps: int = 0
    loads: list[LoadResult] = Field(
        default_factory=list, max_length=LOADS, description="Measurements at further loads, the smallest first."
    )
    first_token_seconds: float = Field(description="Median time to the first token.")
    inter_token_seconds: float = Field(description="Median time between two tokens.")
    compared: int = Field(0, description="Answers compared with the plain server's.")
    different: int = Field(0, description="Of them, those that differ beyond a tie.")
    ties: int = 0
    tie: float = Field(0, description="The largest gap of two log-probabilities that is a tie.")
    rounding: float = Field(
        0, description="How far the plain server moves such gaps, between decoding and prefill of the same tokens."
    )
    baseline_different: int = Field(
        0,
        description="Of as many answers of the plain server, those that differ from its own second ones beyond a tie.",
    )
    argument_mismatches: list[Mismatch] = Field(
        default_factory=list, max_length=MISMATCHES, description="Arguments for which /server_info gives another value."
    )
    template_mismatch: str = Field(
        "", description="How the server's own chat template differs from the rendering that the draft learned from."
    )
    foreign_requests: int = Field(0, description="Requests that were not ours while measuring.")

    @property
    def at_loads(self) -> list[LoadResult]:
        """At each load that was measured, the smallest first; it is one of them itself."""
        return sorted([self, *self.loads], key=lambda measured: measured.concurrency)
