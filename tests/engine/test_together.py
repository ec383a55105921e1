"""Several engines measured load by load, in virtual time: order, resuming, engines that fail, drift and pairs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.load_driver import course
from breakeven.load_driver.client import Endpoint, EngineClient, EngineError
from breakeven.load_driver.course import Beside, Sweep, loads_of
from breakeven.load_driver.design import Finished, SweepSettings, SweepStep
from breakeven.load_driver.measuring import MeasuredWindow, Precision, Trial, measure
from breakeven.load_driver.next_point import Purchase, next_point
from breakeven.load_driver.question import Question
from breakeven.load_driver.sent_workload import ProsePrompts, SentWorkload
from breakeven.load_driver.sweep import (
    FEWEST_PAIRS,
    PAIRED_ERROR,
    Speedup,
    SweepProgress,
    run_sweep,
    speedups_of,
)
from breakeven.points.point import ImposedLoad, Point
from fakes.lawful_engine import LawfulEngine, serving
from fakes.virtual_time import in_virtual_time
from localcluster.free_ports import free_ports

pytestmark = pytest.mark.engine

EAGLES = (Arm("eagle3", 2), Arm("eagle3", 5))
ARMS = (NO_SPECULATION, *EAGLES)
COSTS_S = {NO_SPECULATION: (0.05, 0.004), EAGLES[0]: (0.03, 0.0039), EAGLES[1]: (0.02, 0.009)}
"""Per token: alone, and more for each other request. The second eagle has less than half of the others' capacity."""
SETTINGS = SweepSettings(
    loads=4,
    point_seconds=8.0,
    min_point_seconds=4.0,
    warmup_seconds=1.0,
    max_concurrency=4,
    relative_error=1e-6,
)
WORKLOAD = SentWorkload(20, 16)
SWEEP = Sweep(ARMS, WORKLOAD, SETTINGS)
EARLY = Precision(SETTINGS.relative_error, min_window_s=SETTINGS.min_point_seconds)


@contextlib.asynccontextmanager
async def engines(
    arms: Sequence[Arm] = ARMS, drift: Callable[[float], float] = lambda _: 1.0
) -> AsyncIterator[tuple[list[LawfulEngine], list[EngineClient]]]:
    async with contextlib.AsyncExitStack() as stack:
        made = [LawfulEngine(*COSTS_S[arm], 8, speculative_tokens=arm.k, drift=drift) for arm in arms]
        for engine in made:
            await stack.enter_async_context(serving(engine))
        yield made, [await stack.enter_async_context(EngineClient(Endpoint(one.url))) for one in made]


async def swept(
    clients: Sequence[EngineClient], sweep: Sweep, before: Sequence[Point] = (), most: float = math.inf
) -> tuple[list[Point], Finished | None, list[Arm]]:
    """The points of a start that measures at most so many, with its end and the arms that it lost."""
    found, lost = list[Point](), list[Arm]()

    async def keep(point: Point) -> None:
        found.append(point)
        if len(found) >= most:
            raise InterruptedError

    def shown(progress: SweepProgress) -> None:
        # Of one clock: the Unix time of a window is not the time since its warm-up began.
        assert 0.0 <= progress.point_seconds < 600.0
        assert progress.seconds_left < 3600.0

    with contextlib.suppress(InterruptedError):
        engines = dict(zip(sweep.arms, clients, strict=True))
        ended = await run_sweep(
            engines, sweep, before, on_point=keep, on_progress=shown, on_lost=lambda arm, _: lost.append(arm)
        )
        return found, ended, lost
    return found, None, lost


def blocks(points: Sequence[Point]) -> list[list[Arm]]:
    """The arms of each stretch at one load and one prompt length, in their order."""
    stretches = itertools.groupby(points, key=lambda point: (point.load, (point.prompt_tokens or 0.0) > 40.0))
    return [[point.arm for point in stretch] for _, stretch in stretches]


