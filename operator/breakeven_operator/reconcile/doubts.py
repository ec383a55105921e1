"""Doubts of live traffic about the profile in force: latencies disagree, or the text differs from the measured one.

A disagreement makes the profile suspect: it starts no roll until another profile is in force. If the text has drifted, the
profile's figures are converted, which is no reason to distrust them. Either asks for a calibration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from breakeven.arm import Arm
from breakeven.deciding import Decision
from breakeven.profile import Profile
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.calibration_state import Doubt, ProfileEntry
from breakeven_operator.reconcile.case import Case
from breakeven_operator.reconcile.drift import MADE_UP_TEXT, Drift, drift
from breakeven_operator.reconcile.live_metrics import Live
from breakeven_operator.reconcile.model_account import (
    AccountRules,
    disagreement,
    of_arm,
    recent,
    span_s,
    with_window,
)
from breakeven_operator.reconcile.questions import load_of, seen_of
from breakeven_operator.reconcile.suspicion import suspected, suspicion_of
from breakeven_operator.resources import SpeculativeServiceSpec
from breakeven_operator.resources.calibrationrun import Trigger
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.modelstatus import AccountWindow, ModelAccount
from breakeven_operator.resources.updatepolicy import Timing


@dataclass(frozen=True, slots=True)
class AccountFindings:
    """Findings of the account of the arm in place at this moment.

    Attributes:
        windows: that still count, oldest first.
        lasting: whether they span timing.disagreementSeconds.
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


def rules_of(spec: SpeculativeServiceSpec, timing: Timing) -> AccountRules:
    """How the account of a service is kept."""
    confidence = spec.update_policy.confidence_percent / 100
    return AccountRules(spec.metrics_source.window_seconds, timing.disagreement_seconds, confidence)


def findings_of(
    memory: MemoryStatus, profile: str | None, rules: AccountRules, now: datetime
) -> AccountFindings:
    """Findings of the account, which is about the arm in place; none if the account belongs to another profile."""
    account = memory.account
    if account is None or account.profile != profile:
        return AccountFindings((), lasting=False, disagreement=None)
    windows = recent(account, now)
    lasting = span_s(windows) >= rules.lasting_s
    said = disagreement(windows, rules, f"{profile} predicts for {account.arm}") if lasting else None
    return AccountFindings(windows, lasting, said)


def take_account(case: Case, decision: Decision | None, *, settled: bool) -> MemoryStatus:
    """The memory with the present window in the account, and with a suspicion if the account gives rise to one.

    Args:
        case: of the service, with the memory that the library's answer leaves.
        decision: that answer; None: the library was not asked.
        settled: whether latencies belong to their loads; while a roll is under way, and for a while after it, they do not.
    """
    memory, rules, arm = case.memory, rules_of(case.spec, case.context.timing), case.measured_arm
    profile, profile_name = case.profile, case.calibrated.profile_name
    account = of_arm(memory.account, profile_name, arm) if settled else None
    figures = case.live.figures
    # Those who stayed to the end had shorter answers, or better luck, than those who gave up. And a queue that moves makes
    # latencies that belong to no rate.
    speaks = figures is not None and not figures.given_up and figures.steady
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


def _words(found: Drift) -> Iterator[str]:
    if found.acceptance:
        yield str(ClusterReason.ACCEPTANCE_DRIFTED)
    if found.lengths:
        yield str(ClusterReason.LENGTHS_DRIFTED)
