"""Documents that `--json` prints: one model per command, filled from the command's result.

docs/cli.md lists the fields. Words under a field also describe the fields above it that have none. Fields keep their
order and their names, a figure that does not exist is null, and only `_IF_GIVEN` leaves a key out.
"""

from __future__ import annotations

from operator import not_
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

Interval = tuple[float | None, float | None] | None
Warnings = Annotated[tuple[str, ...], Field(description="What not to believe.")]
OfIntervals = Annotated[float, Field(description="Level of every interval.")]
OfProfile = Annotated[float, Field(description="Level of the profile's intervals.")]

_IF_GIVEN = Field(default=None, exclude_if=not_)


class JsonResult(BaseModel):
    """Base of all that is printed."""

    # Each command prints one of these models: the others are not built.
    model_config = ConfigDict(
        from_attributes=True, frozen=True, use_attribute_docstrings=True, defer_build=True
    )

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
    """The arm. `candidate` only if it has one; `scheduled` only if its draft length follows the batch size (k: the longest);
    `adaptive` only if the engine itself chooses it."""


class _ExcludedRow(JsonResult):
    row: int
    line: int | None
    """Number of the operating point in its file, and the line of a CSV file."""
    reason: str
    """The reason word."""
    source: str
    """The file."""


class _LoadRange(JsonResult):
    rps: tuple[float, float]
    inflight: tuple[float, float]
    """Lowest and highest answered rate, and mean number in flight."""


class _FitArm(ArmKey):
    schedule: str | None = _IF_GIVEN
    """Only of a schedule: its draft length per batch size."""
    c1_s: float | None
    c1_ci_s: Interval
    """Latency of a lone request, at the lengths at which arms are compared."""
    c2_s: float | None
    c2_ci_s: Interval
    """Added by each other request in flight, on average up to the highest load measured."""
    saturation_rps: float | None
    saturation_ci_rps: Interval
    """Largest rate the arm sustains: measured where saturation was reached, else by the law of steps."""
    points: int
    """Points used."""
    excluded: tuple[_ExcludedRow, ...]
    """Rows left out, each with its reason word."""
    max_relative_error: float | None
    loo_error: float | None
    """Largest distance of a row from the prediction, mean distance of rows that are predicted from all others."""
    measured_range: _LoadRange | None
    """Loads between which the arm was measured."""
    believable: bool
    reason: str
    """Whether decisions may rest on the fit, and the reason word."""
    tokens_per_step: float | None
    """E as measured, bonus token included."""


class _StepCost(JsonResult):
    name: str
    value: float
    ci: tuple[float, float]
    prior: bool
    """Costs of a step of the engine or of a drafter (docs/model.md); seconds if the name ends in `_s`. `prior`: the rows say hardly
    more of it than was known before."""


class _Starts(JsonResult):
    sd: float
    differences: int
    """One start of an engine to the next: standard deviation (ln) that all bounds hold, and number of differences behind it; 0: a prior."""


class FitResult(JsonResult):
    """`fit`: one profile."""

    confidence: OfIntervals
    arms: tuple[_FitArm, ...]
    """One entry per arm."""
    step_costs: tuple[_StepCost, ...] = Field(default=(), exclude_if=not_)
    """The law of steps: what each cost is, with bounds."""
    starts: _Starts | None = _IF_GIVEN
    """How much one start of an engine differs from the next."""
    warnings: Warnings


class GroupedFitResult(JsonResult):
    """`fit --group-by`: a profile per value of a column."""

    confidence: float
    groups: tuple[dict[str, Any], ...]
    """With `--group-by` the only keys: for each value the column with that value, `profile` (the file) and the keys above."""


