"""The probe's judgement: does this revision deserve traffic?

``judge_probe`` takes what the probe measured (``ProbeResult``) and the bar (``spec.probe``) and returns a ``Verdict``. It
measures nothing and keeps nothing, so a stored result is judged anew whenever the policy changes.

The checks are an ordered list, and the first that fires is the verdict. Their order is from what makes the other numbers
meaningless (a server that runs with other arguments) over what makes them wrong (an answer changed by speculation) to
what they say about the draft; there it goes from the cost, over its cause, to the bar:

    SlowerThanBaseline   speculation costs time. Says so also when the cause is known, and points to it.
    ParityMismatch       it costs no time, but the draft is accepted far less than training promised: features differ.
    LowAcceptLength      it does what training promised, which is not enough for minAcceptLength.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from eagle3_api.conditions import Reason
from eagle3_api.jobs import ProbeResult
from eagle3_api.spec import Probe
from eagle3_operator.judge.verdict import Outcome, Verdict


@dataclass(frozen=True)
class _Case:
    """One result before its judge, with the numbers and phrases that several checks need."""

    result: ProbeResult
    policy: Probe
    expected: float | None

    @property
    def below_expected(self) -> bool:
        """Accepted less than training promised, by more than ``probe.parityBand``."""
        measured = self.result.accept_length
        if self.expected is None or measured is None:
            return False
        return measured < self.expected * (1 - self.policy.parity_band)

    @property
    def accept_length(self) -> str:
        expected = "" if self.expected is None else f" (expected {self.expected:.2f})"
        return f"accept length {self.result.accept_length or 0:.2f}{expected}"

    @property
    def speed(self) -> str:
        plain = self.result.baseline_tokens_per_second or 0
        return f"{self.result.tokens_per_second:.1f} tok/s against {plain:.1f}"

    @property
    def further(self) -> str:
        """The speedups at further loads, after that at the concurrency."""
        return "".join(f", {at.speedup:.2f}x at {at.concurrency}" for at in self.result.loads if at.speedup is not None)


_Check = Callable[[_Case], Verdict | None]


def judge_probe(result: ProbeResult, policy: Probe, *, expected: float | None, name: str) -> Verdict:
    """The verdict on a revision's probe.

    Args:
        result: what was measured.
        policy: the bar.
        expected: accept length that training promised for the served number of steps; None when nobody knows.
        name: the revision as people call it (``r2``), with which the message begins.

    Returns:
        Pass, Fail, Inconclusive or Error.
    """
    case = _Case(result, policy, expected)
    verdict = next(found for check in _CHECKS if (found := check(case)) is not None)
    return replace(verdict, message=f"{name}: {verdict.message}")


def cost_of_loads(result: ProbeResult) -> str:
    """What to warn of, as a sentence: further loads at which speculation costs time; empty where there are none.

    Nothing is rejected for it: it may never be the load that is served, and if it is the watch sees it.
    """
    costly = [at for at in result.loads if at.speedup is not None and at.speedup < 1]
    if not costly:
        return ""
    first, more = costly[0], [f" and {at.concurrency}" for at in costly[1:]]
    onwards = costly == result.at_loads[-len(costly) :]
    where = (
        f"From concurrency {first.concurrency} on" if onwards else f"At concurrency {first.concurrency}{''.join(more)}"
    )
    break_even = "" if first.break_even is None else f", break-even is {first.break_even:.2f}"
    return (
        f"{where} speculation costs time instead of saving it ({first.speedup:.2f}x{break_even}), and under such a load the "
        "watch would roll it back: draft fewer steps, or let the server choose them (serve.speculative.mode: Auto)"
    )


def _arguments_differ(case: _Case) -> Verdict | None:
    """The server says that it runs with other arguments than it was started with: nothing else means what it seems."""
    mismatches = case.result.argument_mismatches
    if not mismatches:
        return None
    # The one argument on whose value all others depend
    algorithm = next((one for one in mismatches if one.name == "speculative_algorithm"), None)
    if algorithm is None:
        return Verdict(
            Outcome.FAIL,
            Reason.ARGUMENT_MISMATCH,
            f"the server runs with other arguments than it was given: {'; '.join(map(str, mismatches))}. "
            "SGLang adjusts some silently; set values that it accepts, or use another version",
        )
    if algorithm.unset:
        return Verdict(
            Outcome.FAIL, Reason.SPECULATION_INACTIVE, f"the server is healthy but does not speculate ({algorithm})"
        )
    return Verdict(
        Outcome.FAIL,
        Reason.WRONG_ALGORITHM,
        f"the server speculates with another algorithm ({algorithm}); an EAGLE-3 draft is served at accept length 1.0 "
        "by any other",
    )


def _others_were_served(case: _Case) -> Verdict | None:
    """Somebody else's requests shared the server: its speed is not a measurement."""
    foreign = case.result.foreign_requests
    if not foreign:
        return None
    return Verdict(
        Outcome.INCONCLUSIVE,
        Reason.FOREIGN_TRAFFIC,
        f"{foreign} requests from somebody else reached the server while it was being measured; it has to be measured again",
    )


def _nothing_was_answered(case: _Case) -> Verdict | None:
    """No tokens: the server answered, but there is nothing to judge."""
    if case.result.tokens > 0 and case.result.tokens_per_second > 0:
        return None
    return Verdict(
        Outcome.ERROR, Reason.PROBE_ERROR, f"{case.result.requests} answers held no token: nothing was measured"
    )


def _is_the_baseline(case: _Case) -> Verdict | None:
    """A server without speculation has nothing to prove: what it does is what the others are compared with."""
    if case.result.speculative:
        return None
    further = "".join(f", {at.tokens_per_second:.1f} at {at.concurrency}" for at in case.result.loads)
    return Verdict(
        Outcome.PASS,
        Reason.PROVEN,
        f"{case.result.tokens_per_second:.1f} tok/s at concurrency {case.result.concurrency}{further} without speculation",
    )