@in_virtual_time
async def test_all_arms_are_measured_at_one_load_before_the_next_in_reversed_order():
    async with engines() as (_, clients):
        points, ended, _ = await swept(clients, replace(SWEEP, lengths=True))
    assert ended is not None
    assert ended.complete
    found = blocks(points)
    # One client, the two probes at other lengths, the ceiling, two rates, one client again.
    assert len(found) == 7
    assert found[:4] == [list(ARMS), list(ARMS), list(ARMS[::-1]), list(ARMS[::-1])]
    assert all(len(set(block)) == len(block) for block in found)
    times = [point.begun_s for point in points]
    assert None not in times
    assert times == sorted(times)
    rates = {point.load.rps for point in points if point.load.rps}
    assert len(rates) == 2, "one list of loads for all arms"
    slow = [point for point in points if point.arm == EAGLES[1] and point.load.rps]
    assert len(slow) == 1
    # 1/(16 tokens * 9 ms) is its capacity.
    (high,) = {point.load for point in points if point.load.rps == max(rates)}
    assert SWEEP.left_out(loads_of(points)) == {EAGLES[1]: [high]}


@in_virtual_time
async def test_progress_is_said_while_an_engine_warms_up():
    seconds = list[float]()

    async def first(_: Point) -> None:
        raise InterruptedError

    async with engines(ARMS[:1]) as (_, (client,)):
        sweep = replace(SWEEP, arms=ARMS[:1], settings=replace(SETTINGS, warmup_seconds=30.0))
        with contextlib.suppress(InterruptedError):
            await run_sweep(
                {ARMS[0]: client},
                sweep,
                (),
                on_point=first,
                on_progress=lambda one: seconds.append(one.point_seconds),
            )
    # The windows of so quick an engine end within a second.
    assert sum(1.0 < one < 29.0 for one in seconds) > 20


@in_virtual_time
async def test_arms_meet_the_same_arrivals_and_prompts_at_a_load():
    async with engines(ARMS[:2]) as (made, clients):
        points, _, _ = await swept(clients, replace(SWEEP, arms=ARMS[:2]))
        rates = [point for point in points if point.load.rps]
        assert len({point.load for point in rates}) == 2
        for load in {point.load for point in rates}:
            first, second = (point for point in rates if point.load == load)
            assert first.requests == second.requests
        # The population at the begin is larger without speculation. It has prompts of its own, and later requests the same ones.
        step = SweepStep(rates[0].load, 1.0, None, 0.0, 1.0, 4.0, 4.0, number=9, total=9)
        prompts, sent = ProsePrompts(20, 0), list[list[str]]()
        for engine, client, inflight in zip(made, clients, (6.0, 2.0), strict=True):
            engine.bodies.clear()
            trial = Trial(NO_SPECULATION, prompts, WORKLOAD.answers(), EARLY)
            await measure(client, trial, replace(step, inflight=inflight), 5)
            sent.append([body["prompt"] for body in engine.bodies if body["max_tokens"] == 16])
        assert len(sent[1]) > 8
        assert sent[0][:8] == sent[1][:8]


@pytest.mark.parametrize("auto", [False, True])
@in_virtual_time
async def test_a_sweep_that_was_cut_in_the_middle_of_a_load_goes_on_there(auto):
    question = Question(ARMS, SETTINGS, expected_rps=(1.0, 2.0), lone_s=1.0) if auto else None
    sweep = replace(SWEEP, question=question, lengths=True)
    async with engines() as (_, clients):
        whole, ended, _ = await swept(clients, sweep)
    assert ended is not None
    assert len(blocks(whole)) >= 5
    async with engines() as (made, clients):
        points = list[Point]()
        for most in (5, 8, math.inf):
            more, ended, _ = await swept(clients, sweep, points, most)
            points += more
        assert ended is not None
        sent = [len(engine.bodies) for engine in made]
        assert await swept(clients, sweep, points) == ([], ended, [])
        assert [len(engine.bodies) for engine in made] == sent, "nothing is measured twice"
    if not auto:
        assert [(point.arm, point.load) for point in points] == [(point.arm, point.load) for point in whole]
    assert all(len(set(block)) == len(block) for block in blocks(points))


@in_virtual_time
async def test_a_new_arm_is_measured_at_the_loads_that_the_others_have():
    async with engines() as (_, clients):
        before, _, _ = await swept(clients[:2], replace(SWEEP, arms=ARMS[:2]))
        after, _, _ = await swept(clients, SWEEP, before)
    assert {point.arm for point in after} == {EAGLES[1]}
    assert {point.load for point in after} < {point.load for point in before}


