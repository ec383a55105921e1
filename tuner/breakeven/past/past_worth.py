"""Question about a calibration as a past asks it: its law of no speculation, its loads, and what its pods and names say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from breakeven.arm import NO_SPECULATION
from breakeven.past.past_reading import KnownPast
from breakeven.prior.calibration_worth import (
    DEFAULT_ARMS,
    LEAST_GAIN,
    CalibrationCost,
    CalibrationWorth,
    SeenLoads,
    calibration_worth,
)
from breakeven.prior.expected_ratios import AskedArm, ExpectedRatios, expected_ratios
from breakeven.prior.public_table import RatioRow, ServiceFacts


def worth_of_past(
    past: KnownPast,
    expected: ExpectedRatios | None,
    *,
    cost: CalibrationCost | None = None,
    least_gain: float = LEAST_GAIN,
    confidence: float = 0.9,
) -> CalibrationWorth:
    """Say whether a calibration is worth it for a workload with this past. Pure.

    Args:
        past: what Prometheus knows.
        expected: ratios of the arms that did not run in it, as `expected_of_past` gives them; None: every arm ran.
        cost: of one arm; None: the usual one.
        least_gain: share of request time from which a gain is worth having.
        confidence: two-sided level of the bounds.

    Raises:
        InputError: as `calibration_worth`.
    """
    profile = past.profile
    none = profile.arm(NO_SPECULATION) if profile is not None and profile.measured(NO_SPECULATION) else None
    return calibration_worth(
        none, loads_of_past(past), expected, cost=cost, least_gain=least_gain, confidence=confidence
    )


def expected_of_past(
    past: KnownPast, asked: Sequence[AskedArm], facts: ServiceFacts, rows: Sequence[RatioRow]
) -> ExpectedRatios | None:
    """Ratios of the arms that might be calibrated and did not run; None if all ran.

    Args:
        past: what Prometheus knows.
        asked: arms that might be calibrated; empty: the usual ones.
        facts: as `facts_of_past` gives them.
        rows: measurements of others, such as `public_ratios()`.

    Raises:
        InputError: as `expected_ratios`.
    """
    fits = past.profile.arms if past.profile is not None else ()
    ran = {one.arm for one in fits if one.believable}
    never_run = [one for one in asked or DEFAULT_ARMS if one.arm not in ran]
    return expected_ratios(facts, never_run, rows) if never_run else None


def facts_of_past(past: KnownPast, given: ServiceFacts) -> ServiceFacts:
    """Facts of the service: those given, else those that the model's name and the pods' GPU say."""
    known = past.arms[0].kind.fingerprint
    said = ServiceFacts.of_name((known.model or "").rsplit("/", 1)[-1], known.gpu)
    return replace(
        given,
        parameters_b=said.parameters_b if given.parameters_b is None else given.parameters_b,
        experts=said.experts if given.experts is None else given.experts,
        gpu=given.gpu or said.gpu,
        quantisation=given.quantisation or said.quantisation,
    )


def loads_of_past(past: KnownPast) -> SeenLoads:
    """Rates of a pod in all windows that count, and pod-seconds of each."""
    windows = [window for one in past.arms for window in one.windows if window.met_rps > 0.0]
    return SeenLoads(
        tuple(window.met_rps for window in windows), tuple(float(w.span_s * w.pods) for w in windows)
    )
