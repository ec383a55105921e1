"""Drafters over a file of answers: tokens per step with bounds, the best parameters of look-ups, and whether a calibration is worth it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.drafters.answers_file import FinishedAnswer
from breakeven.drafters.replay import (
    LONGEST,
    Drafts,
    NgramRule,
    SuffixDrafter,
    SuffixRule,
    model_drafts,
    ngram_drafts,
)
from breakeven.errors import InputError
from breakeven.estimate import Estimate
from breakeven.intake import package
from breakeven.past.others_measured import pays_until_rps
from breakeven.prior.public_table import RatioRow, ServiceFacts, costs_error, nearest_row
from breakeven.profile import Comparison, Conditions, Profile
from breakeven.profile.student_t import t_quantile

Counts: TypeAlias = NDArray[np.int64]

_RULES: Mapping[str, tuple[NgramRule | SuffixRule, ...]] = {
    "ngram": (
        NgramRule(),
        *(NgramRule(low, high) for high in (2, 3, 5, 8) for low in (1, 2, 3, 5) if low <= high and low < 5),
    ),
    "suffix": (SuffixRule(), SuffixRule(factor=2.0), SuffixRule(factor=4.0), SuffixRule(depth=64)),
}
"""Parameters of look-ups among which the best are searched, vLLM's default first; a factor above 1 drafts more than matched."""
_KEYS = {
    "ngram": ("prompt_lookup_min", "prompt_lookup_max"),
    "suffix": ("suffix_decoding_max_tree_depth", "suffix_decoding_max_spec_factor"),
}
_WORTH_MEASURING = 0.5
"""Probability of being faster above which a method is worth a calibration."""
_DOF = 30
"""Degrees of freedom of a step's cost, about the rows of the table that it is judged on."""
_FEWEST = 8
"""Conversations without which nothing is searched."""
_SIGN = 2
"""Tokens of a prompt that can be the begin of a conversation."""
_SEARCHED_TOKENS = 50_000
"""Tokens of answers on which parameters are searched at the most: of more, a choice takes minutes and is the same."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Steps of some answers under one drafter, by answer and draft length.

    Attributes:
        steps: request-steps, shape (answers, draft lengths).
        drafts: steps in which anything was drafted, of the same shape.
        survived: steps whose first i drafts were all accepted, shape (answers, draft lengths, positions).
        conversations: the conversation of each answer, shape (answers,).
    """

    steps: Counts
    drafts: Counts
    survived: Counts
    conversations: Counts

    @classmethod
    def of(cls, all_drafts: Iterable[Drafts], conversations: Counts | None = None) -> Tally:
        """Walk each answer from its first token, which comes of the prompt's step, to its last; each is a conversation by default."""
        rows = [[_walk(drafts, k) for k in range(LONGEST)] for drafts in all_drafts]
        counts = np.array(rows, np.int64).reshape(-1, LONGEST, LONGEST + 2)
        of_each = np.arange(len(counts)) if conversations is None else conversations
        return cls(counts[:, :, 0], counts[:, :, 1], counts[:, :, 2:], of_each)

    def part(self, chosen: Any) -> Tally:
        """The chosen answers alone, by index or mask."""
        return Tally(
            self.steps[chosen], self.drafts[chosen], self.survived[chosen], self.conversations[chosen]
        )

    def survival(self, k: int) -> tuple[float, ...]:
        """Share of all steps whose first i drafts were accepted, i = 1..k; 1 + its sum is E."""
        shares = self.survived[:, k - 1, :k].sum(0) / max(int(self.steps[:, k - 1].sum()), 1)
        return tuple(float(share) for share in shares)

    def drafted_share(self, k: int) -> float:
        """Share of steps with a draft."""
        return float(self.drafts[:, k - 1].sum()) / max(int(self.steps[:, k - 1].sum()), 1)

    def tokens_per_step(self, k: int, confidence: float = 0.9) -> Estimate:
        """E at a draft length, with bounds over conversations: their steps resemble each other. None as bounds of a lone one."""
        _, places = np.unique(self.conversations, return_inverse=True)
        accepted = np.bincount(places, self.survived[:, k - 1, :k].sum(1))
        steps = np.bincount(places, self.steps[:, k - 1])
        count, total = len(steps), float(steps.sum())
        mean = float(accepted.sum()) / total
        if count < 2:
            return Estimate(1.0 + mean)
        spread = math.sqrt(count / (count - 1) * float(((accepted - mean * steps) ** 2).sum())) / total
        width = t_quantile(confidence, count - 1) * spread
        return Estimate(1.0 + mean, max(1.0 + mean - width, 1.0), min(1.0 + mean + width, k + 1.0))

    def relative_error(self, k: int, confidence: float = 0.9) -> float:
        """Relative standard error of E; of a lone answer nothing is known of the next one but that it lies within 1 and k + 1."""
        known = self.tokens_per_step(k, confidence)
        e = known.value or 1.0
        return math.log(max((known.upper or k + 1.0) / e, e / (known.lower or 1.0))) / t_quantile(
            confidence, _DOF
        )


