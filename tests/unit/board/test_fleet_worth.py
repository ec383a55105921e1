"""Sums of worth over services: all at their worst, all at their best, and nothing from nothing."""

from __future__ import annotations

import pytest

from breakeven.estimate import Estimate
from breakeven_operator.board.board_list import sum_of
from breakeven_operator.resources.servicestatus import SavingsStatus
from fakes.published_board import CHAT


@pytest.fixture
def status(settled):
    return settled.services[CHAT].status


def worth(basis="Running"):
    return SavingsStatus(
        gpus_arm="eagle/3",
        gpus_basis=basis,
        gpus_not_needed=12.0,
        gpus_not_needed_lower=8.0,
        gpus_not_needed_upper=16.0,
    )


def test_sums_add_all_at_their_worst_and_all_at_their_best(status):
    both = sum_of([status.replace(savings=worth()), status.replace(savings=worth())])
    assert both.counted == 2
    assert both.gpus == Estimate(24.0, 16.0, 32.0)


def test_what_is_only_recommended_is_not_summed(status):
    found = sum_of([status.replace(savings=worth("Recommended")), status.replace(savings=None)])
    assert found.counted == 0
    assert found.gpus == Estimate(0.0, 0.0, 0.0)


def test_a_cost_that_is_not_known_is_not_0(status):
    unknown = status.replace(calibration=status.calibration.replace(total_gpu_seconds=None))
    costly = status.replace(calibration=status.calibration.replace(total_gpu_seconds=1800.0))
    assert (sum_of([unknown]).calibration_gpu_hours, sum_of([unknown]).calibrated) == (None, 0)
    assert (sum_of([costly, unknown]).calibration_gpu_hours, sum_of([costly, unknown]).calibrated) == (0.5, 1)
