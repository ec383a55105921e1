"""Records of upgrade trials of the simulated engine with seeded faults: its core, language and prefix cache without a socket."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from breakeven.answering.answer import AnswerSet, GivenAnswer, JudgedSet, judged_answer
from breakeven.answering.prompt_set import Form, GatePrompt, shipped_prompts
from breakeven.points.point import LoadMode, Point
from breakeven.upgrade.comparison import compare
from breakeven.upgrade.record import EngineRecord, UpgradeReport, UpgradeWord
from breakeven.upgrade.service_fields import FIELDS
from breakeven.upgrade.trial import ANSWER_TOKENS, LOADS, PAIRS, split_prompts
from breakeven_sim.engine.configuration import DraftLengths, engine_config
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.costs import EngineCosts, default_document
from breakeven_sim.engine.drafting import TextSource, plan_steps
from breakeven_sim.engine.language import Language, prompt_logprobs
from breakeven_sim.engine.prefix_cache import PrefixCache
from breakeven_sim.engine.requests import Request
from breakeven_sim.engine.tokens import tokenize

METHOD, K = "eagle3", 3
PROMPT, ANSWER = 256, 128
HOST_SD, WINDOW_SD, START_SD = 0.06, 0.01, 0.005
"""Of logarithms of times: what both engines of a pair meet, one window, one start of an engine."""
_POOL, _BLOCK = 400_000, 16
_ROUNDS, _ROUND, _SHARED, _PREFIX = 4, 8, 820, 1024
# Requests before the answers, as a trial sends them.
_BEFORE_ANSWERS = 100
_STRIDE = 100_000


def _slower(engine: dict[str, Any]) -> None:
    for name in ("base_s", "per_token_s", "per_kv_token_s", "per_prefill_token_s"):
        engine["step"][name] *= 1.08
    for name, value in engine["methods"][METHOD]["draft"].items():
        engine["methods"][METHOD]["draft"][name] = 1.08 * value


def _lower_e(engine: dict[str, Any]) -> None:
    """E from 2.11 to 1.90."""
    text = engine["methods"][METHOD]["text"]
    text["hard_rate"], text["easy_rate"] = 0.495, 0.95


def _third(engine: dict[str, Any]) -> None:
    sound = _BEFORE_ANSWERS + sum(len(part) for part in split_prompts(shipped_prompts()))
    engine["methods"][METHOD]["broken_answers"] = {"share": 0.25, "from_token": 8, "from_request": sound}


FAULTS: Mapping[str, tuple[UpgradeWord, Callable[[dict[str, Any]], None]]] = {
    "E 10 % lower": (UpgradeWord.ACCEPTANCE_LOST, _lower_e),
    "no prefix-cache hits": (UpgradeWord.CACHE_LOST, lambda engine: engine.update(prefix_cache=False)),
    "a wrong third answer": (UpgradeWord.ANSWERS_DIFFER, _third),
    "a step 8 % slower": (UpgradeWord.SLOWER, _slower),
    "a refused field": (UpgradeWord.REFUSED, lambda engine: engine.update(refuses=["seed"])),
}
"""The word that each fault deserves, and its change of the engine's costs."""


def engine_with(change: Callable[[dict[str, Any]], None] | None = None) -> EngineCosts:
    """The default engine with a prefix cache and near-ties, changed."""
    known = default_document().gpus["NVIDIA-H100-80GB-HBM3"].model_dump()
    known |= {"prefix_cache": True, "near_ties": 0.01}
    if change is not None:
        change(known)
    return EngineCosts.model_validate(copy.deepcopy(known))


