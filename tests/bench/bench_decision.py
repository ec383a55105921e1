"""CPU of a decision, warm: one service of two pods in the fleet in memory, a past of a day; CPU time of `ServiceDecisions.decide`.

Times compare versions alone: run two checkouts in turns, `PYTHONPATH=tests:.:tuner:operator`. Equal digests say that all statuses
are equal.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import statistics
import time
from collections.abc import Mapping
from typing import Any

from breakeven.arm import Arm
from breakeven_operator.loop.service_decisions import ServiceDecisions
from fakes.fleet_world import GPU, LAWS, FleetWorld
from fakes.lawful_profile import lawful_profile_json

DECISIONS = 40
DRAFTS = {
    Arm("eagle3", 5, "eagle"): (0.45, 0.11),
    Arm("eagle3", 7, "eagle"): (0.47, 0.12),
    Arm("ngram", 4, "ngram"): (0.78, 0.075),
    Arm("ngram", 6, "ngram"): (0.8, 0.062),
}
NGRAM = {"name": "ngram", "method": "ngram", "schedule": "Never", "adaptiveVerification": "Never"}


def specified(spec: dict[str, Any], *, objective: bool) -> None:
    spec["updatePolicy"].update(lookbackSeconds=86400, stabilizationWindowSeconds=0)
    if objective:
        spec["slo"] = {"e2eP95Milliseconds": 6000}
        methods = spec["candidates"]["methods"]
        methods[0]["draftLengths"] = [3, 5, 7]
        methods.append(NGRAM | {"draftLengths": [4, 6]})


async def decided(loads: tuple[float, ...], *, objective: bool) -> tuple[list[float], str]:
    """CPU seconds of each decision while the load goes through these rates by chance, and a digest of the statuses."""
    world = FleetWorld(lambda spec: specified(spec, objective=objective))
    world.prometheus.past["llm", "chat-vllm"] = (3.0,) * 288
    laws: Mapping[Arm, tuple[float, float]] = LAWS | (DRAFTS if objective else {})
    tokens = {arm: 2.5 if arm.k else 1.0 for arm in laws}
    world.laws.update(laws)
    profile = lawful_profile_json(laws, tokens, prompt_tokens=200.0, output_tokens=100.0, gpu=GPU)
    world.calibrate(arms=laws, profile=profile)
    world.load(loads[0])
    decide, drawn, spent_s, digest = ServiceDecisions.decide, random.Random(5), [], hashlib.sha256()

    def timed(self: ServiceDecisions, *given: Any, **named: Any) -> Any:
        began_s = time.process_time()
        outcome = decide(self, *given, **named)
        spent_s.append(time.process_time() - began_s)
        digest.update(json.dumps(outcome.status.to_json_object(), sort_keys=True).encode())
        return outcome

    ServiceDecisions.decide = timed  # type: ignore[method-assign]
    while len(spent_s) < 2 * DECISIONS:
        world.load(drawn.choice(loads))
        await world.cycle(300.0)
    ServiceDecisions.decide = decide  # type: ignore[method-assign]
    return spent_s[DECISIONS:], digest.hexdigest()[:12]


def main() -> None:
    worlds = {
        "steady": ((3.0,), False),
        "loads that change": ((2.0, 2.5, 3.0, 3.5, 4.0, 4.5), False),
        "an objective, six arms": ((3.0, 2.0, 2.5, 3.5, 4.0, 4.5), True),
    }
    for name, (loads, objective) in worlds.items():
        spent_s, digest = asyncio.run(decided(loads, objective=objective))
        times = f"median {1000 * statistics.median(spent_s):.1f} ms, least {1000 * min(spent_s):.1f} ms"
        print(f"{name}: {times}; statuses {digest}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
