"""Tests that need optional programs: controllers of kinds, servers in Prometheus' place."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from localcluster.binaries import present


def asked(names: Iterable[str]) -> tuple[str, ...]:
    """Those of these optional programs that somebody wants built: all of them, or those that are named."""
    wanted = os.environ.get("BREAKEVEN_CONTROLLERS", "")
    return tuple(name for name in names if wanted == "build" or name in wanted.split(","))


def needs_controller(name: str, takes: str) -> pytest.MarkDecorator:
    """Skip where an optional program was not built and nobody asks for it, because that takes so long."""
    return pytest.mark.skipif(
        not asked([name]) and not present([name]),
        reason=f"{name} was not built yet, which takes {takes}: BREAKEVEN_CONTROLLERS=build builds it",
    )