class PredictResult(JsonResult):
    """`predict`."""

    confidence: OfIntervals
    latency_s: float | None
    latency_ci_s: Interval
    """Mean request latency, or the asked quantile; null when saturated."""
    ttft_s: float | None
    ttft_ci_s: Interval
    tpot_s: float | None
    tpot_ci_s: Interval
    """Time to the first token, and per further token: means, or the asked quantile."""
    quantile: float | None
    """The quantile that was asked for, null for means."""
    means: tuple[str, ...]
    """Figures that are means although a quantile was asked for, because that quantile was not measured."""
    inflight: float | None
    """Mean number of requests in flight."""
    utilisation: float
    saturated: bool
    """Load over saturation; whether the arm cannot serve it."""
    extrapolated: bool
    """Beyond utilisation 0.75 or the measured range."""
    basis: str
    """Rows beside the law of steps: `arm`, the arm's own, or `others`."""


class _QuantileFigures(JsonResult):
    latency_s: float | None
    latency_ci_s: Interval
    ttft_s: float | None
    ttft_ci_s: Interval
    tpot_s: float | None
    tpot_ci_s: Interval
    """Latency and its parts, see `predict`."""
    means: tuple[str, ...]
    """Figures that are means although a quantile was asked for, because that quantile was not measured."""


class PlanArm(ArmKey):
    """One arm at the load."""

    measured: bool
    """False for a draft length that was derived from the others of its method."""
    believable: bool
    """Whether decisions may rest on its fit."""
    latency_s: float | None
    latency_ci_s: Interval
    ttft_s: float | None
    tpot_s: float | None
    """Latency and its parts, see `predict`."""
    speedup: float | None = None
    speedup_ci: Interval = None
    """Latency without speculation over latency of the arm; 0 when only the arm is saturated."""
    c1_ratio: float | None = None
    c1_ratio_ci: Interval = None
    c2_ratio: float | None = None
    c2_ratio_ci: Interval = None
    """C1 and C2 over those without speculation."""
    verdict: str | None = None
    """`below` or `above` (pays on that side of the break-even), `always`, `never`, `tie`, `uncertain`."""
    break_even_rps: float | None = None
    break_even_ci_rps: Interval = None
    break_even_concurrency: float | None = None
    break_even_beyond_measured_range: bool = False
    """Load at which the speedup is 1; no figure if that lies beyond what was measured."""
    pays_rps: tuple[tuple[float, float], ...] = ()
    """Ranges of rates in which an arm is faster, if it significantly crosses no speculation more than once (experts, a schedule)."""
    saturation_rps: float
    saturated: bool
    """The arm's own limit; whether it lies below the load."""
    extrapolated: bool
    basis: str
    """Limits of the figures' validity, see `predict`."""
    utilisation: float
    """Load over saturation."""
    at_quantile: _QuantileFigures | None
    """With `--quantile`: the figures that are compared with the objectives."""
    meets_slo: bool | None
    """Whether the objectives given hold at this load (never when saturated); null if nothing was measured of what one is about."""
    capacity_rps: float | None
    capacity_ci_rps: Interval = None
    """Largest rate that keeps the objectives; saturation where there are none, or less where the KV pool is full first."""
    tokens_per_second: float | None
    """Generated at this load."""


class EnvelopeStretch(JsonResult):
    """Rates over which one arm is fastest."""

    from_rps: float
    to_rps: float
    method: str
    k: int
    candidate: str | None = _IF_GIVEN
    """Between which rates, and the arm that is fastest there."""


class PlanResult(JsonResult):
    """`plan`."""

    confidence: OfIntervals
    best: ArmKey
    """The arm to run."""
    compared_at: str
    """`equal_rps` or `equal_concurrency`."""
    dispersion: float | None
    """Variance over mean of the counts of arrivals that it speaks for: 1 is Poisson; null at a concurrency."""
    quantile: float | None
    """Of requests, that is to keep the objectives; null for means."""
    arms: tuple[PlanArm, ...]
    """Every candidate arm."""
    reason: str
    explanation: str
    """The reason word for the choice, and the sentence that the table begins with."""
    warnings: Warnings
    envelope: tuple[EnvelopeStretch, ...] | None = _IF_GIVEN
    """With `--rps-range`: which arm is fastest where."""