@in_virtual_time
async def test_an_engine_that_fails_leaves_its_arm_out_and_the_last_one_ends_the_sweep():
    async with engines() as (made, clients):
        made[1].fail_after = 60
        points, ended, lost = await swept(clients, SWEEP)
        assert lost == [EAGLES[0]]
        assert ended is not None
        assert not ended.complete
        assert "eagle3/2 left out, its engine failed" in ended.reason
        assert blocks(points)[-1] == [NO_SPECULATION, EAGLES[1]]
        made[0].fail_after = made[2].fail_after = 0
        with pytest.raises(EngineError):
            await swept(clients, SWEEP)


@in_virtual_time
async def test_a_wrong_arm_is_refused_by_its_name_before_anything_is_measured():
    async with engines() as (_, clients):
        with pytest.raises(EngineError, match=r"drafts up to 2 tokens per step; expected 5 for eagle3/5$"):
            await swept(clients, replace(SWEEP, arms=(NO_SPECULATION, *EAGLES[::-1])))


def wandering(seed: int) -> Callable[[float], float]:
    """A machine whose pace wanders by 12 % (standard deviation), correlated over two minutes."""
    rng, kept = np.random.default_rng(seed), math.exp(-1.0 / 120.0)
    steps = rng.standard_normal(4000) * 0.12 * math.sqrt(1.0 - kept**2)
    state = list(
        itertools.accumulate(steps, lambda x, step: kept * x + step, initial=0.12 * rng.standard_normal())
    )
    return lambda at_s: math.exp(state[int(at_s)])


def errors(points: Sequence[Point]) -> list[float]:
    """How far ln of the ratio of latencies is off its truth, at each closed load of no speculation and the first eagle."""
    found = []
    logs = {
        arm: {p.load: math.log(p.mean_latency_s) for p in reversed(points) if p.arm == arm} for arm in ARMS
    }
    for load in logs[NO_SPECULATION].keys() & logs[EAGLES[0]].keys():
        if load.clients is not None:
            alone, more = zip(*(COSTS_S[arm] for arm in ARMS[:2]), strict=True)
            none_s, eagle_s = (c1 + (load.clients - 1) * c2 for c1, c2 in zip(alone, more, strict=True))
            found.append(logs[NO_SPECULATION][load] - logs[EAGLES[0]][load] - math.log(none_s / eagle_s))
    return found


def test_ratios_of_arms_inside_a_load_stand_on_a_machine_that_drifts_and_those_of_arms_in_turn_do_not():
    together, after = list[float](), list[float]()
    both = replace(SWEEP, arms=ARMS[:2])

    @in_virtual_time
    async def inside(seed: int) -> None:
        async with engines(ARMS[:2], wandering(seed)) as (_, clients):
            together.extend(errors((await swept(clients, both))[0]))

    @in_virtual_time
    async def in_turn(seed: int) -> None:
        async with engines(ARMS[:2], wandering(seed)) as (_, clients):
            points = list[Point]()
            for arm, client in zip(ARMS, clients, strict=False):
                points += (await swept([client], replace(SWEEP, arms=(arm,))))[0]
            after.extend(errors(points))

    for seed in range(4):
        inside(seed)
        in_turn(seed)
    assert len(together) == len(after) == 8
    off, off_in_turn = (float(np.sqrt(np.mean(np.square(found)))) for found in (together, after))
    assert off < 0.045
    assert off_in_turn > 0.06


async def paired(drift: Callable[[float], float]) -> tuple[Speedup, list[Point]]:
    sweep = replace(
        SWEEP, arms=ARMS[:2], settings=replace(SETTINGS, max_seconds=800.0), paired_rps=(2.0, 50.0)
    )
    async with engines(ARMS[:2], drift) as (_, clients):
        points, ended, _ = await swept(clients, sweep)
    assert ended is not None
    assert ended.complete
    assert ended.reason.endswith(
        "no pairs at 50 rps: beyond 80 % of the capacity of no speculation or of all others"
    )
    rows = [point for point in points if point.replicate]
    assert [point.arm for point in rows[:4]] == [*ARMS[:2], *ARMS[1::-1]]
    assert loads_of(points) == [point for point in points if not point.replicate]
    (found,) = speedups_of(points)
    assert (found.arm, found.load.rps) == (EAGLES[0], 2.0)
    return found, rows


