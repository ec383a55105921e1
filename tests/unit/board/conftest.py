"""Services as a whole operator in memory left them."""

from __future__ import annotations

import pytest

from fakes.published_board import after_a_measured_roll, after_the_first_cycle


@pytest.fixture(scope="session")
def settled():
    return after_a_measured_roll()


@pytest.fixture(scope="session")
def fresh():
    return after_the_first_cycle()
