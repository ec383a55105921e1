"""Tests that need optional programs: controllers of kinds, servers in Prometheus' place."""

from __future__ import annotations

import os

import pytest

from localcluster.binaries import present


def needs_controller(name: str, takes: str) -> pytest.MarkDecorator:
    """Skip where an optional program was not built and nobody asks for it, because that takes so long."""
    return pytest.mark.skipif(
        os.environ.get("BREAKEVEN_CONTROLLERS") != "build" and not present([name]),
        reason=f"{name} was not built yet, which takes {takes}: BREAKEVEN_CONTROLLERS=build builds it",
    )
