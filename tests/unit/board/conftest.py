"""Services as a whole operator in memory left them."""

from __future__ import annotations

import pytest

from fakes.played_worlds import after_a_measured_roll, after_the_first_cycle
from fakes.published_board import published_of


@pytest.fixture(scope="session")
def settled():
    return published_of(after_a_measured_roll())


@pytest.fixture(scope="session")
def fresh():
    return published_of(after_the_first_cycle())
