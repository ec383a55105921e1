"""A few points at other lengths that show the costs of an engine's steps: without them other lengths are a guess.

Each arm has two, as soon as its first point shows how long prompts are by the engine's own count. Lone requests with a
longer prompt and answers of two tokens give prefill per prompt token: a few times the lone time to first token. A few
clients with the longer prompt give what context adds to a step: about six request latencies. With 512 prompt and 256
output tokens that is one second and up to 20 on the simulated H100. A sweep with little time left skips them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from breakeven.load_driver.design import SweepSettings, SweepStep, of_the_sweep
from breakeven.load_driver.sent_workload import SentWorkload
from breakeven.points.point import ImposedLoad, LoadMode, Point
from breakeven.points.quality import FEWEST_GENERATIONS

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
        number: in the sweep, far from those of the other points: it determines prompts and arrivals.
    """

    prompt_tokens: int
    output_tokens: int
    clients: int
    number: int

    def step(self, settings: SweepSettings, left_s: float) -> SweepStep | None:
        """The step of this probe; None if the sweep's own loads need all of the time that is left.

        Args:
            settings: of the sweep.
            left_s: for the rest of the sweep; infinite without a limit.
        """
        longest_s = min(settings.point_seconds, left_s / settings.loads)
        if longest_s < settings.min_point_seconds:
            return None
        return SweepStep(
            load=ImposedLoad(LoadMode.CLOSED, self.clients),
            latency_s=None,
            inflight=float(self.clients),
            company_s=0.0,
            warmup_s=0.0,
            window_s=longest_s,
            longest_s=longest_s,
            number=self.number,
            total=settings.loads,
            prompt_tokens=self.prompt_tokens,
        )


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
    points: Sequence[Point], workload: SentWorkload, settings: SweepSettings
) -> tuple[LengthProbe, ...]:
    """The points at other lengths that are still to be measured; none before a point shows how long prompts are."""
    own = of_the_sweep(points)
    known = [point.prompt_tokens for point in own if point.prompt_tokens]
    if not known:
        return ()
    there = {point.concurrency for point in points if point not in own}
    return tuple(
        probe for probe in probes_of(known[0], workload.output_tokens, settings) if probe.clients not in there
    )


def planned_probes(
    measured: Sequence[Point],
    workload: SentWorkload,
    settings: SweepSettings,
    left_s: float,
    latency_s: Callable[[int], float],
) -> tuple[SweepStep, ...]:
    """The steps at other lengths that are left, as long as they are expected to take.

    Args:
        measured: points of the arm so far, those at other lengths included; before any the workload says how long prompts are.
        workload: of the sweep.
        settings: of the sweep.
        left_s: for the rest of the sweep; infinite without a limit.
        latency_s: believed latency (s) of the sweep's requests among so many clients.
    """
    missing = (
        missing_probes(measured, workload, settings)
        if of_the_sweep(measured)
        else probes_of(workload.prompt_tokens, workload.output_tokens, settings)
    )
    steps = []
    for probe in missing:
        step = probe.step(settings, left_s)
        if step is None:
            break
        asked_s = (
            _lone_s(measured, latency_s(1), workload) if probe.clients == 1 else latency_s(probe.clients)
        )
        answers = max(LONE_REQUESTS / probe.clients, FEWEST_GENERATIONS if probe.clients > 1 else 0.0)
        window_s = min(answers * asked_s, step.window_s)
        steps.append(replace(step, latency_s=asked_s, warmup_s=asked_s, window_s=window_s))
    return tuple(steps)


def _lone_s(measured: Sequence[Point], lone_s: float, workload: SentWorkload) -> float:
    """Latency of a lone request with the longer prompt and a short answer; a prompt that was not timed takes a step."""
    step_s = lone_s / workload.output_tokens
    first_s = next((point.ttft_mean_s for point in of_the_sweep(measured) if point.ttft_mean_s), step_s)
    return LONGER * first_s + (LONE_TOKENS - 1) * step_s
