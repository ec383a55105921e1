"""Failures per arm, from counters: whose they are, when they are sure, and what is not measured."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from breakeven.planning.roll_experiment import Witness
from breakeven.serving.engine_series import EngineSeries
from breakeven_operator.ports import Samples, TimedValue
from breakeven_operator.reconcile.fleet_query import STAT
from breakeven_operator.reconcile.roll_failures import (
    POSTS,
    REFUSALS,
    SERVED,
    FailureFinding,
    failures_query,
    find_failures,
)
from breakeven_operator.reconcile.roll_metrics import RolledPods, RollReading, read_roll

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
    return {POSTS: came, REFUSALS: refusals, SERVED: came * (1.0 - failing)}


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
        "39 % of its requests are finished by no engine that are on the other arm (side by side; HTTP 4xx or 5xx: 600 of "
        "1500, against 15 of 1500)"
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
    many = {POSTS: 100.0, REFUSALS: 0.0, SERVED: 400.0}
    half = {POSTS: 100.0, REFUSALS: 0.0, SERVED: 200.0}
    assert not finding(counted(OLD, range(-6, 7), many), counted(NEW, range(1, 7), many)).fails(
        last_look=True
    )
    assert finding(counted(OLD, range(-6, 7), many), counted(NEW, range(1, 7), half)).fails(last_look=True)


@pytest.mark.parametrize("came", [1, 3, 5])
def test_a_handful_of_failures_is_no_verdict(came):
    one = finding(counted(OLD, range(-6, 7), requests(came)), counted(NEW, range(1, 7), requests(came, 0.4)))
    assert not one.fails(last_look=False)
    assert not one.fails(last_look=True)


def test_a_share_that_is_sure_and_small_is_tolerated():
    one = finding(counted(OLD, range(-6, 7), requests(1e6)), counted(NEW, range(1, 7), requests(1e6, 0.005)))
    assert not one.fails(last_look=True)


def test_before_and_after_tolerates_more_because_clients_change():
    def apart(failing: float) -> FailureFinding:
        return finding(
            counted(OLD, range(-6, 1), requests(1e5)), counted(NEW, range(1, 7), requests(1e5, failing))
        )

    assert apart(0.03).witness is Witness.BEFORE_AFTER
    assert not apart(0.03).fails(last_look=True)
    assert apart(0.1).fails(last_look=True)


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
            for stat, value in ((POSTS, posts[arm]), (SERVED, served[arm]))
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
        for stat in (POSTS, SERVED)
    ]
    one = finding(counted(OLD, range(-6, 7), requests(300)), series)
    assert one.new.posts == one.new.served == 240.0


@pytest.mark.parametrize("missing", [POSTS, SERVED])
@pytest.mark.parametrize("arm", ["old", "new"])
def test_a_page_without_a_series_is_not_measured_and_no_zero(missing, arm):
    half = {stat: grown for stat, grown in requests(300).items() if stat != missing}
    of = {"old": requests(300), "new": requests(300), arm: half}
    said = found(counted(OLD, range(-6, 7), of["old"]), counted(NEW, range(1, 7), of["new"]))
    assert said == f"no http_requests_total beside vllm:request_success_total of the {arm} arm's pods"


def test_no_refusal_so_far_is_zero_refusals():
    none_yet = {POSTS: 300.0, SERVED: 300.0}
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
    assert 'status=~"[45].*"' in query
    assert 'finished_reason!="error"' in query
    assert query.endswith("[1800s:60s]")
