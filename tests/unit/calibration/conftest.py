"""Fixtures of the small world in which a run's actions have their effects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven_operator.ports import TrialSettings
from fakes.calibration_world import SETTINGS, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def settings() -> TrialSettings:
    return replace(
        SETTINGS, priority_class="calibration", queue_name="calibration", image_pull_policy="IfNotPresent"
    )
