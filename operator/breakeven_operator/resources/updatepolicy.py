"""When a service's arm may change: the policy part of its spec."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from breakeven_operator.resources.base import (
    ATOMIC,
    LIST_SET,
    ArmName,
    Model,
    RequiredNumber,
    TimeZone,
    list_map,
)
from breakeven_operator.resources.figures import row


class Mode(StrEnum):
    """Limits of the operator's actions on a decision."""

    # Not `Off`: YAML reads that word unquoted as false.
    DISABLED = "Disabled"
    RECOMMEND = "Recommend"
    NEXT_ROLLOUT = "NextRollout"
    ROLLING_UPDATE = "RollingUpdate"

    @property
    def writes(self) -> bool:
        """Whether the operator chooses the arm of the target's pods."""
        return self in {Mode.NEXT_ROLLOUT, Mode.ROLLING_UPDATE}


Weekday = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]


class RollWindow(Model):
    """A time of the week at which an ordinary roll may begin."""

    days: tuple[
        Annotated[Weekday, Field(description="A day of the week, as cron and systemd write it.")], ...
    ] = row(
        "Days on which it begins: Mon to Sun. Without any: every day.",
        default=(),
        extra=LIST_SET,
        max_length=7,
    )
    start: str = Field(
        min_length=5,
        max_length=5,
        pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$",
        description="Time of day at which it begins, such as 03:00.",
    )
    duration_seconds: int = Field(
        ge=60,
        le=604800,
        description="How long it lasts. A roll that began within it may end after it.",
    )
    time_zone: TimeZone = row("IANA time zone of days and start, such as Europe/Berlin.", default="UTC")
    allow_outage: bool = row(
        "Whether a roll that begins within it may leave too few pods for the load, or none: a target with one replica "
        "and no spare GPU (strategy Recreate, or maxSurge 0) is rolled no other way.",
        default=False,
    )


class Guard(Model):
    """A user's own bound on what a roll to a speculative arm may do."""

    name: str = Field(
        pattern=r"^[A-Z][A-Za-z0-9]{1,39}$",
        max_length=40,
        description="Its name in CamelCase, such as ErrorRate: the reason of a roll that it undoes.",
    )
    query: str = Field(
        min_length=1,
        max_length=2048,
        description="PromQL with one value, asked of metricsSource.prometheus.address. Without a value it says nothing.",
    )
    max: RequiredNumber = Field(description="Its highest value that is good.")


