"""Was it as it must be, and as good as it should be? Checks, goals and tables from what was seen; pure.

A check that fails fails the run: requests were lost, counts disagree, the simulated engine claims what vLLM does not do. A
goal says how good a model of a real engine is; one that is missed is printed as missed, and the run stands: the table says
what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.profile import Prediction, Profile
from breakeven_operator.resources.base import WINNER_AGAIN
from real.greedy_users import Account, Offered

RESIDUAL_GOAL = 0.10
PREDICTION_GOAL = 0.10
ACCOUNT_LIMIT = 0.05

FIT_HEAD = ("arm", "C1, s", "C2, s", "E", "worst residual", "goal", "basis", "verdict")
PAYS_HEAD = ("arm", "load, rps", "speedup", "bounds", "pays")
PREDICTION_HEAD = (
    "arm", "load, rps", "prompt", "answer", "E", "predicted, s", "measured, s", "error", "requests", "goal",
)  # fmt: skip
SPEEDUP_HEAD = ("arm", "load, rps", "prompt", "answer", "predicted", "measured", "error", "goal")
ACCOUNT_HEAD = (
    "arm", "requests", "users: latency, s", "engine: latency, s", "difference", "users: tokens", "engine: tokens",
)  # fmt: skip
ROLL_HEAD = ("to", "reason", "seconds", "requests of users", "lost")
Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunFinding:
    """One thing that had to be so, or should have been.

    Attributes:
        what: in words.
        ok: whether it was.
        detail: the figures.
        goal: whether a miss is only said.
    """

    what: str
    ok: bool
    detail: str
    goal: bool = False

    @property
    def word(self) -> str:
        """The word before the line."""
        return ("met   " if self.ok else "MISSED") if self.goal else ("ok    " if self.ok else "FAIL  ")


@dataclass(frozen=True, slots=True)
class Probed:
    """A load on an arm that no fit has seen.

    Attributes:
        what: how it differs from what was fitted.
        arm: what ran.
        offered: what was sent, and what it took.
    """

    what: str
    arm: Arm
    offered: Offered


@dataclass(frozen=True, slots=True)
class BrokenStage:
    """A stage of the run that did not go to its end.

    Attributes:
        what: the stage.
        why: one line.
    """

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class ObservedRoll:
    """A roll under load.

    Attributes:
        to: the arm that runs in the end.
        reason: why, in the operator's word.
        seconds: from its begin until nothing of the other arm was left.
        requests: of the users meanwhile.
        failures: what became of those that were not answered whole, a line each.
    """

    to: str
    reason: str
    seconds: float
    requests: int
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PredictedLoad:
    """The profile's prediction of a probe.

    Attributes:
        probed: the probe.
        latency_s: predicted at its load, lengths and tokens per step; None: saturated, or not predicted.
        calibrated: why the tokens per step are those of the calibration instead of the live ones; empty: they are live.
        refused: why the profile predicts nothing; empty if it does.
    """

    probed: Probed
    latency_s: float | None
    calibrated: str = ""
    refused: str = ""

    @property
    def error(self) -> float:
        """Predicted over measured, less one; infinite if the profile says saturated, NaN if it predicts nothing."""
        if self.refused:
            return math.nan
        return math.inf if self.latency_s is None else self.latency_s / self.probed.offered.latency_s - 1.0

    @property
    def words(self) -> str:
        """The error, and what could not be converted."""
        if self.refused:
            return f"no prediction: {self.refused}"
        return f"{self.error:+.1%}" + (f", at the calibrated E: {self.calibrated}" if self.calibrated else "")


def fit_rows(profile: Profile) -> list[Row]:
    """Every arm's law and how well it holds."""
    rows: list[Row] = []
    for fit in profile.arms:
        error = fit.max_relative_error
        rows.append(
            (
                str(fit.arm),
                _number(fit.c1_s),
                _number(fit.c2_s),
                _number(fit.tokens_per_step, 3),
                "-" if error is None else f"{error:.1%}",
                _goal(error is not None and error <= RESIDUAL_GOAL),
                fit.basis,
                fit.reason or ("believable" if fit.believable else "not believable"),
            )
        )
    return rows


def judge_fits(profile: Profile) -> list[RunFinding]:
    """Residuals of every arm's law; an arm without a law misses the goal."""
    return [
        RunFinding(
            f"{fit.arm}: the law holds within {RESIDUAL_GOAL:.0%} at every load",
            fit.max_relative_error is not None and fit.max_relative_error <= RESIDUAL_GOAL,
            "no law" if fit.max_relative_error is None else f"worst {fit.max_relative_error:.1%}",
            goal=True,
        )
        for fit in profile.arms
    ]


