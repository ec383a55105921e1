"""Failures per arm, from counters: whose they are, when they are sure, and what is not measured."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.readers.prometheus import Samples, TimedValue
from breakeven.reasons import Witness
from breakeven.serving.promql import EngineSeries
from breakeven_operator.case import ArmRequests, RollReading
from breakeven_operator.observing.fleet_query import STAT
from breakeven_operator.observing.roll_metrics import RolledPods, read_roll
from breakeven_operator.rolls.roll_failures import (
    BEGUN,
    BROKEN,
    FAULTS,
    POSTS,
    REFUSALS,
    SERVED,
    WAITED,
    FailureFinding,
    counted_requests,
    failures_query,
    find_failures,
)

BEGAN = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
ROLLED = RolledPods("llm", "chat", "chat-vllm-a", "chat-vllm-b", BEGAN)
STEP_S = 60.0
OLD, NEW = "chat-vllm-a-xxxxx", "chat-vllm-b-yyyyy"


def counted(pod: str, blocks: range, per_block: dict[str, float], namespace: str = "llm") -> list[Samples]:
    """Counters of one pod that grow evenly; blocks are counted from the begin of the roll."""
    times = [BEGAN.timestamp() + STEP_S * block for block in blocks]
    return [
        Samples(
            {"namespace": namespace, "pod": pod, STAT: stat},
            tuple(TimedValue(time_s, grown * index) for index, time_s in enumerate(times)),
        )
        for stat, grown in per_block.items()
    ]


def requests(came: float, failing: float = 0.0, refused: float | None = None) -> dict[str, float]:
    refusals = came * failing if refused is None else refused
    answered = came * (1.0 - failing)
    return {POSTS: came, REFUSALS: refusals, BEGUN: answered, SERVED: answered}


def shares(came: float = 300.0, **of: float) -> dict[str, float]:
    """Counters of a block in which these shares of the requests met with something else than an answer.

    Args:
        came: HTTP requests that came.
        of: refused (400), streamed (refused in the stream), left (after the first token), unseen (before it), broken (an error
            of the engine in a stream), fault (the same with 500), away (503 of a full queue); waited: seconds to a first token.
    """
    counts = {name: came * share for name, share in of.items() if name != "waited"}
    unbegun = sum(counts.get(name, 0.0) for name in ("refused", "streamed", "unseen", "away"))
    begun, broken = came - unbegun, counts.get("broken", 0.0) + counts.get("fault", 0.0)
    return {
        POSTS: came,
        REFUSALS: counts.get("refused", 0.0),
        FAULTS: counts.get("away", 0.0) + counts.get("fault", 0.0),
        BEGUN: begun,
        WAITED: begun * of.get("waited", 0.1),
        SERVED: begun - broken - counts.get("left", 0.0),
        BROKEN: broken,
    }


def found(*series: list[Samples]) -> FailureFinding | str:
    return find_failures(read_roll([one for pod in series for one in pod]), ROLLED)


def finding(*series: list[Samples]) -> FailureFinding:
    result = found(*series)
    assert isinstance(result, FailureFinding), result
    return result


def test_an_arm_that_refuses_requests_fails_them_and_says_both_arms_figures():
    one = finding(
        counted(OLD, range(-6, 7), requests(300, 0.01)), counted(NEW, range(1, 7), requests(300, 0.4))
    )
    assert one.witness is Witness.SIDE_BY_SIDE
    assert one.share == pytest.approx(1 - 0.6 / 0.99, abs=0.01)
    assert one.fails(last_look=False)
    assert one.said == (
        "39 % of its requests are refused or fail that are answered on the other arm (side by side; HTTP 4xx: 600 of 1500, "
        "against 15 of 1500)"
    )


def test_requests_that_are_refused_in_a_stream_fail_without_any_refusal_by_http():
    old, new = requests(300), requests(300, 0.4, refused=0.0)
    assert finding(counted(OLD, range(-6, 7), old), counted(NEW, range(1, 7), new)).fails(last_look=False)


@pytest.mark.parametrize("failing", [0.05, 0.3, 0.9, 1.0])
def test_what_fails_on_both_arms_is_neither_s_fault(failing):
    same = requests(300, failing)
    one = finding(counted(OLD, range(-6, 7), same), counted(NEW, range(1, 7), same))
    assert one.share == pytest.approx(0.0, abs=0.02)
    assert not one.fails(last_look=True)


def test_several_answers_per_request_move_both_arms_alike_and_count_as_no_failure():
    many = {POSTS: 100.0, REFUSALS: 0.0, BEGUN: 400.0, SERVED: 400.0}
    half = {POSTS: 100.0, REFUSALS: 0.0, BEGUN: 200.0, SERVED: 200.0}
    assert not finding(counted(OLD, range(-6, 7), many), counted(NEW, range(1, 7), many)).fails(
        last_look=True
    )
    assert finding(counted(OLD, range(-6, 7), many), counted(NEW, range(1, 7), half)).fails(last_look=True)


@pytest.mark.parametrize("came", [1, 3, 5])
def test_a_handful_of_failures_is_no_verdict(came):
    one = finding(counted(OLD, range(-6, 7), requests(came)), counted(NEW, range(1, 7), requests(came, 0.4)))
    assert not one.fails(last_look=False)
    assert not one.fails(last_look=True)


@pytest.mark.parametrize(("came", "fails"), [(3.0, False), (6.0, True)])
def test_few_requests_are_no_verdict_however_many_answers_each_asks_for(came, fails):
    """Fifteen requests whose answers halved might be a client who asks for fewer; thirty are not."""
    many, half = (
        {POSTS: came, REFUSALS: 0.0, BEGUN: came * each, SERVED: came * each} for each in (200.0, 100.0)
    )
    one = finding(counted(OLD, range(-6, 7), many), counted(NEW, range(1, 7), half))
    assert one.fails(last_look=True) is fails


def test_a_share_that_is_sure_and_small_is_tolerated_and_said():
    one = finding(counted(OLD, range(-6, 7), requests(1e6)), counted(NEW, range(1, 7), requests(1e6, 0.004)))
    assert not one.fails(last_look=True)
    assert one.is_noticed


def apart(old: dict[str, float], new: dict[str, float]) -> FailureFinding:
    one = finding(counted(OLD, range(-6, 1), old), counted(NEW, range(1, 7), new))
    assert one.witness is Witness.BEFORE_AFTER
    return one


def together(old: dict[str, float], new: dict[str, float]) -> FailureFinding:
    return finding(counted(OLD, range(-6, 7), old), counted(NEW, range(1, 7), new))


@pytest.mark.parametrize("compare", [apart, together])
@pytest.mark.parametrize(
    ("old", "new", "fails"),
    [
        ({}, {"refused": 0.05}, True),
        ({}, {"refused": 0.02}, True),
        ({"left": 0.02}, {"left": 0.02, "refused": 0.05}, True),
        ({}, {"streamed": 0.3}, True),
        ({}, {"broken": 0.05}, True),
        ({}, {"fault": 0.05}, True),
        ({}, {"fault": 0.05, "away": 0.2}, True),
        ({"away": 0.3}, {"away": 0.3, "refused": 0.05}, True),
        ({"left": 0.02}, {"left": 0.15}, False),
        ({"left": 0.02}, {"left": 0.9}, False),
        ({}, {"unseen": 0.2, "waited": 20.0}, False),
        ({}, {"unseen": 0.01, "waited": 0.5}, False),
        ({}, {"away": 0.3}, False),
        ({}, {"away": 0.3, "left": 0.4, "waited": 9.0}, False),
        ({"refused": 0.04}, {"refused": 0.04, "left": 0.3}, False),
        ({"fault": 0.04}, {"fault": 0.04}, False),
        ({"streamed": 0.2}, {"refused": 0.0, "left": 0.2}, False),
    ],
    ids=str,
)
def test_what_is_refused_or_fails_is_an_arm_s_and_who_leaves_or_is_turned_away_is_not(
    compare, old, new, fails
):
    one = compare(shares(3000, **old), shares(3000, **new))
    assert one.fails(last_look=True) is fails, one.said
    assert one.fails(last_look=False) is fails, one.said


def test_a_client_s_base_rate_may_double_between_before_and_after_and_not_side_by_side():
    old, new = shares(30000, refused=0.03), shares(30000, refused=0.05)
    assert not apart(old, new).fails(last_look=True)
    assert together(old, new).fails(last_look=True)


def test_880_of_17600_requests_refused_after_none_of_10000_is_no_chance():
    one = FailureFinding(ArmRequests(10000, 0, 10000), ArmRequests(17600, 880, 16720), Witness.BEFORE_AFTER)
    assert one.fails(last_look=False)


@pytest.mark.parametrize(
    ("refused", "last_look", "fails"),
    [(38, True, False), (43, True, True), (80, False, False), (95, False, True)],
)
def test_refusals_are_as_sure_as_those_of_a_quarter_as_many_clients(refused, last_look, fails):
    old, new = ArmRequests(3000, 0, 3000), ArmRequests(3000, refused, 3000 - refused)
    assert FailureFinding(old, new, Witness.SIDE_BY_SIDE).fails(last_look=last_look) is fails


def test_demand_that_is_turned_away_is_no_arm_s_fault_and_is_said():
    one = apart(shares(3000), shares(3000, away=0.3))
    assert one.is_noticed
    assert one.said.endswith(
        "HTTP 4xx: 0 of 10500, against 0 of 18000; turned away with 5xx: 4500, against 0)"
    )


@pytest.mark.parametrize(("share", "said"), [(1.0, "100 %"), (0.6, "60 %"), (0.0962, "9.6 %"), (0.02, "2 %")])
def test_a_share_is_said_without_an_exponent(share, said):
    old, new = ArmRequests(1e4, 0, 1e4), ArmRequests(1e4, 1e4 * share, 1e4 * (1.0 - share))
    assert FailureFinding(old, new, Witness.BEFORE_AFTER).said.startswith(f"{said} of its requests")


def test_each_count_is_said_by_its_name():
    old, new = shares(3000, left=0.02), shares(3000, refused=0.02, broken=0.01, streamed=0.03, left=0.1)
    assert apart(old, new).said.endswith(
        "(before and after; HTTP 4xx: 300 of 15000, against 0 of 18000; ended by an error: 150, against 0; begun by no engine: "
        "308, against 0; left by clients: 1642, against 360)"
    )


@given(
    n=st.integers(1, 8),
    came=st.floats(10, 1e5),
    old_left=st.floats(0, 0.95),
    new_left=st.floats(0, 0.95),
    inflight=st.floats(0, 1e4),
    away=st.floats(0, 0.9),
)
def test_no_course_of_leaving_clients_and_full_queues_is_an_arm_s_fault(
    n, came, old_left, new_left, inflight, away
):
    """Whatever share leaves after the first token, how many answers each asks for, and how many are in flight at the end."""
    old, new = (
        {name: count * (n if name in {BEGUN, SERVED, WAITED} else 1) for name, count in one.items()}
        for one in (shares(came, left=old_left), shares(came, left=new_left, away=away))
    )
    new[BEGUN] += inflight
    one = FailureFinding(counted_requests(old), counted_requests(new), Witness.BEFORE_AFTER)
    assert not one.fails(last_look=True), one.said


def test_a_roll_to_an_arm_that_fails_less_fails_nothing():
    one = finding(counted(OLD, range(-6, 7), requests(300, 0.4)), counted(NEW, range(1, 7), requests(300)))
    assert one.share < 0
    assert not one.fails(last_look=True)


def test_false_alarms_of_many_looks_are_rare():
    """Both arms fail one request in ten; ten looks in each of 100 rolls."""
    rng, alarms = np.random.default_rng(7), 0
    for _ in range(100):
        posts = rng.poisson(60, (2, 60)).astype(float)
        served = rng.binomial(posts.astype(int), 0.9).astype(float)
        sums = np.cumsum(posts, axis=1), np.cumsum(served, axis=1)
        alarms += any(
            _looked(sums[0][:, look], sums[1][:, look]).fails(last_look=False) for look in range(5, 60, 6)
        )
    assert alarms <= 2


def _looked(posts: np.ndarray, served: np.ndarray) -> FailureFinding:
    series = [
        [
            Samples(
                {"namespace": "llm", "pod": pod, STAT: stat},
                (TimedValue(BEGAN.timestamp(), 0.0), TimedValue(BEGAN.timestamp() + 60.0, float(value))),
            )
            for stat, value in ((POSTS, posts[arm]), (BEGUN, served[arm]), (SERVED, served[arm]))
        ]
        for arm, pod in enumerate((OLD, NEW))
    ]
    return finding(*series)


def test_a_counter_that_fell_belongs_to_a_process_that_began_again():
    values = (900.0, 1000.0, 40.0, 140.0)
    series = [
        Samples(
            {"namespace": "llm", "pod": NEW, STAT: stat},
            tuple(TimedValue(BEGAN.timestamp() + 60.0 * (i + 1), value) for i, value in enumerate(values)),
        )
        for stat in (POSTS, BEGUN, SERVED)
    ]
    one = finding(counted(OLD, range(-6, 7), requests(300)), series)
    assert one.new.posts == one.new.served == 240.0


@pytest.mark.parametrize("missing", [POSTS, BEGUN, SERVED])
@pytest.mark.parametrize("arm", ["old", "new"])
def test_a_page_without_a_series_is_not_measured_and_no_zero(missing, arm):
    half = {stat: grown for stat, grown in requests(300).items() if stat != missing}
    of = {"old": requests(300), "new": requests(300), arm: half}
    said = found(counted(OLD, range(-6, 7), of["old"]), counted(NEW, range(1, 7), of["new"]))
    assert said == (
        f"no http_requests_total beside vllm's counters of begun and finished requests of the {arm} arm's pods"
    )


def test_no_refusal_so_far_is_zero_refusals():
    none_yet = {POSTS: 300.0, BEGUN: 300.0, SERVED: 300.0}
    one = finding(counted(OLD, range(-6, 7), none_yet), counted(NEW, range(1, 7), none_yet))
    assert (one.old.refusals, one.new.refusals) == (0.0, 0.0)


def test_why_nothing_is_known_is_said():
    assert find_failures(None, ROLLED) == "Prometheus gives no figures of them (it was not asked)"
    assert (
        find_failures(RollReading(error="too slow"), ROLLED)
        == "Prometheus gives no figures of them (too slow)"
    )
    assert find_failures(RollReading(), None) == "which pods run which arm was not seen"
    assert isinstance(find_failures(RollReading(), ROLLED), str)


def test_pods_of_other_namespaces_and_deployments_do_not_count():
    one = finding(
        counted(OLD, range(-6, 7), requests(300)),
        counted(NEW, range(1, 7), requests(300)),
        counted(NEW, range(1, 7), requests(300, 1.0), namespace="other"),
        counted("chat-vllm-large-b-zzzzz", range(1, 7), requests(300, 1.0)),
    )
    assert one.share == pytest.approx(0.0, abs=0.01)


def test_the_query_counts_a_series_once_however_often_it_is_scraped_and_no_probe():
    query = failures_query([("llm", "chat-vllm")], EngineSeries(), 1800, 60)
    assert "max by (namespace,pod,handler,method,status) (http_requests_total{" in query
    assert 'method="POST",handler=~"/v1/(chat/)?completions|' in query
    assert 'status!~"4(0[1348]|29|99)",status=~"4.*"' in query
    assert 'status!~"4(0[1348]|29|99)",status=~"5.*"' in query
    assert "vllm:time_to_first_token_seconds_count{" in query
    assert 'finished_reason!="error"' in query
    assert query.endswith("[1800s:60s]")
