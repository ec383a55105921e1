"""Tasks beside the cycles: one per key, waited for a little, never for long, and gone when they are not wanted."""

from __future__ import annotations

import asyncio

import pytest

from breakeven_operator.cluster.prometheus_answers import Background
from fakes.virtual_time import in_virtual_time


def now_s():
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_all_are_waited_for_at_the_same_time_and_no_longer_than_that():
    ended = []

    async def work(key, takes_s):
        await asyncio.sleep(takes_s)
        ended.append(key)

    background = Background[str](2.0)
    takes_s = {"a": 1.0, "b": 1.5, "c": 9.0, "d": 60.0}
    due = {key: lambda key=key, s=s: work(key, s) for key, s in takes_s.items()}
    for expected, waited_s in ((["a", "b"], 2.0), (["a", "b"] * 2, 1.5)):
        began_s = now_s()
        await background.run(due.keys(), due)
        assert ended == expected
        assert now_s() - began_s == pytest.approx(waited_s, abs=0.01)
    await background.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_the_first_answer_of_all_is_waited_for_longer_and_no_other_one():
    async def work(takes_s):
        await asyncio.sleep(takes_s)

    for takes_s, waited_s, then_s in (((6.0,), 6.0, 2.0), ((3.0, 60.0), 3.0, 2.0), ((60.0,), 10.0, 5.0)):
        background = Background[str](2.0, first_s=8.0)
        due = {str(n): lambda s=s: work(s) for n, s in enumerate(takes_s)}
        for expected_s in (waited_s, 0.0):
            began_s = now_s()
            await background.run(due.keys(), due)
            assert now_s() - began_s == pytest.approx(expected_s, abs=0.01)
        # Another server: it is waited for as usual, but where nothing was answered yet.
        began_s = now_s()
        await background.run({"new"}, {"new": lambda: work(5.0)})
        assert now_s() - began_s == pytest.approx(then_s, abs=0.01)
        await background.close()


async def test_a_task_that_is_not_wanted_any_more_is_cancelled_also_before_its_first_step():
    begun = []

    async def work():
        begun.append(1)
        await asyncio.Event().wait()

    background = Background[str](0.0)
    await background.run({"a"}, {"a": work})
    await background.run(set(), {})
    await background.run({"a"}, {"a": work})
    await background.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_a_task_raises_reaches_the_cycle_and_the_key_begins_anew():
    async def fails():
        raise ZeroDivisionError

    ended = []

    async def works():
        ended.append(1)

    background = Background[str](5.0)
    with pytest.raises(ZeroDivisionError):
        await background.run({"a"}, {"a": fails})
    await background.run({"a"}, {"a": works})
    assert ended == [1]


async def test_a_task_that_somebody_else_cancelled_is_no_error():
    background = Background[str](0.0)

    async def waits():
        await asyncio.Event().wait()

    await background.run({"a"}, {"a": waits})
    (task,) = asyncio.all_tasks() - {asyncio.current_task()}
    task.cancel()
    await asyncio.wait([task])
    ended = []

    async def works():
        ended.append(1)

    await background.run({"a"}, {"a": works})
    await asyncio.sleep(0)
    assert ended, "its key was slow, so that this one was not waited for"
    await background.close()
