"""kopf only wakes the loop up: by changes of people, not by the operator's own writes."""

from __future__ import annotations

import asyncio

import kopf
import pytest

from breakeven_operator.handlers import register
from breakeven_operator.serve.health import Health
from breakeven_operator.settings import configure_kopf
from fakes.manual_clock import FakeClock


class Recorder:
    """Takes what kopf's decorators put into a registry, and into which part of it."""

    def __init__(self):
        self.parts = set()
        self.handlers = {}

    def __getattr__(self, part):
        self.parts.add(part)
        return self

    def append(self, handler):
        self.handlers[handler.id] = handler.fn


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def wired(clock) -> tuple:
    registry, health, wakes = Recorder(), Health(clock, 15.0), []
    register(registry, health, lambda: wakes.append(1))
    return registry.handlers, health, wakes


def event(kind="MODIFIED", *, generation=1, annotations=None, **status):
    meta = {"uid": "u1", "generation": generation, "annotations": annotations or {}}
    return {"type": kind, "object": {"metadata": meta, "status": status}}


async def test_a_change_wakes_and_a_status_does_not(wired):
    handlers, _, wakes = wired
    for sent, woken in (
        (event("ADDED"), 1),
        (event(decision={"reason": "x"}), 1),
        (event(generation=2), 2),
        (event(generation=2, annotations={"breakeven.dev/resume": "1"}), 3),
        (event("DELETED", generation=2), 4),
    ):
        await handlers["service"](event=sent)
        assert len(wakes) == woken


async def test_a_run_wakes_by_phase_and_point_and_not_by_its_estimate(wired):
    handlers, _, wakes = wired
    for sent, woken in (
        (event(), 1),
        (event(phase="Measuring"), 2),
        (event(phase="Measuring", display={"left": "3m"}), 2),
        (event(phase="Measuring", points=[{}]), 3),
    ):
        await handlers["run"](event=sent)
        assert len(wakes) == woken


async def test_every_event_proves_that_the_watch_lives(wired, clock):
    handlers, health, _ = wired
    health.watch_started()
    health.cycle_succeeded({"u1": 3})
    clock.advance(121.0)
    health.loop_turned()
    assert health.problem() is not None
    await handlers["service"](event=event(generation=3))
    assert health.problem() is None


def test_nothing_that_writes_to_objects_is_registered(clock):
    """kopf keeps its decorators apart: those of events, and those that put annotations and finalizers on objects."""
    registry, events, changes = Recorder(), Recorder(), Recorder()
    register(registry, Health(clock, 15.0), lambda: None)
    kopf.on.event("pods", registry=events)(lambda **_: None)
    kopf.on.update("pods", registry=changes)(lambda **_: None)
    assert sorted(registry.handlers) == ["run", "service"]
    assert registry.parts == events.parts != changes.parts
    register(kopf.OperatorRegistry(), Health(clock, 15.0), lambda: None)


def test_kopf_never_gives_up_never_pauses_and_posts_nothing():
    settings = kopf.OperatorSettings()
    configure_kopf(settings)
    delays = iter(settings.networking.error_backoffs)
    first = [next(delays) for _ in range(200)]
    assert first[:4] == [1.0, 2.0, 4.0, 8.0]
    assert max(first) == 60.0
    assert settings.posting.enabled is False
    assert settings.peering.standalone is True


async def test_handlers_are_coroutines_so_no_thread_pool_is_used(wired):
    handlers, _, _ = wired
    assert all(asyncio.iscoroutinefunction(fn) for fn in handlers.values())