@dataclass(frozen=True)
class World:
    """One trial: a seed, and how long its windows are (s)."""

    seed: int
    window_s: float = 20.0
    _known: dict[Any, tuple[Point, ...]] = field(default_factory=dict)

    def report(self, after: EngineCosts) -> UpgradeReport:
        """The report of the sound engine and another one."""
        # Both judge by the same language: a fault is in what a method answers, not in what the model thinks.
        record = self._record(after, 1)
        judge = _language(engine_with(), self.seed)
        new = replace(record, answers=_judged(judge, self._answers(after, 1)))
        return compare(self.before, new, "eagle3/3")

    @cached_property
    def before(self) -> EngineRecord:
        """The sound engine."""
        costs = engine_with()
        judged = _judged(_language(costs, self.seed), self._answers(costs, 0))
        return replace(self._record(costs, 0), answers=judged, own=judged)

    def _record(self, costs: EngineCosts, side: int) -> EngineRecord:
        taken = tuple(name for name in FIELDS if name not in costs.refuses)
        method = costs.method(METHOD)
        key = side, costs.step, method.draft, method.text
        if key not in self._known:
            self._known[key] = self._windows(costs, side)
        return EngineRecord("sim", self._known[key], self._hits(costs), None, None, taken, costs.refuses)

    def _windows(self, costs: EngineCosts, side: int) -> tuple[Point, ...]:
        host = np.random.default_rng((self.seed, 0)).normal(0.0, HOST_SD, PAIRS)
        own = np.random.default_rng((self.seed, 1 + side))
        start = own.normal(0.0, START_SD)
        windows = []
        for pair in range(PAIRS):
            for place, load in enumerate(LOADS):
                factor = math.exp(host[pair] + start + own.normal(0.0, WINDOW_SD))
                number = (pair * len(LOADS) + place) * _STRIDE
                windows.append(self._window(costs, side, load.clients or 1, number, factor, str(pair + 1)))
        return tuple(windows)

    def _window(
        self, costs: EngineCosts, side: int, clients: int, first: int, factor: float, pair: str
    ) -> Point:
        """A closed loop on the engine's core; each engine has texts of its own, as if no two answers were equal."""
        config = engine_config(costs, METHOD, DraftLengths(K), kv_pool_tokens=_POOL)
        engine, texts = Engine(config), TextSource(costs.method(METHOD).text, 2 * self.seed + side)
        end_s, sent, done = self.window_s / factor, 0, list[Request]()

        def send(now_s: float) -> None:
            nonlocal sent
            text = texts.draw(first + sent, ANSWER, PROMPT)
            engine.submit(Request(first + sent, now_s, PROMPT, ANSWER, text))
            sent += 1

        for _ in range(clients):
            send(0.0)
        while engine.outstanding:
            for request in engine.advance(engine.quiet_until_s()):
                done.append(request)
                if engine.clock_s < end_s:
                    send(engine.clock_s)
        return _point([one for one in done if one.arrival_s > 0.0], clients, factor, pair)

    def _hits(self, costs: EngineCosts) -> tuple[float, ...]:
        shares = []
        for turn in range(_ROUNDS):
            random = np.random.default_rng((self.seed, 99, turn))
            cache = PrefixCache(_POOL // _BLOCK, _BLOCK)
            prefix = random.integers(50_000, size=_SHARED).tolist()
            prompts = [
                [*prefix, *random.integers(50_000, size=_PREFIX - _SHARED).tolist()] for _ in range(_ROUND)
            ]
            found = sum(cache.look_up(prompt) for prompt in prompts) if costs.prefix_cache else 0
            shares.append(found / (_ROUND * _PREFIX))
        return tuple(shares)

    def _answers(self, costs: EngineCosts, side: int) -> AnswerSet:
        """The same prompts before and after others."""
        language = _language(costs, 2 * self.seed + side)
        asked, others = split_prompts(shipped_prompts())
        number, given = _BEFORE_ANSWERS, list[GivenAnswer]()
        for kept, prompts in ((True, asked), (False, others), (True, asked)):
            for prompt in prompts:
                if kept:
                    given.append(_answer(language, prompt, number))
                number += 1
        return AnswerSet("eagle3/3", tuple(given))


def _language(costs: EngineCosts, seed: int) -> Language:
    return Language(costs.near_ties, costs.method(METHOD).broken_answers, seed)


def _answer(language: Language, prompt: GatePrompt, number: int) -> GivenAnswer:
    text = " ".join(str(message["content"]) for message in prompt.messages or ())
    ids = tuple(one for one, _ in tokenize(text))
    if prompt.form is Form.FREE:
        spoken = language.speak(ids, ANSWER_TOKENS, batched=True, number=number)
    else:
        spoken = language.fill(ids, prompt.schema or {}, batched=True, number=number).cut(ANSWER_TOKENS)
    return GivenAnswer(prompt.name, prompt.form, True, ids, tuple(spoken.token_ids), spoken.finish_reason)


def _judged(judge: Language, given: AnswerSet) -> JudgedSet:
    judged = []
    for answer in given.answers:
        ids = (*answer.prompt_ids, *answer.token_ids)
        judged.append(judged_answer(answer, prompt_logprobs(judge.judge(ids), ids, 1)))
    return JudgedSet(given, tuple(judged))


def _point(done: Sequence[Request], clients: int, factor: float, pair: str) -> Point:
    steps = drafts = 0
    accepted = np.zeros(K)
    for request in done:
        assert request.text is not None
        plan = plan_steps(request.text, 1, request.output_tokens, K)
        steps, drafts = steps + len(plan), drafts + int((plan.drafted > 0).sum())
        accepted += [(plan.accepted > place).sum() for place in range(K)]
    first = np.array([one.first_token_s - one.arrival_s for one in done])
    rest = np.array([one.finished_s - one.first_token_s for one in done])
    tokens = np.array([one.output_tokens - 1 for one in done])
    return Point(
        method=METHOD,
        k=K,
        load_mode=LoadMode.CLOSED,
        concurrency=float(clients),
        mean_latency_s=factor * float((first + rest).mean()),
        ttft_mean_s=factor * float(first.mean()),
        tpot_mean_s=factor * float(rest.sum() / tokens.sum()),
        requests=float(len(done)),
        output_tokens=float(ANSWER),
        tokens_per_step=float(tokens.sum() / steps),
        drafts=float(drafts),
        accept=tuple((accepted / drafts).tolist()),
        replicate=pair,
    )
