"""The saturation that a short sweep finds, against the engine's own: engines from nearly idle to full batches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.cli.calibrate import PointsFile
from breakeven.fitting import fit_points
from breakeven.load_driver.client import Endpoint, EngineClient
from breakeven.load_driver.course import Sweep
from breakeven.load_driver.design import SweepSettings
from breakeven.load_driver.sent_workload import SentWorkload
from breakeven.load_driver.sweep import run_sweep
from breakeven.points.point import Point
from breakeven.points.quality import FEWEST_GENERATIONS
from breakeven.profile import ArmFit
from breakeven.readers.reading import read_file
from breakeven.reasons import Reason
from breakeven_sim.engine.configuration import DraftLengths, engine_config
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.costs import parse_costs
from breakeven_sim.engine.drafting import TextSource
from breakeven_sim.engine.requests import Request
from fakes.simulated_engine import simulated
from fakes.virtual_time import in_virtual_time

pytestmark = pytest.mark.engine

EAGLE = Arm("eagle3", 3)
CONFIG = {"method": "eagle3", "model": "drafter", "num_speculative_tokens": 3}
# The demo's way of measuring: windows of 4 s, answers of 16 tokens, which speculation gives in six steps.
PROMPT, OUTPUT = 64, 16
SHORT = SweepSettings(loads=7, point_seconds=4.0, min_point_seconds=4.0, warmup_seconds=1.0)
# Steps cost what is read, not what is drafted: speculation pays at every load.
ALWAYS_PAYS = {
    "step": {"base_s": 0.02, "per_token_s": 0.0001, "per_kv_token_s": 2.4e-5, "per_prefill_token_s": 5e-5},
    "methods__eagle3__draft": {"flat_s": 0.001, "per_position_s": 0.001, "per_draft_token_s": 0.00005},
    "methods__eagle3__text": {
        "easy_rate": 0.95,
        "hard_rate": 0.7,
        "easy_share": 0.6,
        "mean_easy_stretch_tokens": 40,
    },
}
# A batch holds 24 requests: 64 clients queue.
FULL_BATCHES = {
    "step": {"base_s": 0.03, "per_token_s": 0.0008, "per_prefill_token_s": 1e-4},
    "limits__max_num_seqs": 24,
}


async def sweep(costs: dict[str, Any], arm: Arm, seed: int) -> list[Point]:
    found: list[Point] = []

    async def keep(point: Point) -> None:
        found.append(point)

    async with (
        simulated(costs, CONFIG if arm.k else None) as url,
        EngineClient(Endpoint(url)) as client,
    ):
        await run_sweep(
            {arm: client}, Sweep((arm,), SentWorkload(PROMPT, OUTPUT, seed), SHORT), [], on_point=keep
        )
    return found


def fitted(points: list[Point], file: PointsFile) -> ArmFit:
    for point in points:
        file.append(point)
    return fit_points(read_file(file.path)).arms[0]


def carried_rps(document: dict[str, Any], arm: Arm, clients: int = 400, seconds: float = 120.0) -> float:
    """Answers per second of an engine that always has more to do than it can, on its event clock."""
    costs = parse_costs(json.dumps(document), "", "test")
    drafts = DraftLengths(arm.k)
    engine = Engine(engine_config(costs, arm.method if arm.k else None, drafts, kv_pool_tokens=10**6))
    texts = TextSource(costs.method(arm.method).text, 7) if arm.k else None
    asked = answered = 0
    while engine.clock_s < seconds:
        while engine.outstanding < clients:
            asked += 1
            text = texts.draw(asked, OUTPUT) if texts else None
            engine.submit(Request(asked, engine.clock_s, PROMPT, OUTPUT, text))
        ended = len(engine.step().finished)
        answered += ended if engine.clock_s > seconds / 4 else 0
    return answered / (0.75 * seconds)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("arm", [NO_SPECULATION, EAGLE])
@pytest.mark.parametrize("engine", [ALWAYS_PAYS, FULL_BATCHES], ids=["always-pays", "full-batches"])
def test_a_short_sweep_finds_the_engines_saturation(document, tmp_path, engine, arm, seed):
    costs = document(**engine)
    seen: list[Point] = []

    @in_virtual_time
    async def measured() -> None:
        seen.extend(await sweep(costs, arm, seed))

    measured()
    fit = fitted(seen, PointsFile(tmp_path / "points.csv"))
    truth_rps = carried_rps(costs, arm)
    assert fit.saturation_rps == pytest.approx(truth_rps, rel=0.12)
    low, high = fit.saturation_ci_rps
    assert low <= fit.saturation_rps <= high
    rates = [point for point in seen if point.load.rps is not None]
    saturated = [point for point in rates if Reason.SATURATED_POINT in point.flags]
    assert all(point.load.rps > 0.85 * truth_rps for point in saturated), "a word is what was measured"
    ceiling = next(point for point in seen if (point.load.clients or 0) > 1)
    assert ceiling.requests >= FEWEST_GENERATIONS * 64
    queues = engine is FULL_BATCHES
    assert (Reason.SATURATED_POINT in ceiling.flags) is queues
    assert (fit.measured_saturation_rps is not None) is queues
