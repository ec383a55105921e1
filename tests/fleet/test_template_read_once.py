"""A target's pod template is read once per cycle, however many parts of the operator ask about it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from breakeven.serving import command_line, engine_start, opt_in, rolling
from breakeven_operator.kinds import JOBS
from breakeven_operator.workloads import served_engine as devices
from fakes.fleet_world import FleetWorld

READERS: dict[Any, str] = {
    reader.__code__: reader.__name__
    for reader in (
        command_line.command_line,
        command_line.model_of,
        engine_start.engine_start,
        command_line.speculation,
        devices.devices_of,
        rolling.drain,
        opt_in.engine_container,
        opt_in.opt_in_of,
    )
}


async def readings(cycle: Callable[[], Any]) -> Counter[str]:
    """How often the operator calls what reads a part of a template, by the reader's name."""
    found: Counter[str] = Counter()

    def seen(frame: FrameType, event: str, _: object) -> None:
        caller = frame.f_back
        if event == "call" and frame.f_code in READERS and caller is not None:
            found[READERS[frame.f_code]] += "breakeven_operator" in caller.f_code.co_filename

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        await cycle()
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize("services", [0, 2])
async def test_a_decision_reads_each_part_of_the_template_once(services: int) -> None:
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    world.add_services(services)
    found = await readings(world.cycle)
    assert set(found) == set(READERS.values())
    assert set(found.values()) == {1 + services}


async def test_a_calibration_reads_the_template_that_the_decision_read() -> None:
    """Nothing more of it is read from the run's first cycle to its first Job."""
    world = FleetWorld()
    world.load(3.0)
    while not world.cluster.of(JOBS):
        found = await readings(world.cycle)
        assert max(found.values()) == 1, found
