"""Predictions and comparisons of every arm at the present load: the figures that a decision rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.planning.latency_model import Bounds, ComparisonLike, FittedArm, LatencyModel, PredictionLike
from breakeven.planning.objective import Slo
from breakeven.planning.outlook import ExpectedLoad, mean_latency_s


@dataclass(frozen=True, slots=True)
class Load:
    """What was observed of a service over one window, per replica.

    Attributes:
        rps: offered request rate per replica (1/s).
        window_s: length of the window (s).
        requests: requests finished in it.
        inflight: mean number in flight per replica; `None`: not observed.
        latency_s: measured mean end-to-end latency (s); `None`: not observed.
        tokens_per_step: E of the running arm; `None`: not observed, or no speculation runs.
        prompt_tokens: mean per request; `None`: as calibrated.
        output_tokens: mean per request; `None`: as calibrated.
        saturated: measured, not modelled: the queue grows, requests are preempted.
        expected: loads that are expected over the coming time, as the past shows them; empty: the present load lasts.
    """

    rps: float
    window_s: float
    requests: float
    inflight: float | None = None
    latency_s: float | None = None
    tokens_per_step: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    saturated: bool = False
    expected: tuple[ExpectedLoad, ...] = ()

    def __post_init__(self) -> None:
        for name in ("rps", "window_s", "requests"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"{name}: {value!r} is not a finite number of at least 0; missing data is not a load"
                )
        for name in ("inflight", "latency_s", "tokens_per_step", "prompt_tokens", "output_tokens"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"{name}: {value!r} is not a finite number of at least 0; use None for unknown"
                )

    @property
    def idle(self) -> bool:
        """Whether there was nothing to decide on."""
        return self.rps == 0 or self.requests == 0


@dataclass(frozen=True, slots=True)
class Seen:
    """Acceptance that was measured live: it outranks the calibrated one for every arm of the same drafter."""

    arm: Arm
    tokens_per_step: float


@dataclass(frozen=True, slots=True)
class Standing:
    """One believable arm's figures at the present load.

    Attributes:
        arm: which.
        prediction: means at this load.
        utilisation: rate over saturation.
        saturation_rps: rate at which it saturates under these conditions (1/s).
        missed: limits of the SLO that it misses.
        unmeasured: limits that are held against a mean, or nothing, because their figure was not measured.
        tokens_per_step: E that was assumed; `None`: as calibrated.
        calibrated_tokens_per_step: E when the arm was measured.
        against_none: comparison with no speculation; `None` for no speculation itself.
        against_running: comparison with the running arm; `None` for the running arm itself.
        ahead_s: mean latency (s) over all expected loads, weighted by their requests; without any, at the present load.
    """

    arm: Arm
    prediction: PredictionLike
    utilisation: float
    saturation_rps: float
    missed: tuple[str, ...]
    unmeasured: tuple[str, ...]
    tokens_per_step: float | None
    calibrated_tokens_per_step: float | None
    against_none: ComparisonLike | None
    against_running: ComparisonLike | None
    ahead_s: float

    @property
    def latency_s(self) -> float:
        """Predicted mean latency (s), infinite where saturated."""
        return math.inf if self.prediction.latency_s is None else self.prediction.latency_s


@dataclass(frozen=True, slots=True)
class Field:
    """All arms that may be judged, at one load.

    Attributes:
        running: the running arm; `None` without a believable fit.
        none: no speculation; `None` without a believable fit.
        candidates: the other believable arms, no speculation included, in the order given.
        unbelievable: arms that were named but have no fit that may be used.
    """

    running: Standing | None
    none: Standing | None
    candidates: tuple[Standing, ...]
    unbelievable: tuple[Arm, ...]


def survey(
    profile: LatencyModel, load: Load, running: Arm, candidates: Sequence[Arm], seen: Sequence[Seen], slo: Slo
) -> Field:
    """Predict every arm at the present load, with acceptance measured live where there is any.

    Args:
        profile: the fitted model.
        load: what was observed.
        running: the arm that runs.
        candidates: arms that may run; no speculation and the running arm always belong.
        seen: acceptance measured live, the newest per drafter.
        slo: the limits.
    """
    arms = tuple(dict.fromkeys((NO_SPECULATION, running, *candidates)))
    fits = {arm: fit for arm in arms if (fit := believable_fit(profile, arm)) is not None}
    asked = _Survey(profile, load, running, slo, tuple(seen), fits)
    standings = {arm: standing for arm in fits if (standing := asked.stand(arm)) is not None}
    return Field(
        running=standings.get(running),
        none=standings.get(NO_SPECULATION),
        candidates=tuple(standing for arm, standing in standings.items() if arm != running),
        unbelievable=tuple(arm for arm in arms if arm not in standings),
    )


@dataclass(frozen=True, slots=True)
class _Survey:
    """One question put to a model about every arm, always under the same conditions."""

    profile: LatencyModel
    load: Load
    running: Arm
    slo: Slo
    seen: tuple[Seen, ...]
    fits: Mapping[Arm, FittedArm]

    def stand(self, arm: Arm) -> Standing | None:
        """Judge one arm; `None` where the model cannot convert it to these conditions (lengths never measured)."""
        try:
            mean = self._predict(arm, None)
            against_none = self._against(arm, NO_SPECULATION)
            against_running = (
                against_none if self.running == NO_SPECULATION else self._against(arm, self.running)
            )
        except BreakevenError:
            return None
        promised = self._promised(arm, mean)
        return Standing(
            arm=arm,
            prediction=mean,
            utilisation=mean.utilisation,
            saturation_rps=self.load.rps / mean.utilisation if mean.utilisation > 0 else math.inf,
            missed=self.slo.missed(promised),
            unmeasured=self.slo.unmeasured(promised),
            tokens_per_step=_tokens_per_step(self.profile, arm, self.seen),
            calibrated_tokens_per_step=self.fits[arm].tokens_per_step,
            against_none=against_none,
            against_running=against_running,
            ahead_s=self._ahead_s(arm, mean),
        )

    def _ahead_s(self, arm: Arm, now: PredictionLike) -> float:
        if not self.load.expected:
            return math.inf if now.latency_s is None else now.latency_s
        alone_s = self._predict(arm, None, 0.0).latency_s
        if alone_s is None:
            return math.inf
        return mean_latency_s(self.load.expected, lambda rps: self._predict(arm, None, rps), alone_s)

    def _predict(self, arm: Arm, quantile: float | None, rps: float | None = None) -> PredictionLike:
        return predicted(self.profile, self.load, arm, self.seen, rps, quantile)

    def _promised(self, arm: Arm, mean: PredictionLike) -> PredictionLike:
        """Return the latencies that the SLO speaks of; a mean, named as such, where a quantile was not measured."""
        if not self.slo.is_set or self.slo.quantile is None:
            return mean
        return self._predict(arm, self.slo.quantile)

    def _against(self, arm: Arm, other: Arm) -> ComparisonLike | None:
        if arm == other or other not in self.fits:
            return None
        return self.profile.compare(
            arm,
            other,
            rps=self.load.rps,
            tokens_per_step=_tokens_per_step(self.profile, arm, self.seen),
            against_tokens_per_step=_tokens_per_step(self.profile, other, self.seen),
            prompt_tokens=self.load.prompt_tokens,
            output_tokens=self.load.output_tokens,
        )


def predicted(
    profile: LatencyModel,
    load: Load,
    arm: Arm,
    seen: Sequence[Seen],
    rps: float | None = None,
    quantile: float | None = None,
) -> PredictionLike:
    """Predict an arm with the lengths of a load and the acceptance that is known best.

    Args:
        profile: the fitted model.
        load: what was observed.
        arm: any believable one.
        seen: acceptance measured live.
        rps: rate per replica (1/s); `None`: the load's.
        quantile: of which figures; a mean, named as such, where it was not measured; `None`: means.
    """
    return profile.predict(
        arm,
        rps=load.rps if rps is None else rps,
        tokens_per_step=_tokens_per_step(profile, arm, seen),
        prompt_tokens=load.prompt_tokens,
        output_tokens=load.output_tokens,
        quantile=quantile,
        or_mean=True,
    )


def believable_fit(profile: LatencyModel, arm: Arm) -> FittedArm | None:
    """Return the arm's fit if it may be used, else `None`."""
    try:
        fit = profile.arm(arm)
    except (KeyError, BreakevenError):
        return None
    return fit if fit.believable else None


