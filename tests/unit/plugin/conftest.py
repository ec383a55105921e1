"""Services as the operator writes them; each test has a copy."""

from __future__ import annotations

import pytest

from fakes.played_worlds import after_a_measured_roll, after_the_first_cycle, while_it_recommends


@pytest.fixture
def settled():
    return after_a_measured_roll().copied()


@pytest.fixture
def recommending():
    return while_it_recommends().copied()


@pytest.fixture
def fresh():
    return after_the_first_cycle().copied()
