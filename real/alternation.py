"""Predicted against measured, with the error that the machine itself makes; pure.

A core that others share is not always as fast, and nothing on it says so. So no speculation and another arm are measured in
alternation, in short blocks with the same arrivals (none, arm, arm, none), with a yardstick of the core beside each. Blocks
that only the machine makes differ, and the yardstick of now over that of the calibration, bound what any prediction can show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, median

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.profile import Conditions, Prediction, Profile
from breakeven.profile.student_t import t_quantile
from real.findings import ErrorGoal, Row, RunFinding, number
from real.greedy_users import Account, Offered, together

PREDICTION_GOAL = 0.10
ACCOUNT_LIMIT = 0.05
_LEVEL = 0.95

PREDICTION_HEAD = (
    "arm", "load, rps", "prompt", "answer", "E", "predicted, s", "measured, s", "error", "machine's own", "core",
    "requests", "goal",
)  # fmt: skip
ACCOUNT_HEAD = (
    "arm", "requests", "users: latency, s", "engine: latency, s", "difference", "users: tokens", "engine: tokens",
)  # fmt: skip
SPEEDUP_HEAD = (
    "arm", "load, rps", "prompt", "answer", "predicted", "measured", "error", "machine's own", "goal",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Probed:
    """A block of a load that no fit has seen, on one arm.

    Attributes:
        what: how the load differs from what was fitted.
        cycle: number of the round of blocks with the same arrivals.
        arm: what ran.
        offered: what was sent, and what it took.
        yardstick_ms: time that a fixed loop took on the engine's core after the block.
    """

    what: str
    cycle: int
    arm: Arm
    offered: Offered
    yardstick_ms: float


@dataclass(frozen=True, slots=True)
class PredictedLoad:
    """The profile's prediction of a load on an arm, beside all blocks of both.

    Attributes:
        what: how the load differs from what was fitted.
        arm: what ran.
        offered: all blocks together.
        latency_s: predicted at its load, lengths and tokens per step; None: saturated, or not predicted.
        core: time of the yardstick over its time while the calibration's points were measured; NaN: not known.
        scatter: relative standard deviation of a block's latency among blocks with the same arrivals; NaN: not known.
        quantile: how many standard deviations are 95 %, by the number of blocks behind `scatter`.
        blocks: how many they are.
        calibrated: why the tokens per step are those of the calibration instead of the live ones; empty: they are live.
        refused: why the profile predicts nothing; empty if it does.
    """

    what: str
    arm: Arm
    offered: Offered
    latency_s: float | None
    core: float
    scatter: float
    quantile: float
    blocks: int
    calibrated: str = ""
    refused: str = ""

    @property
    def error(self) -> float:
        """Predicted over measured, less one; infinite if the profile says saturated, NaN if it predicts nothing."""
        if self.refused:
            return math.nan
        return math.inf if self.latency_s is None else self.latency_s / self.offered.latency_s - 1.0

    @property
    def goal(self) -> ErrorGoal:
        """The error beside the goal and the machine's own error: that of the blocks' mean, and the change of the core."""
        of_mean = self.quantile * self.scatter / math.sqrt(self.blocks)
        return ErrorGoal(self.error, PREDICTION_GOAL, of_mean + abs(math.log(self.core)))

    @property
    def words(self) -> str:
        """The error, and what could not be converted."""
        if self.refused:
            return f"no prediction: {self.refused}"
        return f"{self.error:+.1%}" + (f", at the calibrated E: {self.calibrated}" if self.calibrated else "")


@dataclass(frozen=True, slots=True)
class ProbedSpeedup:
    """The speedup of an arm at one load.

    Attributes:
        of: the load on that arm.
        predicted, measured: ratios of latencies, above 1 where the arm is faster; predicted is NaN without a prediction.
        machine: relative error of the measured ratio by the scatter of blocks; NaN: not known.
    """

    of: PredictedLoad
    predicted: float
    measured: float
    machine: float

    @property
    def goal(self) -> ErrorGoal:
        """Predicted over measured, less one, beside the goal. What the core does to both arms cancels."""
        return ErrorGoal(self.predicted / self.measured - 1.0, PREDICTION_GOAL, self.machine)

    @property
    def words(self) -> str:
        """The error, or that there is nothing to judge it by."""
        return "no prediction" if math.isnan(self.predicted) else f"{self.goal.error:+.1%}"


def predicted(
    profile: Profile, probes: Sequence[Probed], calibration_yardsticks_ms: Sequence[float]
) -> list[PredictedLoad]:
    """Every load on every arm, all its blocks together, in the order in which they were measured first.

    Args:
        profile: the measured laws.
        probes: blocks in the order in which they were measured.
        calibration_yardsticks_ms: the yardstick while the calibration's points were measured.
    """
    found = []
    for what in dict.fromkeys(one.what for one in probes):
        of_load = [one for one in probes if one.what == what]
        scatter, quantile = _scatter(of_load)
        for arm in dict.fromkeys(one.arm for one in of_load):
            blocks = [one for one in of_load if one.arm == arm]
            offered = together([one.offered for one in blocks])
            latency_s, calibrated, refused = _predicted_latency(profile, arm, offered)
            core = _ratio([one.yardstick_ms for one in blocks], calibration_yardsticks_ms)
            found.append(
                PredictedLoad(
                    what, arm, offered, latency_s, core, scatter, quantile, len(blocks), calibrated, refused
                )
            )
    return found


def _scatter(blocks: Sequence[Probed]) -> tuple[float, float]:
    """Standard deviation of ln(latency) among blocks of one arm with the same arrivals, and how many of it are 95 %."""
    squares, freedom = 0.0, 0
    ordered = sorted(blocks, key=lambda one: (one.cycle, one.arm.name))
    for _, alike in groupby(ordered, key=lambda one: (one.cycle, one.arm.name)):
        logs = [math.log(one.offered.latency_s) for one in alike]
        squares += sum((log - fmean(logs)) ** 2 for log in logs)
        freedom += len(logs) - 1
    if not freedom:
        return math.nan, math.nan
    return math.sqrt(squares / freedom), t_quantile(_LEVEL, freedom)


def _ratio(now_ms: Sequence[float], then_ms: Sequence[float]) -> float:
    return median(now_ms) / median(then_ms) if now_ms and then_ms else math.nan


def _predicted_latency(profile: Profile, arm: Arm, offered: Offered) -> tuple[float | None, str, str]:
    """Latency at the load, lengths and acceptance that were live; why these could not be used; why nothing is predicted.

    An arm that cannot be converted to a live acceptance is predicted at the calibrated one, as the operator does.
    """
    calibrated = ""
    try:
        found = _prediction(profile, arm, offered, _live(arm, offered))
    except BreakevenError as refusal:
        calibrated = str(refusal)
        try:
            found = _prediction(profile, arm, offered, None)
        except BreakevenError as other:
            return None, "", str(other)
    return found.latency_s, calibrated, ""


def _prediction(profile: Profile, arm: Arm, offered: Offered, tokens_per_step: float | None) -> Prediction:
    return profile.predict(
        arm,
        rps=offered.rps,
        conditions=Conditions(
            tokens_per_step=tokens_per_step,
            prompt_tokens=float(offered.load.shape.prompt_tokens),
            output_tokens=float(offered.load.shape.output_tokens),
        ),
    )


def _live(arm: Arm, offered: Offered) -> float | None:
    """E by the engine's counters; a front end that merges outputs may report a hair more than k + 1."""
    counted = offered.account.tokens_per_step
    if arm.k == 0 or counted is None:
        return None
    return min(max(counted, 1.0), arm.k + 1.0)


