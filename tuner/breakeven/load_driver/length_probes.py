"""The few points at other lengths that tell what an engine's steps cost: without them other lengths are a guess.

Two per arm, as soon as its first point tells how long prompts are by the engine's own count. Lone requests with a longer
prompt and answers of two tokens give prefill per prompt token: a few times the lone time to first token. A few clients with
the longer prompt give what context adds to a step: a few request latencies. On an 8B model on one H100 that is about a
second and about ten seconds.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from breakeven.load_driver.client import EngineClient, EngineError
from breakeven.load_driver.design import SweepSettings, SweepStep, of_the_sweep
from breakeven.load_driver.measuring import Precision, Trial, measure
from breakeven.load_driver.workload import SYNTHETIC, ProsePrompts, Workload
from breakeven.points.point import ImposedLoad, LoadMode, Point

LONGER = 4
"""The second prompt length over the first: live lengths up to four times the calibrated ones are then between points."""

CLIENTS = 16
LONE_REQUESTS = 5
LONE_TOKENS = 2

_FIRST_NUMBER = 900


@dataclass(frozen=True, slots=True)
class LengthProbe:
    """One point at other lengths.

    Attributes:
        prompt_tokens: wanted.
        output_tokens: exact.
        clients: of a closed loop.
        number: in the sweep, far from those of the other points: prompts and arrivals hang on it.
    """

    prompt_tokens: int
    output_tokens: int
    clients: int
    number: int


def probes_of(
    prompt_tokens: float, output_tokens: int, settings: SweepSettings
) -> tuple[LengthProbe, LengthProbe]:
    """The points at other lengths that an arm needs.

    Args:
        prompt_tokens: mean prompt length of the sweep.
        output_tokens: mean output length of the sweep.
        settings: of the sweep.
    """
    longer = round(LONGER * prompt_tokens)
    clients = max(min(CLIENTS, settings.max_concurrency // 2), 2)
    return (
        LengthProbe(longer, LONE_TOKENS, 1, _FIRST_NUMBER),
        LengthProbe(longer, output_tokens, clients, _FIRST_NUMBER + 1),
    )


def missing_probes(
    points: Sequence[Point], workload: Workload, settings: SweepSettings
) -> tuple[LengthProbe, ...]:
    """The points at other lengths that are still to be measured; none before a point tells how long prompts are."""
    own = of_the_sweep(points)
    known = [point.prompt_tokens for point in own if point.prompt_tokens]
    if not known:
        return ()
    there = {point.concurrency for point in points if point not in own}
    return tuple(
        probe for probe in probes_of(known[0], workload.output_tokens, settings) if probe.clients not in there
    )


async def measure_probes(
    client: EngineClient,
    trial: Trial,
    workload: Workload,
    settings: SweepSettings,
    measured: Sequence[Point],
    on_point: Callable[[Point], Awaitable[None]],
    sized: Callable[[EngineClient, Workload], Awaitable[ProsePrompts]],
) -> None:
    """Measure what is missing of them; an engine that cannot take so long a prompt has none.

    Args:
        client: the engine, opened.
        trial: of the sweep.
        workload: of the sweep.
        settings: of the sweep.
        measured: points of this arm and workload, at least one of them at its own lengths.
        on_point: makes a point durable.
        sized: makes prompts of a wanted length.
    """
    missing = missing_probes(measured, workload, settings)
    if not missing:
        return
    # Made-up prose of one length, nothing shared: a prompt that the cache holds tells nothing of prefill.
    plain = Workload(missing[0].prompt_tokens, workload.output_tokens, workload.seed)
    # Their number is fixed: a window ends with its requests, neither with a time nor with a precision.
    precision = Precision(math.inf, LONE_REQUESTS, 0.0, LONE_REQUESTS)
    # Too long for the model: the arm is measured as before, and other lengths stay a range. An engine that is gone fails
    # the sweep's next point.
    with contextlib.suppress(EngineError):
        prompts = await sized(client, plain)
        for probe in missing:
            asked = Trial(trial.arm, prompts, probe.output_tokens, precision)
            seed = workload.seed * 1000 + probe.number
            window = await measure(client, asked, _step(probe, settings), seed)
            await on_point(replace(window.point(), text_source=SYNTHETIC))


def _step(probe: LengthProbe, settings: SweepSettings) -> SweepStep:
    return SweepStep(
        load=ImposedLoad(LoadMode.CLOSED, probe.clients),
        latency_s=None,
        inflight=float(probe.clients),
        company_s=0.0,
        warmup_s=0.0,
        window_s=settings.point_seconds,
        longest_s=settings.point_seconds,
        number=probe.number,
        total=settings.loads,
    )
