"""The engines of examples/engine-costs do what their names say, and the demo tells it of each: in short form.

Each is calibrated on the event clock with the demo's own requests; the story comes from that profile alone. The truth it
is held against is the engine itself, under arrivals that the calibration has not seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.profile import Profile
from breakeven_sim.engine.costs import parse_costs
from breakeven_sim.engine.requests import Request
from breakeven_sim.replay.fleet_arms import CostArms
from breakeven_sim.replay.loops import open_loop
from breakeven_sim.replay.measured import measured_profile
from demo.installation import EXAMPLES, OUTPUT_TOKENS, PROMPT_TOKENS
from demo.story import Story, tell

pytestmark = pytest.mark.engine

FOLDER = EXAMPLES / "engine-costs"
EAGLE = Arm("eagle3", 3, "eagle")
MIN_GAIN = 0.05
NONE = NO_SPECULATION
# Which arm should run at the demo's low and high load.
EXPECTED = {
    "demo": (EAGLE, NONE),
    "short-context": (EAGLE, NONE),
    "pays-until-half": (EAGLE, NONE),
    "always-pays": (EAGLE, EAGLE),
    "hardly-accepts": (NONE, NONE),
    "never-pays": (NONE, NONE),
}
ENGINES = [(name, gpu) for name in EXPECTED for gpu in ("A100", "H100")]


@dataclass(frozen=True)
class Measured:
    """One engine after its calibration."""

    name: str
    arms: CostArms
    profile: Profile
    story: Story

    def latency_s(self, arm: Arm, rps: float, count: int = 1500) -> float:
        """True mean latency under Poisson arrivals; beyond saturation it grows with the number of requests."""
        arrivals = np.cumsum(np.random.default_rng(77).exponential(1.0 / rps, count))
        requests = [Request(i, float(at), PROMPT_TOKENS, OUTPUT_TOKENS) for i, at in enumerate(arrivals)]
        open_loop(self.arms, arm, requests)
        return float(np.mean([request.finished_s - request.arrival_s for request in requests]))

    def true_speedup(self, rps: float) -> float:
        """Of speculation over none, the same arrivals for both."""
        return self.latency_s(NONE, rps) / self.latency_s(EAGLE, rps)


@pytest.fixture(scope="module", params=ENGINES, ids=[f"{name}-{gpu}" for name, gpu in ENGINES])
def measured(request) -> Measured:
    name, gpu = request.param
    file = FOLDER / f"{name}.json"
    arms = CostArms(parse_costs(file.read_text(), gpu, file.name))
    lengths = np.array([PROMPT_TOKENS]), np.array([OUTPUT_TOKENS])
    profile = measured_profile(arms, [NONE, EAGLE], *lengths, seed=1)
    return Measured(name, arms, profile, tell(profile, MIN_GAIN))


def test_no_engine_is_left_out():
    assert {file.stem for file in Path(FOLDER).glob("*.json")} == set(EXPECTED)


def test_the_story_expects_the_arms_that_the_name_promises(measured):
    low, high = EXPECTED[measured.name]
    assert [phase.best for phase in measured.story.phases] == [low, high, low]
    assert measured.story.switches == (low != high)


def test_the_engine_itself_agrees_with_the_story_at_every_load_of_it(measured):
    for phase in measured.story.phases[:2]:
        speedup = measured.true_speedup(phase.rps)
        assert (speedup > 1 + MIN_GAIN) == (phase.best == EAGLE), (phase.name, phase.rps, speedup)
        assert phase.best_latency_s == pytest.approx(measured.latency_s(phase.best, phase.rps), rel=0.2)


def test_the_headline_names_the_load_at_which_the_engine_itself_breaks_even(measured):
    compared = measured.profile.compare(EAGLE, NONE, rps=0.0)
    assert measured.story.sentence.startswith(f"eagle/3 {compared.pays}; ")
    low, high = EXPECTED[measured.name]
    if low == high:
        words = {EAGLE: "pays at every load", NONE: "pays at no load"}
        assert compared.pays == words[low]
        return
    assert compared.break_even_rps is not None
    assert measured.true_speedup(compared.break_even_rps) == pytest.approx(1.0, abs=0.13)
    if measured.name == "pays-until-half":
        assert compared.break_even_rps == pytest.approx(0.5 * measured.story.phases[1].rps, rel=0.08)


def test_acceptance_is_what_makes_the_difference_only_where_the_name_says_so(measured):
    tokens_per_step = measured.profile.arm(EAGLE).tokens_per_step
    if measured.name == "hardly-accepts":
        assert 1.0 < tokens_per_step < 1.2
    elif measured.name != "never-pays":
        assert tokens_per_step > 2.5


@pytest.mark.parametrize("gpu", ["A100", "H100"])
def test_prompts_beyond_what_the_drafter_knows_are_why_the_short_context_does_not_pay(gpu):
    file = FOLDER / "short-context.json"
    arms = CostArms(parse_costs(file.read_text(), gpu, file.name))
    profile = measured_profile(arms, [NONE, EAGLE], np.array([400]), np.array([OUTPUT_TOKENS]), seed=1)
    assert 1.0 < profile.arm(EAGLE).tokens_per_step < 1.5
    assert profile.compare(EAGLE, NONE, rps=0.0).speedup < 1.0
