"""A fleet that is rolled, by events: requests of any length on pods that fill, warm up and drain, and the counters they show.

It knows neither the engine of `breakeven_sim` nor any law of ours. A pod works on all of its requests at one pace.
The pace falls with their number by a straight line, by a knee or by the slower of two regimes. The true speedup is
the ratio of the mean latencies at one rate per pod. It is exact, because processor sharing whose pace depends on the
number in service has a product form: the mean latency depends on the mean of the work alone, whatever its
distribution.

Counters are read as Prometheus has them: scraped every 15 s at a moment of each pod's own, and looked up once a block.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from breakeven.laws.arrays import FloatArray

SCRAPE_S, BLOCK_S = 15.0, 60.0
FULL = 400
"""Requests in one pod beyond which the pace falls no further."""
READY_S, GRACE_S = 45.0, 600.0
"""Until a new pod serves; and until a draining one is killed."""
OUTPUT, PROMPT, PREFILL = 200.0, 400.0, 40.0
"""Mean tokens of an answer and of a prompt; the work of a whole prompt in tokens of an answer."""
WARM_HITS = 0.5

StepCost = Callable[[FloatArray], FloatArray]
"""Seconds per step in units of a lone request's, by the number of requests."""

ENGINES: Mapping[str, StepCost] = {
    "line": lambda n: 1.0 + 0.04 * (n - 1.0),
    "knee": lambda n: 1.0 + 0.08 * np.maximum(n - 6.0, 0.0),
    "regimes": lambda n: np.maximum(1.0 + 0.01 * n, 0.5 + 0.075 * n),
    "steep": lambda n: 1.0 + 0.09 * (n - 1.0),
    "flat": lambda n: 1.0 + 0.015 * (n - 1.0),
}


@dataclass(frozen=True)
class RolledShape:
    """A fleet and its users.

    Attributes:
        mean_s: mean latency of the old arm.
        cv: coefficient of variation of the answers' lengths (lognormal; 0: constant).
        engine: whose pace the pods have.
        inflight: mean requests in a pod of the old arm.
        balanced: RoundRobin or LeastRequest.
        cold: share by which a new pod is slower when it begins. cold_s: time constant of its decay.
        falls: Decaying, or straight to nothing at twice the time constant.
        counted: whether hits of the prefix cache are counted, and are missing while a pod is cold. None: no series of them.
        drift: lengths of prompts and answers an hour after the roll has begun, in those of before.
        pod_sd: by which pods differ.
        replicas: of the fleet.
    """

    mean_s: float
    cv: float
    engine: str = "line"
    inflight: float = 8.0
    balanced: str = "RoundRobin"
    cold: float = 0.0
    cold_s: float = 600.0
    falls: str = "Decaying"
    counted: bool | None = False
    drift: float = 1.0
    pod_sd: float = 0.02
    replicas: int = 4


