"""Alerts of the course are the chart's rules: the same names, waits and words, and true of the same statuses."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from breakeven_operator.board.board_list import ATTENTION, ListFilter, service_list
from breakeven_operator.board.board_rows import row_of, view_of
from breakeven_operator.cluster_reasons import QUIET, ClusterReason
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.plugin import alert_course
from breakeven_operator.plugin.alert_course import RULES, alert_states, alerts_of
from breakeven_operator.plugin.explanation import explanation
from breakeven_operator.resources.calibrationrun import AnswersInForce
from breakeven_operator.resources.memorystatus import BarredArm
from breakeven_operator.resources.meta import Condition
from breakeven_operator.resources.servicestatus import ServiceWorkings
from breakeven_operator.resources.targetstatus import Rollout
from fakes.published_board import CHAT

CHART = Path(__file__).parents[3] / "charts" / "breakeven" / "files" / "rules.yaml"
# Hours of samples, or no service at all: no status shows them.
NOT_IN_A_STATUS = {
    "BreakevenHolding",
    "BreakevenObjectiveBurningFast",
    "BreakevenObjectiveBurningSlow",
    "BreakevenOperatorDown",
}


@pytest.fixture(scope="module")
def rules():
    (group,) = yaml.safe_load(CHART.read_text(encoding="utf-8"))["groups"]
    return {one["alert"]: one for one in group["rules"] if "alert" in one}


@pytest.fixture
def chat(settled):
    return settled.services[CHAT]


@pytest.fixture
def now(settled):
    return settled.time


def test_the_names_and_waits_are_those_of_the_chart(rules):
    assert set(RULES) == set(rules) - NOT_IN_A_STATUS
    seconds = {"s": 1, "m": 60, "h": 3600}
    for name, (lasting, _) in RULES.items():
        number, unit = re.fullmatch(r"(\d+)([smh])", rules[name]["for"]).groups()
        assert lasting == timedelta(seconds=int(number) * seconds[unit]), name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("BreakevenModelDisagrees", alert_course.SUSPICION),
        ("BreakevenTextDrifted", alert_course.DRIFT),
        ("BreakevenProfileOutdated", alert_course.OUTDATED),
        ("BreakevenTakenOver", alert_course.TAKEN_OVER),
        ("BreakevenAnswersDiffer", alert_course.ANSWERS),
    ],
)
def test_the_words_are_those_of_the_chart(rules, name, words):
    (found,) = re.findall(r'(?:reason|word)=~"([^"]+)"', rules[name]["expr"])
    assert set(found.split("|")) == words


def test_the_limits_are_those_of_the_chart(rules):
    near = rules["SpeculationBreakEvenNear"]["expr"]
    assert f"> {alert_course.NEAR}" in near
    for name in ("SpeculationBreakEvenNear", "SpeculationUnprofitable", "SpeculationMetricsUnavailable"):
        assert f"< {alert_course.FRESH.total_seconds():.0f}" in rules[name]["expr"]
    held = rules["SpeculationMetricsUnavailable"]["expr"]
    assert f"breakeven_load_requests_per_second > {alert_course.BUSY_RPS:g}\n" in held


def with_parts(service, **parts):
    return service.with_status(service.status.replace(**parts))


def deciding(service, **figures):
    return with_parts(service, decision=service.status.decision.replace(**figures))


def with_condition(service, type_, reason, status="False"):
    changed = Condition(type=type_, status=status, reason=reason, last_transition_time="2026-01-01T00:00:00Z")
    others = [one for one in service.status.conditions if one.type != type_]
    return with_parts(service, conditions=(*others, changed))


def remembering(service, **fields):
    memory = service.status.memory.replace(**fields)
    return with_parts(service, workings=ServiceWorkings(memory=memory, display=service.status.display))


def calibrated(service, **fields):
    return with_parts(service, calibration=service.status.calibration.replace(**fields))


def names(service, now):
    return {one.name for one in alert_states(service, now)}


def test_a_service_that_gains_has_no_alert(chat, now):
    assert names(chat, now) == set()


UNSPENT = {"observed_latency_seconds": None}
HOLDS = {
    "SpeculationUnprofitable": [
        lambda chat: deciding(chat, speedup_upper=0.9, **UNSPENT),
        lambda chat: deciding(chat, speedup=0.0, **UNSPENT),
        lambda chat: deciding(chat, load_rps=9.0, break_even_rps=8.0, c2_ratio=1.2, **UNSPENT),
        # Twice the predicted latency: it loses by more than the bounds.
        lambda chat: deciding(
            chat, speedup=1.5, speedup_upper=1.6, observed_latency_seconds=2.0, predicted_latency_seconds=1.0
        ),
    ],
    "SpeculationBreakEvenNear": [
        lambda chat: deciding(
            chat, load_rps=7.5, break_even_rps=8.5, break_even_lower_rps=8.0, c2_ratio=1.2, **UNSPENT
        )
    ],
    "BreakevenFleetTooSmall": [
        lambda chat: with_parts(
            chat, capacity=chat.status.capacity.replace(scaled_by="hpa", recommended_replicas=99)
        )
    ],
    "BreakevenModelDisagrees": [lambda chat: with_condition(chat, "ModelAgrees", "RollDisproved")],
    "BreakevenTextDrifted": [lambda chat: with_condition(chat, "LengthsAsCalibrated", "LengthsDrifted")],
    "BreakevenAnswersDiffer": [
        lambda chat: calibrated(chat, answers=(AnswersInForce(arm="eagle/3", word="AnswersBroken"),))
    ],
    "BreakevenCalibrationFailed": [
        lambda chat: calibrated(chat, failures=1, last_run_time="2026-01-01T00:00:00Z")
    ],
    "BreakevenProfileOutdated": [lambda chat: with_condition(chat, "Calibrated", "ProfileExpired", "True")],
    "BreakevenRollStuck": [
        lambda chat: with_parts(chat, rollout=Rollout(id="r", deadline_time="2026-01-01T00:00:00Z"))
    ],
    "BreakevenRollUndone": [lambda chat: remembering(chat, failures=1)],
    "BreakevenArmFails": [
        lambda chat: remembering(
            chat,
            barred=(BarredArm(arm="eagle/3", reason="RequestsFail", since_time="2026-01-01T00:00:00Z"),),
        )
    ],
    "BreakevenTakenOver": [lambda chat: with_condition(chat, "Ready", "TakenOver")],
    "BreakevenWriteRefused": [lambda chat: with_condition(chat, "Ready", "WriteRefused")],
    "BreakevenInternalError": [lambda chat: with_condition(chat, "Ready", "InternalError")],
}


@pytest.mark.parametrize(
    ("name", "change"), [(name, change) for name, changes in HOLDS.items() for change in changes]
)
def test_each_alert_holds_of_the_status_that_its_rule_is_about(chat, now, name, change):
    assert names(change(chat), now) == {name}


@pytest.mark.parametrize("change", [change for changes in HOLDS.values() for change in changes])
def test_whatever_an_alert_holds_for_needs_attention_and_comes_first(settled, chat, now, change):
    quiet = NamespacedName("llm", "aaa")
    published = replace(settled, services={quiet: chat, CHAT: change(chat)})
    shown = service_list(published, [quiet, CHAT], ListFilter(), now)
    assert [row.name for row in shown.rows] == [CHAT, quiet]
    assert [bool(row.concerns) for row in shown.rows] == [True, False]
    assert shown.urgent == 1
    only = service_list(published, [quiet, CHAT], ListFilter(show=ATTENTION), now)
    assert [row.name for row in only.rows] == [CHAT]
    (said,) = [one.said(now) for one in alert_states(change(chat), now)]
    assert said in alerts_of(view_of(change(chat)), now)
    assert said in explanation(view_of(change(chat)), (), now, alerts=[said]).replace("\n    ", " ")


@pytest.mark.parametrize("word", sorted(QUIET))
@pytest.mark.parametrize("condition", ["Calibrated", "MetricsAvailable"])
def test_what_is_normal_needs_no_attention(chat, settled, now, word, condition):
    """A first calibration among it: the condition is False, the decision is held, and nobody has to do anything."""
    waiting = deciding(with_condition(chat, condition, str(word)), action="Hold", reason=str(word))
    if word is ClusterReason.TOO_FEW_REQUESTS:
        # Only at night: at 3 rps a speculative arm that nobody can judge has an alert.
        waiting = deciding(waiting, load_rps=0.02)
    assert not row_of(replace(settled, services={CHAT: waiting}), CHAT, now).concerns


@pytest.mark.parametrize(
    "word", ["InsufficientCapacity", "OutageNotAllowed", "ReplicasUnready", "ArmCrashes"]
)
def test_a_change_that_is_held_up_needs_attention(chat, settled, now, word):
    held = deciding(chat, action="Hold", reason=word)
    row = row_of(replace(settled, services={CHAT: held}), CHAT, now)
    assert any(one.text.startswith(f"The decision is held, {word}: ") for one in row.concerns)


def test_figures_that_are_old_carry_the_alert_about_metrics_alone(chat, now):
    later = now + timedelta(hours=1)
    losing = deciding(chat, speedup=0.0)
    (state,) = alert_states(losing, later)
    assert state.name == "SpeculationMetricsUnavailable"
    assert state.since == chat.status.decision.evidence_time + alert_course.FRESH
    assert state.fires == state.since + timedelta(minutes=15)


@pytest.mark.parametrize(
    "change",
    [
        lambda chat: deciding(chat, reason="TargetNotFound"),
        lambda chat: chat.replace(spec=chat.spec.replace(paused=True)),
    ],
)
def test_nobody_waits_for_metrics_of_a_service_that_decides_nothing(chat, now, change):
    assert names(change(chat), now + timedelta(hours=1)) == set()


@pytest.mark.parametrize(("reason", "arm", "load_rps", "fires"), [
    ("TooFewRequests", "eagle/3", 12.0, True),
    ("TooFewRequests", "eagle/3", 1.5, True),
    ("TooFewRequests", "eagle/3", 0.5, False),
    ("TooFewRequests", "none", 12.0, False),
    ("Dwelling", "eagle/3", 12.0, False),
])  # fmt: skip
def test_an_arm_that_is_kept_because_its_pods_never_last_is_told(chat, now, reason, arm, load_rps, fires):
    held = deciding(chat, reason=reason, load_rps=load_rps, speedup=1.5, speedup_upper=2.0, c2_ratio=0.5)
    held = with_parts(held, current=chat.status.current.replace(arm=arm))
    held = with_condition(held, "MetricsAvailable", "TooFewRequests")
    assert ("SpeculationMetricsUnavailable" in names(held, now)) is fires


def test_an_arm_that_is_faster_by_measured_latency_does_not_lose(chat, now):
    measured = deciding(
        chat, load_rps=9.0, break_even_rps=8.0, c2_ratio=1.2, speedup=0.95, speedup_upper=1.05,
        observed_latency_seconds=0.5, predicted_latency_seconds=1.0,
    )  # fmt: skip
    assert names(measured, now) == set()


def test_without_speculation_nothing_is_lost(chat, now):
    plain = with_parts(
        deciding(chat, speedup=0.0, **UNSPENT), current=chat.status.current.replace(arm="none")
    )
    assert names(plain, now) == set()


def test_a_roll_is_stuck_only_after_its_deadline(chat, now):
    rolling = with_parts(chat, rollout=Rollout(id="r", deadline_time=now + timedelta(seconds=1)))
    assert names(rolling, now) == set()
    assert names(rolling, now + timedelta(seconds=2)) == {"BreakevenRollStuck"}
