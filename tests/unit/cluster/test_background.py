"""Queries beside the cycles: one per key, waited for a little, never for long, and gone when they are not wanted."""

from __future__ import annotations

import asyncio

import pytest

from breakeven.serving.promql import EngineSeries
from breakeven_operator.cluster.prometheus_questions import Runner, StandingQuestion, Watch
from breakeven_operator.ports import PrometheusAccess
from fakes.manual_clock import FakeClock
from fakes.virtual_time import in_virtual_time


def now_s():
    return asyncio.get_running_loop().time()


def watched(name):
    return Watch(PrometheusAccess(f"http://{name}:9090"), EngineSeries(), 60, 120)


def runner(ask, settle_s, first=0):
    """Runs a question that `ask` answers, given the name of the server."""

    async def put(_metrics, watch, _about, _now):
        return await ask(watch.source.address.removeprefix("http://").removesuffix(":9090")), "ok"

    question: StandingQuestion[Watch, str] = StandingQuestion(
        put,
        lambda error: error,
        lambda _, __, answer, ___, ____: answer.reading if answer else None,
        patience=(1, first),
    )
    return Runner(question, None, FakeClock(), lambda _: None, settle_s)


def asked(*names):
    return {watched(name): () for name in names}


@in_virtual_time
async def test_all_are_waited_for_at_the_same_time_and_no_longer_than_that():
    ended = []
    takes_s = {"a": 1.0, "b": 1.5, "c": 9.0, "d": 60.0}

    async def work(name):
        await asyncio.sleep(takes_s[name])
        ended.append(name)

    background = runner(work, 2.0)
    for expected, waited_s in ((["a", "b"], 2.0), (["a", "b"] * 2, 1.5)):
        began_s = now_s()
        await background.read(asked(*takes_s))
        assert ended == expected
        assert now_s() - began_s == pytest.approx(waited_s, abs=0.01)
    await background.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_the_first_answer_of_all_is_waited_for_longer_and_no_other_one():
    for takes_s, waited_s, then_s in (((6.0,), 6.0, 2.0), ((3.0, 60.0), 3.0, 2.0), ((60.0,), 10.0, 5.0)):
        times_s = {**{str(n): s for n, s in enumerate(takes_s)}, "new": 5.0}

        async def work(name, times_s=times_s):
            await asyncio.sleep(times_s[name])

        background = runner(work, 2.0, first=4)
        old = [name for name in times_s if name != "new"]
        for expected_s in (waited_s, 0.0):
            began_s = now_s()
            await background.read(asked(*old))
            assert now_s() - began_s == pytest.approx(expected_s, abs=0.01)
        # Another server: it is waited for as usual, but where nothing was answered yet.
        began_s = now_s()
        await background.read(asked("new"))
        assert now_s() - began_s == pytest.approx(then_s, abs=0.01)
        await background.close()


async def test_a_query_that_is_not_wanted_any_more_is_cancelled_also_before_its_first_step():
    begun = []

    async def work(_name):
        begun.append(1)
        await asyncio.Event().wait()

    background = runner(work, 0.0)
    await background.read(asked("a"))
    await background.read({})
    await background.read(asked("a"))
    await background.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_surprise_is_an_answer_of_its_server_alone_and_the_server_is_asked_again(caplog):
    broken = True

    async def work(name):
        if broken and name == "a":
            raise ZeroDivisionError
        return f"figures of {name}"

    background = runner(work, 5.0)
    surprise = "reading the answer of Prometheus at a:9090 failed"
    assert list((await background.read(asked("a", "b"))).values()) == [
        f"{surprise} (ZeroDivisionError)",
        "figures of b",
    ]
    assert surprise in caplog.text
    broken = False
    assert list((await background.read(asked("a"))).values()) == ["figures of a"]


async def test_a_query_that_somebody_else_cancelled_is_no_error():
    ends = False
    ended = []

    async def work(_name):
        if not ends:
            await asyncio.Event().wait()
        ended.append(1)

    background = runner(work, 0.0)
    await background.read(asked("a"))
    (task,) = asyncio.all_tasks() - {asyncio.current_task()}
    task.cancel()
    await asyncio.wait([task])
    ends = True
    await background.read(asked("a"))
    await asyncio.sleep(0)
    assert ended
    await background.close()
