"""Arrivals in bursts on an engine on the event clock: scrapes of its counters, the operator's query about them, and its prediction.

Nothing here says how bursty the arrivals are. What one engine takes for the requests of each arm is the truth.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.deciding import Decision
from breakeven.profile import Comparison, Profile
from breakeven.readers.prometheus import Samples, TimedValue
from breakeven.serving.counted_window import Load
from breakeven.serving.promql import EngineSeries
from breakeven_operator.judging.judge import choose
from breakeven_operator.observing.fleet_query import arrivals_query
from breakeven_operator.observing.roll_metrics import read_roll, with_arrivals
from breakeven_operator.resources import SpeculativeServiceSpec
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.costs import default_document
from breakeven_sim.engine.requests import Request
from breakeven_sim.replay.fleet_arms import CostArms
from fakes.arrivals import gamma_arrivals, scraped_arrivals
from fakes.cases import a_case
from fakes.fleet_world import SERVICE
from fakes.held_series import SeriesStore
from fakes.promql_evaluation import evaluate_range
from validation.conversions import CalibratedEngine, calibrated

EAGLE = Arm("eagle3", 3, "eagle")
SPEC = SpeculativeServiceSpec.model_validate(SERVICE["spec"])
POD = "chat-7d9f8b6c5d-bbbbb"
BEGAN_S, SCRAPE_S, WINDOW_S, SECONDS = 1_700_000_000.0, 15.0, 300, 1860.0


@functools.cache
def calibrated_h100(prompt: int, output: int) -> Profile:
    costs = default_document().for_gpu("NVIDIA-H100-80GB-HBM3", "test")
    return calibrated(CalibratedEngine("one", prompt, output, EAGLE), CostArms(costs, 1), 1)


def served(arm: Arm, moments: np.ndarray, prompt: int, output: int) -> list[Request]:
    """Requests that one replica has answered."""
    arms = CostArms(default_document().for_gpu("NVIDIA-H100-80GB-HBM3", "test"), 2)
    engine, texts = Engine(arms.config(arm)), arms.texts(arm)
    requests = [Request(number, at_s, prompt, output) for number, at_s in enumerate(moments.tolist())]
    for one in requests:
        one.text = texts.draw(one.number, output) if texts is not None else None
        while engine.next_end_s() <= one.arrival_s and engine.outstanding:
            engine.step()
        engine.advance(one.arrival_s)
        engine.submit(one)
    while engine.outstanding:
        engine.step()
    return requests


def latency_s(requests: list[Request]) -> float:
    return float(np.mean([one.finished_s - one.arrival_s for one in requests[100:-100]]))


def seen_by_scrapes(requests: list[Request]) -> Load:
    """Arrivals as the operator reads them, of the counters that these requests moved."""
    store, end_s = SeriesStore(), BEGAN_S + SECONDS
    came = BEGAN_S + np.array([one.arrival_s for one in requests])
    begun = BEGAN_S + np.sort([one.first_token_s for one in requests])
    scraped_arrivals(store, POD, came, BEGAN_S, end_s, SCRAPE_S, began_at_s=begun)
    found = evaluate_range(store, arrivals_query([("llm", "chat")], EngineSeries(), WINDOW_S), end_s)
    samples = [
        Samples(
            one.labels,
            tuple(
                TimedValue(at_ms / 1000, value) for at_ms, value in zip(one.times_ms, one.values, strict=True)
            ),
        )
        for one in found
    ]
    return with_arrivals(Load(latency_s=latency_s(requests)), read_roll(samples), "llm", {POD}, "chat")


def chosen(profile: Profile, rps: float, arrivals: Load) -> Decision:
    figures = replace(arrivals, window_s=300.0, rps=rps, total_rps=rps, requests=1000, latency_s=None)
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    decision, _ = choose(a_case(SPEC, profile, figures, now), profile)
    return decision


def against_none(decision: Decision) -> Comparison:
    evaluation = decision.of(EAGLE)
    assert evaluation is not None
    assert evaluation.against_none is not None
    return evaluation.against_none


@pytest.mark.parametrize(("prompt", "output", "rps"), [(2048, 64, 4.4), (512, 128, 9.6)])
def test_bursts_are_in_the_speedup_that_is_decided_on(prompt, output, rps):
    profile = calibrated_h100(prompt, output)
    moments = gamma_arrivals(4.0, rps, SECONDS, 21)
    without, drafting = (served(arm, moments, prompt, output) for arm in (NO_SPECULATION, EAGLE))
    true = latency_s(without) / latency_s(drafting)
    arrivals = seen_by_scrapes(without)
    poisson, found = (against_none(chosen(profile, rps, one)) for one in (Load(), arrivals))
    assert poisson.speedup > 1.1 * true
    # Spans of 15 s hold more of a burst than a request of a second meets: 7 and 2 % below the truth, where Poisson's is 23 and 14 %
    # above it. A third load, 19 rps of 512 and 128 tokens, was looked at once: 2 % below and 17 % above.
    assert found.speedup == pytest.approx(true, rel=0.08)
    lower, upper = found.speedup_ci
    assert lower < true < upper


def test_poisson_arrivals_change_nothing():
    profile = calibrated_h100(512, 128)
    arrivals = seen_by_scrapes(served(NO_SPECULATION, gamma_arrivals(1.0, 9.6, SECONDS, 22), 512, 128))
    poisson, found = (against_none(chosen(profile, 9.6, one)) for one in (Load(), arrivals))
    assert found.speedup == pytest.approx(poisson.speedup, rel=0.01)