class AcceptanceResult(JsonResult):
    """`acceptance`."""

    tokens_per_step: float
    tokens_per_step_range: tuple[float, float] | None
    """E, bonus token included; between which figures it lies if it was carried to another draft length."""
    acceptance_rate: float
    """Accepted over drafted tokens, as vLLM prints it."""
    alpha: float
    """Rate of independent acceptances with the same E."""
    survival: tuple[float, ...] | None
    """Share of steps whose first i drafts were all accepted; null if only a mean was given."""
    extrapolated: bool
    """Whether it was carried to another draft length."""
    k: int
    measured_k: int
    """Draft length asked for, draft length measured."""
    method: str
    """The method, which says how acceptance decays with the position."""
    basis: str
    """How it was carried to another draft length."""
    warnings: Warnings


class ScheduleResult(JsonResult):
    """`schedule`."""

    num_speculative_tokens: int
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...]
    """Both keys of `--speculative-config`: the longest draft, and `[from, to, k]` per batch size."""
    method: str
    """The method."""
    tokens_per_step: dict[str, float]
    """E by draft length."""
    tpot_s: tuple[float, ...]
    """Time per output token at the upper end of each range."""
    basis: str
    """Basis of the step times: always `others`, the law of steps of all arms."""
    warnings: Warnings
    confidence: OfProfile


class ReplayedPolicy(JsonResult):
    """Requests of a trace under one policy."""

    policy: str
    """The policy, named as in `--policy`."""
    requests: int | float
    mean_latency_s: float | None
    p95_latency_s: float | None
    """Answered requests, and their latency."""
    speedup_vs_none: float | None
    speedup_vs_oracle: float | None
    """Mean latency of that policy over this one's."""
    switches: int
    """Rolls to another arm."""
    seconds_below_one: float
    """Time during which the policy was slower than no speculation."""
    slo_attainment: float | None
    """Share of requests within the objectives; null without objectives."""
    ttft_mean_s: float | None
    ttft_p95_s: float | None
    """Time to first token over requests; null if laws were replayed or rates."""
    tpot_mean_s: float | None
    tpot_p95_s: float | None
    """Decode time of all requests over all their tokens, and 95th percentile of a request's; null likewise."""
    tokens_per_step: float | None
    """E over all request-steps, bonus token included; null likewise."""
    mean_inflight: float | None
    """Mean number in flight, per replica."""


class ReplayedTrace(JsonResult):
    """The trace that was replayed, and the fleet that served it."""

    kind: str
    """`rates` or `requests`."""
    rows: int
    replicas: int
    roll_seconds: float
    """Rows of the trace, replicas it was spread over, seconds of a roll."""


class SimulateResult(JsonResult):
    """`simulate`."""

    policies: tuple[ReplayedPolicy, ...]
    """One entry per policy."""
    trace: ReplayedTrace
    """The trace and the fleet."""
    confidence: OfProfile
    decisions: dict[str, int]
    """Decisions of the operator's code, counted by reason word."""
    warnings: Warnings


class _SweptArm(JsonResult):
    method: str
    k: int
    """The arm that was swept."""


class CalibrateResult(JsonResult):
    """`calibrate`."""

    arm: _SweptArm
    """The arm that the engine runs."""
    file: str
    """Where the points are."""
    complete: bool
    reason: str
    """Whether all loads were measured, and in words why it ended."""
    points: tuple[dict[str, float | int | str | None], ...]
    """The rows of this run, by [column](#the-points-file)."""
    confidence: float
    """Level of the intervals in a later fit of the points; see `--confidence`."""


class AskedResult(JsonResult):
    """`answers --arm`."""

    arm: str
    file: str
    """The arm, and where its answers are."""
    answers: int
    refused: int
    """Answers in the file, and requests that were refused or not answered in time."""


class _AnsweredArm(JsonResult):
    arm: str
    word: str
    """The arm, and AnswersAgree, AnswersDiffer, AnswersBroken or AnswersUndecided."""
    sentence: str
    """The finding in words, without anything of a prompt or an answer."""
    answers: int
    tokens: int
    near_ties: int
    """Judged answers, their tokens, and those of them that rounding may explain."""
    differing: int
    flawed: int
    places: tuple[str, ...]
    """Answers with a fault, those that are empty, invalid or looping, and where the first faults are."""
    equal: int
    compared: int
    first_difference: int | None
    """Answers that are equal token for token, of how many, and the smallest position at which two part."""
    widest_gap: float
    p_value: float
    share_upper: float
    """Widest gap to a first choice (nats), chance of so much difference without a fault, most requests that may differ (share)."""