def mean_latency_s(work_s: FloatArray, rps: float) -> float:
    """Exact mean latency of processor sharing whose request takes `work_s[i - 1]` among i - 1 others."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(rps * work_s) - np.log(np.arange(1, work_s.size + 1)))])
    share = np.exp(logs - logs.max())
    return float(share @ np.arange(share.size) / share.sum() / rps)


def work_s(engine: str, alone_s: float) -> FloatArray:
    """Seconds of a mean request by the number in service."""
    number = np.arange(1.0, FULL + 1)
    return alone_s * ENGINES[engine](number)


@dataclass(frozen=True)
class TruePaces:
    """Paces of both arms at a rate per pod.

    Attributes:
        rps: per pod.
        old_s, new_s: seconds of a mean request alone.
    """

    rps: float
    old_s: float
    new_s: float


def arms_of(shape: RolledShape, speedup: float) -> TruePaces:
    """The paces at which the old arm has the wanted latency, and the new one is faster by the wanted ratio."""
    rps = shape.inflight / shape.mean_s

    def alone_s(latency_s: float) -> float:
        low, high = 0.0, latency_s
        for _ in range(60):
            middle = 0.5 * (low + high)
            slow = mean_latency_s(work_s(shape.engine, middle), rps) > latency_s
            low, high = (low, middle) if slow else (middle, high)
        return 0.5 * (low + high)

    return TruePaces(rps, alone_s(shape.mean_s), alone_s(shape.mean_s / speedup))


class Pod:
    """One engine: requests in service, and what it has counted."""

    def __init__(
        self, shape: RolledShape, alone_s: float, factor: float, began_s: float, scrape_s: float, warm: bool
    ) -> None:
        number = np.arange(1.0, FULL + 1)
        # Tokens per second of one request among others.
        whole = PREFILL + OUTPUT
        self.pace = (whole / (factor * alone_s * ENGINES[shape.engine](number))).tolist()
        self.shape, self.began_s, self.warm = shape, began_s, warm
        self.now_s, self.progress, self.inside, self.decoding = began_s, 0.0, 0, 0
        self.marks: list[tuple[float, float, float]] = []
        self.gone_s = math.inf
        self.next_scrape_s = began_s + scrape_s
        self.counts = dict.fromkeys(
            ("started", "ttft_s", "generated", "step_s", "e2e_s", "e2e_n", "output_tokens", "hits", "prefilled"), 0.0
        )  # fmt: skip
        self.samples: list[tuple[float, ...]] = []

    def coldness(self) -> float:
        """The rest of the start's slowness, from 1 to 0."""
        if self.warm or not self.shape.cold:
            return 0.0
        age = (self.now_s - self.began_s) / self.shape.cold_s
        return math.exp(-age) if self.shape.falls == "Decaying" else max(1.0 - 0.5 * age, 0.0)

    def take(self, output: float, prompt: float) -> None:
        """A request that comes now."""
        prefill = PREFILL * prompt / PROMPT
        heapq.heappush(self.marks, (self.progress + prefill, self.now_s, output))
        self.inside += 1
        self.counts["prefilled"] += prompt
        if self.shape.counted:
            self.counts["hits"] += prompt * WARM_HITS * (1.0 - self.coldness())

    def advance(self, until_s: float) -> None:
        """Work on until a time, and be scraped on the way."""
        while self.next_scrape_s <= until_s and self.next_scrape_s < self.gone_s:
            self._work(self.next_scrape_s)
            self.samples.append((self.now_s, float(self.inside), *self.counts.values()))
            self.next_scrape_s += SCRAPE_S
        self._work(until_s)

    def _work(self, until_s: float) -> None:
        marks, counts = self.marks, self.counts
        while marks:
            pace = self.pace[min(self.inside, FULL) - 1] / (1.0 + self.shape.cold * self.coldness())
            took_s = (marks[0][0] - self.progress) / pace
            left_s = until_s - self.now_s
            span_s = min(took_s, left_s)
            counts["step_s"] += self.decoding * span_s
            counts["generated"] += self.decoding * span_s * pace
            self.progress += span_s * pace
            self.now_s += span_s
            if took_s > left_s:
                break
            mark, came_s, output = heapq.heappop(marks)
            self.progress = mark
            if output > 0.0:
                # The first token is there.
                counts["started"] += 1.0
                counts["generated"] += 1.0
                counts["ttft_s"] += self.now_s - came_s
                self.decoding += 1
                heapq.heappush(marks, (mark + max(output - 1.0, 1e-3), came_s, -output))
            else:
                counts["e2e_s"] += self.now_s - came_s
                counts["e2e_n"] += 1.0
                counts["output_tokens"] -= output
                self.decoding -= 1
                self.inside -= 1
        self.now_s = until_s


@dataclass(frozen=True)
class Rolled:
    """Prometheus' figures of a fleet.

    Attributes:
        times_s: ends of blocks. began_s, finished_s: of the roll.
        old, new: statistics of each pod by name, NaN where it was not scraped.
    """

    times_s: FloatArray
    began_s: float
    finished_s: float
    old: tuple[Mapping[str, FloatArray], ...]
    new: tuple[Mapping[str, FloatArray], ...]


def lengths(rng: np.random.Generator, cv: float, count: int) -> FloatArray:
    """Lognormal, of mean 1."""
    spread = math.sqrt(math.log1p(cv**2))
    return rng.lognormal(-0.5 * spread**2, spread, count) if cv else np.ones(count)


