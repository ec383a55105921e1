"""The last decision of a service with the figures that made it: the table of these figures."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from breakeven.arm import NO_SPECULATION
from breakeven.estimate import Estimate
from breakeven.serving.counted_window import Load
from breakeven_operator.resources.base import (
    ATOMIC,
    IN_NOTES,
    ArmName,
    Instant,
    Number,
    ObjectName,
    Sentence,
    StatusModel,
    Word,
)
from breakeven_operator.resources.figures import (
    LOGGED,
    FigureGauge,
    LowerBound,
    LowerOrOpen,
    Reading,
    Renewal,
    UpperBound,
    UpperOrOpen,
    bounded,
    ends_of,
    row,
)

if TYPE_CHECKING:
    # kubectl's plugin reads a status without numpy.
    from breakeven.planning.decision import Decision
    from breakeven.planning.forecast import Forecast
    from breakeven.profile import Comparison


class PaysWhereStatus(StrEnum):
    """For which loads the compared arm beats no speculation (design of the model, comparison table)."""

    BELOW = "Below"
    ABOVE = "Above"
    ALWAYS = "Always"
    NEVER = "Never"
    TIE = "Tie"
    UNCERTAIN = "Uncertain"


class Basis(StrEnum):
    """Origin of a decision's figures."""

    MEASURED = "Measured"
    PAST = "Past"
    FORMER = "Former"


def _seen(of: Callable[[Load], object]) -> Reading:
    """A figure of the window; absent without one."""
    return Reading(lambda live, _: None if live is None else of(live))


def _decided(of: Callable[[Decision], object]) -> Reading:
    """A figure of the library's answer; absent if it was not asked."""
    return Reading(lambda _, decision: None if decision is None else of(decision))


def _compared(of: Callable[[Comparison], object]) -> Reading:
    """A figure of the speculative arm in question against no speculation at this load."""
    return _decided(lambda decision: decision.against_none and of(decision.against_none))


def _ahead(of: Callable[[Forecast], object]) -> Reading:
    """A figure of the loads that are expected, if a past load was read."""
    return _decided(
        lambda decision: of(decision.ahead) if decision.ahead is not None and decision.ahead.rates else None
    )


def _saturated(decision: Decision) -> tuple[str, ...]:
    if decision.against_none is None or decision.subject is None:
        return ()
    one, subject = decision.against_none, decision.subject
    found = ((subject, one.saturated), (NO_SPECULATION, one.against_saturated))
    return tuple(arm.name for arm, saturated in found if saturated)


def _speedup(against: Comparison) -> Estimate:
    # 0 stands for a saturated arm; in a status it would read like a measured ratio.
    return Estimate.of(against.speedup or None, against.speedup_ci)


def _roll_cost(decision: Decision) -> float | None:
    one, served = decision.considered, decision.load.rps * (decision.load.latency_s or 0.0)
    return one.roll_cost / served if one is not None and served > 0.0 else None


def _alternative(decision: Decision) -> Alternative | None:
    other = decision.alternative
    if other is None:
        return None
    standing = decision.of(other.arm)
    against = standing.against_none if standing is not None else None
    return Alternative(
        arm=other.arm.name, **bounded("speedup", _speedup(against) if against is not None else None)
    )


def _shown_speedup(decision: DecisionStatus) -> float | None:
    # The status says by name which arm is saturated; a rule can only compare numbers, and reads 0.
    return 0.0 if decision.saturated_arms == (decision.compared_arm,) else decision.speedup


class Alternative(StatusModel):
    """The best arm among those that were not chosen."""

    arm: Annotated[ArmName, Field(description="The arm.")]
    speedup: Number | None = row("Its speedup against no speculation at this load.")
    speedup_lower: LowerBound = None
    speedup_upper: UpperBound = None


_OF_ARM = {"arm": "compared_arm"}


