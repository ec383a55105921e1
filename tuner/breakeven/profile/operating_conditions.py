"""Conditions that differ from those measured: other acceptance, other lengths.

An arm is carried to them by the costs of its steps (`breakeven.laws.conversion`), anchored at its own laws: at the measured
conditions every factor is 1. The doubt of what was measured, of E and of the conversion itself enters the bounds. What was
not measured at all is a range that holds both extremes: all of the decode part scales with 1/E, or none of it does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.laws.arrays import FloatArray
from breakeven.laws.conversion import RequestCosts, Work, latency_parts, wait_per_other_s
from breakeven.laws.latency import latency_among
from breakeven.laws.law import Law
from breakeven.laws.speculation import mean_kv_tokens
from breakeven.profile.curves import Curve
from breakeven.profile.fits import ArmFit, LawFit, Lengths, Measurement

SD_OF_MEAN_ERROR = 1.25
"""Standard deviation over mean absolute error, of normal errors."""

_LEAST_ALONE = 0.5
"""A lone request takes at least this share of the latency at the lowest load that was measured."""

_WIDE = 0.05
"""Where what was not measured leaves C1 or C2 open by more than this share of it, a prediction is an extrapolation."""

FAR = 4.5
"""Lengths beyond this multiple of the measured ones are an extrapolation, whatever was measured of the steps."""

_FORM_ERROR = 0.02
"""Relative standard deviation of a conversion that multiplies a coefficient by e (simulated: validation/conversions.py)."""

_TO_THE_END = 1.645
"""Standard deviations from the middle to the end of a range that 90 % bounds hold."""

_MANY = 1e6
"""Output tokens to assume where nothing says how many: the first one then counts for nothing."""

_ROUNDS = 8
"""Until s2 and the wait that it causes agree to a thousandth."""

_LAW_KNOTS = 48
"""Straight pieces that follow the law of a mixture of experts to a hundredth; most of them where few experts are touched."""

_LEAST_S = 1e-9
"""No latency is less."""

_HALF = 0.5
"""Share of what another request adds to a step that is taken for attention to its context where w was not measured."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is known about the load to predict for; None: as measured.

    Attributes:
        tokens_per_step: E per request-step of the arm.
        prompt_tokens: mean prompt tokens per request.
        output_tokens: mean output tokens per request.
        tokens_per_step_error: relative standard error of `tokens_per_step`; 0: it is taken as exact.
        dispersion: variance over mean of the counts of arrivals in spans as long as a request; 1: Poisson. It moves what holds
            at a rate; clients of a closed loop ask when they are answered.
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


class _Works(NamedTuple):
    """What a request asked for when the arm was measured, and what it asks for now."""

    measured: Work
    now: Work


def measured_curve(fit: ArmFit, conditions: Conditions) -> Curve:
    """Curve of a measured arm under given conditions.

    Raises:
        NotIdentifiedError: the arm has no law, or cannot be converted to the conditions.
        InputError: impossible conditions.
    """
    conditions.check(fit.arm)
    if fit.fit is None:
        raise NotIdentifiedError(
            f"{fit.arm}: {fit.points} usable points do not determine a latency law ({fit.reason})"
        )
    works = _works(fit, conditions)
    moved = _Conversion(fit, works, conditions) if works.now != works.measured else None
    law = fit.fit.law if moved is None else moved.law
    others = [one.others for one in fit.measurements]
    knots = _knots(fit, fit.fit.law, law) if fit.basis == "points" or fit.experts else None
    if knots is not None and fit.arm.scheduled:
        knots = _rising_from_alone(knots)
    return Curve(
        law,
        fit.fit.dof,
        fit.fit.noise,
        "arm",
        (min(others), max(others)),
        knots,
        SD_OF_MEAN_ERROR * _error_between(fit),
        fit.measured_saturation_rps if moved is None else moved.ceiling_rps,
        moved is not None and moved.extrapolated,
        # The curve moves it to the last knot, which other lengths have moved already.
        None if fit.beyond is None else fit.beyond.law,
        fit.ttft if moved is None else moved.ttft,
        fit.tpot if moved is None else moved.tpot,
        0.0 if moved is None else moved.relative_doubt,
        fit.experts is None,
    )


