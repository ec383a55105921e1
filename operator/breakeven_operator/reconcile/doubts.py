"""Doubts of live traffic about the profile in force: latencies disagree, or the text differs from the measured one.

A disagreement makes the profile suspect: it starts no roll until another profile is in force. If the text has drifted, the
profile's figures are converted, which is no reason to distrust them. Either asks for a calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from breakeven.arm import Arm
from breakeven.deciding import Decision
from breakeven.profile import Profile
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.calibration_state import Doubt, ProfileEntry
from breakeven_operator.reconcile.case import Case
from breakeven_operator.reconcile.conditions import ACCEPTANCE, LENGTHS, MODEL, Aspect
from breakeven_operator.reconcile.drift import MADE_UP_TEXT, Drift, drift
from breakeven_operator.reconcile.live_metrics import Live
from breakeven_operator.reconcile.model_account import (
    RUNS_DIFFER,
    AccountRules,
    latency_ratio,
    of_arm,
    predicted_bounds,
    recent,
    span_s,
    with_window,
)
from breakeven_operator.reconcile.questions import load_of, seen_of
from breakeven_operator.reconcile.suspicion import suspected, suspicion_of
from breakeven_operator.resources import SpeculativeServiceSpec
from breakeven_operator.resources.calibrationrun import Trigger
from breakeven_operator.resources.memorystatus import MemoryStatus, Suspicion
from breakeven_operator.resources.modelstatus import AccountWindow, ModelAccount, typical

STILL_ALLOWED = (
    "until another profile is in force no arm is entered on its word: no speculation, and arms whose own latency was "
    "measured here, may be, and so may any arm while requests queue up or miss an objective"
)
_DRIFTS = {
    ACCEPTANCE: ClusterReason.ACCEPTANCE_DRIFTED,
    LENGTHS: ClusterReason.LENGTHS_DRIFTED,
}

# Reasons for which nothing is known of the text and the latency of present requests.
_NO_FIGURES = frozenset(
    {
        ClusterReason.METRICS_MISSING,
        ClusterReason.METRICS_EMPTY,
        ClusterReason.METRICS_NAN,
        ClusterReason.METRICS_STALE,
        ClusterReason.METRICS_IMPOSSIBLE,
        ClusterReason.METRICS_MISLABELLED,
        ClusterReason.METRICS_PARTIAL,
    }
)


@dataclass(frozen=True, slots=True)
class AccountFindings:
    """Findings of the account of the arm in place at this moment.

    Attributes:
        windows: that still count, oldest first.
        lasting: whether they span updatePolicy.disagreementSeconds.
        disagreement: a sentence with both figures; None: latency agrees with the prediction, or the windows are too few.
    """

    windows: tuple[AccountWindow, ...]
    lasting: bool
    disagreement: str | None

    def drifted(self, word: ClusterReason) -> bool | None:
        """Whether something lay significantly outside in every window of the account; None: too early to say."""
        if not self.windows or (str(word) in self.windows[-1].drifted and not self.lasting):
            return None
        return all(str(word) in one.drifted for one in self.windows) if self.lasting else False


def rules_of(spec: SpeculativeServiceSpec) -> AccountRules:
    """How the account of a service is kept."""
    policy = spec.update_policy
    return AccountRules(
        spec.metrics_source.window_seconds, policy.disagreement_seconds, policy.confidence_percent / 100
    )


def findings_of(
    memory: MemoryStatus, profile: str | None, rules: AccountRules, now: datetime
) -> AccountFindings:
    """Findings of the account, which is about the arm in place; none if the account belongs to another profile."""
    account = memory.account
    if account is None or account.profile != profile:
        return AccountFindings((), lasting=False, disagreement=None)
    windows = recent(account, now)
    lasting = span_s(windows) >= rules.lasting_s
    said = _disagreement(windows, rules, f"{profile} predicts for {account.arm}") if lasting else None
    return AccountFindings(windows, lasting, said)


def take_account(case: Case, decision: Decision | None, *, settled: bool) -> MemoryStatus:
    """The memory with the present window in the account, and with a suspicion if the account gives rise to one.

    Args:
        case: of the service, with the memory that the library's answer leaves.
        decision: that answer; None: the library was not asked.
        settled: whether latencies belong to their loads; while a roll is under way, and for a while after it, they do not.
    """
    memory, rules, arm = case.memory, rules_of(case.spec), case.measured_arm
    profile, profile_name = case.profile, case.calibrated.profile_name
    account = of_arm(memory.account, profile_name, arm) if settled else None
    figures = case.live.figures
    # Those who stayed to the end had shorter answers, or better luck, than those who gave up.
    speaks = figures is not None and not figures.given_up
    if settled and profile is not None and profile_name and decision and arm and figures and speaks:
        account = with_window(
            account or ModelAccount(arm=arm.name, profile=profile_name),
            decision.evaluations,
            figures,
            lambda: _words(present_drift(memory, case.spec, profile, arm, case.live)),
            rules,
            case.now,
        )
    kept: dict[str, object] = {"account": account if account is not None and account.windows else None}
    if profile_name is not None and suspicion_of(memory, profile_name) is None:
        kept["suspicion"] = None
    memory = memory.replace(**kept)
    said = findings_of(memory, profile_name, rules, case.now).disagreement
    if said is None or profile_name is None:
        return memory
    return suspected(memory, profile_name, ClusterReason.MODEL_DISAGREES, said, case.now)


def present_drift(
    memory: MemoryStatus, spec: SpeculativeServiceSpec, profile: Profile | None, arm: Arm | None, live: Live
) -> Drift:
    """Figures of the present text that lie outside the calibrated ones."""
    figures = live.figures if live.usable else None
    if profile is None or arm is None or figures is None:
        return Drift()
    arms = {one.name: one for one in (*spec.candidates.arms(), arm)}
    return drift(profile, arm, seen_of(memory, arms), load_of(figures))


def doubt_of(memory: MemoryStatus, entry: ProfileEntry, rules: AccountRules, now: datetime) -> Doubt:
    """Doubt of live traffic about a profile, as a reason to measure again."""
    suspicion = suspicion_of(memory, entry.name)
    if suspicion is not None:
        words = {str(trigger): trigger for trigger in Trigger}
        return Doubt(words.get(suspicion.reason, Trigger.MODEL_DISAGREES))
    findings, account = findings_of(memory, entry.name, rules, now), memory.account
    # The user decides what calibrations send: another sample of made-up text is accepted in the same way as the last one.
    fits = entry.profile.arms if entry.profile is not None else ()
    texts = {
        fit.acceptance.text for fit in fits if account and fit.arm.name == account.arm and fit.acceptance
    }
    if findings.drifted(ClusterReason.ACCEPTANCE_DRIFTED) and not texts & MADE_UP_TEXT:
        return Doubt(Trigger.ACCEPTANCE_DRIFTED)
    if findings.drifted(ClusterReason.LENGTHS_DRIFTED):
        return Doubt(Trigger.LENGTHS_DRIFTED)
    return Doubt(dispelled=findings.lasting)


def aspects(
    memory: MemoryStatus,
    profile: str | None,
    found: Callable[[], Drift],
    rules: AccountRules,
    now: datetime,
    live: Live | None = None,
) -> tuple[Aspect, ...]:
    """The conditions about the profile: does it agree with what is measured, is the text the one that was calibrated.

    Args:
        memory: after this cycle's window.
        profile: name of the one in force.
        found: says what of the present text has drifted; asked only where something has.
        rules: how the account is kept.
        now: time of the observation.
        live: present figures, or why there are none.
    """
    findings = findings_of(memory, profile, rules, now)
    suspicion = suspicion_of(memory, profile)
    blind = _blind(live)
    return (
        _model(findings, suspicion, profile, rules, blind),
        *_drifts(findings, found, profile, rules, blind),
    )


class _Blind(NamedTuple):
    """Why present traffic says nothing about the profile, and about which of its sides."""

    reason: ClusterReason
    message: str
    of_acceptance: bool


def _blind(live: Live | None) -> _Blind | None:
    """None: it says what it can."""
    if live is not None and live.figures is not None and live.figures.given_up:
        said = f"clients give up {live.figures.given_up:.0%} of the requests that began"
        return _Blind(
            ClusterReason.CLIENTS_GIVE_UP,
            f"{said}: those that finish do not speak for all",
            of_acceptance=False,
        )
    if live is not None and live.reason in _NO_FIGURES:
        return _Blind(live.reason, f"not known at present: {live.message}", of_acceptance=True)
    return None


def _model(
    findings: AccountFindings,
    suspicion: Suspicion | None,
    profile: str | None,
    rules: AccountRules,
    blind: _Blind | None,
) -> Aspect:
    if suspicion is not None:
        said = f"{suspicion.message or suspicion.reason}; {STILL_ALLOWED}"
        return Aspect(MODEL, False, suspicion.reason, said)
    if blind is not None and profile is not None:
        return Aspect(MODEL, None, str(blind.reason), blind.message)
    if not findings.lasting or profile is None:
        said = _too_early(findings, profile, rules)
        return Aspect(MODEL, None, str(ClusterReason.MODEL_UNTESTED), said)
    ratio = latency_ratio(findings.windows, rules.confidence)
    told = f"requests take {ratio.value:.2f} times what {profile} predicts" if ratio else ""
    return Aspect(MODEL, True, str(ClusterReason.MODEL_AGREES), f"{told}, {_behind(findings.windows)}")


def _drifts(
    findings: AccountFindings,
    found: Callable[[], Drift],
    profile: str | None,
    rules: AccountRules,
    blind: _Blind | None,
) -> Iterator[Aspect]:
    for name, word in _DRIFTS.items():
        drifted = findings.drifted(word)
        if (
            blind is not None
            and profile is not None
            and not drifted
            and (blind.of_acceptance or name == LENGTHS)
        ):
            yield Aspect(name, None, str(blind.reason), blind.message)
            continue
        if drifted:
            now = found()
            said = {ACCEPTANCE: now.acceptance, LENGTHS: now.lengths}[
                name
            ] or "outside of what was calibrated"
            yield Aspect(
                name,
                False,
                str(word),
                f"{said}, for {span_s(findings.windows) / 60:.0f} minutes; {profile} predicts for it with wider bounds, "
                "and is believed within them",
            )
        elif drifted is None:
            yield Aspect(name, None, str(ClusterReason.MODEL_UNTESTED), _too_early(findings, profile, rules))
        else:
            yield Aspect(
                name,
                True,
                str(ClusterReason.TEXT_AS_CALIBRATED),
                "nothing lies significantly outside of what was calibrated",
            )


def _too_early(findings: AccountFindings, profile: str | None, rules: AccountRules) -> str:
    if profile is None:
        return "no profile is in force"
    return (
        f"the arm in place was measured for {span_s(findings.windows) / 60:.0f} minutes under {profile}; "
        f"updatePolicy.disagreementSeconds asks for {rules.lasting_s / 60:.0f}"
    )


def _disagreement(windows: tuple[AccountWindow, ...], rules: AccountRules, predicted: str) -> str | None:
    """The sentence if the account's interval lies outside of the prediction's own; None: it does not."""
    ratio = latency_ratio(windows, rules.confidence)
    if ratio is None:
        return None
    lower, upper = predicted_bounds(windows)
    if not ratio.above(upper * (1.0 + RUNS_DIFFER)) and not ratio.below(lower / (1.0 + RUNS_DIFFER)):
        return None
    observed_s = typical(one.observed_seconds for one in windows) or 0.0
    predicted_s = typical(one.observed_seconds / one.latency_ratio for one in windows) or 0.0
    return (
        f"requests take {observed_s:.3g} s where {predicted} {predicted_s:.3g} s: {ratio.value:.2f} times as long "
        f"({ratio.lower:.2f} to {ratio.upper:.2f}, against its own bounds {lower:.2f} to {upper:.2f}), {_behind(windows)}"
    )


def _behind(windows: tuple[AccountWindow, ...]) -> str:
    requests = sum(one.requests for one in windows)
    return f"by {requests} requests in {len(windows)} windows within {span_s(windows) / 60:.0f} minutes"


def _words(found: Drift) -> Iterator[str]:
    if found.acceptance:
        yield str(ClusterReason.ACCEPTANCE_DRIFTED)
    if found.lengths:
        yield str(ClusterReason.LENGTHS_DRIFTED)
