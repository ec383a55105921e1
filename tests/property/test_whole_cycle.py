"""The whole cycle over generated worlds: no exception, no silence, and every status is one that the API server takes.

A world is two laws, a policy, and a few stretches of load in which Prometheus says anything at all: saturation, zeros,
figures that are no numbers, counters that no engine could reach. What the operator decides there is not judged here.
"""

from __future__ import annotations

import asyncio
import functools
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from breakeven.arm import NO_SPECULATION
from breakeven_operator.kinds import SERVICES
from breakeven_operator.resources import SpeculativeService
from draws import draws
from fakes.fleet_world import EAGLE, GPU, FleetWorld
from fakes.lawful_profile import lawful_profile_json

# Against no speculation at 1.0 s and 0.05 s per other request: saturation at 20 rps.
LAWS = {
    "pays until 9 rps": (0.5, 0.08),
    "pays at every load": (0.5, 0.03),
    "never pays": (1.3, 0.07),
    "pays from a load on": (1.2, 0.03),
    "all but equal": (0.99, 0.0499),
    "saturates at once": (0.2, 0.9),
}
STATS = (
    "completed", "started", "ttft_s", "e2e_s", "e2e_n", "generated", "steps", "prompt_tokens", "output_tokens",
    "output_n", "running", "waiting", "waiting_min", "running_growth", "waiting_growth", "first_seen_s", "last_seen_s",
    "drafts",
)  # fmt: skip
ODD = st.one_of(
    st.sampled_from([0.0, -1.0, 1e-300, 1e13, 1e25, 1e300, math.nan, math.inf, -math.inf]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(0.0, 1e6),
)
STRETCH = st.fixed_dictionaries(
    {
        "rps": st.one_of(
            st.sampled_from([0.0, 3.0, 8.5, 9.5, 12.4, 13.0, 18.0, 19.9, 25.0]), st.floats(0, 40)
        ),
        "latency_s": st.one_of(st.none(), st.floats(1e-6, 1e6)),
        "waiting": st.sampled_from([0.0, 0.0, 5.0, 500.0]),
        "tokens_per_step": st.one_of(st.none(), st.floats(0.1, 10.0)),
        "acceptance": st.sampled_from(
            [(), (0.9, 0.6, 0.3), (0.0, 0.0, 0.0), (0.5,), (1.0, 1.0, 1.0, 1.0, 1.0)]
        ),
        "prompt_tokens": st.sampled_from([200.0, 200.0, 9000.0, 0.0]),
        "distorted": st.dictionaries(st.sampled_from(STATS), ODD, max_size=3),
        "cycles": st.integers(1, 6),
    }
)
POLICY = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["RollingUpdate", "RollingUpdate", "Recommend", "Disabled"]),
        "lookbackSeconds": st.sampled_from([0, 86400]),
        "stabilizationWindowSeconds": st.sampled_from([0, 60]),
    },
    optional={"pinnedArm": st.sampled_from(["none", "eagle/3"])},
)
SLO = st.fixed_dictionaries(
    {},
    optional={
        name: st.integers(1, 60_000)
        for name in ("tpotP95Milliseconds", "ttftP95Milliseconds", "e2eP95Milliseconds")
    },
)


@functools.cache
def profile(law: str) -> str:
    return lawful_profile_json(
        {NO_SPECULATION: (1.0, 0.05), EAGLE: LAWS[law]},
        {NO_SPECULATION: 1.0, EAGLE: 2.5},
        prompt_tokens=200.0,
        output_tokens=100.0,
        gpu=GPU,
    )


class World(FleetWorld):
    """A fleet whose Prometheus adds the odd figures of a stretch to what a load would show."""

    def __init__(self, law: str, policy: dict[str, Any], slo: dict[str, int]) -> None:
        def edit(spec: dict[str, Any]) -> None:
            spec["updatePolicy"] = {**spec["updatePolicy"], "cooldownSeconds": 0, **policy}
            if slo:
                spec["slo"] = slo

        super().__init__(edit)
        self.law = law
        self.calibrate(profile=profile(law))
        self.prometheus.past = {("llm", "chat-vllm"): (3.0, 12.0, 30.0)}

    def stretch(self, stretch: dict[str, Any]) -> None:
        self.load(stretch["rps"])
        traffic = self.prometheus.traffic
        traffic.waiting = stretch["waiting"]
        traffic.latency_s = stretch["latency_s"] or traffic.latency_s
        traffic.tokens_per_step = stretch["tokens_per_step"] or traffic.tokens_per_step
        traffic.acceptance = stretch["acceptance"]
        traffic.prompt_tokens = stretch["prompt_tokens"]
        self.prometheus.wrong = stretch["distorted"]


async def live(world: World, stretches: list[dict[str, Any]]) -> None:
    labels = {"specsvc_namespace": "llm", "specsvc": "chat"}
    for stretch in stretches:
        for _ in range(stretch["cycles"]):
            # The load follows the arm that runs, which a roll may have changed.
            world.stretch(stretch)
            report = await world.cycle()
            assert not report.errors, report.errors
            manifest = await world.cluster.get(SERVICES, "llm", "chat")
            status = SpeculativeService.read(manifest, "chat").status
            assert not status.undecided
            assert status.decision is not None, "silence"
            assert status.decision.reason
            assert status.decision.message
            assert world.registry.get_sample_value("breakeven_stale", labels) == 0
            assert b'breakeven_decision_timestamp_seconds{specsvc="chat"' in generate_latest(world.registry)
            assert b"Inf" not in b"".join(
                line
                for line in generate_latest(world.registry).splitlines()
                if line.startswith(b"breakeven_speedup")
            )


@draws(40)
@given(st.sampled_from(sorted(LAWS)), POLICY, SLO, st.lists(STRETCH, min_size=1, max_size=5), st.booleans())
def test_no_world_makes_a_cycle_fail_or_fall_silent(law, policy, slo, stretches, settled):
    quiet: dict[str, Any] = {
        "rps": 3.0,
        "latency_s": None,
        "waiting": 0.0,
        "tokens_per_step": None,
        "acceptance": (0.9, 0.6, 0.3),
        "prompt_tokens": 200.0,
        "distorted": {},
        "cycles": 9,
    }
    asyncio.run(live(World(law, policy, slo), [quiet, *stretches] if settled else stretches))
