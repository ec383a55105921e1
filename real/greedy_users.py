"""Users of the real engine: prose of its own vocabulary, greedy answers; and what they and the engine counted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from breakeven.load_driver.counters import between, read_counters
from breakeven.load_driver.measuring import send_offsets
from breakeven.load_driver.sent_workload import ProsePrompts
from breakeven.points.point import ImposedLoad, LoadMode
from demo.traffic import Endpoints, RequestOutcome, RequestShape, Traffic
from real.tasks import TASKS

_TIMEOUT_S = 300.0
_SUM = re.compile(
    r"^vllm:(?P<name>e2e_request_latency_seconds|request_generation_tokens)_(?P<part>sum|count)(?:\{.*\})?\s+"
    r"(?P<value>\S+)\s*$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """Counts on an engine's metrics page since its start.

    Attributes:
        page: the page, for the counters of steps and drafts.
        requests: answered.
        latency_s: their latencies, summed.
        output_tokens: tokens they got.
    """

    page: str
    requests: float
    latency_s: float
    output_tokens: float

    @classmethod
    def read(cls, page: str) -> EngineTotals:
        """From the text of a page; an engine that has answered nothing counts zero."""
        sums: dict[tuple[str, str], float] = {}
        for found in _SUM.finditer(page):
            key = (found["name"], found["part"])
            sums[key] = sums.get(key, 0.0) + float(found["value"])
        latency = "e2e_request_latency_seconds"
        return cls(
            page,
            sums.get((latency, "count"), 0.0),
            sums.get((latency, "sum"), 0.0),
            sums.get(("request_generation_tokens", "sum"), 0.0),
        )


@dataclass(frozen=True, slots=True)
class Account:
    """The same requests as their users and as their engine counted them.

    Attributes:
        asked, answered: requests sent, and those answered whole.
        client_latency_s, engine_latency_s: mean end-to-end latency.
        client_tokens, engine_tokens: output tokens.
        engine_requests: requests that the engine counts as ended.
        tokens_per_step: E by the engine's counters; None if nothing was decoded.
    """

    asked: int
    answered: int
    client_latency_s: float
    engine_latency_s: float
    client_tokens: int
    engine_tokens: float
    engine_requests: float
    tokens_per_step: float | None


@dataclass(frozen=True, slots=True)
class SteadyLoad:
    """A steady load from an idle engine to an idle engine.

    Attributes:
        rps: offered.
        shape: of every request.
        seconds: how long is sent.
        warmup_s: whoever is sent before this meets an engine that is not busy yet, and is not in the mean.
    """

    rps: float
    shape: RequestShape
    seconds: float
    warmup_s: float


@dataclass(frozen=True, slots=True)
class Offered:
    """Result of a load.

    Attributes:
        load: the load.
        rps: sent per second in the time that counts.
        latency_s: mean of those requests; NaN without any.
        counted: how many they are.
        account: of all requests.
    """

    load: SteadyLoad
    rps: float
    latency_s: float
    counted: int
    account: Account


class Users(Traffic):
    """Users who ask for greedy answers to made-up prose, each prompt another one."""

    def __init__(self, model: str, shape: RequestShape, endpoints: Endpoints, *, seed: int) -> None:
        super().__init__(model, shape, endpoints, seed=seed)
        self._seed = seed
        self._asked = 0

    def body(self) -> Mapping[str, Any]:
        """The next prompt; at temperature 0, because sampled answers of random weights never repeat themselves."""
        self._asked += 1
        prose = ProsePrompts(self.shape.prompt_tokens, self._seed)
        return {**super().body(), "prompt": prose.prompt(self._asked), "temperature": 0}

    async def offer(self, load: SteadyLoad) -> Offered:
        """Send a load (Poisson arrivals) and wait for every answer. The endpoints must be one pod, idle before and after.

        Raises:
            aiohttp.ClientError: the engine's metrics page cannot be read.
        """
        self.shape = load.shape
        (url,) = self.endpoints.urls.values()
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            before = await _totals(session, url)
            first, clock = len(self.outcomes), asyncio.get_running_loop()
            started = clock.time()
            sent: list[tuple[float, asyncio.Task[None]]] = []
            for offset in send_offsets(ImposedLoad(LoadMode.POISSON, load.rps), self._seed, load.seconds):
                if offset >= load.seconds:
                    break
                await asyncio.sleep(max(0.0, started + offset - clock.time()))
                sent.append((offset, asyncio.create_task(self._request(session))))
            await asyncio.gather(*(task for _, task in sent))
            after = await _totals(session, url)
        outcomes = sorted(self.outcomes[first:], key=lambda outcome: outcome.sent_s)
        counted = steady(outcomes, load)
        latency_s = sum(o.latency_s for o in counted) / len(counted) if counted else float("nan")
        account = reconcile(outcomes, before, after)
        window_s = load.seconds - load.warmup_s - latency_s
        return Offered(load, len(counted) / window_s if counted else 0.0, latency_s, len(counted), account)


class TaskUsers(Users):
    """Users who ask a language model for the tasks of a mix, in turn.

    Attributes:
        mix: names of tasks; it may be changed while they ask.
    """

    mix: Sequence[str] = tuple(TASKS)

    def body(self) -> Mapping[str, Any]:
        """The next task, in the form of a conversation's first turn."""
        body = super().body()
        task = TASKS[self.mix[self._asked % len(self.mix)]]
        return {**body, "prompt": f"<|im_start|>user\n{task}<|im_end|>\n<|im_start|>assistant\n"}


