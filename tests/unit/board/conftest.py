"""Services as a whole operator in memory left them."""

from __future__ import annotations

import pytest

from fakes.played_worlds import after_a_measured_roll, after_the_first_cycle, while_it_recommends
from fakes.published_board import fleet_of, published_of


@pytest.fixture(scope="session")
def settled():
    return published_of(after_a_measured_roll())


@pytest.fixture(scope="session")
def fresh():
    return published_of(after_the_first_cycle())


@pytest.fixture(scope="session")
def fleet(settled):
    return fleet_of(settled)


@pytest.fixture(scope="session")
def recommending():
    """A fleet in which speculation is recommended, and what its operator left."""
    world = while_it_recommends()
    return world, published_of(world)
