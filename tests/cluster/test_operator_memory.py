"""The operator's memory while tenants attack it in three ways at once, on a real API server: `bench/hostile_tenants.py`."""

import asyncio
import sys

import pytest

from bench.hostile_tenants import MOST_MIB, attacked

LENGTH_S = 12.0


@pytest.mark.claim("SECURITY.md", "under all of them at once it stays below 400 MiB")
def test_memory_stays_bounded_whatever_tenants_store_and_serve(tmp_path):
    log = tmp_path / "operator.log"
    with log.open("wb") as out:
        seen = asyncio.run(attacked(sys.executable, LENGTH_S, out.fileno()))
    assert max(seen.peak_mib, seen.family_mib) < MOST_MIB, seen
    # All three did what they are for.
    assert seen.cycles >= 2, seen
    assert {reason.partition(":")[0] for reason in seen.runs} == {"InputRefused", "InvalidSpec"}, seen
    assert any("more than 16 MiB" in reason for reason in seen.runs), seen
    assert any("ConfigMap quadratic" in reason for reason in seen.runs), seen
    assert len(seen.asked) == 6, seen