def _error_between(fit: ArmFit) -> float:
    """Mean relative error where the law bends: of what takes its place."""
    if fit.experts is not None:
        return fit.experts.error
    return fit.bend.points_error if fit.bend is not None else 0.0


def work_of(lengths: Lengths, tokens_per_step: float) -> Work:
    """What a request of these mean lengths asks for; a prompt counts as one token where its length is not known."""
    prompt, output = lengths.prompt_tokens or 1.0, max(lengths.output_tokens or _MANY, 1.0)
    square = lengths.output_tokens_sq or output * output
    context = float(mean_kv_tokens(prompt, output, max(square, output * output)))
    return Work(tokens_per_step, prompt, output, context)


def _works(fit: ArmFit, conditions: Conditions) -> _Works:
    """Raise NotIdentifiedError where other conditions are asked for and the measured ones are not known."""
    e = fit.tokens_per_step or 1.0
    now = e
    if conditions.tokens_per_step is not None and fit.k > 0:
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
        now = conditions.tokens_per_step
    measured = fit.lengths
    if conditions.output_tokens is not None and not (measured.output_tokens or 0.0) > 1.0:
        raise NotIdentifiedError(
            f"{fit.arm}: its output length was not measured, so another one cannot be converted; "
            "give output_tokens in the points file, or ask without --output-tokens"
        )
    if conditions.prompt_tokens is not None and not measured.prompt_tokens:
        raise NotIdentifiedError(
            f"{fit.arm}: its prompt length was not measured, so another one cannot be converted; "
            "give prompt_tokens in the points file, or ask without --prompt-tokens"
        )
    asked = measured
    if conditions.output_tokens is not None and measured.output_tokens:
        # Spread as measured: nobody says how the lengths of now vary.
        ratio = conditions.output_tokens / measured.output_tokens
        square = None if measured.output_tokens_sq is None else measured.output_tokens_sq * ratio**2
        asked = replace(asked, output_tokens=conditions.output_tokens, output_tokens_sq=square)
    if conditions.prompt_tokens is not None:
        asked = replace(asked, prompt_tokens=conditions.prompt_tokens)
    return _Works(work_of(measured, e), work_of(asked, now))


@dataclass(frozen=True, slots=True)
class Anchor:
    """An arm's own laws, which the costs of its steps must reproduce at the measured conditions.

    Attributes:
        alone_s, company_s: C1 and C2.
        first_s: TTFT of a lone request; None where it was not measured.
        work: what a request asked for.
    """

    alone_s: float
    company_s: float
    first_s: float | None
    work: Work

    @classmethod
    def of(cls, fit: ArmFit) -> Anchor:
        """Of a measured arm.

        Raises:
            NotIdentifiedError: it has no law.
        """
        law, work = _law_of(fit), work_of(fit.lengths, fit.tokens_per_step or 1.0)
        first_s = None if fit.ttft is None else min(fit.ttft.c1_s, law.c1_s)
        return cls(law.c1_s, law.c2_s, first_s, work)

    @property
    def most_prefill_token_s(self) -> float:
        """Largest u that it allows: all that another request costs."""
        return self.company_s / self.work.prompt_tokens

    def costs(self, prefill_token_s: float | None, kv_token_s: float | None) -> RequestCosts:
        """The costs of its steps.

        Args:
            prefill_token_s: u; None: a lone TTFT less one step, which is a guess.
            kv_token_s: w; None: half of what another request adds to a step is attention to its context, a guess.
        """
        work, most = self.work, self.most_prefill_token_s
        steps = max(work.steps, 1e-9)
        if prefill_token_s is None:
            guess_s = 0.5 * self.company_s
            if self.first_s is not None:
                guess_s = self.first_s - (self.alone_s - self.first_s) / steps
            prefill_token_s = guess_s / work.prompt_tokens
        u = min(max(prefill_token_s, 0.0), most)
        prefill_s = u * work.prompt_tokens
        if self.first_s is None:
            # The first token comes at the end of a step as well.
            lone_s = max(self.alone_s - prefill_s, 0.0) / (steps + 1.0)
            first_s = lone_s + prefill_s
        else:
            first_s = self.first_s
            lone_s = (self.alone_s - first_s) / steps
        other_s = (self.company_s - prefill_s) / steps
        for _ in range(_ROUNDS):
            each_s = prefill_s + steps * other_s
            wait_s = wait_per_other_s(first_s, steps * lone_s, lone_s, other_s, prefill_s, each_s)
            other_s = max(self.company_s - prefill_s - wait_s, 0.0) / steps
        most_w = min(other_s, lone_s) / work.context_tokens
        w = _HALF * most_w if kv_token_s is None else min(max(kv_token_s, 0.0), most_w)
        return RequestCosts(max(first_s - prefill_s, 0.0), lone_s, other_s, u, w, work.context_tokens)


