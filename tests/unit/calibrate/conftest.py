"""Fixtures of a live engine with a known law."""

from __future__ import annotations

import pytest

from fakes.lawful_engine import LawfulEngine, serving


@pytest.fixture
def lawful():
    """The engine's class and how to serve one: `async with serving(LawfulEngine(...)) as engine`."""
    return LawfulEngine, serving