def _walk(drafts: Drafts, k: int) -> list[int]:
    """Steps, steps with a draft, and steps that accepted at least 1, 2, ... drafts, at the draft length of index k."""
    accepted, drafted = drafts.accepted[:, k].tolist(), drafts.drafted[:, k].tolist()
    at_least = [0] * (LONGEST + 1)
    index = tried = 0
    while index < len(accepted) - 1:
        count = accepted[index]
        at_least[count] += 1
        tried += drafted[index] > 0
        index += count + 1
    for position in range(LONGEST, 0, -1):
        at_least[position - 1] += at_least[position]
    return [at_least[0], tried, *at_least[1:]]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A drafter on the judged answers.

    Attributes:
        options: keys of vLLM's `--speculative-config` beside method and draft length, if they were searched.
        groups: tally of each value of the column that groups answers.
    """

    method: str
    options: Mapping[str, Any]
    tally: Tally
    model: str | None = None
    groups: Mapping[str, Tally] = field(default_factory=dict)


def conversations(answers: Sequence[FinishedAnswer]) -> Counts:
    """The conversation of each answer, from 0 in their order: a prompt that begins with another whole prompt is a later turn of it.

    A prompt of one token begins too many others, and is no sign.
    """
    found = np.empty(len(answers), np.int64)
    number, begin = -1, tuple[int, ...]()
    for index in sorted(range(len(answers)), key=lambda index: answers[index].prompt):
        prompt = answers[index].prompt
        if len(begin) < _SIGN or prompt[: len(begin)] != begin:
            number, begin = number + 1, prompt
        found[index] = number
    _, firsts, places = np.unique(found, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(firsts))[places])


def judged(of_each: Counts) -> NDArray[np.bool_]:
    """Answers that drafters are judged on, by the conversation of each; parameters are chosen on the others, if both get enough.

    Chosen and judged on the same conversations, the best of many would look better than it is. By lot, because every second line
    of a log may be of one kind.
    """
    count = int(of_each.max(initial=-1)) + 1
    places = np.random.default_rng(0).permutation(count)
    return np.asarray(places[of_each] >= (count // 2 if count >= _FEWEST else 0))


def ranked(answers: Sequence[FinishedAnswer], draft_model: Path | None = None) -> list[Ranked]:
    """Look-ups with vLLM's defaults and with the best parameters found, and a draft model if one is given, on the judged answers."""
    of_each = conversations(answers)
    last = judged(of_each)
    own = [answer for answer, is_judged in zip(answers, last, strict=True) if is_judged]
    others = _sample([answer for answer, is_judged in zip(answers, last, strict=True) if not is_judged])
    found = []
    for method, rules in _RULES.items():
        best = (
            max(rules, key=lambda rule: _yield(_drafts(rule, others, [True] * len(others))))
            if others
            else rules[0]
        )
        for rule in dict.fromkeys((rules[0], best)):
            options = {} if rule is rules[0] else dict(zip(_KEYS[method], rule, strict=False))
            found.append(Ranked(method, options, Tally.of(_drafts(rule, answers, last), of_each[last])))
    if draft_model is not None:
        choices = first_choices(draft_model, own)
        tally = Tally.of((model_drafts(hits) for hits in choices), of_each[last])
        found.append(Ranked("draft_model", {}, tally, str(draft_model)))
    places: dict[str, list[int]] = {}
    for index, answer in enumerate(own):
        places.setdefault(answer.group, []).append(index)
    return [
        replace(one, groups={name: one.tally.part(where) for name, where in places.items() if name})
        for one in found
    ]