@in_virtual_time
async def test_pairs_end_with_the_ratio_known_also_on_a_machine_that_drifts():
    steady, rows = await paired(lambda _: 1.0)
    assert len(rows) == 2 * steady.pairs == 2 * FEWEST_PAIRS
    assert steady.interval is not None
    assert steady.interval[1] / steady.interval[0] < 1.1
    # One list of arrivals in the two windows of a pair.
    assert [rows[i].requests for i in (0, 2, 4, 6)] == [rows[i].requests for i in (1, 3, 5, 7)]
    for seed in range(3):
        drifting, _ = await paired(wandering(seed))
        assert drifting.ratio == pytest.approx(steady.ratio, rel=0.08)
        low, high = drifting.interval or (0.0, 0.0)
        assert low < drifting.ratio < high < drifting.ratio * (1.0 + 3.0 * PAIRED_ERROR)


@in_virtual_time
async def test_pairs_without_an_expected_rate_are_at_the_middle_load_and_are_not_measured_twice():
    sweep = replace(SWEEP, settings=replace(SETTINGS, max_seconds=900.0), paired_rps=())
    async with engines() as (made, clients):
        points, _, _ = await swept(clients, sweep)
        (found,) = speedups_of(points)
        assert found.load in {point.load for point in loads_of(points)}
        assert found.arm != NO_SPECULATION
        sent = [len(engine.bodies) for engine in made]
        assert (await swept(clients, sweep, points))[0] == []
        assert [len(engine.bodies) for engine in made] == sent


@pytest.mark.parametrize(
    ("seconds", "fails_after", "flags", "said"),
    [
        (5.0, None, (), r"no pairs at 2 rps: the time is used"),
        (18.0, None, (), r"1 pair at 2 rps: the time is used"),
        (40.0, None, (), r"3 pairs at 2 rps, standard error \d\.\d%: the time is used"),
        (200.0, 0, (), r"no pairs at 2 rps: eagle3/2: .+"),
        (200.0, 60, (), r"[12] pairs? at 2 rps(, standard error \d\.\d%)?: eagle3/2: .+"),
        (200.0, None, ("NotSteady",), r"no pairs at 2 rps: two pairs had windows that are not usable"),
    ],
)
@in_virtual_time
async def test_pairs_that_end_early_say_why(seconds, fails_after, flags, said):
    sweep = replace(SWEEP, arms=ARMS[:2])
    async with engines(ARMS[:2]) as (made, clients):
        points, _, _ = await swept(clients, sweep)
        if fails_after is not None:
            made[1].fail_after = len(made[1].bodies) + fails_after
        asked = replace(sweep, settings=replace(SETTINGS, max_seconds=seconds), paired_rps=(2.0,))
        with pytest.MonkeyPatch.context() as patched:
            if flags:
                patched.setattr(MeasuredWindow, "flags", flags)
            _, ended, _ = await swept(clients, asked, points)
    assert ended is not None
    assert re.search(f"; {said}$", ended.reason)


async def beside_each_other(
    clients: Sequence[EngineClient],
    sweep: Sweep,
    before: Sequence[Point] = (),
    late_s: Sequence[float] = (0.0, 0.0, 0.0),
) -> tuple[dict[Arm, list[Point]], dict[Arm, dict[ImposedLoad, float]]]:
    """New points of as many sweeps as arms, each of which asks its own engine, and when each load came to its end."""
    kept = {arm: [point for point in before if point.arm == arm] for arm in sweep.arms}
    up, over, ended = set[Arm](), set[Arm](), {arm: dict[ImposedLoad, float]() for arm in sweep.arms}

    async def theirs() -> dict[Arm, list[Point] | None]:
        return {arm: [*kept[arm]] if arm in up else None for arm in kept if arm not in over}

    async def one(arm: Arm, client: EngineClient, wait_s: float) -> None:
        async def keep(point: Point) -> None:
            kept[arm].append(point)
            if loads_of([point, *kept[arm]])[0] == point:
                ended[arm][point.load] = asyncio.get_running_loop().time()

        await asyncio.sleep(wait_s)
        up.add(arm)
        with contextlib.suppress(EngineError):
            mine = replace(sweep, beside=Beside(arm, theirs))
            await run_sweep({arm: client}, mine, list(kept[arm]), on_point=keep)
        over.add(arm)

    await asyncio.gather(*map(one, sweep.arms, clients, late_s))
    return {arm: own[sum(p.arm == arm for p in before) :] for arm, own in kept.items()}, ended