class AnswersResult(JsonResult):
    """`answers`."""

    arms: tuple[_AnsweredArm, ...]
    """The arms, in the order of their files."""


class PlannedPoint(JsonResult):
    """A point that would be measured."""

    load_mode: str
    concurrency: int | None
    request_rate_rps: float | None
    """The load: clients of a closed loop, or a rate."""
    prompt_tokens: int | None
    """Wanted prompt length if it differs from the sweep's: see `--other-lengths`."""
    latency_s: float | None
    """Mean latency as it is believed now."""
    seconds: float
    """GPU time of its warm-up, its window and its last answers."""


class CalibratePlanResult(JsonResult):
    """`calibrate --dry-run`."""

    arm: _SweptArm
    """The arm that the engine runs."""
    file: str
    """Where the points would be."""
    measured: int
    """Points of this sweep that are there."""
    plan: tuple[PlannedPoint, ...]
    """Points that would be measured if every point had the latency expected now."""
    seconds: float
    """GPU time in all."""
    confidence: float
    """Level of the intervals, see `--confidence`."""


class ReportResult(JsonResult):
    """`report`."""

    written: tuple[str, ...]
    confidence: float
    """The files, and the level of the intervals in them."""


class _ManifestChange(JsonResult):
    path: str
    lines: tuple[str, ...]
    """The path, and the lines to write there."""


class _OptInFindings(JsonResult):
    ok: bool
    refusal: str | None
    """Whether nothing is missing; why the operator cannot manage it as it stands."""
    add: tuple[_ManifestChange, ...]
    remove: tuple[_ManifestChange, ...]
    """Lines to add to and remove from the manifest."""


class _DrainFindings(JsonResult):
    ok: bool
    """Whether a roll loses no request."""
    pre_stop_s: float | None
    shutdown_timeout_s: float
    termination_grace_period_s: float = Field(validation_alias="grace_s")
    """Length of the preStop hook, null if it is unknown; `--shutdown-timeout`; the pod's own limit."""
    problems: tuple[str, ...]
    """A sentence for each setting that is missing."""


class _EngineVerdict(JsonResult):
    """vLLM's own verdict."""

    outcome: str
    sentence: str
    """`accepted`, `refused` or `unjudged`; vLLM's own words if it refuses, or why nothing was judged."""
    vllm: str
    judged_as: str
    """The version that judged, and the device that it judged for."""
    unjudged: tuple[str, ...]
    """Parts that vLLM could not judge on this machine, each with the reason."""
    resolved: dict[str, Any]
    """Settings that the command line comes to, by vLLM's names: block size, CUDA graphs, scheduler, drafter."""


class LintedDeployment(JsonResult):
    """One engine of a file."""

    deployment: str
    container: str | None
    ok: bool
    """Name of the object, the container that runs vLLM, whether nothing is missing."""
    opt_in: _OptInFindings
    """Lines to add to and remove from the manifest, or why the operator cannot manage it."""
    drain: _DrainFindings
    """Settings that decide whether stopping a pod loses requests."""
    warnings: tuple[str, ...]
    """Anything else that would fight with the operator."""
    notes: tuple[str, ...]
    """The advice to read before the opt-in, whatever the manifest says."""
    kind: str
    """Kind of the object that has the pod template, or the chart whose values have it."""
    engine: _EngineVerdict | None = _IF_GIVEN
    """Only with `--engine`: vLLM's own verdict."""


class LintResult(JsonResult):
    """`lint`."""

    deployments: tuple[LintedDeployment, ...]
    """One entry per container of the file that runs vLLM."""
    passed_over: tuple[str, ...]
    """Objects of the file that were not read, each with the reason."""
    confidence: float
    """Always the default: no figure here has an interval."""


class _KnownCause(JsonResult):
    cause: str
    evidence: str
    remedy: str
    """The cause, the figures that show it, and what to do first."""


