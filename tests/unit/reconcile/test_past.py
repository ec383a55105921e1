"""The past of a service out of a range vector: its own rates, those that are numbers, or why there are none."""

from __future__ import annotations

import math

import pytest

from breakeven_operator.ports import Samples
from breakeven_operator.reconcile.past import Past, PastReading, past_of, read_past

KEY = ("llm", "chat", "chat-model")
DAY_S = 86400


def samples(*rates, namespace="llm", workload="chat", model="chat-model"):
    labels = {"namespace": namespace, "workload": workload, "model_name": model}
    return Samples(labels, rates)


def test_rates_are_those_of_the_deployment_under_its_model_s_name_and_oldest_first():
    reading = read_past(
        [
            samples(1.0, 2.0, 0.0),
            samples(9.0, workload="chat-large"),
            samples(9.0, namespace="other"),
            samples(9.0, model="another"),
        ]
    )
    assert past_of(reading, KEY, DAY_S) == Past((1.0, 2.0, 0.0))
    assert past_of(reading, ("llm", "chat-large", "chat-model"), DAY_S).rates_rps == (9.0,)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0])
def test_what_is_no_rate_is_left_out(bad):
    assert past_of(read_past([samples(1.0, bad, 3.0)]), KEY, DAY_S).rates_rps == (1.0, 3.0)
    assert "no load of the past" in past_of(read_past([samples(bad)]), KEY, DAY_S).problem


def test_pods_of_no_deployment_are_nobody_s():
    labels = {"namespace": "llm", "model_name": "chat-model"}
    assert read_past([samples(5.0, workload=""), Samples(labels, (5.0,))]).rates_rps == {}


def test_why_there_is_none_is_the_end_of_a_sentence():
    assert past_of(PastReading(), KEY, DAY_S) == Past(
        problem="no load of the past 24 h is known, so the present one is taken to last"
    )
    failed = past_of(PastReading(error="Prometheus at p:9090 refused the query"), KEY, 5400)
    assert failed.problem == (
        "the loads of the past 90 min cannot be read (Prometheus at p:9090 refused the query), "
        "so the present one is taken to last"
    )


def test_a_past_that_nobody_asked_for_is_no_problem():
    assert past_of(None, KEY, DAY_S) == past_of(PastReading(), KEY, 0) == Past()