def _template_differs(case: _Case) -> Verdict | None:
    """The server renders conversations differently from what the draft learned from; every chat request suffers."""
    if not case.result.template_mismatch:
        return None
    return Verdict(
        Outcome.FAIL,
        Reason.TEMPLATE_MISMATCH,
        f"{case.result.template_mismatch}. Train with the template that is served: set data.chatTemplate to it, and the "
        "server is started with it too",
    )


def _does_not_speculate(case: _Case) -> Verdict | None:
    """Tokens that only a verify step can have produced, and no verify steps."""
    result = case.result
    if result.verify_steps > 0:
        return None
    if result.tokens <= result.requests:
        return Verdict(
            Outcome.ERROR,
            Reason.PROBE_ERROR,
            f"each of {result.requests} answers ended with its first token, before speculation could begin; "
            "the prompts measure nothing",
        )
    return Verdict(
        Outcome.FAIL,
        Reason.SPECULATION_INACTIVE,
        f"{result.tokens} tokens without one verify step: the server is healthy but does not speculate",
    )


def _answers_differ(case: _Case) -> Verdict | None:
    """Speculation changed greedy answers, more often than the server without it differs from itself."""
    result = case.result
    if not case.policy.lossless or result.different <= result.baseline_different:
        return None
    # A measurement of before the margins were kept has none to tell
    beyond, moves = "beyond ties", ""
    if result.tie:
        beyond = f"by more than {result.tie:.2g} in the logits"
        moves = f"moves its own by up to {result.rounding:.2g}, and "
    return Verdict(
        Outcome.FAIL,
        Reason.NOT_LOSSLESS,
        f"{result.different} of {result.compared} greedy answers differ from those without speculation, {beyond}; the "
        f"server without it {moves}differs from itself in {result.baseline_different} answers. Fast but wrong: suspect "
        "the verification kernel, and try another --attention-backend",
    )


def _has_no_baseline(case: _Case) -> Verdict | None:
    """Nothing to compare the speed with: no proof that speculation is faster."""
    if case.result.speedup is not None or case.policy.min_speedup == 0:
        return None
    return Verdict(Outcome.ERROR, Reason.PROBE_ERROR, "there is no measurement of the server without speculation")


_FEATURES_DIFFER = "Most likely the features in training differ from serving (runbook: ParityMismatch)."


def _is_slower(case: _Case) -> Verdict | None:
    """Speculation costs more than it gains, or gains less than was asked for."""
    speedup, wanted = case.result.speedup, case.policy.min_speedup
    if speedup is None or speedup >= wanted:
        return None
    break_even = case.result.break_even
    text = f"{case.accept_length}, {case.speed} without speculation"
    if speedup >= 1:
        text += f": {speedup:.2f}x, below minSpeedup {wanted:g}"
    if break_even is not None:
        text += f"; break-even at this load is {break_even:.2f}"
    if case.further:
        text += f"; {speedup:.2f}x at {case.result.concurrency}{case.further}"
    if case.below_expected:
        return Verdict(Outcome.FAIL, Reason.SLOWER_THAN_BASELINE, f"{text}. {_FEATURES_DIFFER}")
    advice = (
        f"At concurrency {case.result.concurrency} a verify step costs more than its accepted tokens save: "
        "train longer, draft fewer steps, or lower probe.minSpeedup"
    )
    return Verdict(Outcome.FAIL, Reason.SLOWER_THAN_BASELINE, f"{text}. {advice}")


def _breaks_its_promise(case: _Case) -> Verdict | None:
    """Fast enough, but accepted far less than in training: something is wrong that will not stay harmless."""
    if not case.below_expected:
        return None
    return Verdict(
        Outcome.FAIL,
        Reason.PARITY_MISMATCH,
        f"{case.accept_length}, more than {case.policy.parity_band:.0%} below what training promised. {_FEATURES_DIFFER}",
    )


def _is_accepted_too_little(case: _Case) -> Verdict | None:
    """As good as training promised, and not good enough."""
    if (case.result.accept_length or 0) >= case.policy.min_accept_length:
        return None
    return Verdict(
        Outcome.FAIL,
        Reason.LOW_ACCEPT_LENGTH,
        f"{case.accept_length}, below minAcceptLength {case.policy.min_accept_length:g}. "
        "Train longer or on more data, take another draft if it was adopted, or lower probe.minAcceptLength",
    )


def _is_proven(case: _Case) -> Verdict:
    """Accepted, faster and with the same answers."""
    result = case.result
    text = case.accept_length
    if result.speedup is None:
        text += f", {result.tokens_per_second:.1f} tok/s at concurrency {result.concurrency}"
    else:
        text += f", {case.speed} at concurrency {result.concurrency} ({result.speedup:.2f}x)"
        text += case.further
    if result.compared and not result.different:
        ties = f" up to {result.ties} ties" if result.ties else ""
        text += f", greedy outputs identical on {result.compared} prompts{ties}"
    elif result.compared:
        text += f", greedy outputs differ on {result.different} of {result.compared} prompts"
    costs = cost_of_loads(result)
    return Verdict(Outcome.PASS, Reason.PROVEN, f"{text}. {costs}" if costs else text)


#: The first that fires is the verdict; the last always does.
_CHECKS: tuple[_Check, ...] = (
    _arguments_differ,
    _others_were_served,
    _nothing_was_answered,
    _is_the_baseline,
    _template_differs,
    _does_not_speculate,
    _answers_differ,
    _has_no_baseline,
    _is_slower,
    _breaks_its_promise,
    _is_accepted_too_little,
    _is_proven,
)