class DoctorResult(JsonResult):
    """`doctor`."""

    pays: bool | None
    sentence: str
    """True, false or null (unknown), and the same in words."""
    speedup: float | None
    speedup_ci: Interval
    confidence: float
    """With `--profile`: against no speculation at the present load."""
    requests: float
    rps: float | None
    tokens_per_step: float | None
    """Seen in the window: answered requests, rate per pod, E."""
    findings: tuple[_KnownCause, ...]
    """Known causes."""


class _PastArm(ArmKey):
    schedule: str | None = _IF_GIVEN
    """Only of a schedule: its draft length per batch size."""
    hours: float
    windows: int
    requests: float
    """Time, windows and finished requests that count."""
    points: int
    """Rows for the points file."""
    rps: tuple[float, float] | None
    inflight: tuple[float, float] | None
    """Lowest and highest rate and number in flight of the rows, per pod."""
    tokens_per_step: float | None
    prompt_tokens: float | None
    output_tokens: float | None
    """Means over all windows."""
    c1_s: float | None
    c1_ci_s: Interval
    c2_s: float | None
    c2_ci_s: Interval
    """C1 and C2, as `fit` has them."""
    break_even_rps: float | None
    break_even_ci_rps: Interval
    verdict: str | None
    """Against no speculation, as `plan` has it; null if only one of both ran."""


class _EarlierPast(JsonResult):
    differs: tuple[str, ...]
    """Facts in which it differs from now: model, image, gpu, arguments."""
    model: str | None
    image: str | None
    gpu: str | None
    arguments: str | None
    """The facts themselves; null if no series says so."""
    hours: float
    """Time that its windows cover."""


class _PastDoubt(JsonResult):
    word: str
    sentence: str
    """The word, and what shows it."""


class _OthersMeasured(ArmKey):
    basis: str
    """`FromPrior`: other people's measurements, which start no roll."""
    measured_k: int
    model: str | None
    gpu: str | None
    source: str
    """The measurement, and where it is published."""
    c1_ratio: float
    c2_ratio: float | None
    """C1 and C2 over those of no speculation; null: not measured."""
    tokens_per_step: float | None
    """E, bonus token included; null: not measured."""
    pays_until_rps: float | None
    """Rate per pod up to which the arm would pay with these ratios; `Infinity`: up to saturation, null: not known."""


class PastResult(JsonResult):
    """`history`."""

    file: str | None
    """Where the points are; null without `-o`."""
    from_s: int
    to_s: int
    window_s: int
    """Span that was read (Unix times), and length of a window."""
    pods: int
    """Pods that were there at any time."""
    arms: tuple[_PastArm, ...]
    """Arms that ran under what runs now."""
    dropped: dict[str, int]
    """Windows that do not count, by [word](before-you-measure.md#windows-that-do-not-count)."""
    earlier: tuple[_EarlierPast, ...]
    """Parts of the past that are left out because something else ran."""
    unknown: tuple[_PastDoubt, ...]
    """Things that the past [cannot say](before-you-measure.md#what-the-past-cannot-say)."""
    points: tuple[dict[str, float | int | str | None], ...]
    """The rows, by [column](#the-points-file)."""
    others: tuple[_OthersMeasured, ...]
    """Arms that never ran, each beside the nearest measurement of others."""
    confidence: float
    """Level of every interval."""


RESULTS: dict[str, tuple[type[JsonResult], ...]] = {
    "fit": (FitResult, GroupedFitResult),
    "predict": (PredictResult,),
    "plan": (PlanResult,),
    "acceptance": (AcceptanceResult,),
    "schedule": (ScheduleResult,),
    "simulate": (SimulateResult,),
    "calibrate": (CalibrateResult, CalibratePlanResult),
    "answers": (AnswersResult, AskedResult),
    "history": (PastResult,),
    "report": (ReportResult,),
    "lint": (LintResult,),
    "doctor": (DoctorResult,),
}
"""By command; `fit` has another one for `--group-by`, `calibrate` for `--dry-run`, `answers` for `--arm`."""