def prediction_rows(found: Sequence[PredictedLoad]) -> list[Row]:
    """Predicted against measured."""
    return [
        (
            *_load_cells(one),
            number(_live(one.arm, one.offered), 3)
            + (", not converted" if one.calibrated or one.refused else ""),
            _predicted_words(one),
            f"{one.offered.latency_s:.3f}",
            "-" if one.refused else f"{one.error:+.1%}",
            one.goal.machine_words,
            "-" if math.isnan(one.core) else f"{one.core:.2f}x",
            str(one.offered.counted),
            one.goal.word,
        )
        for one in found
    ]


def _load_cells(one: PredictedLoad) -> Row:
    shape = one.offered.load.shape
    return str(one.arm), f"{one.offered.rps:.2f}", str(shape.prompt_tokens), str(shape.output_tokens)


def _predicted_words(one: PredictedLoad) -> str:
    if one.refused:
        return "not predicted"
    return "saturated" if one.latency_s is None else f"{one.latency_s:.3f}"


def judge_predictions(found: Sequence[PredictedLoad]) -> list[RunFinding]:
    """Latency within the goal at every load and length that was not fitted."""
    return [
        one.goal.finding(f"{one.arm}: latency predicted within {PREDICTION_GOAL:.0%} ({one.what})", one.words)
        for one in found
    ]


