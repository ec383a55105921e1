"""Documents of `--json` that take their fields by name from the library's results; other commands compose theirs.

docs/cli.md explains the fields. Fields keep their order and their names, a figure that does not exist is null, and only
`_IF_GIVEN` leaves a key out.
"""

from __future__ import annotations

from operator import not_
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

Interval = tuple[float | None, float | None] | None

_IF_GIVEN = Field(default=None, exclude_if=not_)


class JsonResult(BaseModel):
    """Base of all that is printed."""

    # Each command prints one of these models: the others are not built.
    model_config = ConfigDict(from_attributes=True, frozen=True, defer_build=True)

    @classmethod
    def of(cls, *parts: object, **given: Any) -> Self:
        """Fill the fields by name: from `given`, else from the first of `parts` that has such an attribute."""
        found = {
            name: getattr(part, name)
            for part in reversed(parts)
            for name in cls.model_fields
            if hasattr(part, name)
        }
        return cls.model_validate(found | given)


class ArmKey(JsonResult):
    """An arm, named as in options."""

    method: str
    k: int
    candidate: str | None = _IF_GIVEN
    scheduled: bool = Field(default=False, exclude_if=not_)
    adaptive: bool = Field(default=False, exclude_if=not_)


class _ExcludedRow(JsonResult):
    row: int
    line: int | None
    reason: str
    source: str


class _LoadRange(JsonResult):
    rps: tuple[float, float]
    inflight: tuple[float, float]


class _FitArm(ArmKey):
    schedule: str | None = _IF_GIVEN
    c1_s: float | None
    c1_ci_s: Interval
    c2_s: float | None
    c2_ci_s: Interval
    saturation_rps: float | None
    saturation_ci_rps: Interval
    points: int
    excluded: tuple[_ExcludedRow, ...]
    max_relative_error: float | None
    loo_error: float | None
    measured_range: _LoadRange | None
    tokens_per_step: float | None


class _StepCost(JsonResult):
    name: str
    value: float
    ci: tuple[float, float]
    prior: bool


class _Starts(JsonResult):
    sd: float
    beside_sd: float
    differences: int


class FitResult(JsonResult):
    """`fit`: one profile."""

    confidence: float
    arms: tuple[_FitArm, ...]
    step_costs: tuple[_StepCost, ...] = Field(default=(), exclude_if=not_)
    starts: _Starts | None = _IF_GIVEN
    warnings: tuple[str, ...]


class PredictResult(JsonResult):
    """`predict`."""

    confidence: float
    latency_s: float | None
    latency_ci_s: Interval
    ttft_s: float | None
    ttft_ci_s: Interval
    tpot_s: float | None
    tpot_ci_s: Interval
    quantile: float | None
    means: tuple[str, ...]
    inflight: float | None
    utilisation: float
    saturated: bool
    extrapolated: bool
    basis: str
    would_pay: dict[str, str] | None = _IF_GIVEN


class _QuantileFigures(JsonResult):
    latency_s: float | None
    latency_ci_s: Interval
    ttft_s: float | None
    ttft_ci_s: Interval
    tpot_s: float | None
    tpot_ci_s: Interval
    means: tuple[str, ...]


class PlanArm(ArmKey):
    """One arm at the load."""

    measured: bool
    latency_s: float | None
    latency_ci_s: Interval
    ttft_s: float | None
    tpot_s: float | None
    speedup: float | None = None
    speedup_ci: Interval = None
    side_by_side: bool = False
    c1_ratio: float | None = None
    c1_ratio_ci: Interval = None
    c2_ratio: float | None = None
    c2_ratio_ci: Interval = None
    verdict: str | None = None
    break_even_rps: float | None = None
    break_even_ci_rps: Interval = None
    break_even_concurrency: float | None = None
    break_even_beyond_measured_range: bool = False
    pays_rps: tuple[tuple[float, float], ...] = ()
    saturation_rps: float
    saturated: bool
    extrapolated: bool
    basis: str
    utilisation: float
    at_quantile: _QuantileFigures | None
    meets_slo: bool | None
    capacity_rps: float | None
    capacity_ci_rps: Interval = None
    tokens_per_second: float | None


class EnvelopeStretch(JsonResult):
    """Rates over which one arm is fastest."""

    from_rps: float
    to_rps: float
    method: str
    k: int
    candidate: str | None = _IF_GIVEN


class PlanResult(JsonResult):
    """`plan`."""

    confidence: float
    best: ArmKey
    compared_at: str
    dispersion: float | None
    quantile: float | None
    arms: tuple[PlanArm, ...]
    reason: str
    explanation: str
    warnings: tuple[str, ...]
    envelope: tuple[EnvelopeStretch, ...] | None = _IF_GIVEN


class AcceptanceResult(JsonResult):
    """`acceptance`."""

    tokens_per_step: float
    tokens_per_step_range: tuple[float, float] | None
    acceptance_rate: float
    alpha: float
    survival: tuple[float, ...] | None
    extrapolated: bool
    k: int
    measured_k: int
    method: str
    basis: str
    warnings: tuple[str, ...]


class ScheduleResult(JsonResult):
    """`schedule`."""

    num_speculative_tokens: int
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...]
    method: str
    tokens_per_step: dict[str, float]
    tpot_s: tuple[float, ...]
    basis: str
    warnings: tuple[str, ...]
    confidence: float


class ReplayedPolicy(JsonResult):
    """Requests of a trace under one policy."""

    policy: str
    requests: int | float
    mean_latency_s: float | None
    p95_latency_s: float | None
    speedup_vs_none: float | None
    speedup_vs_oracle: float | None
    switches: int
    seconds_below_one: float
    slo_attainment: float | None
    ttft_mean_s: float | None
    ttft_p95_s: float | None
    tpot_mean_s: float | None
    tpot_p95_s: float | None
    tokens_per_step: float | None
    mean_inflight: float | None