def pays_rows(profile: Profile, loads_rps: Sequence[float]) -> list[Row]:
    """Speedup of every speculative arm against none, with bounds, at some loads: what the measurement says, whatever it is."""
    rows: list[Row] = []
    for fit in profile.arms:
        if fit.k == 0:
            continue
        for rps in loads_rps:
            try:
                found = profile.compare(fit.arm, NO_SPECULATION, rps=rps)
            except BreakevenError as refusal:
                rows.append((str(fit.arm), f"{rps:.2f}", "-", "-", f"not known: {refusal}"))
                continue
            low, high = found.speedup_ci or (None, None)
            rows.append(
                (
                    str(fit.arm),
                    f"{rps:.2f}",
                    _number(found.speedup, 3),
                    f"{_number(low, 3)} to {_number(high, 3)}",
                    "no" if found.saturated and not found.against_saturated else _pays(low, high),
                )
            )
    return rows


def _pays(low: float | None, high: float | None) -> str:
    if low is not None and low > 1.0:
        return "yes"
    return "no" if high is not None and high < 1.0 else "not known"


def predicted(profile: Profile, probed: Probed) -> PredictedLoad:
    """The profile's prediction at the load, lengths and acceptance that were live.

    An arm that cannot be converted to a live acceptance is predicted at the calibrated one, as the operator does.
    """
    calibrated = ""
    try:
        found = _prediction(profile, probed, _live(probed))
    except BreakevenError as refusal:
        calibrated = str(refusal)
        try:
            found = _prediction(profile, probed, None)
        except BreakevenError as other:
            return PredictedLoad(probed, None, refused=str(other))
    return PredictedLoad(probed, found.latency_s, calibrated)


def _prediction(profile: Profile, probed: Probed, tokens_per_step: float | None) -> Prediction:
    load = probed.offered.load
    return profile.predict(
        probed.arm,
        rps=probed.offered.rps,
        tokens_per_step=tokens_per_step,
        prompt_tokens=float(load.shape.prompt_tokens),
        output_tokens=float(load.shape.output_tokens),
    )


def _live(probed: Probed) -> float | None:
    """E by the engine's counters; a front end that merges outputs may report a hair more than k + 1."""
    counted = probed.offered.account.tokens_per_step
    if probed.arm.k == 0 or counted is None:
        return None
    return min(max(counted, 1.0), probed.arm.k + 1.0)


def prediction_rows(found: Sequence[PredictedLoad]) -> list[Row]:
    """Predicted against measured."""
    return [
        (
            str(one.probed.arm),
            f"{one.probed.offered.rps:.2f}",
            str(one.probed.offered.load.shape.prompt_tokens),
            str(one.probed.offered.load.shape.output_tokens),
            _number(_live(one.probed), 3) + (", not converted" if one.calibrated or one.refused else ""),
            _predicted_words(one),
            f"{one.probed.offered.latency_s:.3f}",
            "-" if one.refused else f"{one.error:+.1%}",
            str(one.probed.offered.counted),
            _goal(abs(one.error) <= PREDICTION_GOAL),
        )
        for one in found
    ]


def _predicted_words(one: PredictedLoad) -> str:
    if one.refused:
        return "not predicted"
    return "saturated" if one.latency_s is None else f"{one.latency_s:.3f}"


def judge_predictions(found: Sequence[PredictedLoad]) -> list[RunFinding]:
    """Latency within the goal at every load and length that was not fitted."""
    return [
        RunFinding(
            f"{one.probed.arm}: latency predicted within {PREDICTION_GOAL:.0%} ({one.probed.what})",
            abs(one.error) <= PREDICTION_GOAL,
            one.words,
            goal=True,
        )
        for one in found
    ]


