"""Reasons of fits and decisions: one word each.

The words are used as they are in results, Kubernetes conditions and events, logs, metric labels and documentation.
A word is never reused for a second meaning; add one instead. The operator defines the words about the cluster.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

PAYS = {
    "always": "pays at every load",
    "never": "pays at no load",
    "tie": "costs and saves the same at every load",
    "uncertain": "may gain or lose: the bounds contain both",
}
"""Phrases for the verdicts that name no load."""

SIDES = {"below": "until", "above": "from"}
"""Words before the break-even of the others."""


class Witness(StrEnum):
    """Comparison that a measured speedup rests on."""

    SIDE_BY_SIDE = "SideBySide"
    BEFORE_AFTER = "BeforeAfter"
    BOTH = "Both"


class Reason(StrEnum):
    """A reason word; `meaning` says in one line what it stands for."""

    meaning: str

    def __new__(cls, word: str, meaning: str) -> Self:
        """Make a member that is its word and carries its meaning."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.meaning = meaning
        return member

    # Fit: points that are left out. One usable point of an arm is enough: the law of all arms gives the rest, with its bounds.
    TOO_FEW_POINTS = "TooFewPoints", "The arm has no usable operating point."
    NOT_STEADY = (
        "NotSteady",
        "Not a steady state: in-flight and rate times latency disagree, or requests take far longer than at rest.",
    )
    PREEMPTING = "Preempting", "The engine preempted requests at this point: the KV pool was full."
    SATURATED_POINT = (
        "SaturatedPoint",
        "More was asked for than could be answered: requests stayed unanswered, or queued for a place in the batch.",
    )
    DRIVER_LAGGING = (
        "DriverLagging",
        "The load driver sent late: its machine was too busy for the imposed load.",
    )
    REQUESTS_FAILED = "RequestsFailed", "The engine refused or broke off requests at this point."
    POINT_TOO_SHORT = (
        "PointTooShort",
        "Too few requests were answered, or the last answers took a large part of the run.",
    )
    LATENCY_UNKNOWN = (
        "LatencyUnknown",
        "The file has no mean request time, and what it has does not determine one.",
    )
    ARRIVALS_UNKNOWN = (
        "ArrivalsUnknown",
        "Requests arrived neither as Poisson's nor at a constant rate, or the file does not say: who meets whom is not known.",
    )
    OTHER_LENGTHS = (
        "OtherLengths",
        "The row's prompt or output length differs from the arm's other rows: the law of steps uses the row, at its own lengths.",
    )
    OUTLIER = "Outlier", "One point disagrees with all others and was left out."
    STARTS_DIFFER = (
        "StartsDiffer",
        "The same configuration is significantly slower on one start of its engine than on another; bounds hold over starts.",
    )
    MACHINE_DRIFTS = (
        "MachineDrifts",
        "The same load took significantly longer, or less long, at the end of an arm's measurement than at its beginning.",
    )

    # Decision: act.
    GAIN_ABOVE_THRESHOLD = (
        "GainAboveThreshold",
        "Changing to the arm surely saves more request time over the loads to come than the roll takes, by the required gain.",
    )
    BEYOND_BREAK_EVEN = (
        "BeyondBreakEven",
        "Speculation does not pay at this load, nor over the loads that are expected.",
    )
    ACCEPTANCE_COLLAPSED = (
        "AcceptanceCollapsed",
        "Far fewer drafts are accepted than when the running arm was calibrated, and it does not pay any more.",
    )
    NEVER_PAYS = "NeverPays", "The arm, or every arm, is slower than no speculation at every load."
    SLO_VIOLATED = (
        "SloViolated",
        "A latency objective is missed: for longer than a window by measurements, or by the running arm's law where another arm keeps it.",
    )
    ENTERED_SATURATION = (
        "EnteredSaturation",
        "The running arm is saturated and another arm carries the load further.",
    )

    FEWER_REPLICAS = (
        "FewerReplicas",
        "An autoscaler scales the target, and the arm surely needs fewer replicas within the objectives.",
    )

    # Decision: stay.
    BELOW_BREAK_EVEN = (
        "BelowBreakEven",
        "The running arm pays over the loads that are expected and no other arm is clearly better.",
    )
    ALREADY_BEST = "AlreadyBest", "The running arm is the best one at this load."
    GAIN_BELOW_THRESHOLD = (
        "GainBelowThreshold",
        "Another arm saves request time over the loads to come, but less than the required gain.",
    )
    ROLL_NOT_WORTH_IT = (
        "RollNotWorthIt",
        "Another arm would save request time over the loads to come, but not more than the roll takes.",
    )

    # Answers: whether an arm answers as no speculation does.
    ANSWERS_AGREE = (
        "AnswersAgree",
        "The arm's answers hold no more faults than answers without speculation, and enough answers were judged to say so.",
    )
    ANSWERS_DIFFER = (
        "AnswersDiffer",
        "The arm's answers hold tokens that no speculation would not choose, beyond what rounding does.",
    )
    ANSWERS_BROKEN = (
        "AnswersBroken",
        "The arm's answers are empty, loop, or break the demanded JSON or tool call, where answers without speculation do not.",
    )
    ANSWERS_UNDECIDED = (
        "AnswersUndecided",
        "A few faults that chance explains, or too few answers, to say whether the arm answers as no speculation does.",
    )

    # Beside a decision: for which requests it holds.
    LOSES_AT_LENGTHS = (
        "LosesAtLengths",
        "By the law, the arm loses more than 5 % with prompts of some length, of which the share of requests is said.",
    )

    # Decision: wait.
    COOLING_DOWN = "CoolingDown", "The last switch is too recent for another one."
    DWELLING = "Dwelling", "Another arm is worth entering, but has not been so for long enough."
    FOLLOWS_CHANGES = (
        "FollowsChanges",
        "Another arm is better at this load, and the arm follows changes of the service, for which it was chosen, not the load.",
    )
    WIDE_BOUNDS = "WideBounds", "The bounds of the gain contain both a gain and a loss."
    RISK_TOO_HIGH = (
        "RiskTooHigh",
        "The arm saves request time, but a jump of the load would cost more on it than may be risked: less if new pods come first (maxUnavailable 0).",
    )
    EXTRAPOLATED = (
        "Extrapolated",
        "The load lies where the law is not to be trusted: the best arm is so by an extrapolation.",
    )
    SATURATED = (
        "Saturated",
        "The load is beyond what the arm carries, and no other arm is entered for it: add replicas, unless one of them carries more.",
    )
    NOT_MEASURED = "NotMeasured", "The running arm or no speculation was not measured."
    PEAK_AHEAD = (
        "PeakAhead",
        "Loads are expected at which the arm that is better now would lose or saturate: it is not entered, or left in time.",
    )
    NO_LOAD = "NoLoad", "No request in the window: nothing to decide on."
