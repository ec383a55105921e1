"""The driver against a live engine that obeys the law by construction, in virtual time: figures are exact."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from breakeven.arm import Arm
from breakeven.load_driver.client import Endpoint, EngineClient, EngineError
from breakeven.load_driver.course import Sweep
from breakeven.load_driver.design import SweepSettings, SweepStep
from breakeven.load_driver.lengths import LogNormalLengths
from breakeven.load_driver.measuring import Precision, Trial, measure
from breakeven.load_driver.sent_workload import ProsePrompts, SentWorkload
from breakeven.load_driver.sweep import check_arm, run_sweep, sized_prose
from breakeven.points.point import ImposedLoad, LoadMode
from breakeven.points.quality import FEWEST_GENERATIONS
from breakeven.reasons import Reason
from fakes.lawful_engine import LawfulEngine, serving
from fakes.virtual_time import in_virtual_time

NONE = Arm("none", 0)
EAGLE = Arm("eagle3", 3)
QUICK = SweepSettings(
    loads=3, point_seconds=1.0, min_point_seconds=0.4, warmup_seconds=0.1, max_concurrency=8
)


def step(
    load: ImposedLoad, latency_s: float, inflight: float, window_s: float = 1.0, warmup_s: float = 0.2
) -> SweepStep:
    return SweepStep(load, latency_s, inflight, 0.0, warmup_s, window_s, 10 * window_s, number=1, total=1)


def trial(window_s: float = 1.0, output_tokens: int = 50) -> Trial:
    return Trial(
        NONE, ProsePrompts(20, 0), LogNormalLengths(1, output_tokens), Precision(0.0001, 20, window_s)
    )


@in_virtual_time
async def test_a_closed_loop_holds_its_clients_and_measures_the_law():
    async with serving(LawfulEngine()) as engine, EngineClient(Endpoint(engine.url)) as client:
        point = await measure(client, trial(), step(ImposedLoad(LoadMode.CLOSED, 6), 0.15, 6.0), seed=1)
        assert point.clients.mean_inflight == pytest.approx(6.0)
        # g * (token + 5 others * company)
        assert point.clients.latency.mean_s == pytest.approx(50 * (0.002 + 5 * 0.0002))
        assert point.flags == ()
        assert engine.peak == 6
        await asyncio.sleep(0.05)
        assert engine.open == 0, "requests were left on the engine"


@in_virtual_time
async def test_company_obeys_the_law_even_on_the_way_up():
    # A cold start, a window of two latencies, a load that still rises: no steady state anywhere.
    engine = LawfulEngine(token_s=0.002, company_s=0.0004)
    async with serving(engine), EngineClient(Endpoint(engine.url)) as client:
        cold = await measure(
            client, trial(), step(ImposedLoad(LoadMode.CONSTANT, 40.0), 0.1, 0.0, 0.5, 0.0), seed=1
        )
        # Pieces of four tokens each count the others in flight at their begin.
        expected_s = 50 * (0.002 + cold.inflight * 0.0004)
        assert cold.clients.latency.mean_s == pytest.approx(expected_s, rel=0.02)


@in_virtual_time
async def test_a_warm_up_takes_no_longer_than_it_was_given():
    clock = asyncio.get_running_loop().time
    async with serving(LawfulEngine(token_s=0.001)) as engine, EngineClient(Endpoint(engine.url)) as client:
        begun_s = clock()
        await measure(client, trial(0.5), step(ImposedLoad(LoadMode.CLOSED, 1), 0.05, 1.0, 0.5, 0.7), seed=1)
        # And the window, and the last request that began in it.
        assert clock() - begun_s == pytest.approx(0.7 + 0.5, abs=0.06)


@in_virtual_time
async def test_a_window_shorter_than_a_request_is_lengthened():
    async with serving(LawfulEngine(token_s=0.004)) as engine, EngineClient(Endpoint(engine.url)) as client:
        point = await measure(
            client, trial(0.05), step(ImposedLoad(LoadMode.CLOSED, 1), 0.2, 1.0, 0.05, 0.0), seed=1
        )
        assert point.clients.requests >= 2


@in_virtual_time
async def test_a_closed_loop_lasts_until_its_clients_were_answered_often_enough():
    async with serving(LawfulEngine(token_s=0.004)) as engine, EngineClient(Endpoint(engine.url)) as client:
        load = ImposedLoad(LoadMode.CLOSED, 8)
        free = await measure(client, trial(0.1), step(load, 0.2, 8.0, 0.3, 0.0), seed=1)
        assert free.clients.requests >= FEWEST_GENERATIONS * 8
        assert free.clients.seconds > 0.3
        bound = await measure(client, trial(0.1), replace(step(load, 0.2, 8.0, 0.3), longest_s=0.4), seed=1)
        assert bound.clients.seconds == pytest.approx(0.4, abs=0.06)


@in_virtual_time
async def test_an_open_loop_starts_near_its_steady_state():
    # Utilisation 0.8: 50 tokens * 0.4 ms company * 40 rps; alone 0.1 s, steady 0.5 s with 20 in flight.
    engine = LawfulEngine(token_s=0.002, company_s=0.0004)
    async with serving(engine), EngineClient(Endpoint(engine.url)) as client:
        load = ImposedLoad(LoadMode.CONSTANT, 40.0)
        cold = await measure(client, trial(), step(load, 0.1, 0.0, 0.5, 0.1), seed=1)
        warm = await measure(client, trial(), step(load, 0.5, 20.0, 0.5, 0.5), seed=1)
        assert warm.clients.latency.mean_s == pytest.approx(0.5, rel=0.15)
        assert cold.clients.latency.mean_s < 0.8 * warm.clients.latency.mean_s


@in_virtual_time
async def test_counted_requests_finish_under_continuing_load():
    async with serving(LawfulEngine()) as engine, EngineClient(Endpoint(engine.url)) as client:
        point = await measure(
            client, trial(0.3), step(ImposedLoad(LoadMode.POISSON, 60.0), 0.3, 18.0, 0.3), seed=3
        )
        assert point.clients.failed == 0
        sent_in_window = round(point.clients.offered_rps * point.clients.seconds)
        assert point.clients.requests == sent_in_window
        # Load went on after the window: requests of the tail were cut off when the last counted answer was there.
        await asyncio.sleep(0.05)
        assert engine.aborted > 0
        assert engine.open == 0


@in_virtual_time
async def test_a_load_beyond_saturation_is_cut_short_and_flagged():
    # Saturation is at 1 / (50 * 1 ms) = 20 rps.
    async with serving(LawfulEngine(company_s=0.001)) as engine, EngineClient(Endpoint(engine.url)) as client:
        point = await measure(
            client, trial(), step(ImposedLoad(LoadMode.CONSTANT, 80.0), 0.2, 1.0, 3.0, 0.3), seed=1
        )
        assert Reason.SATURATED_POINT in point.flags
        assert point.overloaded


@in_virtual_time
async def test_refused_requests_end_the_point_and_are_named():
    async with serving(LawfulEngine(fail_after=0)) as engine, EngineClient(Endpoint(engine.url)) as client:
        with pytest.raises(EngineError, match="HTTP 500"):
            await measure(client, trial(), step(ImposedLoad(LoadMode.CLOSED, 2), 0.1, 2.0, 30.0), seed=1)


@in_virtual_time
async def test_a_sweep_is_resumed_where_it_was_cut():
    sweep = Sweep((NONE,), SentWorkload(30, 30), QUICK)
    points = []

    async def keep(point):
        points.append(point)
        if len(points) == 2:
            raise asyncio.CancelledError

    async with serving(LawfulEngine()) as engine, EngineClient(Endpoint(engine.url)) as client:
        with pytest.raises(asyncio.CancelledError):
            await run_sweep({sweep.arms[0]: client}, sweep, [], on_point=keep)
        again = []
        finished = await run_sweep(
            {sweep.arms[0]: client}, sweep, list(points), on_point=lambda p: asyncio.sleep(0, again.append(p))
        )
        assert finished.complete
        assert [point.load.mode for point in again] == [LoadMode.POISSON, LoadMode.CLOSED]
        assert {body["ignore_eos"] for body in engine.bodies} == {True}
        assert all(body["min_tokens"] == body["max_tokens"] for body in engine.bodies)


@in_virtual_time
async def test_prompts_are_sized_by_the_engines_own_count():
    async with (
        serving(LawfulEngine(tokens_per_word=1.5)) as engine,
        EngineClient(Endpoint(engine.url)) as client,
    ):
        prose = await sized_prose(client, SentWorkload(prompt_tokens=300))
        assert prose.words == 200


@in_virtual_time
async def test_the_wrong_engine_is_refused_before_anything_is_measured():
    async with serving(LawfulEngine()) as plain, EngineClient(Endpoint(plain.url)) as client:
        await check_arm(client, NONE)
        with pytest.raises(EngineError, match="does not speculate"):
            await check_arm(client, EAGLE)
    async with (
        serving(LawfulEngine(speculative_tokens=3)) as drafting,
        EngineClient(Endpoint(drafting.url)) as client,
    ):
        await check_arm(client, EAGLE)
        with pytest.raises(EngineError, match="expected no speculation"):
            await check_arm(client, NONE)
        with pytest.raises(EngineError, match="up to 3 tokens per step; expected 5"):
            await check_arm(client, Arm("eagle3", 5))


@in_virtual_time
async def test_an_engine_without_metrics_is_measured_all_the_same():
    async with serving(LawfulEngine(metrics=False)) as engine, EngineClient(Endpoint(engine.url)) as client:
        await check_arm(client, EAGLE)
        point = await measure(
            client, trial(0.3), step(ImposedLoad(LoadMode.CLOSED, 2), 0.1, 2.0, 0.3), seed=1
        )
        assert point.engine.tokens_per_step is None
        assert point.point().tokens_per_step is None


@in_virtual_time
async def test_the_api_key_is_sent_and_never_shown():
    async with serving(LawfulEngine(require_key="s3cret")) as engine:
        endpoint = Endpoint(engine.url, api_key="s3cret")
        assert "s3cret" not in repr(endpoint)
        async with EngineClient(endpoint) as client:
            await sized_prose(client, SentWorkload(20))
        async with EngineClient(Endpoint(engine.url)) as client:
            with pytest.raises(EngineError, match="HTTP 401"):
                await sized_prose(client, SentWorkload(20))


@in_virtual_time
async def test_readiness_is_waited_for_and_given_up():
    async with serving(LawfulEngine()) as engine, EngineClient(Endpoint(engine.url)) as client:
        await client.wait_until_ready(1.0)
        assert await client.model() == "tiny"
    async with EngineClient(Endpoint(engine.url)) as client:
        with pytest.raises(EngineError, match="/health"):
            await client.wait_until_ready(0.1, pause_s=0.05)


@in_virtual_time
async def test_a_model_that_is_not_served_is_refused():
    async with serving(LawfulEngine()) as engine, EngineClient(Endpoint(engine.url, model="other")) as client:
        with pytest.raises(EngineError, match="'other' is not served; expected one of tiny"):
            await client.model()
