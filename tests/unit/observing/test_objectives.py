"""Findings about objectives: from a measured quantile with its bounds, beside what the profile predicts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.planning.evaluation import LoadQuestion, evaluate
from breakeven.planning.objective import Histogram, Slo
from breakeven.profile import LoadPoint
from breakeven.reasons import Reason
from breakeven_operator.case import Latencies
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.observing.objectives import (
    measured,
    objectives_aspect,
    objectives_message,
    with_predictions,
)
from breakeven_operator.observing.questions import objectives_of
from breakeven_operator.resources.speculativeservice import ServiceLevel
from fakes.lawmodel import ArmLaw, law_model
from fakes.vllm_buckets import vllm_buckets

NOW = datetime(2026, 11, 23, 7, tzinfo=UTC)
WINDOW_S = 300.0
TTFT = ServiceLevel(ttft_p95_milliseconds=500)


def seen(**took_s) -> Latencies:
    """Latencies by figure, as vLLM counts them."""
    found = {
        figure: Histogram.of({float(edge): count for edge, count in vllm_buckets(figure, values).items()})
        for figure, values in took_s.items()
    }
    return Latencies(ClusterReason.METRICS_AVAILABLE, "latencies measured", found)


def held(slo, latencies, before=(), after_s=0.0):
    return measured(slo, latencies, before, WINDOW_S, NOW + timedelta(seconds=after_s))


def of(objectives, figure):
    (found,) = [one for one in objectives.figures if one.figure == figure]
    return found


@pytest.mark.parametrize(
    ("took_s", "finding", "holds"),
    [
        ([0.2] * 100, "Kept", True),
        ([0.2] * 80 + [3.0] * 20, "Missed", False),
        ([0.2] * 95 + [3.0] * 5, "Uncertain", None),
    ],
)
def test_a_finding_that_has_stood_for_a_window_is_the_word(took_s, finding, holds):
    first = held(TTFT, seen(ttft=took_s))
    assert (of(first, "ttft").finding, first.settled) == (finding, frozenset())
    almost = held(TTFT, seen(ttft=took_s), first.figures, WINDOW_S - 1)
    assert almost.settled == frozenset()
    assert almost.holds is (None if finding == "Missed" else holds)
    later = held(TTFT, seen(ttft=took_s), almost.figures, WINDOW_S)
    assert later.holds is holds
    assert later.settled == (frozenset() if finding == "Uncertain" else {"ttft"})
    assert of(later, "ttft").since_time == NOW
    words = {
        True: ClusterReason.OBJECTIVES_KEPT,
        False: Reason.SLO_VIOLATED,
        None: ClusterReason.OBJECTIVE_UNCERTAIN,
    }
    assert later.reason == words[holds]


def test_another_limit_begins_anew():
    first = held(TTFT, seen(ttft=[3.0] * 50))
    stricter = ServiceLevel(ttft_p95_milliseconds=250)
    assert of(held(stricter, seen(ttft=[3.0] * 50), first.figures, 900.0), "ttft").since_time > NOW


def test_another_finding_begins_anew():
    kept = held(TTFT, seen(ttft=[0.2] * 50), held(TTFT, seen(ttft=[0.2] * 50)).figures, WINDOW_S)
    missed = held(TTFT, seen(ttft=[3.0] * 50), kept.figures, 2 * WINDOW_S)
    assert of(missed, "ttft").since_time == NOW + timedelta(seconds=2 * WINDOW_S)
    assert missed.settled == frozenset()


def test_a_figure_lies_between_its_bounds_and_a_higher_share_takes_longer():
    found = of(held(TTFT, seen(ttft=[0.2] * 90 + [0.45] * 7 + [3.0] * 3)), "ttft")
    assert found.attainment_lower_percent < found.attainment_percent < found.attainment_upper_percent
    assert found.p50_seconds < found.p95_seconds < found.p99_seconds
    for share in ("p50", "p95", "p99"):
        lower, value, upper = (getattr(found, f"{share}{end}_seconds") for end in ("_lower", "", "_upper"))
        assert lower <= value <= upper


def test_one_that_is_not_measured_leaves_it_open_whether_all_are_kept():
    slo = ServiceLevel(ttft_p95_milliseconds=500, tpot_p95_milliseconds=50)
    latencies = seen(ttft=[0.2] * 100)
    later = held(slo, latencies, held(slo, latencies).figures, WINDOW_S)
    assert (later.holds, later.reason) == (None, ClusterReason.OBJECTIVE_UNCERTAIN)


def test_without_latencies_the_reason_is_why_there_are_none():
    none = Latencies(ClusterReason.METRICS_MISSING, "Prometheus gives no answer", {})
    found = held(TTFT, none)
    assert (found.holds, found.reason) == (None, ClusterReason.METRICS_MISSING)
    assert objectives_message(found, found.figures) == "Prometheus gives no answer"


def test_one_that_is_missed_outweighs_one_that_is_kept_and_is_told_first():
    slo = ServiceLevel(ttft_p95_milliseconds=500, e2e_p95_milliseconds=5000)
    latencies = seen(ttft=[3.0] * 50, e2e=[4.0] * 50)
    later = held(slo, latencies, held(slo, latencies).figures, WINDOW_S)
    assert later.holds is False
    assert objectives_message(later, later.figures).startswith("TTFT p95 is 4.88 s")
    assert "; E2E p95 is 4.88 s (2.5 s to 5 s) and shall be at most 5 s: 100 % of 50" in objectives_message(
        later, later.figures
    )


def test_the_strain_is_the_largest_ratio_that_users_see_and_open_where_an_objective_is_not_known():
    slo = ServiceLevel(ttft_p95_milliseconds=500, e2e_p95_milliseconds=5000)
    latencies = seen(ttft=[3.0] * 200, e2e=[4.0] * 200)
    assert held(slo, latencies).strain is None
    settled = held(slo, latencies, held(slo, latencies).figures, WINDOW_S)
    assert settled.strain == (pytest.approx(5.0), pytest.approx(10.0))
    alone = seen(e2e=[4.0] * 200)
    assert held(slo, alone, held(slo, alone).figures, WINDOW_S).strain == (pytest.approx(0.5), None)


def test_a_limit_that_is_an_edge_is_missed_by_what_lies_above_it():
    later = held(TTFT, seen(ttft=[0.6] * 200), held(TTFT, seen(ttft=[0.6] * 200)).figures, WINDOW_S)
    assert later.strain[0] > 1.0


def test_an_engine_that_does_not_count_a_figure_leaves_its_objective_unmeasured():
    slo = ServiceLevel(tpot_p95_milliseconds=50)
    found = held(slo, seen(ttft=[0.2] * 50), (), 0.0)
    assert (of(found, "tpot").finding, of(found, "tpot").p95_seconds) == ("Unmeasured", None)
    assert "TPOT p95 shall be at most 50 ms and is not measured" in objectives_message(found, found.figures)


def test_a_prediction_has_an_interval_of_its_own_and_a_mean_is_none():
    def running(p95_over_mean):
        law = ArmLaw(1.0, 0.03, noise=0.05, p95_over_mean=p95_over_mean)
        slo = Slo(ttft_s=0.5, quantile=0.95)
        question = LoadQuestion(LoadPoint(rps=4.0), slo=slo)
        return evaluate(law_model({NO_SPECULATION: law}), [NO_SPECULATION], question).arms[0]

    found = held(TTFT, seen(ttft=[0.2] * 50))
    (ttft,) = [one for one in with_predictions(found, running(2.0)) if one.figure == "ttft"]
    assert ttft.predicted_p95_lower_seconds < ttft.predicted_p95_seconds < ttft.predicted_p95_upper_seconds
    assert ttft.predicted_p95_seconds == pytest.approx(0.1 * 2.0 / (1 - 4.0 * 0.03), rel=0.01)
    (unasked,) = [one for one in with_predictions(found, running(2.0)) if one.figure == "e2e"]
    assert unasked.predicted_p95_seconds is None, "nothing is promised of it"
    (mean,) = [one for one in with_predictions(found, running(None)) if one.figure == "ttft"]
    assert mean.predicted_p95_seconds is None
    assert "(predicted: 227 ms (" in objectives_message(found, with_predictions(found, running(2.0)))


def test_a_service_without_objectives_has_neither_figures_nor_a_condition():
    assert measured(ServiceLevel(), seen(ttft=[0.2]), (), WINDOW_S, NOW) is None
    assert objectives_aspect(None, (), asked_before=False) is None
    gone = objectives_aspect(None, (), asked_before=True)
    assert gone is not None
    assert (gone.holds, gone.reason) == (None, "ObjectiveUncertain")
    assert objectives_of(TTFT) == {"ttft": 0.5}