def _sample(answers: Sequence[FinishedAnswer]) -> list[FinishedAnswer]:
    """The first answers up to the tokens that a search needs."""
    sizes = np.cumsum([len(answer.tokens) for answer in answers])
    return list(answers[: int((sizes <= _SEARCHED_TOKENS).sum()) or 1])


def _yield(drafts: Iterable[Drafts]) -> float:
    return Tally.of(drafts).tokens_per_step(LONGEST).value or 0.0


def _drafts(
    rule: NgramRule | SuffixRule, answers: Sequence[FinishedAnswer], wanted: Iterable[bool]
) -> Iterator[Drafts]:
    """Drafts along the wanted answers; suffixes also come from the answers before them."""
    suffix = SuffixDrafter(rule) if isinstance(rule, SuffixRule) else None
    for answer, is_wanted in zip(answers, wanted, strict=True):
        if isinstance(rule, NgramRule):
            if is_wanted:
                yield ngram_drafts(answer.prompt, answer.tokens, rule)
        elif suffix is not None and is_wanted:
            yield suffix.drafts(answer.prompt, answer.tokens)
        elif suffix is not None:
            suffix.learn(answer.tokens)


def first_choices(folder: Path, answers: Sequence[FinishedAnswer]) -> Iterable[list[bool]]:
    """Whether a draft model's first choice behind each token of each answer is the next token: one pass over each text."""
    torch, transformers = (package(name, "--draft-model") for name in ("torch", "transformers"))
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True).eval()
    except (ImportError, OSError, ValueError):
        problem, expected = "no model that transformers reads", "a folder with config.json and weights"
        raise InputError(str(folder), problem, expected) from None
    words = int(getattr(model.config, "vocab_size", 0) or 0)
    reads = int(getattr(model.config, "max_position_embeddings", 0) or 0)
    for answer in answers:
        text = [*answer.prompt, *answer.tokens[:-1]]
        if words and max(*text, answer.tokens[-1]) >= words:
            raise InputError(
                str(folder), f"{words} token ids", "a draft model with the vocabulary of the answers"
            )
        if reads and len(text) > reads:
            raise InputError(
                str(folder), f"{reads} positions, an answer of {len(text)} tokens", "shorter answers"
            )
        with torch.inference_mode():
            # The logits of a long prompt would take gigabytes.
            logits = model(torch.tensor([text]), logits_to_keep=len(answer.tokens) - 1).logits
            choices = logits[0, -(len(answer.tokens) - 1) :].argmax(-1).tolist()
        yield [*(chosen == token for chosen, token in zip(choices, answer.tokens[1:], strict=True)), False]


@dataclass(frozen=True, slots=True)
class Promise:
    """What a drafter's E would give a lone request, by the nearest measurement of others.

    Attributes:
        speedup: latency without speculation over latency with it, of a lone request, with bounds.
        probability: that it is faster at all, from 0 to 1.
        row: the measurement of others; its step costs `lone_ratio` times its E.
    """

    k: int
    speedup: Estimate
    probability: float
    row: RatioRow


def promise_of(
    one: Ranked, facts: ServiceFacts, confidence: float = 0.9, lengths: Sequence[int] = range(1, LONGEST + 1)
) -> Promise | None:
    """The draft length that would pay most, and whether to measure it; None if nobody measured what a step of the method costs.

    A ratio that others measured is their step's cost over their E. The cost carries over, and E is known here.
    """
    found = [promise for k in lengths if (promise := _worth_at(one, k, facts, confidence)) is not None]
    return max(found, key=lambda promise: promise.speedup.value or 0.0, default=None)