class _Conversion:
    """One arm under other conditions: its laws moved, and in how much doubt."""

    def __init__(self, fit: ArmFit, works: _Works, conditions: Conditions) -> None:
        self._fit, self._works = fit, works
        self._own = _law_of(fit)
        self._anchor = Anchor.of(fit)
        self._u = fit.steps.prefill_token if fit.steps else None
        self._w = fit.steps.kv_token if fit.steps else None
        self.levels = self._levels(works.now, self._costs())
        doubts = [*self._of_sampling(conditions), *self._of_costs()]
        left_open = list(self._left_open())
        self._doubts = np.array([*doubts, *(change / _TO_THE_END for change in left_open)])
        self.extrapolated = self._far() or any(
            np.any(np.abs(change[:2]) > _WIDE * self.levels[:2]) for change in left_open
        )

    @property
    def law(self) -> Law:
        """C1 and C2."""
        return self._moved(self._own, 0).law

    @property
    def ttft(self) -> LawFit | None:
        """The law of TTFT."""
        return None if self._fit.ttft is None else self._moved(self._fit.ttft, 2)

    @property
    def tpot(self) -> LawFit | None:
        """The law of TPOT."""
        return None if self._fit.tpot is None else self._moved(self._fit.tpot, 4)

    @property
    def relative_doubt(self) -> float:
        """Relative standard deviation of the conversion, of C1 or of C2, whichever is larger."""
        return float(np.max(np.sqrt((self._doubts[:, :2] ** 2).sum(axis=0)) / self.levels[:2]))

    @property
    def ceiling_rps(self) -> float | None:
        """Measured saturation, moved as 1/C2 is."""
        ceiling = self._fit.measured_saturation_rps
        return None if ceiling is None else ceiling * self._own.c2_s / float(self.levels[1])

    def _moved(self, law: LawFit, at: int) -> LawFit:
        level, own = self.levels[at : at + 2], np.array([law.c1_s, law.c2_s])
        factors = np.where(own > 0, level / np.where(own > 0, own, 1.0), 1.0)
        doubts = self._doubts[:, at : at + 2]
        form = np.diag((_FORM_ERROR * np.log(factors.clip(1e-9)) * level) ** 2)
        covariance = np.asarray(law.covariance) * np.outer(factors, factors) + doubts.T @ doubts + form
        (v1, v12), (_, v2) = covariance.tolist()
        return replace(law, c1_s=float(level[0]), c2_s=float(level[1]), covariance=((v1, v12), (v12, v2)))

    def _levels(self, now: Work, costs: RequestCosts) -> FloatArray:
        """C1, C2, both of TTFT and both of TPOT (s), shape (6,)."""
        own, fit = self._own, self._fit
        before, after = latency_parts(costs, self._works.measured), latency_parts(costs, now)
        alone_s = own.c1_s * after.alone_s / max(before.alone_s, _LEAST_S)
        company_s = own.c2_s * after.company_s / max(before.company_s, _LEAST_S)
        first = np.zeros(2) if fit.ttft is None else np.array([fit.ttft.c1_s, fit.ttft.c2_s])
        moved = np.array([alone_s, company_s]).clip(_LEAST_S)
        ttft = (
            (first + np.array(after[2:4]) - np.array(before[2:4])).clip([_LEAST_S, 0.0])
            if first.any()
            else first
        )
        tpot = np.zeros(2) if fit.tpot is None else np.array([fit.tpot.c1_s, fit.tpot.c2_s])
        # What is left of the latency is decoding; a factor beside it holds what three fits differ by.
        decoding = (moved - ttft).clip(0.0) / (np.array([own.c1_s, own.c2_s]) - first).clip(_LEAST_S)
        tokens = (self._works.measured.output_tokens - 1.0) / max(now.output_tokens - 1.0, 1.0)
        return np.concatenate([moved, ttft, tpot * decoding * tokens])

    def _costs(self, u: float | None = None, w: float | None = None) -> RequestCosts:
        """The costs, at the measured u and w where none are given."""
        u = (self._u.value_s if self._u else None) if u is None else u
        w = (self._w.value_s if self._w else None) if w is None else w
        return self._anchor.costs(u, w)

    def _of_sampling(self, conditions: Conditions) -> Iterator[FloatArray]:
        """What the sampling error of E as it is now changes; that of E as it was measured is in the laws."""
        now, error = self._works.now, conditions.tokens_per_step_error
        if conditions.tokens_per_step is not None and self._fit.k and error > 0:
            other = replace(now, tokens_per_step=now.tokens_per_step * (1.0 + error))
            yield self._levels(other, self._costs()) - self.levels

    def _of_costs(self) -> Iterator[FloatArray]:
        """What the errors of the measured u and w change."""
        for name, found in (("u", self._u), ("w", self._w)):
            if found is not None:
                changed = self._costs(**{name: found.value_s + found.sd_s})
                yield self._levels(self._works.now, changed) - self.levels

    def _left_open(self) -> Iterator[FloatArray]:
        """What a u or w changes that was not measured: the further of both ends."""
        if self._u is None:
            most = self._anchor.most_prefill_token_s
            yield self._further(*(self._costs(u=u) for u in (0.0, most)))
        if self._w is None:
            yield self._further(*(self._costs(w=w) for w in (0.0, math.inf)))

    def _further(self, *ends: RequestCosts) -> FloatArray:
        changes = [self._levels(self._works.now, end) - self.levels for end in ends]
        return max(changes, key=lambda change: float(np.max(np.abs(change[:2]) / self.levels[:2])))

    def _far(self) -> bool:
        before, now = self._works
        ratios = (now.prompt_tokens / before.prompt_tokens, now.output_tokens / before.output_tokens)
        return any(abs(math.log(max(ratio, 1e-9))) > math.log(FAR) for ratio in ratios)