def bounds_of(interval: Bounds | None) -> tuple[float, float]:
    """Return an interval of a positive figure with open ends as 0 and infinity."""
    lower, upper = interval if interval is not None else (None, None)
    return (0.0 if lower is None else lower, math.inf if upper is None else upper)


def speedup_bounds(comparison: ComparisonLike | None) -> tuple[float, float]:
    """Bounds of the speedup; where only one arm is saturated there is no interval, but no doubt either."""
    if comparison is None:
        return 0.0, math.inf
    if comparison.speedup_ci is None and comparison.speedup in (0.0, math.inf):
        return comparison.speedup, comparison.speedup
    return bounds_of(comparison.speedup_ci)


def _tokens_per_step(profile: LatencyModel, arm: Arm, seen: Sequence[Seen]) -> float | None:
    """Live E of the arm, or the live E of another draft length of its drafter carried over; `None`: as calibrated.

    Carried over, accepted drafts keep their proportion: (E - 1) scales by what live did to the arm that was seen.
    """
    if arm == NO_SPECULATION:
        return None
    for measured in seen:
        if measured.arm == arm:
            return min(max(measured.tokens_per_step, 1.0), arm.k + 1.0)
        if measured.arm.family != arm.family:
            continue
        here, there = believable_fit(profile, arm), believable_fit(profile, measured.arm)
        if here and there and here.tokens_per_step and there.tokens_per_step and there.tokens_per_step > 1:
            kept = max(measured.tokens_per_step - 1.0, 0.0) / (there.tokens_per_step - 1.0)
            return min(1.0 + kept * (here.tokens_per_step - 1.0), arm.k + 1.0)
    return None
