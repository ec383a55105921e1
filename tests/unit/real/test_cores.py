"""Which core is the engine's, and what that means for the figures."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from real.cores import split, yardstick_ms

CORES = st.sets(st.integers(0, 255), min_size=1)


@given(CORES)
def test_every_core_is_used_and_the_engines_is_its_own_where_there_are_two(allowed):
    found = split(allowed)
    assert {found.engine, *found.others} == allowed
    assert found.shared == (len(allowed) == 1)
    assert list(found.others) == sorted(found.others)


def test_the_first_core_is_left_to_everything_else():
    assert (split({0, 1}).engine, split({0, 1}).others) == (1, (0,))
    assert (split({2, 5, 3}).engine, split({2, 5, 3}).others) == (5, (2, 3))


def test_one_core_is_shared_and_that_is_said():
    assert "shares it with the users" in split({3}).sentence()
    assert split({0, 1}).sentence() == ("the engine has core 1 to itself; everything else runs on core 0")


def test_no_core_at_all_is_refused():
    with pytest.raises(ValueError, match="no core"):
        split(())


def test_the_yardstick_is_time_on_the_core_and_leaves_the_thread_where_it_was():
    allowed = os.sched_getaffinity(0)
    core = max(allowed)
    begun_s = time.thread_time()
    found_ms = yardstick_ms(core)
    assert os.sched_getaffinity(0) == allowed
    # The median of seven loops is less than all of them took.
    assert 0 < found_ms < (time.thread_time() - begun_s) * 1e3 / 4
