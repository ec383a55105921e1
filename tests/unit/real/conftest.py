"""The profile that tests of the real run share."""

from __future__ import annotations

import pytest

from fakes.core_profile import core_profile


@pytest.fixture(scope="session")
def profile():
    return core_profile()
