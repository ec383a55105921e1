"""The past of a service out of a range vector: its own rates, or why there are none."""

from __future__ import annotations

import math

import pytest

from breakeven.planning.forecast import PastRates, forecast
from breakeven.readers.prometheus import Samples, TimedValue
from breakeven_operator.case import PastReading, SeriesOwner
from breakeven_operator.observing.past_metrics import past_of, read_past
from breakeven_operator.resources.updatepolicy import UpdatePolicy

KEY = SeriesOwner("llm", "chat", "chat-model")
NOW_S = 1_800_000_000.0
POLICY = UpdatePolicy(lookback_seconds=86400)


def samples(*rates, namespace="llm", workload="chat", model="chat-model", end_s=NOW_S):
    """Rates every 300 s, the last one at `end_s`."""
    labels = {"namespace": namespace, "workload": workload, "model_name": model}
    return Samples(
        labels, tuple(TimedValue(end_s - 300.0 * (len(rates) - 1 - i), r) for i, r in enumerate(rates))
    )


def rates(*found, key=KEY):
    return past_of(read_past(found), key, POLICY)[0].rps


def test_rates_are_those_of_the_deployment_under_its_model_s_name_and_oldest_first():
    found = (
        samples(1.0, 2.0, 0.0),
        samples(9.0, workload="chat-large"),
        samples(9.0, namespace="other"),
        samples(9.0, model="another"),
    )
    assert rates(*found) == (1.0, 2.0, 0.0)
    assert rates(*found, key=SeriesOwner("llm", "chat-large", "chat-model")) == (9.0,)


def test_rates_are_in_the_order_of_time_whatever_the_order_of_the_answer():
    assert read_past([samples(3.0), samples(1.0, end_s=NOW_S - 600)]).rates[KEY] == PastRates(
        (NOW_S - 600, NOW_S), (1.0, 3.0)
    )


def test_a_time_that_an_answer_tells_twice_counts_once_and_ends_no_forecast():
    found = past_of(read_past([samples(3.0, 2.0), samples(5.0)]), KEY, POLICY)[0]
    assert (found.end_s, found.rps) == ((NOW_S - 300, NOW_S), (3.0, 5.0))
    assert forecast(found, NOW_S, 4.0, 14400.0).largest_rps == 5.0


def test_a_past_load_is_the_fleet_s_whatever_its_replicas_were():
    """Eight replicas at 3 rps each were one load; on four replicas the same load comes to 6 each."""
    eight = samples(8.0, 8.0, 4.0)
    there = Samples({**eight.labels, "figure": "replicas"}, eight.values)
    found = past_of(read_past([samples(3.0, 2.0, 6.0), there]), KEY, POLICY)[0]
    assert (found.rps, found.replicas) == ((3.0, 2.0, 6.0), (8.0, 8.0, 4.0))
    assert found.on(4).rps == [6.0, 4.0, 6.0]
    assert found.on(8).rps == [3.0, 2.0, 3.0]


def test_rates_whose_replicas_are_not_known_are_those_of_as_many_as_now():
    few = Samples({**samples(1.0).labels, "figure": "replicas"}, samples(8.0).values)
    found = past_of(read_past([samples(3.0, 2.0), few]), KEY, POLICY)[0]
    assert found.on(4).rps == (3.0, 2.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0])
def test_what_is_no_rate_is_left_out(bad):
    assert rates(samples(1.0, bad, 3.0)) == (1.0, 3.0)
    assert "no load of the past" in past_of(read_past([samples(bad)]), KEY, POLICY)[1]


def test_pods_of_no_deployment_are_nobody_s():
    labels = {"namespace": "llm", "model_name": "chat-model"}
    assert read_past([samples(5.0, workload=""), Samples(labels, (TimedValue(NOW_S, 5.0),))]).rates == {}


def test_why_there_is_none_is_the_end_of_a_sentence():
    unknown = "no load of the past 24 h is known, so the present one is taken to last"
    assert past_of(PastReading(), KEY, POLICY) == (PastRates(), unknown, False)
    shorter = UpdatePolicy(lookback_seconds=5400)
    failed = past_of(PastReading(error="Prometheus at p:9090 refused the query"), KEY, shorter)
    assert failed[1] == (
        "the loads of the past 90 min cannot be read (Prometheus at p:9090 refused the query), "
        "so the present one is taken to last"
    )


def test_a_past_that_nobody_asked_for_is_no_problem():
    off = UpdatePolicy(lookback_seconds=0)
    assert past_of(None, KEY, POLICY) == past_of(PastReading(), KEY, off) == (PastRates(), "", False)
