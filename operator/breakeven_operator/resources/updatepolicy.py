"""When a service's arm may change: the policy part of its spec."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from breakeven_operator.resources.base import ArmName, Model, Rule


class Mode(StrEnum):
    """What the operator may do with a decision."""

    # Not `Off`: YAML reads that word unquoted as false.
    DISABLED = "Disabled"
    RECOMMEND = "Recommend"
    ROLLING_UPDATE = "RollingUpdate"


class DrainRequirement(StrEnum):
    """What is required of the target's pods before they are restarted."""

    REQUIRED = "Required"
    ACCEPT_LOSS = "AcceptLoss"


class UpdatePolicy(Model):
    """When the arm may change, and how sure the operator must be."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # `has`: the API server holds the default {} of updatePolicy against this rule without its fields' defaults.
            "!has(self.exitMarginPercent) || !has(self.minGainPercent) "
            "|| self.exitMarginPercent <= self.minGainPercent",
            "exitMarginPercent exceeds minGainPercent: an arm would be left at a gain at which it is entered",
            "exitMarginPercent at most minGainPercent",
            lambda policy: policy.exit_margin_percent <= policy.min_gain_percent,
            ".exitMarginPercent",
        ),
    )

    mode: Annotated[
        Mode,
        Field(
            description="Disabled: decide nothing, measure only when asked. Recommend: decide and report, change nothing. "
            "RollingUpdate: also roll the target to the best arm (needs the opt-in lines in the target's manifest)."
        ),
    ] = Mode.RECOMMEND
    pinned_arm: Annotated[
        ArmName | None,
        Field(
            description="Run this arm whatever the figures say: none, or <method name>/<draft length> of a candidate. "
            "Figures are still reported; mode decides whether the target is rolled to it. Like any other roll this one "
            "waits for an accepted profile that has measured the arm: an engine that never started is not rolled out."
        ),
    ] = None
    cooldown_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=604800,
            description="Least time between two rolls. A roll costs minutes of GPU per replica, so it is rare by default.",
        ),
    ] = 3600
    stabilization_window_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=86400,
            description="How long another arm must stay the best one before a roll to it starts.",
        ),
    ] = 900
    min_gain_percent: Annotated[
        int,
        Field(
            ge=0,
            le=100,
            description="An arm is entered only if the lower bound of its speedup is above 1 by this much, against no "
            "speculation and against the running arm. Below about 5 % a gain is noise.",
        ),
    ] = 5
    exit_margin_percent: Annotated[
        int,
        Field(
            ge=0,
            le=100,
            description="A speculative arm is left when the upper bound of its speedup is below 1 plus this: with 0 only "
            "when it surely loses.",
        ),
    ] = 0
    confidence_percent: Annotated[
        int, Field(ge=50, le=99, description="Confidence of every interval (two-sided).")
    ] = 90
    max_utilization_percent: Annotated[
        int,
        Field(
            ge=10,
            le=95,
            description="Highest utilisation (load over saturation) at which predictions count. Above it they are "
            "extrapolation: no arm is entered on them, and no roll starts that would exceed it on the pods left.",
        ),
    ] = 75
    horizon_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=604800,
            description="How far is looked ahead: over which loads an arm is chosen, and within which time its gain must "
            "outweigh the capacity that a roll takes away.",
        ),
    ] = 14400
    lookback_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=604800,
            description="How far back loads are known. Expected are those of the last horizonSeconds and, of every day of this "
            "time, what followed this time of day: an arm is chosen by what it would take over all of them, and left before "
            "a load at which it would lose. Past loads are read from Prometheus, which must keep them; without any the "
            "present load counts alone. 0: the present load is taken to last.",
        ),
    ] = 259200
    drain: Annotated[
        DrainRequirement,
        Field(
            description="Required: no roll unless the target drains requests (--shutdown-timeout, preStop, "
            "terminationGracePeriodSeconds). AcceptLoss: roll anyway; requests in flight are cut off."
        ),
    ] = DrainRequirement.REQUIRED
    roll_deadline_seconds: Annotated[
        int | None,
        Field(
            ge=1,
            le=86400,
            description="When a roll that has not finished is undone. Without it: from measured start-up times, replicas "
            "and the target's surge.",
        ),
    ] = None
    unschedulable_deadline_seconds: Annotated[
        int,
        Field(ge=1, le=86400, description="When a roll whose new pod finds no GPU is undone."),
    ] = 300
    replicas_quiet_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=86400,
            description="How long the target's number of replicas must have stood still before a roll starts: an autoscaler "
            "that moves it in steps is taken to be done then.",
        ),
    ] = 60
    backoff_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=86400,
            description="Pause after a roll that was undone; doubles with each one in a row, up to 16 times as long.",
        ),
    ] = 1800
