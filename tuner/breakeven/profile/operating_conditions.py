"""Conditions that differ from those measured: other acceptance, other lengths, arrivals in bursts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from breakeven.arm import Arm
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.profile.fits import ArmFit, Lengths

FAR = 4.5
"""Lengths beyond this multiple of the measured ones are an extrapolation, whatever was measured of the steps."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Acceptance, lengths and arrivals to predict for; None: as measured.

    Attributes:
        tokens_per_step: E per request-step of the arm.
        prompt_tokens: mean prompt tokens per request.
        output_tokens: mean output tokens per request.
        tokens_per_step_error: relative standard error of `tokens_per_step`; 0: it is taken as exact.
        dispersion: variance over mean of the counts of arrivals in spans as long as a request; 1: Poisson. It changes figures
            at a rate only, because clients of a closed loop send when they are answered.
    """

    tokens_per_step: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    tokens_per_step_error: float = 0.0
    dispersion: float = 1.0

    def check(self, arm: Arm) -> None:
        """Refuse conditions that no arm of this draft length can meet.

        Raises:
            InputError: E outside 1 to k + 1, or a length outside its range.
        """
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
        """Refuse conditions that differ from measured ones which are not known.

        Raises:
            NotIdentifiedError: names the figure that was not measured.
        """
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
        """The lengths asked for; answers spread as measured, because their present spread is not known."""
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
    """Acceptance and lengths of the measurement."""
    return Conditions()


def strays(measured: Lengths, now: Lengths) -> bool:
    """Whether lengths are so far from those measured that a prediction is an extrapolation."""
    pairs = (
        (measured.prompt_tokens, now.prompt_tokens),
        (measured.output_tokens, now.output_tokens),
    )
    return any(a and b and max(a / b, b / a) > FAR for a, b in pairs)
