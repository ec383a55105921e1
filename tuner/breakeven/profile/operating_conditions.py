"""Conditions that differ from those measured: other acceptance, other lengths, arrivals in bursts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from breakeven.arm import Arm
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.phrases import spoken
from breakeven.profile.fits import ArmFit, Lengths

FAR = 4.5
"""Lengths beyond this multiple of the measured ones are an extrapolation, whatever was measured of the steps."""
SAME = 1.02
"""Lengths that differ by a smaller factor are not named: two runs of one workload differ by as much."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Acceptance, lengths and arrivals to predict for.

    Attributes:
        tokens_per_step: E per request-step of the arm; None as measured.
        prompt_tokens, output_tokens: mean per request; None takes `compared_lengths`, whichever the arm itself was measured at.
        tokens_per_step_error: relative standard error of `tokens_per_step`; 0 if it is taken as exact.
        dispersion: variance over mean of the counts of arrivals in spans as long as a request; 1 is Poisson. It changes figures
            at a rate only, because clients of a closed loop send when they are answered.
    """

    tokens_per_step: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    tokens_per_step_error: float = 0.0
    dispersion: float = 1.0

    def check(self, arm: Arm) -> None:
        """Refuse conditions that no arm of this draft length can meet, by an InputError."""
        e = self.tokens_per_step
        if e is not None and arm.k and not 1.0 <= e <= arm.k + 1.0:
            raise InputError("tokens per step", f"{e:g} for {arm}", f"1 to k + 1 = {arm.k + 1}")
        if self.prompt_tokens is not None and not self.prompt_tokens > 0:
            raise InputError("prompt tokens", f"{self.prompt_tokens:g}", "a number above 0")
        if not 0.0 <= self.dispersion < math.inf:
            raise InputError("dispersion", f"{self.dispersion:g}", "variance over mean of counts, at least 0")
        if self.output_tokens is not None and not self.output_tokens >= 1:
            raise InputError("output tokens", f"{self.output_tokens:g}", "a number of at least 1")

    def check_measured(self, fit: ArmFit) -> None:
        """Refuse conditions that differ from measured ones which are not known, by a NotIdentifiedError that names the figure."""
        if self.tokens_per_step is not None and fit.k > 0:
            if fit.arm.scheduled:
                raise NotIdentifiedError(
                    f"{fit.arm}: another acceptance cannot be converted, since its draft length changes with the load; "
                    "ask without it, or measure the schedule again"
                )
            if fit.tokens_per_step is None:
                raise NotIdentifiedError(
                    f"{fit.arm}: its acceptance was not measured, so another one cannot be converted; "
                    "measure tokens_per_step, or ask without it"
                )
        if self.output_tokens is not None and not (fit.lengths.output_tokens or 0.0) > 1.0:
            raise NotIdentifiedError(
                f"{fit.arm}: its output length was not measured, so another one cannot be converted; "
                "give output_tokens in the points file, or ask without --output-tokens"
            )
        if self.prompt_tokens is not None and not fit.lengths.prompt_tokens:
            raise NotIdentifiedError(
                f"{fit.arm}: its prompt length was not measured, so another one cannot be converted; "
                "give prompt_tokens in the points file, or ask without --prompt-tokens"
            )

    def of_another_arm(self) -> Conditions:
        """The same lengths and arrivals; the acceptance is as measured, because each arm has its own."""
        return replace(self, tokens_per_step=None, tokens_per_step_error=0.0)

    def lengths(self, measured: Lengths) -> Lengths:
        """The lengths asked for, or these; answers spread as measured, because their present spread is not known."""
        output, square = measured.output_tokens, measured.output_tokens_sq
        if self.output_tokens is not None and output:
            square = None if square is None else square * (self.output_tokens / output) ** 2
            output = self.output_tokens
        return replace(
            measured,
            prompt_tokens=self.prompt_tokens or measured.prompt_tokens,
            output_tokens=output,
            output_tokens_sq=square,
        )


ConditionsOf = Callable[[Arm], Conditions]
"""Conditions of each arm."""


def as_measured(_: Arm) -> Conditions:
    """Acceptance of the measurement, and the lengths at which all arms are compared."""
    return Conditions()


def compared_lengths(arms: Sequence[ArmFit]) -> Lengths:
    """The lengths at which arms are compared if none are asked for: of no speculation, else of the first measured arm.

    Arms that are compared must serve the same requests. Each at its own lengths, an arm would win by shorter answers.
    """
    return _first(arms).lengths.or_those_of([fit.lengths for fit in arms])


def _first(arms: Sequence[ArmFit]) -> ArmFit:
    measured = [fit for fit in arms if fit.measurements] or arms
    return next((fit for fit in measured if fit.k == 0), measured[0])


def compared_text(arms: Sequence[ArmFit], wanted: Conditions) -> str:
    """The lengths of a comparison in words, with the arms that were measured at others; empty if no arm was.

    `256/200 tokens, those of no speculation (eagle3/3 was measured at 256/240)`
    """
    now = wanted.lengths(compared_lengths(arms))
    elsewhere: dict[str, list[str]] = {}
    for fit in arms:
        if fit.measurements and strays(fit.lengths, now, SAME):
            elsewhere.setdefault(_tokens_text(fit.lengths), []).append(spoken(fit.arm))
    if not elsewhere:
        return ""
    asked = wanted.prompt_tokens is not None or wanted.output_tokens is not None
    whose = "as asked" if asked else f"those of {spoken(_first(arms).arm)}"
    measured = "; ".join(
        f"{' and '.join(names)} {'was' if len(names) == 1 else 'were'} measured at {tokens}"
        for tokens, names in elsewhere.items()
    )
    return f"{_tokens_text(now)} tokens, {whose} ({measured})"


def _tokens_text(lengths: Lengths) -> str:
    """Tokens of prompt and answer: `256/200`; `?` if not in the files."""
    return "/".join(f"{one:.4g}" if one else "?" for one in (lengths.prompt_tokens, lengths.output_tokens))


def strays(measured: Lengths, now: Lengths, most: float = FAR) -> bool:
    """Whether lengths are farther from those measured than by a factor; by default so far that a prediction is an extrapolation."""
    pairs = (measured.prompt_tokens, now.prompt_tokens), (measured.output_tokens, now.output_tokens)
    return any(a and b and max(a / b, b / a) > most for a, b in pairs)