class DecisionStatus(StatusModel):
    """The last decision with the figures that made it."""

    time: Instant | None = row(
        "When it was made.",
        Renewal.NEVER,
        FigureGauge("breakeven_decision_timestamp_seconds", "Time of the last decision."),
    )
    action: Word | None = row(
        "Stay, Switch or Hold.",
        Renewal.AT_ONCE,
        FigureGauge(
            "breakeven_decision_info",
            "1 for what the last decision did (Stay, Switch, Hold, Recommend), and why.",
            {"action": "action", "reason": "reason"},
            info=True,
        ),
    )
    arm: ArmName | None = row(
        "The arm that should run.",
        Renewal.AT_ONCE,
        FigureGauge(
            "breakeven_recommended_arm_info", "1 for the arm that should run.", {"arm": "arm"}, info=True
        ),
    )
    running_arm: ArmName | None = row("The arm that ran when it was made.", IN_NOTES, Renewal.AT_ONCE)
    reason: Word | None = row("One word why; see docs/reasons.md.", Renewal.AT_ONCE)
    message: Sentence | None = row("The same as a sentence, with what would change it.")
    compared_arm: ArmName | None = row(
        "The speculative arm that the following figures are about: the running one, else the best one.",
        IN_NOTES,
        _decided(lambda one: one.against_none and one.subject and one.subject.name),
        Renewal.AT_ONCE,
    )
    saturated_arms: tuple[ArmName, ...] = row(
        "Which of the compared arm and no speculation cannot carry the present load, by its law: requests queue, "
        "and there is no speedup to state.",
        Reading(lambda _, decision: () if decision is None else _saturated(decision)),
        Renewal.AT_ONCE,
        LOGGED,
        default=(),
        extra=ATOMIC,
        max_length=2,
    )
    speedup: Number | None = row(
        "Latency without speculation over latency with the compared arm; absent where one of the two is saturated.",
        _compared(_speedup),
        LOGGED,
        FigureGauge(
            "breakeven_speedup_ratio",
            "Latency without speculation over latency with the arm at the present load; below 1 it loses, and 0 says that the "
            "arm is saturated where no speculation is not (absent where no speculation is).",
            _OF_ARM,
            ends=ends_of("speedup"),
            instead=_shown_speedup,
            only_with="profile",
        ),
    )
    speedup_lower: Number | None = row("Lower bound of the speedup.", IN_NOTES, LOGGED)
    speedup_upper: Number | None = row("Upper bound of the speedup.", IN_NOTES, LOGGED)
    by_prompt: Sentence | None = row(
        "The speedup for each quarter of the requests by length of the prompt, as far as vLLM's histogram tells them apart; with "
        "the word LosesAtLengths and a share of the requests if it is below 0.95 for some.",
        IN_NOTES,
    )
    c1_ratio: Number | None = row(
        "C1,R: latency of a lone request, compared arm over none.",
        IN_NOTES,
        _compared(lambda one: one.c1_ratio),
        FigureGauge(
            "breakeven_c1_ratio",
            "C1,R: latency of a lone request, arm over no speculation.",
            _OF_ARM,
            only_with="profile",
        ),
    )
    c2_ratio: Number | None = row(
        "C2,R: cost of other requests in flight, compared arm over none; above 1 the gain shrinks with load.",
        IN_NOTES,
        _compared(lambda one: Estimate.of(one.c2_ratio, one.c2_ratio_ci)),
        FigureGauge(
            "breakeven_c2_ratio",
            "C2,R: cost of other requests in flight, arm over no speculation; above 1 the gain shrinks with load.",
            _OF_ARM,
            ends=ends_of("c2_ratio"),
            only_with="profile",
        ),
    )
    c2_ratio_lower: Number | None = row("Lower bound of C2,R.", IN_NOTES)
    c2_ratio_upper: Number | None = row("Upper bound of C2,R.", IN_NOTES)
    verdict: PaysWhereStatus | None = row(
        "For which loads the compared arm pays.",
        IN_NOTES,
        _compared(lambda one: PaysWhereStatus(str(one.verdict).capitalize())),
        Renewal.AT_ONCE,
    )
    break_even_rps: Number | None = row(
        "Load per replica at which the gain is gone, requests per second.",
        _compared(lambda one: Estimate.of(one.break_even_rps, one.break_even_ci_rps)),
        LOGGED,
        FigureGauge(
            "breakeven_break_even_requests_per_second",
            "Load per replica at which the arm's gain is gone; absent where there is none or a bound is open.",
            _OF_ARM,
            ends=ends_of("break_even_rps"),
            only_with="profile",
        ),
    )
    break_even_lower_rps: Annotated[LowerOrOpen, IN_NOTES] = None
    break_even_upper_rps: Annotated[UpperOrOpen, IN_NOTES] = None
    confidence_percent: int | None = row(
        "Confidence of all bounds here.",
        IN_NOTES,
        _decided(lambda one: round(100 * one.confidence)),
        ge=0,
        le=100,
    )
    load_rps: Number | None = row(
        "Offered load per replica, requests per second.",
        _seen(lambda live: live.rps),
        LOGGED,
        FigureGauge("breakeven_load_requests_per_second", "Offered load per replica."),
    )
    considered_arm: ArmName | None = row(
        "The arm that saving and roll cost are about: the one to change to, else the best other one.",
        IN_NOTES,
        _decided(lambda one: one.considered and one.considered.arm.name),
    )
    saving_percent: Number | None = row(
        "Request time that the considered arm saves over the loads of the next four hours; below 0 it takes more.",
        IN_NOTES,
        _decided(lambda one: one.considered and one.considered.percent(one.confidence)),
        LOGGED,
    )
    saving_lower_percent: Number | None = row("Lower bound of the saving.", IN_NOTES)
    saving_upper_percent: Number | None = row("Upper bound of the saving.", IN_NOTES)
    roll_cost_seconds: Number | None = row(
        "What a roll to the considered arm takes, as time of serving the present load.",
        IN_NOTES,
        _decided(_roll_cost),
        LOGGED,
    )
    pays_until_rps: Number | None = row(
        "breakEvenRps as the live latency of the arms that ran has corrected it.",
        IN_NOTES,
        _decided(lambda one: one.considered and one.pays_until_rps),
    )
    expected_peak_rps: Number | None = row(
        "Highest load per replica that is expected to come again, requests per second; absent when the "
        "present load is taken to last.",
        _ahead(lambda ahead: ahead.peak_rps),
        LOGGED,
        FigureGauge(
            "breakeven_expected_peak_requests_per_second",
            "Highest load per replica that is expected; absent where the present load is taken to last.",
        ),
    )
    expected_observations: int | None = row(
        "Past loads behind expectedPeakRps, each a mean over the same time: loads of the last four hours "
        "and what followed this time of day on the days before.",
        IN_NOTES,
        _ahead(lambda ahead: ahead.rates),
        ge=0,
    )
    inflight: Number | None = row(
        "Mean requests in flight per replica.",
        _seen(lambda live: live.inflight),
        LOGGED,
        FigureGauge("breakeven_inflight_requests", "Mean requests in flight per replica."),
    )
    utilization: Number | None = row(
        "Load over the running arm's saturation.",
        IN_NOTES,
        _decided(lambda one: one.figures and one.figures.utilisation),
        FigureGauge(
            "breakeven_utilization_ratio", "Load over the running arm's saturation.", only_with="profile"
        ),
    )
    tokens_per_step: Number | None = row(
        "Measured tokens per request-step of the running arm.",
        IN_NOTES,
        _seen(lambda live: live.tokens_per_step),
        LOGGED,
        FigureGauge(
            "breakeven_tokens_per_step",
            "Measured tokens per request-step of the running arm, bonus token included.",
        ),
    )
    accepted_tokens_per_step: Number | None = row(
        "Accepted drafts per request-step of the running arm: tokensPerStep less the bonus token; absent without drafts. "
        "AIConfigurator asks for it as nextn_accepted.",
        IN_NOTES,
        _seen(
            lambda live: (
                live.tokens_per_step - 1.0 if live.drafts and live.tokens_per_step is not None else None
            )
        ),
        FigureGauge(
            "breakeven_accepted_tokens_per_step",
            "Accepted drafts per request-step of the running arm: breakeven_tokens_per_step less the bonus token; absent without drafts.",
        ),
    )
    prefix_hit_percent: Number | None = row(
        "Share of prompt tokens that the prefix cache held; absent if it is not counted.",
        IN_NOTES,
        _seen(lambda live: None if live.prefix_hit_ratio is None else 100 * live.prefix_hit_ratio),
        FigureGauge("breakeven_prefix_cache_hit_ratio", "Share of prompt tokens that the prefix cache held."),
    )
    arrival_dispersion: Number | None = row(
        "Variance over mean of the counts of arrivals at a replica in spans of what a request takes, over the last six windows: "
        "predictions hold for these arrivals. 1 is Poisson; lower ones count as 1. Absent if unknown: predictions then hold for "
        "Poisson arrivals.",
        IN_NOTES,
        _seen(lambda live: live.dispersion),
        FigureGauge(
            "breakeven_arrival_dispersion_ratio",
            "Variance over mean of the counts of arrivals at a replica, for which predictions hold; absent if unknown.",
        ),
    )
    observed_latency_seconds: Number | None = row(
        "Measured mean latency of a request.",
        _seen(lambda live: live.latency_s),
        LOGGED,
        FigureGauge("breakeven_observed_latency_seconds", "Measured mean latency of a request."),
    )
    predicted_latency_seconds: Number | None = row(
        "What the profile predicts for the running arm.",
        _decided(lambda one: one.figures and one.figures.prediction.latency_s),
        LOGGED,
        FigureGauge(
            "breakeven_predicted_latency_seconds",
            "Mean latency that the profile predicts for the running arm at the present load.",
            only_with="profile",
        ),
    )
    requests: int | None = row(
        "Finished requests behind the measured figures.",
        IN_NOTES,
        _seen(lambda live: max(0, round(live.requests))),
        ge=0,
    )
    given_up_percent: Number | None = row(
        "Requests that began and whose clients went away before the end, of all that began.",
        IN_NOTES,
        _seen(lambda live: 100.0 * live.given_up),
    )
    window_seconds: Number | None = row(
        "Time over which they were counted.",
        IN_NOTES,
        _seen(lambda live: live.window_s),
    )
    evidence_time: Instant | None = row(
        "Time of the newest sample used.",
        IN_NOTES,
        Renewal.NEVER,
        FigureGauge(
            "breakeven_evidence_timestamp_seconds",
            "Time of the newest sample behind the figures above; alerts must check its age.",
        ),
    )
    alternative: Alternative | None = row(
        "The best arm that was not chosen.", IN_NOTES, _decided(_alternative)
    )
    held_until: Instant | None = row(
        "End of the cool-down, dwell or back-off that holds a change back.", Renewal.AT_ONCE, LOGGED
    )
    basis: Basis | None = row(
        "Measured: the figures come from a profile. Past: from the target's own past, because there is no profile yet; no roll "
        "rests on them. Former: from a profile of the target before it changed, or one that expired; an arm is left by it, and none "
        "is entered. Absent without figures.",
        Renewal.AT_ONCE,
        LOGGED,
    )
    profile: ObjectName | None = row(
        "SpeculationProfile the figures come from.", IN_NOTES, Renewal.AT_ONCE, LOGGED
    )
