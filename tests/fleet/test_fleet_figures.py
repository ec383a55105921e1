"""Figures of a decision that the engines count: in the status, as gauges, and absent where they are not counted."""

from __future__ import annotations

from datetime import datetime

import pytest

from fakes.engine_pages import SCRAPE_S
from fakes.fleet_world import FleetWorld

LABELS = {"specsvc_namespace": "llm", "specsvc": "chat"}


def loaded() -> FleetWorld:
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    return world


async def test_the_share_that_the_prefix_cache_holds_is_live():
    world = loaded()
    world.prometheus.traffic.hit_share = 0.4
    await world.cycle()
    assert float(world.decision["prefixHitPercent"]) == pytest.approx(40.0)
    gauge = world.registry.get_sample_value("breakeven_prefix_cache_hit_ratio", LABELS)
    assert gauge == pytest.approx(0.4)


async def test_accepted_drafts_are_the_tokens_per_step_less_the_bonus_token():
    world = loaded()
    world.prometheus.traffic.acceptance = (0.8, 0.7)
    await world.until(lambda: world.phase == "Confirming")
    world.load(3.0)
    await world.until(lambda: world.phase is None)
    assert float(world.decision["acceptedTokensPerStep"]) == pytest.approx(1.5)
    gauge = world.registry.get_sample_value("breakeven_accepted_tokens_per_step", LABELS)
    assert gauge == pytest.approx(float(world.decision["tokensPerStep"]) - 1.0)


async def test_what_no_engine_counts_is_absent():
    world = loaded()
    await world.cycle()
    assert not {"prefixHitPercent", "acceptedTokensPerStep"} & world.decision.keys()
    assert world.registry.get_sample_value("breakeven_prefix_cache_hit_ratio", LABELS) is None
    assert world.registry.get_sample_value("breakeven_accepted_tokens_per_step", LABELS) is None


async def test_the_evidence_is_as_old_as_the_sample_that_it_rests_on():
    world = loaded()
    await world.cycle()
    made, seen = (datetime.fromisoformat(world.decision[name]) for name in ("time", "evidenceTime"))
    assert 0.0 < (made - seen).total_seconds() <= SCRAPE_S + 1.0
