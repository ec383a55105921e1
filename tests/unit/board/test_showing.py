"""The board beside the loop: each cycle's services are shown, and no fault of the board is one of the operator."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager

import aiohttp
import pytest

from breakeven.errors import InputError
from breakeven_operator.kinds import SERVICES
from breakeven_operator.loop.assembly import Showing
from breakeven_operator.settings import read_settings
from fakes.fleet_world import FleetWorld

from .test_board_access import Reviews


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@asynccontextmanager
async def showing(world, **variables):
    settings = read_settings({f"BREAKEVEN_{name.upper()}": str(value) for name, value in variables.items()})
    one = Showing(settings, Reviews(), world.clock, 225.0)
    await one.open()
    try:
        yield one
    finally:
        await one.close()


async def got(url):
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def test_a_cycle_is_shown_with_its_services_and_those_that_break_a_rule():
    world, port = FleetWorld(), free_port()
    broken = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "SpeculativeService",
        "metadata": {"name": "broken", "namespace": "llm"},
        "spec": {
            "targetRef": {"name": "x"},
            "candidates": {"methods": [{"name": "a", "method": "no-such-method"}]},
        },
    }
    world.cluster.put(SERVICES, broken)
    world.calibrate()
    world.load(3.0)
    for _ in range(3):
        await world.cycle()
    async with showing(world, board_port=port, board_path_prefix="/fleet") as one:
        address = f"http://127.0.0.1:{port}/fleet/"
        assert (await got(address))[0] == 503
        one.show(*world.left)
        status, text = await got(address)
        assert status == 200
        assert "/services/llm/chat" in text
        assert "InvalidSpec" in text
        assert "no-such-method" in (await got(f"{address}services/llm/broken"))[1]
        # A decision that was not written shows as well: its age is that of the last cycle.
        assert "Confirmed" not in text
        _, text = await got(f"{address}services/llm/chat")
        assert "A dashed line marks the break-even." in text
        assert "The recommended arm as a patch" in text


async def test_without_a_port_there_is_no_board():
    world = FleetWorld()
    await world.cycle()
    async with showing(world) as one:
        one.show(*world.left)


async def test_an_address_that_is_taken_is_reported_and_the_other_one_is_served(caplog):
    world = FleetWorld()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with showing(world, board_port=port, board_address="127.0.0.9"):
            assert f"the board cannot listen on 127.0.0.1:{port}" in caplog.text
            # By the network a token is needed.
            assert (await got(f"http://127.0.0.9:{port}/"))[0] == 401


async def test_a_defect_of_the_board_ends_no_cycle(caplog, monkeypatch):
    world = FleetWorld()
    await world.cycle()

    def broken(_board, _published):
        raise ZeroDivisionError

    monkeypatch.setattr("breakeven_operator.board.board_server.Board.publish", broken)
    async with showing(world, board_port=free_port()) as one:
        one.show(*world.left)
    assert "publishing to the board failed" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BOARD_PORT", "70000"), ("BOARD_ADDRESS", "localhost"), ("BOARD_PATH_PREFIX", "fleet"), ("BOARD_PATH_PREFIX", "/a/"),
        ("BOARD_PATH_PREFIX", "/{x}"), ("GPU_PRICE_PER_HOUR", "-1"), ("GPU_PRICE_PER_HOUR", "nan"),
        ("DASHBOARD_URL", "grafana/d/x"), ("RUNBOOK_URL_PREFIX", "https://user:secret@wiki/"),
    ],
)  # fmt: skip
def test_settings_that_are_wrong_are_refused_by_their_name(name, value):
    with pytest.raises(InputError, match=f"^BREAKEVEN_{name}"):
        read_settings({f"BREAKEVEN_{name}": value})
