"""Points of an engine that follows laws exactly, and of one that changes its draft length with the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.points.point import LoadMode, Point
from breakeven.tiers import Schedule

TOKENS = 64.0
STEEP = {NO_SPECULATION: (2.0, 0.05), Arm("eagle3", 3): (1.1, 0.075)}
"""The drafter's saturation is a third lower: its schedule ends at draft length 0."""
LEVEL = {NO_SPECULATION: (1.20, 0.070), Arm("eagle3", 3): (0.78, 0.085), Arm("eagle3", 5): (0.92, 0.072)}
"""The longer draft's saturation is nearly as high: its schedule ends there."""
CLIENTS = (1, 4, 9, 16, 30, 60)

Laws = Mapping[Arm, tuple[float, float]]


def latency_s(laws: Laws, arm: Arm, table: Schedule | None, others: float, tax: float = 0.0) -> float:
    """Mean latency among others: the law of the arm, or of the tier that a batch of the others and one more is in."""
    tier = arm
    if table is not None:
        k = table.at(round(others) + 1)
        tier = Arm(arm.method, k, arm.candidate) if k else NO_SPECULATION
    c1_s, c2_s = laws[tier]
    return (c1_s + c2_s * others) * (1.0 + tax * (table is not None and tier == NO_SPECULATION))


def points(
    laws: Laws,
    arm: Arm,
    table: Schedule | None = None,
    clients: Sequence[int] = CLIENTS,
    tax: float = 0.0,
    noise: Sequence[float] = (0.0,),
) -> list[Point]:
    """Closed loops, one point for each number of clients; latencies err by `noise` in turn."""
    found = []
    for index, number in enumerate(clients):
        mean_s = latency_s(laws, arm, table, number - 1.0, tax) * (1.0 + noise[index % len(noise)])
        found.append(
            Point(
                method=arm.method,
                k=arm.k,
                candidate=arm.candidate,
                schedule=None if table is None else str(table),
                load_mode=LoadMode.CLOSED,
                concurrency=number,
                mean_inflight=number,
                mean_latency_s=mean_s,
                output_tokens=TOKENS,
                tpot_mean_s=mean_s / TOKENS,
                tokens_per_step=1.0 + 0.4 * arm.k if arm.k else None,
            )
        )
    return found


def all_points(laws: Laws, table: Schedule, *, tax: float = 0.0) -> list[Point]:
    """Every law's arm, and the schedule of the longest draft length."""
    longest = max((arm for arm in laws if arm.k), key=lambda arm: arm.k)
    small = (0.001, -0.001, 0.0005)
    static = [point for arm in laws for point in points(laws, arm, noise=small)]
    return [*static, *points(laws, longest, table, tax=tax, noise=small)]
