"""Conditions about the profile in force: does it agree with what is measured, is the text the one that was calibrated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple

from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.conditions import ACCEPTANCE, LENGTHS, MODEL, Aspect
from breakeven_operator.reconcile.cycle_facts import CycleFacts
from breakeven_operator.reconcile.doubts import AccountFindings, findings_of, present_drift, rules_of
from breakeven_operator.reconcile.drift import Drift
from breakeven_operator.reconcile.live_metrics import Live
from breakeven_operator.reconcile.model_account import AccountRules, behind, latency_ratio, span_s
from breakeven_operator.reconcile.suspicion import suspicion_of
from breakeven_operator.resources.memorystatus import MemoryStatus, Suspicion

STILL_ALLOWED = (
    "until another profile is in force no arm is entered on its word: no speculation, and arms whose own latency was "
    "measured here, may be, and so may any arm while requests queue up or miss an objective"
)
_DRIFTS = {
    ACCEPTANCE: ClusterReason.ACCEPTANCE_DRIFTED,
    LENGTHS: ClusterReason.LENGTHS_DRIFTED,
}
_UNREMARKABLE = frozenset({str(ClusterReason.MODEL_UNTESTED), str(ClusterReason.MODEL_AGREES)})

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


def doubt_aspects(cycle: CycleFacts) -> tuple[Aspect, ...]:
    """Doubts of live traffic about the profile in force."""
    spec, calibrated, live = cycle.service.spec, cycle.calibrated, cycle.live
    running = cycle.running.arm if cycle.running is not None else None
    memory = cycle.step.memory

    def found() -> Drift:
        return present_drift(memory, spec, calibrated.profile, running, live) if live is not None else Drift()

    said = aspects(memory, calibrated.profile_name, found, rules_of(spec, cycle.timing), cycle.now, live)
    # A text that never drifted needs no condition, but one that nobody can see does. A text that drifted says when it is over.
    status = cycle.service.status
    return tuple(
        one
        for one in said
        if one.type not in _DRIFTS or one.reason not in _UNREMARKABLE or status.condition(one.type)
    )


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
    return Aspect(MODEL, True, str(ClusterReason.MODEL_AGREES), f"{told}, {behind(findings.windows)}")


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
            cause = (
                "; the text is another one, or the drafter was replaced in place"
                if name == ACCEPTANCE
                else ""
            )
            yield Aspect(
                name,
                False,
                str(word),
                f"{said}, for {span_s(findings.windows) / 60:.0f} minutes{cause}; {profile} predicts for it with wider bounds, "
                "and is believed within them",
            )
        elif drifted is None:
            yield Aspect(name, None, str(ClusterReason.MODEL_UNTESTED), _too_early(findings, profile, rules))
        else:
            yield Aspect(
                name,
                True,
                str(ClusterReason.MODEL_AGREES),
                "nothing lies significantly outside of what was calibrated",
            )


def _too_early(findings: AccountFindings, profile: str | None, rules: AccountRules) -> str:
    if profile is None:
        return "no profile is in force"
    return (
        f"the arm in place was measured for {span_s(findings.windows) / 60:.0f} minutes under {profile}; "
        f"timing.disagreementSeconds asks for {rules.lasting_s / 60:.0f}"
    )
