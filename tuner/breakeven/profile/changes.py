"""What changed from one profile to a later one of the same service, such as before and after an upgrade of the engine.

The two were measured at different times on different starts of engines, so that their errors are independent. Their bounds
hold one start of an engine to the next, so an interval around a ratio does, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import NotIdentifiedError
from breakeven.estimate import Estimate
from breakeven.profile.document import Profile
from breakeven.profile.operating_conditions import SAME, Conditions, strays
from breakeven.profile.student_t import t_quantile

_IDENTITY = ("model", "gpu", "workload", "engine_version", "fingerprint")
_BETTER_HIGH = frozenset({"saturation_rps", "break_even_rps", "speedup"})

Word = Literal["better", "worse", "no difference shown"]


@dataclass(frozen=True)
class FigureChange:
    """A figure of an arm before and after.

    Attributes:
        figure: `c1_s`, `c2_s`, `saturation_rps`, `break_even_rps`; at a load also `latency_s` and `speedup`.
        ratio: after over before, with bounds at the confidence of the comparison; None if one of them does not exist.
    """

    arm: Arm
    figure: str
    before: Estimate
    after: Estimate
    ratio: Estimate | None

    @property
    def word(self) -> Word:
        """Whether it surely changed, and for the better."""
        if self.ratio is None or not (self.ratio.above(1.0) or self.ratio.below(1.0)):
            return "no difference shown"
        return "better" if self.ratio.above(1.0) is (self.figure in _BETTER_HIGH) else "worse"


@dataclass(frozen=True)
class Changes:
    """All that changed.

    Attributes:
        rps: the load of `latency_s` and `speedup`; None if none was given.
        prompt_tokens, output_tokens: lengths of the comparison; None if not in the files.
        identity: model, GPU, workload, engine version and fingerprint that differ: before and after.
        verdicts: at which loads an arm pays, before and after, if the word differs: a break-even may be gone.
        only_before, only_after: arms that the other profile lacks.
    """

    confidence: float
    rps: float | None
    prompt_tokens: float | None
    output_tokens: float | None
    identity: Mapping[str, tuple[str | None, str | None]]
    changes: tuple[FigureChange, ...]
    verdicts: Mapping[Arm, tuple[str, str]]
    only_before: tuple[Arm, ...]
    only_after: tuple[Arm, ...]

    @property
    def worse(self) -> tuple[FigureChange, ...]:
        """Figures that surely became worse."""
        return tuple(one for one in self.changes if one.word == "worse")

    @property
    def better(self) -> tuple[FigureChange, ...]:
        """Figures that surely became better."""
        return tuple(one for one in self.changes if one.word == "better")


def changes_between(
    before: Profile, after: Profile, *, rps: float | None = None, conditions: Conditions | None = None
) -> Changes:
    """Compare two profiles arm by arm, at the lengths of the earlier one unless others are asked for.

    Acceptance is as each was measured: it is a part of what changed. Bounds have the confidence of the earlier profile.

    Raises:
        NotIdentifiedError: no arm is in both, or other lengths are needed and were not measured.
        InputError: impossible conditions.
    """
    if not (before.arms and after.arms):
        raise NotIdentifiedError("a profile holds no arm")
    wanted = conditions or Conditions()
    lengths = wanted.lengths(before.lengths)
    if strays(after.lengths, lengths, SAME) or strays(before.lengths, lengths, SAME):
        wanted = Conditions(prompt_tokens=lengths.prompt_tokens, output_tokens=lengths.output_tokens)
    named = [[fit.arm for fit in one.arms if fit.measurements] for one in (before, after)]
    both = [arm for arm in named[0] if arm in named[1]]
    if not both:
        shown = " and ".join(", ".join(map(str, arms)) or "no arm" for arms in named)
        raise NotIdentifiedError(f"no arm was measured in both profiles: {shown}")
    level = before.confidence
    found: list[FigureChange] = []
    for arm in both:
        was, became = (dict(_figures(one, arm, rps, wanted, level)) for one in (before, after))
        found += (
            FigureChange(arm, name, was[name], became[name], ratio_of(was[name], became[name]))
            for name in was
            if name in became
        )
    identity = {
        name: (before.provenance.get(name), after.provenance.get(name))
        for name in _IDENTITY
        if before.provenance.get(name) != after.provenance.get(name)
    }
    compared = both if NO_SPECULATION in both else []
    words = {
        arm: [str(one.compare(arm, rps=0.0, conditions=wanted).verdict) for one in (before, after)]
        for arm in compared
    }
    verdicts = {arm: (was, became) for arm, (was, became) in words.items() if was != became}
    only = [tuple(arm for arm in arms if arm not in both) for arms in named]
    return Changes(
        level,
        rps,
        lengths.prompt_tokens,
        lengths.output_tokens,
        identity,
        tuple(found),
        verdicts,
        only[0],
        only[1],
    )


def _figures(
    profile: Profile, arm: Arm, rps: float | None, wanted: Conditions, level: float
) -> Iterator[tuple[str, Estimate]]:
    curve = profile.curve(arm, wanted)
    t = t_quantile(level, curve.dof)
    c1, c2 = curve.line_bounds(t)
    yield "c1_s", Estimate.of(curve.line.c1_s, c1)
    yield "c2_s", Estimate.of(curve.line.c2_s, c2)
    yield "saturation_rps", Estimate.of(curve.saturation_rps, curve.saturation_bounds(t))
    if rps is not None:
        at = profile.predict(arm, rps=rps, conditions=wanted, confidence=level)
        yield "latency_s", Estimate.of(at.latency_s, at.latency_ci_s)
    if arm == NO_SPECULATION or not profile.measured(NO_SPECULATION):
        return
    against = profile.compare(arm, rps=rps or 0.0, conditions=wanted, confidence=level)
    yield "break_even_rps", Estimate.of(against.break_even_rps, against.break_even_ci_rps)
    if rps is not None:
        yield "speedup", against.known


def ratio_of(before: Estimate, after: Estimate) -> Estimate | None:
    """After over before, of two independent figures.

    On logarithms the distances of their bounds are added as squares (the method of variance estimates recovery), which needs no
    symmetry. A bound that is open, or not above 0, opens the ratio's.
    """
    values = (before.value, after.value)
    if any(one is None or not 0.0 < one < math.inf for one in values):
        return None
    ratio = math.log(after.value or 1.0) - math.log(before.value or 1.0)

    def away(one: Estimate, end: float | None) -> float:
        return math.inf if end is None or end <= 0.0 else math.log(end) - math.log(one.value or 1.0)

    down = math.hypot(away(after, after.lower), away(before, before.upper))
    up = math.hypot(away(after, after.upper), away(before, before.lower))
    lower, upper = math.exp(ratio - down), math.exp(min(ratio + up, 700.0))
    return Estimate(math.exp(ratio), lower or None, None if math.isinf(up) else upper)