def rolled_fleet(
    shape: RolledShape, speedup: float, seed: int, *, before_s: float = 1800.0, after_s: float = 2160.0
) -> Rolled:
    """A roll, one pod after another with one more than there are replicas meanwhile, and what came before and after it."""
    rng, arms = np.random.default_rng(seed), arms_of(shape, speedup)
    count = shape.replicas
    # Long requests have filled the pods before anybody looks.
    lead_s = 6.0 * shape.mean_s * (1.0 + shape.cv)
    begin_s = lead_s + before_s
    each_s = READY_S + 15.0
    finished_s = begin_s + each_s * count
    end_s = finished_s + after_s
    expected = arms.rps * count * end_s
    arrived = np.cumsum(
        rng.exponential(1.0 / (arms.rps * count), int(expected + 8.0 * math.sqrt(expected) + 20))
    )
    arrived = arrived[arrived < end_s]
    longer = 1.0 + (shape.drift - 1.0) * np.clip((arrived - begin_s) / 3600.0, 0.0, 1.0)
    outputs = OUTPUT * longer * lengths(rng, shape.cv, arrived.size)
    prompts = PROMPT * longer * lengths(rng, 0.5 * shape.cv, arrived.size)

    def pod(alone_s: float, at_s: float, warm: bool) -> Pod:
        return Pod(
            shape,
            alone_s,
            math.exp(shape.pod_sd * rng.standard_normal()),
            at_s,
            rng.uniform(0.0, SCRAPE_S),
            warm,
        )

    old = [pod(arms.old_s, 0.0, True) for _ in range(count)]
    new: list[Pod] = []
    serving, turn = list(old), 0
    changes: Iterator[float] = iter([begin_s + READY_S + each_s * number for number in range(count)])
    change_s = next(changes)
    for at_s, output, prompt in zip(arrived.tolist(), outputs.tolist(), prompts.tolist(), strict=True):
        while at_s >= change_s:
            new.append(pod(arms.new_s, change_s, False))
            leaving = old[len(new) - 1]
            leaving.gone_s = change_s + GRACE_S
            serving = [one for one in serving if one is not leaving] + [new[-1]]
            change_s = next(changes, math.inf)
        if shape.balanced == "RoundRobin":
            turn += 1
            chosen = serving[turn % len(serving)]
            chosen.advance(at_s)
        else:
            for one in serving:
                one.advance(at_s)
            least = min(one.inside for one in serving)
            idle = [one for one in serving if one.inside == least]
            chosen = idle[int(rng.integers(len(idle)))]
        chosen.take(output, prompt)
    for one in (*old, *new):
        one.advance(end_s)
    times = np.arange(math.ceil((begin_s - before_s) / BLOCK_S) * BLOCK_S, end_s, BLOCK_S)
    return Rolled(
        times, begin_s, finished_s, *(tuple(_seen(one, times) for one in arm) for arm in (old, new))
    )


def _seen(pod: Pod, times: FloatArray) -> dict[str, FloatArray]:
    """The newest sample at each time, as an instant vector has it: none where the target is gone."""
    at_s = np.array([sample[0] for sample in pod.samples])
    names = ("sampled_s", "running", *pod.counts)
    if not at_s.size:
        return {name: np.full(times.size, np.nan) for name in names}
    # A pod that has drained is gone before it is killed.
    busy = [sample[0] for sample in pod.samples if sample[1] > 0.0]
    last_s = min(max(busy, default=0.0), pod.gone_s) if pod.gone_s < math.inf else math.inf
    place = np.searchsorted(at_s, times, side="right") - 1
    there = (place >= 0) & (times <= last_s + SCRAPE_S)
    columns = np.array(pod.samples).T
    found = {
        name: np.where(there, column[np.maximum(place, 0)], np.nan)
        for name, column in zip(names, columns, strict=True)
    }
    if pod.shape.counted is None:
        del found["hits"]
    return found | {"waiting": np.where(there, 0.0, np.nan)}
