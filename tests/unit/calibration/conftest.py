"""Fixtures of the small world in which a run's actions have their effects."""

from __future__ import annotations

import pytest

from breakeven_operator.settings import Settings
from fakes.calibration_world import SETTINGS, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def settings() -> Settings:
    return SETTINGS.model_copy(
        update={
            "trial_priority_class": "calibration",
            "trial_queue_name": "calibration",
            "trial_image_pull_policy": "IfNotPresent",
        }
    )