def speedups(found: Sequence[PredictedLoad]) -> list[ProbedSpeedup]:
    """Pairs of the same load on no speculation and on another arm; without those that the profile calls saturated."""
    plain = {one.what: one for one in found if one.arm == NO_SPECULATION}
    seen = []
    for one in found:
        other = plain.get(one.what)
        if one.arm == NO_SPECULATION or other is None:
            continue
        expected = _expected_speedup(one, other)
        if expected is not None:
            measured = other.offered.latency_s / one.offered.latency_s
            machine = one.quantile * one.scatter * math.sqrt(1 / one.blocks + 1 / other.blocks)
            seen.append(ProbedSpeedup(one, expected, measured, machine))
    return seen


def _expected_speedup(one: PredictedLoad, plain: PredictedLoad) -> float | None:
    """Predicted none over predicted arm; NaN if either was refused, None if either is saturated."""
    if one.refused or plain.refused:
        return math.nan
    if one.latency_s is None or plain.latency_s is None:
        return None
    return plain.latency_s / one.latency_s


def speedup_rows(seen: Sequence[ProbedSpeedup]) -> list[Row]:
    """Predicted against measured speedup."""
    return [
        (
            *_load_cells(one.of),
            "-" if math.isnan(one.predicted) else f"{one.predicted:.2f}",
            f"{one.measured:.2f}",
            one.words,
            one.goal.machine_words,
            one.goal.word,
        )
        for one in seen
    ]


def judge_speedups(seen: Sequence[ProbedSpeedup]) -> list[RunFinding]:
    """Speedup within the goal."""
    return [
        one.goal.finding(
            f"{one.of.arm}: speedup predicted within {PREDICTION_GOAL:.0%} ({one.of.what})", one.words
        )
        for one in seen
    ]


def account_rows(found: Sequence[PredictedLoad]) -> list[Row]:
    """The same requests as users and engine counted them."""
    return [
        (
            str(one.arm),
            f"{one.offered.account.answered} of {one.offered.account.asked}",
            f"{one.offered.account.client_latency_s:.3f}",
            f"{one.offered.account.engine_latency_s:.3f}",
            f"{latency_difference(one.offered.account):+.1%}",
            str(one.offered.account.client_tokens),
            f"{one.offered.account.engine_tokens:.0f}",
        )
        for one in found
    ]


def latency_difference(account: Account) -> float:
    """Latency that users saw over the latency that the engine counted, less one."""
    return account.client_latency_s / account.engine_latency_s - 1.0


def judge_accounts(found: Sequence[PredictedLoad]) -> list[RunFinding]:
    """Users and engine count the same requests and tokens, and latencies within 5 %."""
    differences = [latency_difference(one.offered.account) for one in found]
    worst = max(
        differences, key=lambda share: abs(share) if math.isfinite(share) else math.inf, default=math.nan
    )
    uneven = [
        f"{one.arm} ({one.what}): {one.offered.account.asked} asked, {one.offered.account.engine_requests:.0f} ended,"
        f" {one.offered.account.client_tokens} and {one.offered.account.engine_tokens:.0f} tokens"
        for one in found
        if one.offered.account.asked != one.offered.account.engine_requests
        or one.offered.account.client_tokens != one.offered.account.engine_tokens
    ]
    return [
        RunFinding(
            f"users and engine agree about latency within {ACCOUNT_LIMIT:.0%}",
            abs(worst) <= ACCOUNT_LIMIT,
            f"at most {worst:+.1%}",
        ),
        RunFinding(
            "users and engine count the same requests and tokens",
            not uneven and bool(found),
            uneven[0] if uneven else f"{sum(one.offered.account.asked for one in found)} requests",
        ),
    ]