def steady(outcomes: Sequence[RequestOutcome], load: SteadyLoad) -> list[RequestOutcome]:
    """The answered requests that met a busy engine all along: sent after the warm-up, and a latency before the sending ends.

    Args:
        outcomes: in the order in which they were sent, the first one at the load's begin.
        load: what was sent.
    """
    if not outcomes:
        return []
    begun_s = outcomes[0].sent_s
    late = [o for o in outcomes if o.error is None and o.sent_s - begun_s >= load.warmup_s]
    mean_s = sum(o.latency_s for o in late) / len(late) if late else 0.0
    return [o for o in late if o.sent_s - begun_s <= load.seconds - mean_s]


def reconcile(outcomes: Sequence[RequestOutcome], before: EngineTotals, after: EngineTotals) -> Account:
    """Set what the users saw against what the engine counted between two idle moments."""
    answered = [o for o in outcomes if o.error is None]
    ended = after.requests - before.requests
    return Account(
        asked=len(outcomes),
        answered=len(answered),
        client_latency_s=sum(o.latency_s for o in answered) / len(answered) if answered else float("nan"),
        engine_latency_s=(after.latency_s - before.latency_s) / ended if ended else float("nan"),
        client_tokens=sum(o.output_tokens for o in answered),
        engine_tokens=after.output_tokens - before.output_tokens,
        engine_requests=ended,
        tokens_per_step=between(read_counters(before.page), read_counters(after.page)).tokens_per_step,
    )


def together(blocks: Sequence[Offered]) -> Offered:
    """Several blocks of one load on one arm as one.

    Args:
        blocks: at least one.
    """
    accounts = [one.account for one in blocks]
    counted = sum(one.counted for one in blocks)
    paces = [(one.engine_tokens, one.tokens_per_step) for one in accounts if one.tokens_per_step]
    steps = sum(tokens / pace for tokens, pace in paces)
    return Offered(
        blocks[0].load,
        sum(one.rps for one in blocks) / len(blocks),
        _mean([(one.latency_s, one.counted) for one in blocks]),
        counted,
        Account(
            asked=sum(one.asked for one in accounts),
            answered=sum(one.answered for one in accounts),
            client_latency_s=_mean([(one.client_latency_s, one.answered) for one in accounts]),
            engine_latency_s=_mean([(one.engine_latency_s, one.engine_requests) for one in accounts]),
            client_tokens=sum(one.client_tokens for one in accounts),
            engine_tokens=sum(one.engine_tokens for one in accounts),
            engine_requests=sum(one.engine_requests for one in accounts),
            tokens_per_step=sum(tokens for tokens, _ in paces) / steps if steps else None,
        ),
    )


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    """Mean of values with weights; NaN if nothing weighs. A value without weight may be NaN."""
    total = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted if weight) / total if total else float("nan")


async def _totals(session: aiohttp.ClientSession, url: str) -> EngineTotals:
    async with session.get(f"{url}/metrics") as answer:
        answer.raise_for_status()
        return EngineTotals.read(await answer.text())