class UpdatePolicy(Model):
    """When the arm may change, and how sure the operator must be."""

    mode: Mode = row(
        "Disabled: decide nothing, measure only when asked. Recommend: decide and report, change nothing. "
        "NextRollout: the owner's own next rollout takes the best arm, and nothing restarts for it. RollingUpdate: also roll the "
        "target to the best arm. Both need the opt-in lines in the target's manifest.",
        default=Mode.RECOMMEND,
    )
    # By its words: the plugin reads a policy without numpy, which the library's `Follow` brings.
    follow: Literal["Load", "Changes"] = row(
        "Load: the arm follows the load across its break-even. Changes: one roll for each profile, that is for a new model, image, "
        "drafter or GPU, or for a calibration after a drift, and otherwise an arm is only left. Either way it is left for a break-even that was passed by 5 "
        "percent or for an hour, a queue, a crash, failed requests, wrong answers and a missed objective.",
        default="Load",
    )
    pinned_arm: ArmName | None = row(
        "Run this arm whatever the figures show: none, or <method name>/<draft length>, <method name>/schedule or <method name>/adaptive of a candidate. "
        "Figures are still reported; mode decides whether the target is rolled to it. Like any other roll this one "
        "waits for an accepted profile that has measured the arm: an engine that never started is not rolled out."
    )
    cooldown_seconds: int = row(
        "Least time between a roll and the next one to a speculative arm; a day where requests have had to wait "
        "within that day. No speculation is returned to at any time.",
        default=3600,
        ge=0,
        le=604800,
    )
    stabilization_window_seconds: int = row(
        "How long entering a speculative arm must have been worth it before a roll to it starts. It does not "
        "hold while requests queue up, or while a measured figure misses its objective.",
        default=300,
        ge=0,
        le=86400,
    )
    min_gain_percent: int = row(
        "Request time that a change of arm must save over the loads to come, beyond what the roll takes, as a "
        "share of what requests take on the new arm.",
        default=3,
        ge=0,
        le=100,
    )
    day_risk_percent: int = row(
        "How much longer a day may take, in percent of its request time without speculation, if it brings four hours "
        "near capacity or a storm of twenty minutes: an arm that would take more, kept or left at once, is not entered, and is left. A "
        "load that moves may come to 2.2 times its largest of ten days, a steady one to less, any load in its first day. "
        "100: no day is bounded by itself.",
        default=5,
        ge=0,
        le=100,
    )
    confidence_percent: int = row("Confidence of every interval (two-sided).", default=90, ge=50, le=99)
    max_utilization_percent: int = row(
        "Highest utilisation of the replicas that are left during a roll: load over saturation of either arm. "
        "No roll starts that would exceed this limit. A roll that takes no replica away (maxUnavailable: 0) is not limited.",
        default=75,
        ge=10,
        le=95,
    )
    lookback_seconds: int = row(
        "How far back loads are known. Expected are the last four hours and, of every day of this "
        "time, what followed this time of day; a jump is reckoned from the largest. Past loads are read from Prometheus, which must keep them; without any the "
        "present load counts alone. 0: the present load is taken to last.",
        default=259200,
        ge=0,
        le=604800,
    )
    drain: Literal["Required", "AcceptLoss"] = row(
        "Required: no roll unless the target drains requests (--shutdown-timeout, preStop, "
        "terminationGracePeriodSeconds). AcceptLoss: roll anyway; requests in flight are cut off.",
        default="Required",
    )
    windows: tuple[RollWindow, ...] = row(
        "When an ordinary roll may begin. Without any: at any time, and never with an outage. A roll that protects users "
        "waits for no window: an arm is left for a queue, a crash, failed requests, wrong answers, a missed objective, or a break-even that was "
        "passed by 5 percent or for an hour. Nor does a pinned arm wait.",
        default=(),
        extra=ATOMIC,
        max_length=16,
    )
    guards: tuple[Guard, ...] = row(
        "Bounds of your own: while one is exceeded no speculative arm is entered, a roll to one is undone, and such an arm is left "
        "for a day after its roll.",
        default=(),
        extra=list_map("name"),
        max_length=3,
    )
    roll_deadline_seconds: int | None = row(
        "When a roll that has not finished is undone. Without it: from measured start-up times, replicas "
        "and the target's surge; time that new pods wait for room is added to that.",
        ge=1,
        le=86400,
    )


class Timing(Model):
    """Times of an installation, of all its services together. Production has the defaults; demo and tests have shorter ones."""

    replicas_quiet_seconds: int = row(
        "How long the target's number of replicas must have stood still before a roll starts: an autoscaler "
        "that moves it in steps is taken to be done then.",
        default=60,
        ge=0,
        le=86400,
    )
    disagreement_seconds: int = row(
        "How long measured latency must lie outside of what the profile predicts before the profile is not taken at "
        "its word any more (ModelDisagrees), and how long acceptance or lengths must lie outside of what was calibrated "
        "before it is said (AcceptanceDrifted, LengthsDrifted). Either asks for a calibration.",
        default=1800,
        ge=60,
        le=86400,
    )
    backoff_seconds: int = row(
        "Pause after a roll that was undone; doubles with each one in a row, up to 16 times as long.",
        default=1800,
        ge=0,
        le=86400,
    )
    calibration_interval_seconds: int = row(
        "Least time between two calibrations of a service that the operator starts by itself; one asked for by "
        "annotation or by hand does not wait.",
        default=3600,
        ge=0,
        le=2592000,
    )


PRODUCTION: Final = Timing()
"""Times of an installation that sets none."""