@dataclass(frozen=True, slots=True)
class ProbedSpeedup:
    """The speedup of an arm at one probe.

    Attributes:
        arm: against none.
        of: the probe on that arm.
        predicted, measured: ratios of latencies, above 1 where the arm is faster; predicted is NaN without a prediction.
    """

    arm: Arm
    of: Probed
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one; NaN without a prediction."""
        return self.predicted / self.measured - 1.0

    @property
    def words(self) -> str:
        """The error, or that there is nothing to judge it by."""
        return "no prediction" if math.isnan(self.predicted) else f"{self.error:+.1%}"


def speedups(found: Sequence[PredictedLoad]) -> list[ProbedSpeedup]:
    """Pairs of the same probe on no speculation and on another arm; without those that the profile calls saturated."""
    plain = {one.probed.what: one for one in found if one.probed.arm == NO_SPECULATION}
    seen = []
    for one in found:
        other = plain.get(one.probed.what)
        if one.probed.arm == NO_SPECULATION or other is None:
            continue
        expected = _expected_speedup(one, other)
        if expected is not None:
            measured = other.probed.offered.latency_s / one.probed.offered.latency_s
            seen.append(ProbedSpeedup(one.probed.arm, one.probed, expected, measured))
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
            str(one.arm),
            f"{one.of.offered.rps:.2f}",
            str(one.of.offered.load.shape.prompt_tokens),
            str(one.of.offered.load.shape.output_tokens),
            "-" if math.isnan(one.predicted) else f"{one.predicted:.2f}",
            f"{one.measured:.2f}",
            one.words,
            _goal(abs(one.error) <= PREDICTION_GOAL),
        )
        for one in seen
    ]


def judge_speedups(seen: Sequence[ProbedSpeedup]) -> list[RunFinding]:
    """Speedup within the goal."""
    return [
        RunFinding(
            f"{one.arm}: speedup predicted within {PREDICTION_GOAL:.0%} ({one.of.what})",
            abs(one.error) <= PREDICTION_GOAL,
            one.words,
            goal=True,
        )
        for one in seen
    ]


def account_rows(probes: Sequence[Probed]) -> list[Row]:
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
        for one in probes
    ]


def latency_difference(account: Account) -> float:
    """Latency that users saw over the latency that the engine counted, less one."""
    return account.client_latency_s / account.engine_latency_s - 1.0


def judge_accounts(probes: Sequence[Probed]) -> list[RunFinding]:
    """Users and engine count the same requests and tokens, and latencies within 5 %."""
    differences = [latency_difference(one.offered.account) for one in probes]
    worst = max(
        differences, key=lambda share: abs(share) if math.isfinite(share) else math.inf, default=math.nan
    )
    uneven = [
        f"{one.arm} ({one.what}): {one.offered.account.asked} asked, {one.offered.account.engine_requests:.0f} ended,"
        f" {one.offered.account.client_tokens} and {one.offered.account.engine_tokens:.0f} tokens"
        for one in probes
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
            not uneven and bool(probes),
            uneven[0] if uneven else f"{sum(one.offered.account.asked for one in probes)} requests",
        ),
    ]


def judge_likeness(differences: Mapping[str, Sequence[str]]) -> list[RunFinding]:
    """Nothing in which the simulated engine differs from the real one; keys say what was compared."""
    return [
        RunFinding(
            f"the simulated engine is like vLLM: {what}",
            not lines,
            f"{len(lines)} differences; first: {lines[0]}" if lines else "no difference",
        )
        for what, lines in differences.items()
    ]


def judge_arms(run: Mapping[str, Any], scheduled: str) -> list[RunFinding]:
    """Every arm of the plan was measured; a schedule or a second start also where there was a reason for none.

    Args:
        run: the CalibrationRun.
        scheduled: name of the method of which a schedule is made.
    """
    found = []
    for arm in (run.get("status") or {}).get("armStatuses") or []:
        name, phase, reason = arm["arm"], arm.get("phase"), arm.get("reason") or ""
        spared = name in {f"{scheduled}/schedule", WINNER_AGAIN} and phase == "Skipped"
        said = ": ".join(filter(None, [str(phase), reason, arm.get("message") or ""]))
        found.append(RunFinding(f"{name} was measured", phase == "Done" or spared, said))
    return found or [RunFinding("arms were measured", ok=False, detail="the run names none")]


def judge_stages(broken: Sequence[BrokenStage]) -> list[RunFinding]:
    """A failed check for every stage that broke off."""
    return [RunFinding(f"{one.what} went to its end", ok=False, detail=one.why) for one in broken]


def roll_rows(rolls: Sequence[ObservedRoll]) -> list[Row]:
    """Every roll, and what became of the users' requests."""
    return [
        (one.to, one.reason, f"{one.seconds:.0f}", str(one.requests), str(len(one.failures))) for one in rolls
    ]


def judge_rolls(rolls: Sequence[ObservedRoll]) -> list[RunFinding]:
    """No request was lost in a roll."""
    return [
        RunFinding(
            f"no request was lost in the roll to {one.to}",
            not one.failures and one.requests > 0,
            f"{one.requests} requests"
            + (f", {len(one.failures)} lost; first: {one.failures[0]}" if one.failures else ""),
        )
        for one in rolls
    ]


def judge_operator(failures: Sequence[str]) -> RunFinding:
    """The operator's log holds no error of its own."""
    return RunFinding(
        "the operator met no error of its own",
        not failures,
        f"{len(failures)} lines of its log; first: {failures[0]}" if failures else "none in its log",
    )


def last_line(found: Sequence[RunFinding]) -> tuple[int, str]:
    """Exit status and its words: 1 when a check failed."""
    checks = [one for one in found if not one.goal]
    goals = [one for one in found if one.goal]
    said = f"{sum(one.ok for one in goals)} of {len(goals)} goals met"
    failed = [one.what for one in checks if not one.ok]
    if failed:
        return 1, f"{len(failed)} of {len(checks)} checks failed: {'; '.join(failed)}; {said}"
    return 0, f"all {len(checks)} checks hold, {said}"


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def _goal(met: bool) -> str:
    return "met" if met else "MISSED"
