"""Pairs of arms on engines that share one machine: what a GPU is asked in a quarter of an hour, kept window by window.

Three engines start together and one is asked at a time, by the product's own load driver. Any second may be the last one:
each window is in `kept.jsonl` and `points.csv` before the next begins, and `table.txt` says what all of them have shown.
What cannot be measured is left out with a sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import aiohttp

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.load_driver.client import Endpoint, EngineClient, EngineError
from breakeven.load_driver.counters import between, read_counters
from breakeven.load_driver.design import SweepStep
from breakeven.load_driver.lengths import EmpiricalLengths, LengthPair, LogNormalLengths
from breakeven.load_driver.measuring import MeasuredWindow, Precision, Trial, measure
from breakeven.load_driver.sent_workload import OutputLengths, ProsePrompts
from breakeven.load_driver.window import RequestRecord
from breakeven.points.point import ImposedLoad, LoadMode, Point
from breakeven.points.table import cells, written
from breakeven.serving.growths import Growths
from localcluster.progress import Say
from real import pair_rows
from real.machine_state import read_looks
from real.pair_rows import AGAIN, PLAIN, Kept

if TYPE_CHECKING:
    from real.gpu import OwnEngines

KEPT = "kept.jsonl"
_FILES = (KEPT, "points.csv", "table.txt")
_STREAM_PROMPT = 16
# A prompt of one token costs what is not the prompt's: the way to the engine and back, and a step.
_SHORTEST = 1
_FIRST_TOKENS_S = 20.0


@dataclass(frozen=True, slots=True)
class Script:
    """Arms, loads, lengths and times of a script; the values here are those of one H100 or H200.

    Attributes:
        arms: no speculation, and two draft lengths in rising order.
        whole_s, start_s: time of all, and of the starts together.
        decode_clients, decode_answer, decode_s: closed loops of short prompts, tokens of an answer, window.
        streams, stream_tokens: requests that decode while single prompts are read, and their tokens.
        prompts, every_s, each: tokens of single prompts, time between two, and how many of each length.
        quiet_s: time without a prompt, before and after.
        rps, inflight: of the Poisson arrivals, and with how many requests each window begins: always the same, because one that
            begins as the last one went would carry its state on. As no speculation has on an H200.
        prompt, answer: tokens of a request.
        warmup_s, window_s: of a window.
        rounds: how often at most all arms are asked there and back.
        closed_clients, answers: closed loop, and the lengths that its answers scatter over.
        short_s: shorter windows of closed loops, warm-up included.
        text: what acceptance was measured on, for the points.
    """

    arms: tuple[Arm, Arm, Arm] = (NO_SPECULATION, Arm("eagle3", 2), Arm("eagle3", 5))
    whole_s: float = 900.0
    start_s: float = 240.0
    decode_clients: tuple[int, ...] = (1, 16, 64)
    decode_answer: int = 256
    decode_s: float = 1.5
    streams: int = 16
    stream_tokens: int = 3000
    prompts: tuple[int, ...] = (128, 384, 480, 520, 1024, 2048)
    every_s: float = 0.25
    each: int = 10
    quiet_s: float = 0.4
    rps: float = 26.0
    inflight: float = 37.0
    prompt: int = 512
    answer: int = 128
    warmup_s: float = 4.0
    window_s: float = 10.0
    rounds: int = 8
    closed_clients: int = 32
    answers: tuple[int, int] = (64, 192)
    short_s: float = 8.5
    text: str = "synthetic acceptance"

    @property
    def turn_s(self) -> float:
        """Time of one window with its last answers."""
        return self.warmup_s + self.window_s + 2.0

    @property
    def later_s(self) -> float:
        """Time of what comes after the arms in turn."""
        again_s = len(self.prompts) * (self.each * self.every_s + 2 * self.quiet_s + 1.0)
        return 6 * self.turn_s + 6 * (self.short_s + 2.0) + 40.0 + again_s


class KeptWindows:
    """The folder of one script. Files of an earlier one are removed.

    Args:
        folder: is made.
        say: takes a line for each.
    """

    def __init__(self, folder: Path, say: Say) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            (folder / name).unlink(missing_ok=True)
        (folder / KEPT).touch()
        self.folder = folder
        self.kept: list[Kept] = []
        self._points: list[Point] = []
        self._say = say

    def add(self, one: Kept, point: Point | None = None) -> None:
        """Keep it before anything else happens."""
        self.kept.append(one)
        with (self.folder / KEPT).open("a") as file:
            file.write(json.dumps(asdict(one)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if point is not None:
            self._points.append(point)
            _put(self.folder / "points.csv", written([cells(known) for known in self._points]))
        shown = ", ".join(f"{name} {value:.4g}" for name, value in one.figures.items())
        self._say(f"{one.part}, {one.engine}, {one.what}: {one.left_out or shown}")

    @property
    def left_out(self) -> list[str]:
        """A sentence for each thing that was not measured."""
        return list(dict.fromkeys(f"{one.part}: {one.left_out}" for one in self.kept if one.left_out))


def _put(path: Path, text: str) -> None:
    """Replace a file whole."""
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_text(text)
    unfinished.replace(path)


def table_of(folder: Path) -> str:
    """The table of what a folder holds.

    Raises:
        EngineError: no run left it.
    """
    if not (folder / KEPT).is_file():
        raise EngineError(f"{folder}: no {KEPT}; expected a folder that a run left")
    return pair_rows.table(read_kept(folder), read_looks(folder))


def read_kept(folder: Path) -> list[Kept]:
    """What a script kept, without a last line that was cut off."""
    *lines, _ = (folder / KEPT).read_text().split("\n")
    return [Kept(**json.loads(line)) for line in lines]


@dataclass(frozen=True, slots=True)
class _Asked:
    """One window: where, which load, which requests."""

    part: str
    name: str
    what: str
    load: ImposedLoad
    prompt: int
    answers: OutputLengths
    warmup_s: float
    window_s: float
    inflight: float | None = None


@dataclass(slots=True)
class PairScript:
    """One run of a script.

    Attributes:
        script: what is asked.
        starter: starts and stops engines by their names.
        results: takes what was measured.
        gpu: product name, for the points.
    """

    script: Script
    starter: OwnEngines
    results: KeptWindows
    gpu: str
    _urls: dict[str, str] = field(default_factory=dict)
    _end_s: float = 0.0

    async def run(self) -> None:
        """Take all parts, as far as the time goes. It ends engines only where a part asks for it."""
        script, names = self.script, [arm.name for arm in self.script.arms]
        self._end_s = time.monotonic() + script.whole_s
        try:
            async with asyncio.timeout(script.whole_s):
                await asyncio.gather(*(self._start(pair_rows.DECODE, name, script.start_s) for name in names))
                await self._decode()
                for name in names[:2]:
                    await self._beside(pair_rows.BESIDE, name)
                await self._in_turn()
                await self._stopped()
                await self._mixed()
                await self._restarted()
        except TimeoutError:
            self._leave_out("all", "all", "the rest", f"{script.whole_s:.0f} s are over")

    def _left_s(self) -> float:
        return self._end_s - time.monotonic()

    def _leave_out(self, part: str, name: str, what: str, why: str) -> None:
        self.results.add(Kept(part, name, what, time.time(), 0.0, left_out=why))

    @contextlib.contextmanager
    def _leaving_out(self, part: str, name: str, what: str) -> Iterator[None]:
        """An engine that fails in the body leaves a sentence."""
        try:
            yield
        except (EngineError, aiohttp.ClientError, OSError) as problem:
            self._leave_out(part, name, what, " ".join(str(problem).split()) or type(problem).__name__)

    async def _start(self, part: str, name: str, within_s: float) -> None:
        begun_s = time.monotonic()
        with self._leaving_out(part, name, "start"):
            self._urls[name] = await self.starter.start(name, within_s)
            figures = {"start_s": time.monotonic() - begun_s}
            self.results.add(Kept(part, name, "start", time.time(), 0.0, figures))

    async def _stop(self, name: str) -> None:
        if self._urls.pop(name, None) is not None:
            await self.starter.stop(name)

    def _has(self, part: str, name: str, needs_s: float = 0.0) -> bool:
        """Whether an engine is up and the time left is enough; a sentence if not."""
        if name not in self._urls:
            self._leave_out(part, name, "all", "it is not up")
        elif self._left_s() < needs_s:
            self._leave_out(part, name, "all", f"the time left is less than {needs_s:.0f} s")
        else:
            return True
        return False

    def _arm(self, name: str) -> Arm:
        return next((arm for arm in self.script.arms if arm.name == name), NO_SPECULATION)

    async def _window(self, asked: _Asked) -> MeasuredWindow | None:
        """Measure and keep one window; None if it was left out."""
        part, name = asked.part, asked.name
        if not self._has(part, name, asked.warmup_s + asked.window_s + 1.0):
            return None
        begun_s = time.time()
        step = SweepStep(
            asked.load,
            latency_s=None,
            inflight=asked.inflight,
            company_s=0.0,
            warmup_s=asked.warmup_s,
            window_s=asked.window_s,
            # A lone client may send its next request only after a window is over.
            longest_s=(3.0 if asked.load.clients == 1 else 1.0) * asked.window_s,
            # All windows have the same prompts and arrivals: what differs is the arm and the machine.
            number=1,
            total=1,
        )
        trial = Trial(
            self._arm(name),
            ProsePrompts(asked.prompt, seed=1),
            asked.answers,
            Precision(0.0, 1, math.inf, 1, 2 * asked.window_s),
        )
        seen = None
        with self._leaving_out(part, name, asked.what):
            async with EngineClient(Endpoint(self._urls[name])) as client:
                await client.model()
                seen = await measure(client, trial, step, seed=1)
            self._keep(asked, seen, begun_s)
        return seen

    def _keep(self, asked: _Asked, seen: MeasuredWindow, begun_s: float) -> None:
        clients, engine = seen.clients, seen.engine
        figures = {
            "latency_s": clients.latency.mean_s,
            "ttft_s": clients.ttft.mean_s,
            "tpot_s": clients.tpot.mean_s,
            "step_s": engine.step_s,
            "tokens_per_step": engine.tokens_per_step,
            "inflight": clients.mean_inflight,
            "rps": seen.answered_rps,
            "requests": float(clients.requests),
            "failed": float(clients.failed),
            "piled_up": float(seen.overloaded),
        }
        point = None
        if asked.name != AGAIN:
            point = replace(seen.point(), gpu=self.gpu, text_source=self.script.text)
        known = {name: value for name, value in figures.items() if value is not None}
        seconds = time.time() - begun_s
        self.results.add(Kept(asked.part, asked.name, asked.what, begun_s, seconds, known), point)

    async def _decode(self) -> None:
        """Short prompts, so that steps decode and read nothing; all engines there and back at each number of clients."""
        script = self.script
        answers = LogNormalLengths(_STREAM_PROMPT, script.decode_answer)
        for clients in script.decode_clients:
            load = ImposedLoad(LoadMode.CLOSED, clients)
            for name in self._there_and_back():
                lengths = _STREAM_PROMPT, answers
                await self._window(
                    _Asked(pair_rows.DECODE, name, str(load), load, *lengths, 0.0, script.decode_s)
                )

    def _there_and_back(self) -> list[str]:
        up = [arm.name for arm in self.script.arms if arm.name in self._urls]
        return [*up, *reversed(up)]

    async def _beside(self, part: str, name: str) -> None:
        """Single prompts of several lengths, first alone and then beside streams that decode."""
        if not self._has(part, name):
            return
        rows = [(tokens, "alone", self._alone) for tokens in (_SHORTEST, *self.script.prompts)]
        rows += [(tokens, "beside streams", self._beside_streams) for tokens in self.script.prompts]
        for tokens, how, ask in rows:
            what, begun_s = f"prompts of {tokens} tokens {how}", time.time()
            with self._leaving_out(part, name, what):
                async with EngineClient(Endpoint(self._urls[name])) as client:
                    await client.model()
                    seconds, figures = await ask(client, tokens)
                figures |= {"tokens": float(tokens), "prompts": float(self.script.each)}
                self.results.add(Kept(part, name, what, begun_s, seconds, figures))

    async def _alone(self, client: EngineClient, tokens: int) -> tuple[float, dict[str, float]]:
        """Seconds, and the usual time to the first token of prompts that are read one after the other.

        The first one may wait for the end of what ran before.
        """
        begun_s, prompts = time.monotonic(), ProsePrompts(tokens, seed=2)
        _, *seen = [
            await _first_token_s(client, prompts.prompt(number)) for number in range(self.script.each + 1)
        ]
        return time.monotonic() - begun_s, {"alone_s": median(seen)}

    async def _beside_streams(self, client: EngineClient, tokens: int) -> tuple[float, dict[str, float]]:
        """Seconds with prompts, and the mean step of the streams with them and without."""
        script, prompts = self.script, ProsePrompts(tokens, seed=3)
        marks = []
        async with _streaming(client, script.streams, script.stream_tokens) as streams:
            marks.append(await _mark(client))
            await asyncio.sleep(script.quiet_s)
            marks.append(await _mark(client))
            reading = []
            for number in range(script.each):
                reading.append(asyncio.create_task(_first_token_s(client, prompts.prompt(number))))
                await asyncio.sleep(script.every_s)
            await asyncio.gather(*reading)
            marks.append(await _mark(client))
            await asyncio.sleep(script.quiet_s)
            marks.append(await _mark(client))
            if any(stream.done() for stream in streams):
                raise EngineError("a stream was over before all prompts were read")
        before, during, after = (between(early, late).step_s for (_, early), (_, late) in pairwise(marks))
        if before is None or during is None or after is None:
            raise EngineError("its metrics page does not count the time between tokens")
        # Steps become longer with the streams' context: the mean of both quiet times is that of the middle.
        return marks[2][0] - marks[1][0], {"quiet_s": (before + after) / 2, "step_s": during}

    def _poisson(self, part: str, name: str, rps: float, *, short: bool = False) -> _Asked:
        script = self.script
        warmup_s, window_s = (script.warmup_s, script.window_s)
        if short:
            warmup_s, window_s = script.short_s / 4, 3 * script.short_s / 4
        load = ImposedLoad(LoadMode.POISSON, rps)
        answers = LogNormalLengths(script.prompt, script.answer)
        return _Asked(
            part, name, str(load), load, script.prompt, answers, warmup_s, window_s, script.inflight
        )

    async def _in_turn(self) -> None:
        """All arms there and back, as often as the time goes that the later parts leave."""
        script = self.script
        for number in range(script.rounds):
            order = self._there_and_back()
            if number and self._left_s() - script.later_s < len(order) * script.turn_s:
                break
            for name in order:
                await self._window(self._poisson(pair_rows.IN_TURN, name, script.rps))

    async def _stopped(self) -> None:
        """The other two in turn without the last engine: whether one that idles costs something."""
        part, (plain, short, last) = pair_rows.STOPPED, (arm.name for arm in self.script.arms)
        if not self._has(part, last):
            return
        await self._stop(last)
        for name in (plain, short, short, plain):
            await self._window(self._poisson(part, name, self.script.rps))

    async def _mixed(self) -> None:
        """Closed loops of equal and of mixed answers, beside the open loop of the same rate."""
        part, script = pair_rows.MIXED, self.script
        least, most = script.answers
        mixed = [LengthPair(script.prompt, tokens) for tokens in range(least, most + 1)]
        load = ImposedLoad(LoadMode.CLOSED, script.closed_clients)
        open_loop = self._poisson(part, PLAIN, script.rps, short=True)
        closed = replace(open_loop, what=pair_rows.ONE_LENGTH, load=load, inflight=None)
        first = await self._window(closed)
        if first is None:
            return
        rate = ImposedLoad(LoadMode.POISSON, first.answered_rps)
        open_loop = replace(open_loop, what=pair_rows.OPEN, load=rate, inflight=float(script.closed_clients))
        lengths = replace(closed, what=pair_rows.LENGTHS, answers=EmpiricalLengths(mixed))
        for asked in (lengths, open_loop, open_loop, lengths, closed):
            await self._window(asked)

    async def _restarted(self) -> None:
        """No speculation with what may make a prompt cheaper beside decodes: two windows, and the prompts again."""
        part, script = pair_rows.RESTARTED, self.script
        if not self._has(part, PLAIN, 2 * script.turn_s):
            return
        await self._stop(PLAIN)
        await self._start(part, AGAIN, min(script.start_s, self._left_s() - script.turn_s))
        if AGAIN in self._urls:
            for _ in range(2):
                await self._window(self._poisson(part, AGAIN, script.rps))
            await self._beside(part, AGAIN)


async def _first_token_s(client: EngineClient, prompt: str) -> float:
    """Seconds until the one token that is asked for."""
    record = RequestRecord(time.monotonic(), time.monotonic())
    await client.complete(prompt, 1, record)
    if not record.complete or record.first_token_s is None:
        raise EngineError(f"a prompt was not read: {record.error}")
    return record.first_token_s - record.sent_s


async def _mark(client: EngineClient) -> tuple[float, Growths]:
    """The time, and the engine's counters then."""
    at_s, page = time.monotonic(), await client.metrics_page()
    if page is None:
        raise EngineError("it has no metrics page")
    return at_s, read_counters(page)


@contextlib.asynccontextmanager
async def _streaming(
    client: EngineClient, count: int, tokens: int
) -> AsyncIterator[Sequence[asyncio.Task[None]]]:
    """So many requests that decode while the body runs; afterwards nothing of them is left."""
    prompts = ProsePrompts(_STREAM_PROMPT, seed=4)
    records = [RequestRecord(time.monotonic(), time.monotonic()) for _ in range(count)]
    tasks = [
        asyncio.create_task(client.complete(prompts.prompt(number), tokens, record))
        for number, record in enumerate(records)
    ]
    give_up_s = time.monotonic() + _FIRST_TOKENS_S
    try:
        while any(record.first_token_s is None for record in records):
            if time.monotonic() > give_up_s or any(task.done() for task in tasks):
                raise EngineError("streams beside prompts did not begin")
            await asyncio.sleep(0.02)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