def apart_s(ended: dict[Arm, dict[ImposedLoad, float]]) -> float:
    """Longest time between two arms' ends of one load."""
    times: dict[ImposedLoad, list[float]] = {}
    for own in ended.values():
        for load, time in own.items():
            times.setdefault(load, []).append(time)
    assert sum(len(one) > 1 for one in times.values()) >= 3
    return max(max(one) - min(one) for one in times.values())


@in_virtual_time
async def test_sweeps_beside_each_other_begin_each_load_together_with_the_same_arrivals():
    settings = replace(SETTINGS, loads=6)
    async with engines() as (_, clients):
        sweep = replace(SWEEP, settings=replace(settings, halved=True), lengths=True)
        first, ended = await beside_each_other(clients, sweep, late_s=(0.0, 9.0, 4.0))
        assert [len(loads_of(own)) for own in first.values()] == [3, 3, 2], (
            "the slow eagle carries no high rate"
        )
        # Their warm-ups and probes differ by a second or two.
        assert apart_s(ended) < 5.0
        none, eagle = ([p.requests for p in loads_of(first[arm]) if p.load.rps] for arm in ARMS[:2])
        assert none == eagle, "one list of arrivals"
        before = tuple(point for own in first.values() for point in loads_of(own))
        again, ended = await beside_each_other(
            clients, replace(SWEEP, settings=settings, before=before), before
        )
    assert apart_s(ended) < 5.0
    loads = [[point.load for point in own] for own in again.values()]
    # Three more loads, and one of the first start once more.
    assert loads[0] == loads[1]
    assert [load in {p.load for p in before} for load in loads[0]] == [False, False, False, True]
    assert set(loads[2][:-1]) < set(loads[0])


@in_virtual_time
async def test_a_sweep_beside_others_goes_on_without_an_engine_that_dies_or_does_not_come():
    async with engines() as (made, clients):
        made[1].fail_after = 60
        points, ended = await beside_each_other(clients, SWEEP, late_s=(0.0, 0.0, 300.0))
    none, dead, late = (loads_of(own) for own in points.values())
    assert len(dead) < len(none) == len(late) == 5
    # A minute is the least patience of a sweep.
    assert max(ended[NO_SPECULATION].values()) < 200.0


@in_virtual_time
async def test_points_of_an_arm_that_was_beside_count_in_the_choice_of_loads_when_it_is_over():
    sweep, told = replace(SWEEP, arms=ARMS[:2]), list[int]()
    async with engines(ARMS[:2]) as (_, clients):
        theirs, _, _ = await swept(clients[:1], replace(SWEEP, arms=ARMS[:1]))

        async def beside() -> dict[Arm, Sequence[Point] | None]:
            told.append(len(theirs))
            return {NO_SPECULATION: theirs[:2], EAGLES[0]: []} if len(told) == 1 else {EAGLES[0]: []}

        asked = list[Sequence[Point]]()
        with pytest.MonkeyPatch.context() as patched:

            def noted(question: Question, seen: Sequence[Point], left_s: float) -> Purchase | Finished:
                asked.append([point for point in seen if point.arm == NO_SPECULATION])
                return next_point(question, seen, left_s)

            patched.setattr(course, "next_point", noted)
            question = Question(ARMS[:2], SETTINGS, expected_rps=(1.0, 2.0), lone_s=1.0)
            mine = replace(sweep, question=question, beside=Beside(EAGLES[0], beside))

            async def keep(_: Point) -> None:
                pass

            await run_sweep({EAGLES[0]: clients[1]}, mine, [], on_point=keep)
    assert asked[-1] == loads_of(theirs[:2])


async def test_an_engine_that_is_gone_is_an_error_of_the_engine_also_on_its_metrics_page():
    (port,) = free_ports(1)
    async with EngineClient(Endpoint(f"http://127.0.0.1:{port}")) as client:
        with pytest.raises(EngineError, match="/metrics: "):
            await client.metrics_page()
