"""The trial of an upgrade: two engines that nobody else uses are asked in turns, and their records compared."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from breakeven.answering.answer import AnswerSet
from breakeven.answering.prompt_set import GatePrompt
from breakeven.arm import NO_SPECULATION, Arm
from breakeven.load_driver.asking import ask, gate_prompts, judge, refuses
from breakeven.load_driver.client import Endpoint, EngineClient, EngineError
from breakeven.load_driver.counters import between, kv_cache_tokens, read_counters
from breakeven.load_driver.design import SweepStep
from breakeven.load_driver.measuring import Precision, Trial, measure
from breakeven.load_driver.sent_workload import Prompts, ProsePrompts, SentWorkload
from breakeven.load_driver.sweep import check_arm, sized_prose
from breakeven.load_driver.window import TURNED_AWAY, RequestRecord, errors_of
from breakeven.phrases import counted, latency_text
from breakeven.points.point import ImposedLoad, LoadMode, Point
from breakeven.profile import Profile
from breakeven.upgrade.against_profile import compare_with_past
from breakeven.upgrade.comparison import FEWEST_PAIRS, compare, not_compared
from breakeven.upgrade.record import EngineRecord, UpgradeReport
from breakeven.upgrade.service_fields import FIELDS, request_with

LOADS = (ImposedLoad(LoadMode.CLOSED, 1), ImposedLoad(LoadMode.CLOSED, 8))
PAIRS = 8
"""Pairs of windows at each load, in the order A B, B A; more if the longest windows leave time for them."""
ANSWER_TOKENS = 64

_COMPARED_PROMPTS, _OTHER_PROMPTS = 60, 24
_ANSWERS_SHARE = 0.2
"""Of the time: for the answers of one engine, and again for their judgement by the other."""
_ROUNDS, _REQUESTS_OF_A_ROUND, _SHARED = 4, 8, 0.8
_PREFIXES_SHARE = 0.25
"""Of the time: for all rounds of prompts that begin alike."""
_FIRST_SHARE = 0.5
"""Of the time that is left for windows: for the first request of an engine, which may not answer any."""
_PATIENCE = 5.0
"""Times what the engine before took for it: so long the engine after may take at least."""
_PREFIX_TOKENS = 1024
_LONGEST_WINDOW_S, _SHORTEST_WINDOW_S = 20.0, 2.0
_FEWEST_ANSWERS = 4.0
_TRIES, _FIELDS_S = 3, 30.0
_GONE_S = 5.0
_NOT_THERE = "HTTP 404"
UNNAMED = "speculation"
"""Method of an arm that nobody named."""


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """The requests of a trial and its times.

    Attributes:
        arm: that both engines run; None takes whatever they run.
        workload: prompts and lengths; its dataset also gives the prompts whose answers are compared.
        loads: of the windows, a low and a high one.
        max_seconds: for all of the trial after both engines answer; windows are as long as fits.
        start_timeout_s: until an engine must answer.
        start_s: seconds that the engines took to start, before and after; None where the caller does not know.
    """

    arm: Arm | None = None
    workload: SentWorkload = field(default_factory=SentWorkload)
    loads: tuple[ImposedLoad, ...] = LOADS
    max_seconds: float = 900.0
    start_timeout_s: float = 30.0
    start_s: tuple[float | None, float | None] = (None, None)


async def _not_noted(_: UpgradeReport) -> None:
    """Nobody asks for the report without the fields."""


async def try_upgrade(
    before: Endpoint,
    after: Endpoint,
    plan: UpgradePlan,
    say: Callable[[str], None],
    note: Callable[[UpgradeReport], Awaitable[None]] = _not_noted,
) -> UpgradeReport:
    """Ask both engines and compare them; `say` gets lines of progress without any text of prompts and answers.

    An engine `after` that does not answer is a result (`DoesNotStart`). `note` gets the report without the fields, of which an engine
    may die.

    Raises:
        EngineError: the engine `before` does not answer, or the arm is not what it runs, or the other engine runs another one.
    """
    sampling = plan.workload.sampling
    async with EngineClient(before, sampling) as old, EngineClient(after, sampling) as new:
        name = plan.arm.name if plan.arm is not None else None
        first = await _first_look(old, plan, 0)
        try:
            second = await _first_look(new, plan, 1)
        except EngineError as error:
            if error.usual == _NOT_THERE or await _gone(new) is None:
                # It is up, and refuses the key, serves no such model, or is asked at another path: nothing is known of it.
                raise
            return compare(first, EngineRecord(failure=str(error)), name)
        drafts = [(await _running(client)).k for client in (old, new)]
        if all(drafts) and drafts[0] != drafts[1]:
            raise EngineError(
                f"the engines draft up to {drafts[0]} and {drafts[1]} tokens per step; expected one arm"
            )
        run = _EnginesTried([(old, first), (new, second)], plan, say)
        models = await old.model(), await new.model()
        for part in (run.prefixes, run.answers, run.windows):
            await run.tried(part)
        await note(_of_models(compare(run.records[0], run.records[1], name), *models))
        await run.tried(run.fields)
        return _of_models(compare(run.records[0], run.records[1], name), *models)


async def try_against(
    profile: Profile, arm: Arm, after: Endpoint, plan: UpgradePlan, say: Callable[[str], None]
) -> UpgradeReport:
    """Ask one engine, and compare it with what a profile expects of the arm.

    Raises:
        NotIdentifiedError: the profile has no such arm.
        EngineError: the engine drafts by another length, or where the arm has no drafts.
    """
    _ = profile.arm(arm)
    async with EngineClient(after, plan.workload.sampling) as new:
        try:
            look = await _first_look(new, plan, 1)
        except EngineError as error:
            if error.usual == _NOT_THERE or await _gone(new) is None:
                raise
            return compare(EngineRecord(), EngineRecord(failure=str(error)), arm.name)
        if (await _running(new)).k:
            # An engine that drafts nothing any more has lost its acceptance.
            await check_arm(new, arm)
        run = _EnginesTried([(new, look)], plan, say)
        await run.tried(run.windows)
        if run.records[-1].failure is not None:
            return compare(EngineRecord(), run.records[-1], arm.name)
        report = compare_with_past(profile, arm, run.records[-1])
        return _of_models(report, profile.provenance.get("model"), await new.model())


def _of_models(report: UpgradeReport, before: str | None, after: str) -> UpgradeReport:
    """The report, which begins with both models if they have two names."""
    if before in {None, after}:
        return report
    other = not_compared("model", f"{before} before, the engine now serves {after}")
    return replace(report, findings=(other.finding, *report.findings))


async def _first_look(client: EngineClient, plan: UpgradePlan, side: int) -> EngineRecord:
    """What an engine says of itself, once it answers.

    Raises:
        EngineError: it does not in time, or answers others; or the engine before the upgrade runs another arm.
    """
    await client.wait_until_ready(plan.start_timeout_s)
    await client.model()
    if side == 0 and plan.arm is not None:
        await check_arm(client, plan.arm)
    until_s = time.monotonic() + _GONE_S
    while others := read_counters(page := await client.metrics_page() or "").answering:
        # What somebody has broken off just now is over soon.
        if time.monotonic() > until_s:
            said = f"{_SIDES[side]}: the engine answers {counted(others, 'request')} of others"
            raise EngineError(f"{said}; expected an engine that nobody else uses")
        await asyncio.sleep(1.0)
    return EngineRecord(await client.version(), start_s=plan.start_s[side], kv_tokens=kv_cache_tokens(page))


async def _gone(client: EngineClient) -> str | None:
    """Why an engine does not answer any more; None if it does."""
    try:
        await client.wait_until_ready(_GONE_S)
    except EngineError as error:
        return str(error)
    return None


class _EnginesTried:
    """One trial: the engines in the order before, after, and what they have shown so far."""

    def __init__(
        self,
        engines: Sequence[tuple[EngineClient, EngineRecord]],
        plan: UpgradePlan,
        say: Callable[[str], None],
    ) -> None:
        self.clients = [client for client, _ in engines]
        self.records = [record for _, record in engines]
        self._plan, self._say = plan, say
        self._broken = list[ImposedLoad]()
        self._end_s = time.monotonic() + plan.max_seconds

    async def tried(self, part: Callable[[], Awaitable[None]]) -> None:
        """Ask one part, unless the engine after the upgrade has stopped; an error that both survive leaves the part out.

        Raises:
            EngineError: the engine before the upgrade does not answer any more.
        """
        if self.records[-1].failure is not None:
            return
        try:
            await part()
        except EngineError as error:
            why = {client: await _gone(client) for client in self.clients}
            if len(self.clients) > 1 and why[self.clients[0]] is not None:
                raise
            if (gone := why[self.clients[-1]]) is not None:
                self.records[-1] = replace(self.records[-1], failure=f"{gone}; first {error}")
            self._say(str(error))

    def _left_s(self) -> float:
        return max(self._end_s - time.monotonic(), 0.0)

    async def fields(self) -> None:
        """Every field; the last part, because an engine may die of one (vLLM 0.32 on a CPU of `top_k` beside n-gram)."""
        self._end_s = max(self._end_s, time.monotonic() + _FIELDS_S)
        for side, client in enumerate(self.clients):
            found = list[tuple[str, bool | None]]()
            for name in FIELDS:
                found.append((name, await self._accepts(client, name)))
                if found[-1][1] is False and (gone := await _gone(client)) is not None:
                    self._say(f"{_SIDES[side]}: died of {name}: {gone}")
                    break
            accepted, refused = (
                tuple(name for name, taken in found if taken is wanted) for wanted in (True, False)
            )
            known = self.records[side]
            self.records[side] = replace(
                known, accepted=(*known.accepted, *accepted), refused=(*known.refused, *refused)
            )
            self._say(f"{_SIDES[side]}: {len(accepted)} of {len(found)} fields accepted")

    async def _accepts(self, client: EngineClient, name: str) -> bool | None:
        """Whether an engine answers a request with a field; None if the time is over, or the request was turned away."""
        taken: bool | None = False
        for _ in range(_TRIES):
            try:
                async with asyncio.timeout(self._left_s()):
                    await client.whole("/v1/chat/completions", request_with(name))
            except EngineError as error:
                taken = None if error.usual == TURNED_AWAY else False
                if taken is None:
                    await asyncio.sleep(1.0)
                elif await _gone(client) is not None:
                    return False
                continue
            except TimeoutError:
                return None
            return True
        return taken

    async def prefixes(self) -> None:
        """Rounds of requests that begin alike, one after the other, in both engines in turns."""
        workload = self._plan.workload
        tokens = max(workload.prompt_tokens, _PREFIX_TOKENS)
        wanted = SentWorkload(tokens, 2, workload.seed, prefix_share=_SHARED)
        with contextlib.suppress(EngineError, TimeoutError):
            # Too long for the model of before, or for the time: its cache cannot be compared.
            await self._prefix_rounds(wanted)

    async def _prefix_rounds(self, wanted: SentWorkload) -> None:
        async with asyncio.timeout(_PREFIXES_SHARE * self._left_s()):
            prose = await sized_prose(self.clients[0], wanted)
            hits: list[list[float]] = [[] for _ in self.clients]
            for number in range(_ROUNDS):
                turn = replace(prose, seed=prose.seed + 1 + number)
                for side, client in enumerate(self.clients):
                    try:
                        share = await _hit_share(client, turn)
                    except EngineError:
                        if side and await _fails(client, turn):
                            self._lost(f"prompts of {wanted.prompt_tokens} tokens")
                        raise
                    if share is None:
                        return
                    hits[side].append(share)
            for side, shares in enumerate(hits):
                self.records[side] = replace(self.records[side], prefix_hits=tuple(shares))
            self._say(f"prefix cache: {_ROUNDS} rounds")

    def _lost(self, what: str) -> None:
        """Note requests that the engine before has answered, and the engine after refuses each time."""
        old, new = self.records
        self.records = [
            replace(old, accepted=(*old.accepted, what)),
            replace(new, refused=(*new.refused, what)),
        ]

    async def answers(self) -> None:
        """The same prompts asked before and after others, of each engine; each engine judges both."""
        prompts, others = split_prompts(gate_prompts(self._plan.workload.dataset))
        longest_s = _ANSWERS_SHARE * self._left_s()
        given = []
        for side, client in enumerate(self.clients):
            sets = [
                await ask(client, _SIDES[side], some, longest_s / 3, ANSWER_TOKENS)
                for some in (prompts, others, prompts)
            ]
            answers = (*sets[0].answers, *sets[2].answers)
            given.append(AnswerSet(_SIDES[side], answers))
            self._say(f"{_SIDES[side]}: {len(answers)} answers")
        old, new = self.clients
        known, now = ({one.prompt for one in each.answers} for each in given)
        # Each was asked twice; what merely comes late is no loss, and what an engine that restarts does not answer is none either.
        missing = [one for one in prompts if one.name in known - now]
        missing = missing if missing and await _gone(new) is None else []
        until_s = time.monotonic() + longest_s
        lost = [one for one in missing if await refuses(new, one, until_s - time.monotonic(), ANSWER_TOKENS)]
        given[1] = replace(given[1], refused=len(lost))
        crossed = [await judge(new, given[0], longest_s), await judge(old, given[1], longest_s)]
        own = await judge(old, given[0], longest_s)
        self.records[0] = replace(self.records[0], answers=crossed[0], own=own)
        self.records[1] = replace(self.records[1], answers=crossed[1])
        self._say(f"{len(crossed[0].judged) + len(crossed[1].judged)} answers judged by the other engine")

    async def windows(self) -> None:
        """Pairs of windows at each load as far as the time goes: A B, B A."""
        plan = self._plan
        trials, alone = list[Trial](), list[float]()
        begun_s, longest_s = time.monotonic(), _FIRST_SHARE * self._left_s()
        for client in self.clients:
            try:
                trial, lone_s = await self._first_answer(client, longest_s)
            except EngineError as error:
                if client is self.clients[0] or self._full(error):
                    raise
                # The engine before has answered the same request.
                self.records[-1] = replace(self.records[-1], failure=str(error))
                return
            trials.append(trial)
            alone.append(lone_s)
            longest_s = max(longest_s, _PATIENCE * (time.monotonic() - begun_s))
        alone_s = max(alone)
        window_s = self._left_s() / (PAIRS * len(plan.loads) * len(self.clients)) - 3.0 * alone_s
        window_s = min(max(window_s, _SHORTEST_WINDOW_S, _FEWEST_ANSWERS * alone_s), _LONGEST_WINDOW_S)
        for pair in itertools.count():
            order = [*range(len(self.clients))]
            for place, load in enumerate(plan.loads):
                number = 1 + pair * len(plan.loads) + place
                step = _step(load, number, alone_s, window_s)
                if self._left_s() < len(order) * step.expected_s:
                    self._end(
                        pair, (FEWEST_PAIRS * len(plan.loads) - number + 1) * len(order) * step.expected_s
                    )
                    return
                for side in order if pair % 2 == 0 else order[::-1]:
                    point = await self._window(side, trials[side], step)
                    if self.records[-1].failure is not None:
                        return
                    if point is not None:
                        self._keep(side, replace(point, replicate=str(pair + 1)))

    def _end(self, pairs: int, first_s: float) -> None:
        """Say that the time is used, and note what it lacks of what the first pairs still take (s)."""
        self._say(f"the time is used after {counted(pairs, 'pair')} of windows")
        if pairs < FEWEST_PAIRS:
            self.records[-1] = replace(self.records[-1], lacking_s=first_s - self._left_s())

    async def _window(self, side: int, trial: Trial, step: SweepStep) -> Point | None:
        """One window; None if the engine after the upgrade answers no request of it, which is its failure if it happens again."""
        client = self.clients[side]
        try:
            seen = await measure(client, trial, step, self._plan.workload.seed + step.number)
        except EngineError as error:
            if client is not self.clients[-1]:
                raise
            self._say(str(error))
            if self._full(error):
                return None
            self._broken.append(step.load)
            if self._broken.count(step.load) == FEWEST_PAIRS:
                # The engine before has answered the same requests, or requests alike when the profile was measured.
                self.records[-1] = replace(self.records[-1], failure=str(error))
            return None
        self._count(side, seen.clients.errors)
        return seen.point()

    def _full(self, error: EngineError) -> bool:
        """Whether the engine after the upgrade turned requests away, which are counted."""
        full = error.usual == TURNED_AWAY
        if full:
            self._count(-1, error.errors)
        return full

    def _count(self, side: int, errors: Mapping[str, int]) -> None:
        known = self.records[side]
        self.records[side] = replace(known, errors=Counter(known.errors) + Counter(errors))

    def _keep(self, side: int, point: Point) -> None:
        known = self.records[side]
        self.records[side] = replace(known, windows=(*known.windows, point))
        shown = "-" if point.tpot_mean_s is None else latency_text(point.tpot_mean_s)
        # Against a profile the only engine is that after the upgrade.
        name = _SIDES[side - len(self.clients)]
        self._say(f"pair {point.replicate} at {point.load}, {name}: {shown} per token")

    async def _first_answer(self, client: EngineClient, longest_s: float) -> tuple[Trial, float]:
        """The requests of the windows for an engine, and the latency of a lone one.

        Raises:
            EngineError: each of a few tries fails, or all of them together last too long.
        """
        for left in reversed(range(_TRIES)):
            try:
                async with asyncio.timeout(longest_s):
                    trial = await self._trial(client)
                    return trial, await _alone_s(client, trial)
            except TimeoutError:
                raise EngineError(
                    f"no answer to a first request for {longest_s:.0f} s; expected one"
                ) from None
            except EngineError:
                if not left or await _gone(client) is not None:
                    raise
        raise AssertionError("unreachable")

    async def _trial(self, client: EngineClient) -> Trial:
        workload, arm = self._plan.workload, self._plan.arm or await _running(client)
        prompts: Prompts = workload.prompts() or await sized_prose(client, workload)
        return Trial(arm, prompts, workload.answers(), Precision(min_window_s=float("inf"), tail_s=60.0))


_SIDES = ("before", "after")


def _step(load: ImposedLoad, number: int, alone_s: float, window_s: float) -> SweepStep:
    """One window; a lone latency says how many requests an open loop begins with."""
    inflight = float(load.clients) if load.clients else (load.rps or 0.0) * alone_s
    return SweepStep(
        load,
        latency_s=alone_s,
        inflight=inflight,
        company_s=0.0,
        warmup_s=alone_s,
        window_s=window_s,
        longest_s=2.0 * window_s,
        number=number,
        total=PAIRS,
    )


def split_prompts(prompts: Sequence[GatePrompt]) -> tuple[list[GatePrompt], list[GatePrompt]]:
    """Prompts whose answers are compared, evenly over all of them, and others to ask between."""
    free = [one for one in prompts if not one.form.constrained]
    chosen = {index * len(free) // _COMPARED_PROMPTS for index in range(_COMPARED_PROMPTS)} if free else set()
    asked = [one for index, one in enumerate(free) if index in chosen]
    others = [one for index, one in enumerate(free) if index not in chosen][:_OTHER_PROMPTS]
    return [*asked, *(one for one in prompts if one.form.constrained)], others or asked


async def _running(client: EngineClient) -> Arm:
    """The arm that an engine's counters show, without its method's name."""
    counters = read_counters(await client.metrics_page() or "")
    positions = max(counters.accepted, default=-1) + 1
    return Arm(UNNAMED, positions) if positions else NO_SPECULATION


async def _asked(client: EngineClient, prompts: Prompts, number: int, output_tokens: int) -> RequestRecord:
    """The record of one request."""
    record = RequestRecord(scheduled_s=time.monotonic(), sent_s=time.monotonic())
    await client.complete(prompts.prompt(number), output_tokens, record)
    return record


async def _alone_s(client: EngineClient, trial: Trial) -> float:
    """Latency of a lone request."""
    # Far from the prompts of windows.
    number = -1
    record = await _asked(client, trial.prompts, number, trial.answers.pair(number).output_tokens)
    if not record.complete:
        raise EngineError(f"a first request failed ({record.error}); expected an answer", errors_of([record]))
    return record.latency_s


async def _fails(client: EngineClient, prose: ProsePrompts) -> bool:
    """Whether an engine that is up fails a request of a round each time."""
    for _ in range(_TRIES):
        if await _gone(client) is not None:
            return False
        record = await _asked(client, prose, 0, 2)
        if record.complete or record.error == TURNED_AWAY:
            return False
    return True


async def _hit_share(client: EngineClient, prose: ProsePrompts) -> float | None:
    """Share of the prompt tokens of one round that the prefix cache held; None if it is not counted."""
    pages = [await client.metrics_page()]
    for number in range(_REQUESTS_OF_A_ROUND):
        record = await _asked(client, prose, number, 2)
        if not record.complete:
            said = f"a request with a shared prefix failed ({record.error}); expected an answer"
            raise EngineError(said, errors_of([record]))
    pages.append(await client.metrics_page())
    earlier, later = (read_counters(page or "") for page in pages)
    return between(earlier, later).prefix_hit_ratio
