"""The watch's bar: the accept length that a window must have, for the load that it had.

A verify step costs the more the more requests it is for, so break-even, the accept length at which speculation costs exactly
what it saves, depends on the load. The probe measures it at ``probe.concurrency`` and at further ``probe.loads``. There is
nothing to be proven at these, and so a window near them need not reach ``probe.minSpeedup``, but may not cost time either.

Between two loads that were measured the bar lies on the line from one to the other; below the smallest it is that one's, above
the greatest that one's, and whoever reads a verdict is told where that is far away. Why not the nearest one's: a load that
comes and goes around the middle would be judged by two bars in turn. Why not the next greater one's: it is "never slower" at
its word, but rolls back what is faster, and a server without speculation is then the slower one. On a line from 1 to 32
requests the break-even at 8 was missed by 0.3 on the average of three ways of drafting; by 0.4 with the nearest, by 0.7 with
the next greater (SmolLM2-135M on an H200). Who serves under very different loads names one more of them.

Servers that adapt their steps (mode Auto) draft otherwise in each tier of loads: only what was measured in the window's own
tier says anything about it, and ``minAcceptLength``, which is of the steps at ``probe.concurrency``, holds in that one's alone.
"""

from dataclasses import dataclass
from itertools import pairwise

from eagle3_api.jobs import LoadResult, ProbeResult
from eagle3_api.sglang import adaptive_tier
from eagle3_api.spec import Probe
from eagle3_api.status import Window

#: So many times as many requests, or so many times fewer, are another load than the one at which break-even was measured.
_FAR = 2


@dataclass(frozen=True)
class Bar:
    """What windows of one revision are judged by."""

    policy: Probe
    #: The revision's own; None judges by ``minAcceptLength`` alone.
    probe: ProbeResult | None
    #: Its servers choose their steps by the load.
    adaptive: bool = False

    def comparable(self, made: Window) -> bool:
        """Whether anything was measured that a window can be judged by. That speculation does nothing is seen at any load."""
        if not self.adaptive or made.verify_calls <= 0:
            return True
        return self._tier(made) in {adaptive_tier(load) for load in self.loads}

    def as_probed(self, made: Window) -> bool:
        """Whether the servers drafted as many steps as at ``probe.concurrency``: accept lengths are alike then."""
        return not self.adaptive or self._tier(made) == adaptive_tier(self._concurrency)

    @property
    def loads(self) -> list[int]:
        """At which it was measured, as requests together."""
        return [self._concurrency] if self.probe is None else [at.concurrency for at in self.probe.at_loads]

    def of(self, made: Window) -> float:
        """The least accept length that costs no time, or gains ``minSpeedup`` where that is asked for; 0 where it is not known."""
        known = self._known(made)
        if not known:
            return 0.0
        return _on_the_line([(at.concurrency, self._asked(at)) for at in known], self._load(made))

    def least_accept_length(self, made: Window) -> float:
        """``minAcceptLength``, where it holds."""
        return self.policy.min_accept_length if self.as_probed(made) else 1.0

    def words(self, made: Window) -> str:
        """What the bar of a window is made of."""
        known = self._known(made)
        if self.probe is None or not self.probe.loads or not known:
            return f"break-even times minSpeedup {self.policy.min_speedup:g}"
        load = self._load(made)
        below = [at for at in known if at.concurrency <= load][-1:]
        above = [at for at in known if at.concurrency >= load][:1]
        next_to = sorted({at.concurrency: at for at in (*below, *above)}.items())
        measured = ", ".join(f"{self._asked(at):.2f} at {concurrency}" for concurrency, at in next_to)
        return f"the bar for {_count(load)} requests together on a server ({measured})"

    def too_mild(self, made: Window) -> str:
        """What a pass leaves open, in words: break-even grows with the load, and was measured under much smaller ones only."""
        known = self._known(made)
        if not known or made.running <= _FAR * known[-1].concurrency:
            return ""
        return f"{self._far(made)} only up to {known[-1].concurrency}: add the load that is served to probe.loads"

    def too_strict(self, made: Window) -> str:
        """What a failure by the bar leaves open, in words: it was measured under much greater loads only."""
        known = self._known(made)
        if not known or not 0 < made.running < known[0].concurrency / _FAR:
            return ""
        return f"{self._far(made)} only from {known[0].concurrency} on: add the load that is served to probe.loads"

    @staticmethod
    def _far(made: Window) -> str:
        return f"; {_count(made.running)} requests together on a server, and break-even is known"

    @property
    def _concurrency(self) -> int:
        return self.probe.concurrency if self.probe is not None else self.policy.concurrency

    def _known(self, made: Window) -> list[LoadResult]:
        """What was measured that says anything about a window, the smallest load first."""
        known = self.probe.at_loads if self.probe is not None else []
        known = [at for at in known if at.break_even is not None]
        if not self.adaptive:
            return known
        return [at for at in known if adaptive_tier(at.concurrency) == self._tier(made)]

    def _load(self, made: Window) -> float:
        """Requests together on a server; where nobody could tell them, those of the proof."""
        return made.running or self._concurrency

    def _tier(self, made: Window) -> int:
        return adaptive_tier(self._load(made))

    def _asked(self, at: LoadResult) -> float:
        """The accept length that is asked for at a load that was measured."""
        proves = at.concurrency == self._concurrency
        speedup = self.policy.min_speedup if proves else min(self.policy.min_speedup, 1.0)
        return (at.break_even or 0.0) * speedup


def _count(requests: float) -> str:
    return f"{round(requests, 1):g}"


def _on_the_line(points: list[tuple[int, float]], at: float) -> float:
    """The value at a place, linear between points that are given in order, and that of the outermost beyond them."""
    for (left, low), (right, high) in pairwise(points):
        if left <= at <= right:
            return low + (high - low) * (at - left) / (right - left)
    return points[0][1] if at < points[0][0] else points[-1][1]