def _worth_at(one: Ranked, k: int, facts: ServiceFacts, confidence: float) -> Promise | None:
    # Nobody published a lone request of suffix decoding. Its step looks tokens up and verifies them, as a step of n-grams does.
    method = "ngram" if one.method == "suffix" else one.method
    row = nearest_row(facts, Arm(method, k), with_tokens=True)
    known = one.tally.tokens_per_step(k, confidence)
    if row is None or row.lone_ratio is None or row.tokens_per_step is None or known.value is None:
        return None
    if k > 2 * row.k + 1:
        return None  # what more drafts cost is not known from a measurement of few
    value = known.value / (row.lone_ratio * row.tokens_per_step)
    error = math.hypot(costs_error(), one.tally.relative_error(k, confidence))
    spread = math.exp(t_quantile(confidence, _DOF) * error)
    probability = 0.5 * math.erfc(-math.log(value) / error / math.sqrt(2.0))
    return Promise(k, Estimate(value, value / spread, value * spread), probability, row)


@dataclass(frozen=True, slots=True)
class Assessment:
    """A drafter beside what others and a profile say of it.

    Attributes:
        k: the draft length that pays most, else that with the largest E.
        by_profile: the arm against no speculation by a profile's law; None without a profile, or if the profile has no such method.
        others_break_even_rps: break-even by ratios of others on the profile's line of no speculation, 1/s.
    """

    ranked: Ranked
    k: int
    promise: Promise | None
    by_profile: Comparison | None = None
    others_break_even_rps: float | None = None


def assess(
    one: Ranked, facts: ServiceFacts, profile: Profile | None, rps: float | None, confidence: float
) -> Assessment:
    """By a profile's law where the profile has the method, because others measured one draft length; else by ratios of others.

    `rps` is the load for the profile's speedup, 1/s per replica; without it the request is alone.
    """
    fits = () if profile is None else profile.arms
    fit = next((fit for fit in fits if fit.arm.method == one.method and not fit.arm.scheduled), None)
    if profile is None or fit is None:
        promise = promise_of(one, facts, confidence)
        e = {k: one.tally.tokens_per_step(k).value or 0.0 for k in range(1, LONGEST + 1)}
        k = promise.k if promise is not None else max(e, key=lambda k: e[k])
        return Assessment(one, k, promise, None, _others_break_even_rps(promise, profile))
    found: dict[int, Comparison] = {}
    for k in range(1, LONGEST + 1):
        now = Conditions(
            tokens_per_step=one.tally.tokens_per_step(k).value,
            tokens_per_step_error=one.tally.relative_error(k, confidence),
        )
        arm = Arm(one.method, k, fit.arm.candidate)
        found[k] = profile.compare(arm, rps=rps or 0.0, conditions=now, confidence=confidence)
    best = max(found, key=lambda k: found[k].speedup or 0.0)
    return Assessment(one, best, promise_of(one, facts, confidence, [best]), found[best])


def _others_break_even_rps(promise: Promise | None, profile: Profile | None) -> float | None:
    none = None if profile is None else profile.fit_of(NO_SPECULATION)
    if promise is None or none is None:
        return None
    # The slope is taken as it stands: scaled by E, rows of the table predict each other worse (41 % off in place of 17).
    return pays_until_rps(1.0 / (promise.speedup.value or math.nan), promise.row.slope_ratio, none.c2_s)


def candidates(found: Iterable[Assessment]) -> list[dict[str, Any]]:
    """`spec.candidates.methods` of a SpeculativeService: of each method the better parameters, if it is likelier faster than not."""
    methods: dict[str, dict[str, Any]] = {}
    for each in found:
        one, promise, own = each.ranked, each.promise, each.by_profile
        if promise is None or promise.probability <= _WORTH_MEASURING or one.method in methods:
            continue
        if own is not None and own.known.below(1.0):
            continue  # the user's own profile says that it loses at this load
        methods[one.method] = {
            "name": one.method.replace("_", "-"),
            "method": one.method,
            **({"model": one.model} if one.model else {}),
            "draftLengths": sorted({max(1, promise.k // 2), promise.k}),
            **({"options": dict(one.options)} if one.options else {}),
        }
    return list(methods.values())
