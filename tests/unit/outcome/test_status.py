"""Figures worth a write, movements of conditions, and formats of figures."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.arm import Arm
from breakeven.estimate import Estimate
from breakeven.phrases import column, ratio_column
from breakeven_operator.outcome.action_plan import Worth, worth_writing
from breakeven_operator.outcome.formatting import break_even, speedup
from breakeven_operator.outcome.formatting import pays as pays_of
from breakeven_operator.resources.meta import Aspect, Condition, ConditionStatus, merge
from fakes.notes import notes_of

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
STATUS: dict[str, Any] = {
    "decision": {
        "time": "t0",
        "action": "Stay",
        "arm": "none",
        "reason": "AlreadyBest",
        "loadRps": "3.1",
        "message": "at 3.1 rps",
    },
    "conditions": [{"type": "Ready", "status": "True", "reason": "Watching", "message": "metrics fresh"}],
    "workings": {"notes": notes_of({"failures": 0})},
}


def changed(**decision):
    return {**STATUS, "decision": {**STATUS["decision"], **decision}}


def worth(new, *, after_s=10.0):
    return worth_writing(STATUS, new, NOW - timedelta(seconds=after_s), NOW, 60.0) is Worth.NOW


def test_a_finding_about_an_objective_is_written_at_once_and_its_figures_now_and_then():
    one = {"figure": "ttft", "finding": "Kept", "sinceTime": "t0", "limitSeconds": "0.5", "p95Seconds": "0.4"}
    before = {**STATUS, "objectives": [one]}

    def news(after_s, **changes):
        after = {**STATUS, "objectives": [{**one, **changes}]}
        return worth_writing(before, after, NOW - timedelta(seconds=after_s), NOW, 60.0) is Worth.NOW

    assert news(10.0, finding="Missed", sinceTime="t1")
    assert not news(10.0, p95Seconds="0.2")
    assert news(61.0, p95Seconds="0.2")


def test_the_first_status_is_written():
    assert worth_writing({}, STATUS, None, NOW, 60.0) is Worth.NOW


def test_a_status_in_which_nothing_moves_is_renewed_once_an_hour_so_that_its_age_tells_of_a_living_operator():
    for minutes, expected in (
        (1, Worth.NOT),
        (59, Worth.NOT),
        (60, Worth.NOT),
        (61, Worth.NOW),
        (1440, Worth.NOW),
    ):
        assert worth_writing(STATUS, STATUS, NOW - timedelta(minutes=minutes), NOW, 60.0) is expected


@pytest.mark.parametrize(
    "new",
    [
        changed(reason="CoolingDown"),
        changed(arm="eagle/3"),
        {**STATUS, "workings": {"notes": notes_of({"failures": 1})}},
        {**STATUS, "rollout": {"id": "x"}},
        {**STATUS, "conditions": [{**STATUS["conditions"][0], "status": "False"}]},
        {key: value for key, value in STATUS.items() if key != "workings"},
    ],
)
def test_state_is_written_at_once(new):
    assert worth(new)


def test_figures_wait_for_the_refresh_and_noise_is_not_written():
    moved = changed(loadRps="4.5", message="at 4.5 rps", time="t1")
    assert not worth(moved)
    assert worth(moved, after_s=61.0)
    noise = changed(loadRps="3.15", message="at 3.15 rps", time="t1")
    assert not worth(noise, after_s=3_000.0)


@pytest.mark.parametrize(
    "new",
    [
        {**STATUS, "conditions": [{**STATUS["conditions"][0], "message": "metrics stale"}]},
        changed(message="at 3.1 rps nothing pays"),
    ],
)
def test_a_sentence_with_other_words_is_written_with_the_next_refresh(new):
    assert not worth(new)
    assert worth(new, after_s=61.0)


def test_a_zero_that_is_written_in_another_way_is_no_news():
    before, after = (changed(loadRps=zero, time=zero) for zero in ("0", "0.0"))
    assert worth_writing(before, after, NOW - timedelta(hours=1), NOW, 60.0) is Worth.NOT


def test_a_sentence_in_which_figures_alone_move_is_never_written_for_itself():
    condition = {**STATUS["conditions"][0], "message": "the newest sample of pod a is 31.5 s old"}
    before = {**STATUS, "conditions": [condition]}
    after = {**STATUS, "conditions": [{**condition, "message": "the newest sample of pod a is 290 s old"}]}
    assert worth_writing(before, after, NOW - timedelta(hours=1), NOW, 60.0) is Worth.NOT


def taught(hours_ago=0.0, *, precision=10.0, saved=100.0, others=(), windows=12, arm="none", live="2.5"):
    """A status whose memory was learned so long before now."""
    time = (NOW - timedelta(hours=hours_ago)).isoformat()
    evidence = [
        {"arm": name, "time": time, "precisionAlone": str(precision), "pullAlone": str(hours_ago)}
        for name in ("none", *others)
    ]
    ends = [{"time": f"{time} {n}", "latencyRatio": str(hours_ago)} for n in range(windows)]
    memory = {
        "failures": 0,
        "decidedTime": time,
        "savedRequestSeconds": str(saved),
        "evidence": evidence,
        "seen": [{"arm": "eagle/3", "tokensPerStep": live, "accept": [str(hours_ago)]}],
        "account": {"arm": arm, "windows": ends},
    }
    return {**STATUS, "workings": {"notes": notes_of(memory)}}


@pytest.mark.parametrize(
    ("before", "after", "worthy"),
    [
        (taught(11.9), taught(), Worth.NOT),
        (taught(12.0), taught(), Worth.NOW),
        # By more than a fifth, once another half hour has added to it.
        (taught(0.6), taught(precision=12.6), Worth.NOW),
        (taught(0.6), taught(precision=12.4), Worth.NOT),
        (taught(0.4), taught(precision=20.0), Worth.NOT),
        (taught(0.6), taught(saved=70.0), Worth.NOW),
        (taught(0.6), taught(saved=90.0), Worth.NOT),
        (taught(0.1), taught(others=["eagle/3"]), Worth.NOW),
        (STATUS, taught(), Worth.NOW),
        (taught(0.1), taught(arm="eagle/3"), Worth.NOW),
        (taught(0.1, windows=3), taught(windows=4), Worth.NOW),
        (taught(0.1), taught(live="2.55"), Worth.NOT),
        (taught(0.1), taught(live="2.9"), Worth.LATER),
    ],
)
def test_what_windows_taught_is_written_once_an_operator_that_starts_anew_would_miss_it(
    before, after, worthy
):
    assert worth_writing(before, after, NOW, NOW, 60.0) is worthy


def test_the_order_of_conditions_is_no_change():
    two = [{"type": "A", "status": "True"}, {"type": "B", "status": "False"}]
    assert (
        worth_writing({"conditions": two}, {"conditions": two[::-1]}, NOW - timedelta(hours=1), NOW, 60.0)
        is Worth.NOT
    )


def test_transition_time_moves_with_the_status_only():
    first = merge((), [Aspect("Ready", True, "Watching", "a")], NOW)
    later = NOW + timedelta(minutes=5)
    same = merge(first, [Aspect("Ready", True, "Paused", "b")], later)
    assert (same[0].last_transition_time, same[0].reason) == (NOW, "Paused")
    other = merge(same, [Aspect("Ready", None, "Watching", "c")], later)
    assert (other[0].last_transition_time, other[0].status) == (later, "Unknown")


_CONDITIONS = st.lists(
    st.builds(
        Condition,
        type=st.sampled_from("ABCD"),
        status=st.sampled_from(ConditionStatus),
        reason=st.just("Old"),
        lastTransitionTime=st.datetimes(timezones=st.just(UTC)),
        observedGeneration=st.just(1),
    ),
    unique_by=lambda condition: condition.type,
).map(tuple)
_ASPECTS = st.lists(
    st.builds(
        Aspect,
        type=st.sampled_from("ABCDE"),
        holds=st.sampled_from([True, False, None]),
        reason=st.just("New"),
        message=st.text(max_size=5000),
    ),
    unique_by=lambda aspect: aspect.type,
)


@given(_CONDITIONS, _ASPECTS)
def test_merged_conditions_say_each_aspect_once_and_keep_the_others(old, aspects):
    merged = merge(old, aspects, NOW)
    before, said = {c.type: c for c in old}, {a.type: a for a in aspects}
    assert [c.type for c in merged] == list(before | said)
    for condition in merged:
        aspect = said.get(condition.type)
        if aspect is None:
            assert condition == before[condition.type]
            continue
        known = before.get(condition.type)
        same = known is not None and known.status == condition.status
        assert condition.status == {True: "True", False: "False", None: "Unknown"}[aspect.holds]
        assert condition.last_transition_time == (known.last_transition_time if same else NOW)
        assert condition.reason == "New"
        assert aspect.message.startswith(condition.message)
    assert merge(merged, aspects, NOW + timedelta(days=1)) == merged


def test_figures_read_like_figures():
    assert column(8.912, "rps") == "8.91 rps"
    assert column(None) == column(float("inf")) == column(float("nan")) == "-"
    assert ratio_column(1.823, (1.741, None)) == "1.82 [1.74,-]"


@pytest.mark.parametrize(
    ("value", "bounds", "pays", "shown"),
    [
        (1.5, (1.4, 1.6), True, "1.50 [1.40,1.60] measured side by side"),
        (0.9, (0.8, 0.95), False, "0.90 [0.80,0.95] measured side by side"),
        (0.0, (0.0, 1.1), None, "not known yet"),
        (0.0, None, False, "saturated"),
        (math.inf, None, True, "-"),
        (None, None, None, "-"),
    ],
)
def test_a_saturated_arm_does_not_pay_and_shows_no_ratio(value, bounds, pays, shown):
    known = Estimate.of(value, bounds)
    comparison = SimpleNamespace(
        speedup=value, speedup_ci=bounds, known=known, how_known="measured side by side"
    )
    assert (pays_of(comparison), speedup(comparison, None)) == (pays, shown)


def test_a_break_even_beyond_the_measured_loads_is_said_to_be():
    beyond = SimpleNamespace(break_even_rps=None, break_even_beyond_range=True, verdict="below")
    assert break_even(beyond) == "beyond measured"
    assert break_even(SimpleNamespace(**{**vars(beyond), "break_even_rps": 8.912})) == "8.91 rps"
    assert break_even(None) == speedup(None, None) == "-"
    assert break_even(beyond, of=Arm("eagle3", 3, "eagle")) == "beyond measured (eagle/3)"


@given(st.floats(min_value=1e-3, max_value=1e7))
def test_a_figure_has_no_exponent_and_three_digits(value):
    text = column(value)
    assert "e" not in text
    assert float(text) == pytest.approx(value, rel=6e-3)
