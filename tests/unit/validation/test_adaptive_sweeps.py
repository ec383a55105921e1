"""The law of adaptive verification on the two public sweeps: errors at loads kept apart, and the order of the arms."""

from __future__ import annotations

import pytest

from validation.adaptive_sweeps import judged, order_kept, sweeps

SWEEPS = {sweep.gpu: sweep for sweep in sweeps()}


def test_both_public_sweeps_are_among_the_published_cells():
    assert {name: sweep.clients for name, sweep in SWEEPS.items()} == {
        "MI355X": [4, 8, 16, 32, 64, 128, 256],
        "B300": [1, 16, 32, 64, 128, 256],
    }


@pytest.mark.parametrize("gpu", ["MI355X", "B300"])
def test_from_two_loads_of_it_the_others_come_out_within_a_tenth_and_the_order_of_arms_stays(gpu):
    sweep = SWEEPS[gpu]
    found = judged(sweep, sweep.two)
    apart = [abs(one.errors[-1]) for one in found if one.clients not in sweep.two]
    assert max(apart) < 0.10, apart
    assert all(order_kept(one.measured, one.told) for one in found), found


@pytest.mark.parametrize(
    ("told", "kept"), [((1.0, 2.0, 3.0), True), ((1.0, 3.0, 2.0), False), ((1.0, 2.001, 2.0), True)]
)
def test_arms_change_places_only_if_they_differ(told, kept):
    assert order_kept((1.0, 2.0, 3.0), told) is kept
