"""Fits go beside the cycles: no caller waits for one, and namespaces share the time that fits take."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven_operator.actions import Fit, FitOutcome
from breakeven_operator.cluster.fitter import FitTurns
from breakeven_operator.kinds import RUNS, Ref
from draws import draws
from fakes.manual_clock import FakeClock


class SlowFits:
    """The `Fitter` port: each fit takes as long as its points say, and ends when the test lets it."""

    def __init__(self, clock):
        self.clock = clock
        self.begun = []
        self.may_end = asyncio.Semaphore(0)

    async def fit(self, points_csv, arguments):
        self.begun.append(points_csv)
        await self.may_end.acquire()
        self.clock.advance(float(points_csv.split()[-1]))
        return FitOutcome(points_csv, None)

    async def end_one(self):
        self.may_end.release()
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
def clock():
    return FakeClock()


def fit_of(namespace, number=0, takes_s=1.0):
    run = Ref(RUNS, namespace, f"run-{number}", f"{namespace}-{number}")
    return Fit(run, f"{namespace} {number} {takes_s:g}")


async def test_a_caller_waits_for_no_fit_and_finds_its_outcome_later(clock):
    fitter = SlowFits(clock)
    ended = []
    fits = FitTurns(fitter, clock, ended=lambda: ended.append(True))
    fit = fit_of("llm")
    assert await fits.outcome(fit) is None
    assert await fits.outcome(fit) is None
    await fitter.end_one()
    assert ended, "nobody is told that the fit has ended"
    assert await fits.outcome(fit) == await fits.outcome(fit) == FitOutcome(fit.points_csv, None)
    assert len(fitter.begun) == 1, "fitted again while nothing changed"


async def test_other_points_of_the_same_run_are_fitted_anew(clock):
    fitter = SlowFits(clock)
    fits = FitTurns(fitter, clock)
    before, after = fit_of("llm", takes_s=1.0), fit_of("llm", takes_s=2.0)
    await fits.outcome(before)
    await fitter.end_one()
    assert await fits.outcome(after) is None
    await fitter.end_one()
    assert await fits.outcome(after) == FitOutcome(after.points_csv, None)


@pytest.mark.parametrize("many", [1, 5, 20])
async def test_a_namespace_with_many_large_fits_lets_another_one_be_second(clock, many):
    fitter = SlowFits(clock)
    fits = FitTurns(fitter, clock)
    for number in range(many):
        await fits.outcome(fit_of("noisy", number, 80.0))
    await fits.outcome(fit_of("quiet", 0, 3.0))
    await fitter.end_one()
    assert fitter.begun[1] == fit_of("quiet", 0, 3.0).points_csv


async def test_a_run_that_asks_no_more_is_not_fitted(clock):
    fitter = SlowFits(clock)
    fits = FitTurns(fitter, clock)
    await fits.outcome(fit_of("llm", 0))
    await fits.outcome(fit_of("llm", 1))
    clock.advance(1000.0)
    await fits.outcome(fit_of("llm", 2))
    await fitter.end_one()
    assert [text.split()[1] for text in fitter.begun] == ["0", "2"]


async def test_one_cycle_alone_waits_for_the_fit(clock):
    fitter = SlowFits(clock)
    fitter.may_end.release()
    fits = FitTurns(fitter, clock, patience_s=float("inf"))
    assert await fits.outcome(fit_of("llm")) is not None


@draws(30)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 100)), min_size=1, max_size=20))
def test_the_next_fit_is_of_the_namespace_whose_fits_have_taken_the_least_time(asked):
    async def play():
        clock = FakeClock()
        fitter = SlowFits(clock)
        fits = FitTurns(fitter, clock)
        wanted = [fit_of(namespace, number, takes_s) for number, (namespace, takes_s) in enumerate(asked)]
        waiting = {fit.points_csv for fit in wanted}
        taken_s: dict[str, float] = dict.fromkeys("abc", 0.0)
        for turn in range(len(wanted)):
            for fit in wanted:
                # Each cycle asks for all of them.
                await fits.outcome(fit)
            begun = fitter.begun[turn]
            # The first fit began before the other namespaces asked.
            least_s = min(taken_s[text[0]] for text in waiting)
            assert not turn or taken_s[begun[0]] == least_s
            waiting.remove(begun)
            taken_s[begun[0]] += float(begun.split()[-1])
            await fitter.end_one()
        assert not waiting

    asyncio.run(play())