def _law_of(fit: ArmFit) -> LawFit:
    if fit.fit is None:
        raise NotIdentifiedError(f"{fit.arm}: it has no law")
    return fit.fit


def _knots(fit: ArmFit, original: Law, law: Law) -> FloatArray:
    """(others, latency) in ascending load where an arm bends, moved with the law."""
    knots = _measured_knots(fit.measurements)
    if fit.experts is not None:
        others = np.linspace(0.0, 1.0, _LAW_KNOTS) ** 2 * knots[-1, 0]
        knots = np.stack([others, fit.experts.law.closed_loop_latency(others + 1.0)], axis=-1)
    moved = latency_among(law.c1, law.c2, knots[:, 0]) / latency_among(original.c1, original.c2, knots[:, 0])
    knots[:, 1] *= moved
    return knots


def _measured_knots(measurements: Sequence[Measurement]) -> FloatArray:
    """Measured (others, latency) in ascending load.

    Rows at nearly the same load are one knot: between replicates a straight line has any slope.
    """
    groups: list[list[Measurement]] = []
    for one in sorted(measurements, key=lambda row: row.others):
        near = groups and one.others - groups[-1][0].others <= max(0.05, 0.02 * one.others)
        if near:
            groups[-1].append(one)
        else:
            groups.append([one])
    return np.array(
        [
            [np.mean([one.others for one in group]), np.mean([one.latency_s for one in group])]
            for group in groups
        ]
    )


def _rising_from_alone(knots: FloatArray) -> FloatArray:
    """The knots of a schedule: none lower than one before it, and the first at a lone request.

    The line nearest to all points is none of its tiers, so it is no guide below the first point either.
    """
    others, latency_s = knots.T
    # The mean of the least rising curve above all points and the largest one below them.
    rising = (np.maximum.accumulate(latency_s) + np.minimum.accumulate(latency_s[::-1])[::-1]) / 2.0
    found = np.stack([others, rising], axis=-1)
    if others[0] <= 0.0:
        return found
    slope = (rising[1] - rising[0]) / (others[1] - others[0])
    alone_s = max(rising[0] - slope * others[0], _LEAST_ALONE * rising[0])
    return np.vstack([[0.0, alone_s], found])
