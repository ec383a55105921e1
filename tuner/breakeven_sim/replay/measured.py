"""A calibration run on the simulated engine: the sweep, the points and the fit, as a real run would make them.

Every arm meets Poisson arrivals at loads from nearly alone to near the ceiling. A schedule also meets as many clients as
keep it in its last tier. Lengths are drawn from the trace that is to be replayed. Each load becomes one point, and the
points go through the library's own fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from breakeven.arm import ADAPTIVE, Arm
from breakeven.fitting.profiles import fit_points
from breakeven.points.point import LoadMode, Origin, Point
from breakeven.profile import Profile
from breakeven.tiers import Schedule
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.requests import Request
from breakeven_sim.replay.fleet import Arms
from breakeven_sim.replay.loops import closed_loop, open_loop

_LOADS = (0.05, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8)
_REQUESTS = 800
_WARM_UP = 0.15
_CEILING_REQUESTS = 300

_Ints = NDArray[np.int64]


def measured_profile(
    arms: Arms,
    wanted: Sequence[Arm],
    prompt_tokens: _Ints,
    output_tokens: _Ints,
    seed: int,
    confidence: float = 0.9,
) -> Profile:
    """Measure arms on the event clock and fit them.

    Args:
        arms: how an arm's engine runs.
        wanted: the arms; no speculation should be among them.
        prompt_tokens: lengths to draw requests from, shape (n,).
        output_tokens: likewise, of the same requests.
        seed: of arrivals and lengths; the same for every arm, so that they meet the same requests.
        confidence: of the profile's bounds.
    """
    points = measured_points(arms, wanted, prompt_tokens, output_tokens, seed)
    return fit_points(points, confidence, {"workload": "simulated"})


def measured_points(
    arms: Arms, wanted: Sequence[Arm], prompt_tokens: _Ints, output_tokens: _Ints, seed: int
) -> list[Point]:
    """The points of such a calibration; for the arguments see `measured_profile`."""
    points = []
    for arm in wanted:
        sweep = _EngineSweep(arms, arm, prompt_tokens, output_tokens, np.random.default_rng((seed, 3)))
        ceiling_rps = sweep.ceiling_rps()
        points += [sweep.open_point(share * ceiling_rps, index) for index, share in enumerate(_LOADS)]
        if (clients := _clients_of_the_last_tier(arms, arm)) is not None:
            points.append(sweep.closed_point(clients, len(_LOADS)))
    return points


def _clients_of_the_last_tier(arms: Arms, arm: Arm) -> int | None:
    """Clients that keep a schedule in the tier of its largest batches: lower loads do not show that tier's cost.

    None for an arm with one draft length, or if the engine's batches never get there.
    """
    config = arms.config(arm)
    if not config.drafts.tiers or arm.adaptive:
        return None
    first = config.drafts.tiers[-1][0]
    clients = math.ceil(first + 3.0 * math.sqrt(first))
    return clients if clients <= config.max_batch else None


@dataclass(frozen=True, slots=True)
class _EngineSweep:
    """One arm, the lengths that its requests are drawn from, and the source of randomness, which every load moves on."""

    arms: Arms
    arm: Arm
    prompts: _Ints
    outputs: _Ints
    random: np.random.Generator

    def ceiling_rps(self) -> float:
        """Rate at which requests leave while more wait than can be served together."""
        requests = self._requests(np.zeros(_CEILING_REQUESTS))
        open_loop(self.arms, self.arm, requests)
        done = np.sort([request.finished_s for request in requests])
        # The last requests leave a batch that no new request fills up.
        most = int(0.8 * len(done))
        return most / float(done[most - 1])

    def open_point(self, rps: float, index: int) -> Point:
        """The point of Poisson arrivals at a rate."""
        arrivals = np.cumsum(self.random.exponential(1.0 / rps, _REQUESTS))
        requests = self._requests(arrivals, first=index * _REQUESTS)
        engine = open_loop(self.arms, self.arm, requests)
        counted = requests[int(_WARM_UP * len(requests)) :]
        # The rate that arrived, not the rate that was asked for: 800 draws are a sample.
        rate = (len(counted) - 1) / (counted[-1].arrival_s - counted[0].arrival_s)
        load = {"load_mode": LoadMode.POISSON, "request_rate_rps": rate, "achieved_rps": rate}
        return _point(self.arms, self.arm, counted, engine, index, load)

    def closed_point(self, clients: int, index: int) -> Point:
        """The point of so many clients that each wait for their answer."""
        number = clients + max(_REQUESTS, 4 * clients)
        requests = self._requests(np.zeros(number), first=index * _REQUESTS)
        engine = closed_loop(self.arms, self.arm, requests, clients)
        # The first requests start together, and the last ones leave a batch that no new request fills up.
        counted = requests[clients : number - clients]
        load = {"load_mode": LoadMode.CLOSED, "concurrency": float(clients), "mean_inflight": float(clients)}
        return _point(self.arms, self.arm, counted, engine, index, load)

    def _requests(self, arrivals: NDArray[np.float64], first: int = 0) -> list[Request]:
        chosen = self.random.integers(0, len(self.prompts), len(arrivals))
        return [
            Request(first + i, float(arrivals[i]), int(self.prompts[j]), int(self.outputs[j]))
            for i, j in enumerate(chosen.tolist())
        ]


def _point(
    arms: Arms, arm: Arm, counted: Sequence[Request], engine: Engine, index: int, load: dict[str, Any]
) -> Point:
    """The point of a load, from the requests that were answered under it; the load's columns are given."""
    latency = np.array([r.finished_s - r.arrival_s for r in counted])
    ttft = np.array([r.first_token_s - r.arrival_s for r in counted])
    tokens = np.array([r.output_tokens for r in counted], np.float64)
    steps, drafts = sum(r.steps for r in counted), sum(r.drafts for r in counted)
    decoding = tokens > 1
    tpot = (latency - ttft)[decoding] / (tokens - 1)[decoding]
    decoded = float((tokens - 1).sum())
    return Point(
        method=arm.method,
        k=arm.k,
        candidate=arm.candidate,
        schedule=_schedule(arms, arm),
        mean_latency_s=float(latency.mean()),
        origin=Origin("simulated sweep", index + 1),
        ttft_mean_s=float(ttft.mean()),
        tpot_mean_s=float((latency - ttft).sum()) / decoded if decoded else None,
        prompt_tokens=float(np.mean([r.prompt_tokens for r in counted])),
        output_tokens=float(tokens.mean()),
        output_tokens_sq=float((tokens**2).mean()),
        tokens_per_step=decoded / steps if steps and arm.k else None,
        drafted_per_step=sum(r.drafted for r in counted) / steps if steps and arm.k else None,
        drafts=float(drafts) if arm.k else None,
        requests=float(len(counted)),
        preemptions=float(engine.preemptions),
        **load,
        **_quantiles("p{}_latency_s", latency),
        **_quantiles("ttft_p{}_s", ttft),
        **_quantiles("tpot_p{}_s", tpot),
    )


def _schedule(arms: Arms, arm: Arm) -> str | None:
    """The column of a point: which table the engine verifies by is known to an engine with adaptive verification alone."""
    if not arm.scheduled:
        return None
    return ADAPTIVE if arm.adaptive else str(Schedule(arms.config(arm).drafts.tiers))


def _quantiles(column: str, values: NDArray[np.float64]) -> dict[str, Any]:
    """Columns of the median, the 95th and the 99th percentile; none without a value."""
    if not values.size:
        return {}
    found: list[float] = np.percentile(values, [50, 95, 99]).tolist()
    return {column.format(percent): value for percent, value in zip((50, 95, 99), found, strict=True)}
