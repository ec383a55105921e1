"""Was it as it must be, and as good as it should be? Checks, goals and tables from what was seen; pure.

A check that fails fails the run: requests were lost, counts disagree, the simulated engine claims what vLLM does not do. A
goal says how good a model of a real engine is; one that is missed is printed as missed, and the run stands: the table says
what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Any

from breakeven.arm import NO_SPECULATION
from breakeven.errors import BreakevenError
from breakeven.profile import Profile
from breakeven.reasons import Reason
from breakeven_operator.resources.base import AGAIN

RESIDUAL_GOAL = 0.10
# Of a normal law, 95 % lie within so many standard deviations.
_DEVIATIONS = 1.96

FIT_HEAD = ("arm", "C1, s", "C2, s", "E", "worst residual", "machine's own", "goal")
PAYS_HEAD = ("arm", "load, rps", "speedup", "bounds", "pays")
ROLL_HEAD = ("to", "reason", "seconds", "requests of users", "lost")
ANSWERS_HEAD = (
    "arm", "word", "answers", "tokens", "near-ties", "with a fault", "flawed", "equal to none's", "widest gap, nats",
)  # fmt: skip
Row = tuple[str, ...]
_WRONG = {Reason.ANSWERS_DIFFER, Reason.ANSWERS_BROKEN}


@dataclass(frozen=True, slots=True)
class ErrorGoal:
    """A relative error beside the one that is aimed at, and the one that the machine alone makes.

    Attributes:
        error: infinite or NaN without a figure.
        within: the goal.
        machine: error by a core that is not always as fast, at 95 %; NaN: not known.
    """

    error: float
    within: float
    machine: float

    @property
    def met(self) -> bool:
        """Whether the error is small enough, and the machine steady enough to tell."""
        return abs(self.error) <= self.within and not self.unsteady

    @property
    def unsteady(self) -> bool:
        """Whether the machine's own error passes the goal. A miss by more than both is a miss all the same."""
        return self.machine > self.within and abs(self.error) <= self.within + self.machine

    @property
    def word(self) -> str:
        """The verdict as a table's cell."""
        if self.unsteady:
            return "machine too unsteady to tell"
        return "met" if self.met else "MISSED"

    @property
    def machine_words(self) -> str:
        """The machine's own error as a table's cell."""
        return "not known" if math.isnan(self.machine) else f"{self.machine:.1%}"

    def finding(self, what: str, detail: str) -> RunFinding:
        """The goal as a finding.

        Args:
            what: in words.
            detail: the error in words.
        """
        unsteady = f"; {self.word}" if self.unsteady else ""
        return RunFinding(
            what, self.met, f"{detail}; machine's own error: {self.machine_words}{unsteady}", self
        )


@dataclass(frozen=True, slots=True)
class RunFinding:
    """One thing that had to be so, or should have been.

    Attributes:
        what: in words.
        ok: whether it was.
        detail: the figures.
        goal: of one whose miss is only said; None for a check.
    """

    what: str
    ok: bool
    detail: str
    goal: ErrorGoal | None = None

    @property
    def word(self) -> str:
        """The word before the line."""
        if self.goal is None:
            return "ok    " if self.ok else "FAIL  "
        return "unsure" if self.goal.unsteady else "met   " if self.ok else "MISSED"


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


def residuals(profile: Profile, yardsticks_ms: Sequence[float]) -> list[ErrorGoal]:
    """The worst residual of every arm's law, beside how far the core was from its mean while a point was measured.

    Args:
        profile: with the laws.
        yardsticks_ms: the yardstick of the core, once per point.
    """
    logs = [math.log(one) for one in yardsticks_ms]
    machine = _DEVIATIONS * stdev(logs) if len(logs) > 1 else math.nan
    return [
        ErrorGoal(
            math.nan if fit.max_relative_error is None else fit.max_relative_error, RESIDUAL_GOAL, machine
        )
        for fit in profile.arms
    ]


def fit_rows(profile: Profile, goals: Sequence[ErrorGoal]) -> list[Row]:
    """Every arm's law and how well it holds, beside its goal."""
    return [
        (
            str(fit.arm),
            number(fit.c1_s),
            number(fit.c2_s),
            number(fit.tokens_per_step, 3),
            "-" if math.isnan(goal.error) else f"{goal.error:.1%}",
            goal.machine_words,
            goal.word,
        )
        for fit, goal in zip(profile.arms, goals, strict=True)
    ]


def judge_fits(profile: Profile, goals: Sequence[ErrorGoal]) -> list[RunFinding]:
    """Residuals of every arm's law; an arm without a law misses the goal."""
    return [
        goal.finding(
            f"{fit.arm}: the law holds within {RESIDUAL_GOAL:.0%} at every load",
            "no law" if math.isnan(goal.error) else f"worst {goal.error:.1%}",
        )
        for fit, goal in zip(profile.arms, goals, strict=True)
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
                    number(found.speedup, 3),
                    f"{number(low, 3)} to {number(high, 3)}",
                    "no" if found.saturated and not found.against_saturated else _pays(low, high),
                )
            )
    return rows


def _pays(low: float | None, high: float | None) -> str:
    if low is not None and low > 1.0:
        return "yes"
    return "no" if high is not None and high < 1.0 else "not known"


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
        spared = phase == "Skipped" and (name == f"{scheduled}/schedule" or name.endswith(AGAIN))
        said = ": ".join(filter(None, [str(phase), reason, arm.get("message") or ""]))
        found.append(RunFinding(f"{name} was measured", phase == "Done" or spared, said))
    return found or [RunFinding("arms were measured", ok=False, detail="the run names none")]


def answers_rows(run: Mapping[str, Any]) -> list[Row]:
    """The calibration's word about the answers of each arm, and what it counted."""
    return [
        (
            one["arm"],
            one["word"],
            *(str(one.get(count, 0)) for count in ("answers", "tokens", "nearTies", "differing", "flawed")),
            f"{one.get('equal', 0)} of {one.get('compared', 0)}",
            str(one.get("widestGapNats", "-")),
        )
        for one in _answers(run)
    ]


def judge_answers(run: Mapping[str, Any]) -> list[RunFinding]:
    """No arm whose answers were compared answers wrongly: vLLM's greedy speculation keeps them."""
    return [
        RunFinding(
            f"{one['arm']} answers as no speculation does",
            one["word"] not in _WRONG,
            ": ".join(filter(None, [one["word"], one.get("message", "")])),
        )
        for one in _answers(run)
    ]


def _answers(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (run.get("status") or {}).get("answers") or []
    return found


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
    checks = [one for one in found if one.goal is None]
    goals = [one for one in found if one.goal is not None]
    unsure = sum(one.goal is not None and one.goal.unsteady for one in goals)
    said = f"{sum(one.ok for one in goals)} of {len(goals)} goals met"
    if unsure:
        said += f", of {unsure} the machine was too unsteady to tell"
    failed = [one.what for one in checks if not one.ok]
    if failed:
        return 1, f"{len(failed)} of {len(checks)} checks failed: {'; '.join(failed)}; {said}"
    return 0, f"all {len(checks)} checks hold, {said}"


def number(value: float | None, digits: int = 4) -> str:
    """The value in a table's cell; a dash without one."""
    return "-" if value is None else f"{value:.{digits}g}"
