"""The word for an arm: whether its answers differ from no speculation (the floor) by more than answers of the floor differ.

Three tests share `ERROR_RATE`, so that an arm without a fault is called different in at most that share of calibrations:

- Faults. Rounding turns near-ties round; how wide such ties are is read off the floor, with a prior of bfloat16's steps. A
  token beyond the width that the widest of so many would pass by chance is a fault. Requests with a fault are counted
  for arm and floor, and both counts are compared whatever their common rate is.
- Sums of gaps. Per request the capped gaps of the arm less the gaps of the floor. If the arm is like the floor, both labels
  can be exchanged within a request, so each difference is as likely with the other sign.
- Flaws. The same, on the share of answers that are empty, invalid or looping.

Tokens of an answer are never taken as independent: after the first fault all that follows may be another text. Requests are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from breakeven.answering.answer import AnswerSet, Flaw, JudgedSet, JudgedTokens
from breakeven.laws.arrays import FloatArray
from breakeven.reasons import Reason

ERROR_RATE = 0.01
"""Share of calibrations in which an arm without a fault is called different or broken, at most."""

TOLERATED_SHARE = 0.1
"""Share of requests that may be answered differently behind the word AnswersAgree, at most, with 95 % confidence."""

_BOUND_CONFIDENCE = 0.95
# Faults are rare and loud: they get three quarters of the error rate, the other two tests an eighth each.
_FAULTS_LEVEL, _SUMS_LEVEL, _FLAWS_LEVEL = 0.75 * ERROR_RATE, 0.125 * ERROR_RATE, 0.125 * ERROR_RATE
_RATES = np.geomspace(0.02, 60.0, 120)
_MOST_COUNTED = 150
# Steps of bfloat16 between 16 and 32, where first logits are: ties that rounding makes are of this width even if the floor is
# too short to show one. Counted as ten ties of that mean.
_PRIOR_TIES = (0.125 * math.log(2.0),) * 10
_CHANCE_OF_WIDE_TIE = 1e-3
_LEAST_WIDE_GAP = 1.0
# A token that no model would choose says no more than one that is merely wrong.
_CAPPED_GAP = 5.0
_EXACT_UP_TO = 12
_DRAWS = 5_000
_MOST_PLACES = 8


class FaultPlace(NamedTuple):
    """The first fault of an answer: the position of its token from 0, or None for the answer as a whole."""

    prompt: str
    batched: bool
    position: int | None

    def __str__(self) -> str:
        """The place in words, such as `code-3a@117 in the batch`."""
        at = "" if self.position is None else f"@{self.position}"
        return f"{self.prompt}{at} {'in the batch' if self.batched else 'alone'}"


@dataclass(frozen=True, slots=True)
class GateFinding:
    """The gate's word about one arm, and its figures.

    Attributes:
        word: AnswersAgree, AnswersDiffer, AnswersBroken or AnswersUndecided.
        answers, prompts: judged answers of the arm, and the requests they answer.
        tokens, near_ties: its judged tokens, and those that are not the first choice by no more than rounding explains.
        differing: answers with a fault; faults of the floor are not taken off.
        flawed: answers that are empty, invalid or looping, where no speculation answered the same request without a flaw.
        places: first faults, at most eight.
        equal, compared: answers with the very tokens of no speculation, of so many that could be compared.
        first_difference: smallest position at which an answer parts from the answer without speculation; None if all agree.
        widest_gap: of the arm (nats).
        p_value: the smallest of the tests', each weighed by its share of the error rate.
        share_upper: upper bound of the share of requests that the arm answers differently.
    """

    arm: str
    word: Reason
    answers: int = 0
    prompts: int = 0
    tokens: int = 0
    near_ties: int = 0
    differing: int = 0
    flawed: int = 0
    places: tuple[FaultPlace, ...] = ()
    equal: int = 0
    compared: int = 0
    first_difference: int | None = None
    widest_gap: float = 0.0
    p_value: float = 1.0
    share_upper: float = 1.0

    def __str__(self) -> str:
        """The finding as a sentence without anything of a prompt or an answer."""
        if not self.answers:
            return "no answer was judged"
        same = f"{self.equal} of {self.compared} answers are equal token for token"
        if self.word is Reason.ANSWERS_AGREE:
            return (
                f"{self.answers} answers, {self.tokens} tokens: {self.near_ties} near-ties, no fault; at most "
                f"{100 * self.share_upper:.0f} % of requests are answered differently; {same}"
            )
        where = ", ".join(str(place) for place in self.places)
        if self.word is Reason.ANSWERS_UNDECIDED:
            some = (
                f"; tokens that no speculation would not choose in {self.differing} answers, which chance explains (first at {where})"
                if self.differing
                else ""
            )
            return (
                f"{self.answers} answers to {self.prompts} requests: up to {100 * self.share_upper:.0f} % of requests may be "
                f"answered differently, {100 * TOLERATED_SHARE:.0f} % are tolerated{some}; {same}"
            )
        count = f"{self.differing} of {self.answers} answers hold tokens that no speculation would not choose"
        flaws = f", {self.flawed} are empty, invalid or looping" if self.flawed else ""
        return f"{count}{flaws} (first at {where}; widest gap {self.widest_gap:.1f} nats); {same}"


def judge_arm(asked: JudgedSet, floor: JudgedSet) -> GateFinding:
    """The word for an arm.

    `floor` has answers of no speculation to the same requests, judged by an engine that was started again.
    """
    arm, base = asked.given, floor.given
    mine, theirs = _of_both(asked.judged, floor.judged), _of_both(floor.judged, asked.judged)
    flaws = _new_flaws(arm, base)
    if not mine and not flaws:
        return GateFinding(arm.arm, Reason.ANSWERS_UNDECIDED)
    shared = [one for answers in mine.values() for one in answers]
    free = [one for one in shared if not one.answer.form.constrained]
    wide = _wide_gap(floor.judged, sum(len(one.gaps) for one in free))
    faults = _faults(free, wide)
    faulty = {(place.prompt, place.batched) for place in faults}
    worse, better = _only_here(mine, theirs, wide), _only_here(theirs, mine, wide)
    gaps = np.array([_gap_sum(answers) - _gap_sum(theirs[name]) for name, answers in mine.items()])
    p_faults, p_sums = counted_more_often(worse, better), exchanged(gaps)
    p_flaws = exchanged(_flaw_excess(arm, base))
    differs = p_faults < _FAULTS_LEVEL or p_sums < _SUMS_LEVEL
    # A grammar leaves no other choice: one invalid answer where no speculation gave a valid one is proof.
    broken = p_flaws < _FLAWS_LEVEL or any(
        flaw is Flaw.INVALID or (differs and key in faulty) for key, flaw in flaws.items()
    )
    if differs and not faults:
        faults = _worst(mine, gaps)
        faulty = {(place.prompt, place.batched) for place in faults}
    widest = max((one.widest_gap for one in free), default=0.0)
    upper = _share_upper(worse, sum(not one[0].answer.form.constrained for one in mine.values()))
    equal, compared, first = _exact(arm, base)
    bare = [FaultPlace(*key, None) for key in flaws if key not in faulty]
    return GateFinding(
        arm=arm.arm,
        word=_word(broken=broken, differs=differs, agrees=worse <= better and upper <= TOLERATED_SHARE),
        answers=len(shared),
        prompts=len(mine),
        tokens=sum(len(one.gaps) for one in shared),
        near_ties=sum(0.0 < gap <= wide for one in free for gap in one.gaps),
        differing=len(faulty),
        flawed=len(flaws),
        places=tuple((*faults, *bare)[:_MOST_PLACES]),
        equal=equal,
        compared=compared,
        first_difference=first,
        widest_gap=widest,
        p_value=min(
            1.0, ERROR_RATE * min(p_faults / _FAULTS_LEVEL, p_sums / _SUMS_LEVEL, p_flaws / _FLAWS_LEVEL)
        ),
        share_upper=upper,
    )


def _word(*, broken: bool, differs: bool, agrees: bool) -> Reason:
    if broken:
        return Reason.ANSWERS_BROKEN
    if differs:
        return Reason.ANSWERS_DIFFER
    return Reason.ANSWERS_AGREE if agrees else Reason.ANSWERS_UNDECIDED


def counted_more_often(worse: int, better: int) -> float:
    """One-sided p-value of two counts that have a common mean, the largest over all means.

    The counts are requests with a fault of the arm alone, and of the floor alone.
    """
    from scipy.special import betainc, gammaln, xlogy  # noqa: PLC0415  each trial imports this module, and few judge

    if worse <= better:
        return 1.0
    if worse > _MOST_COUNTED:
        # Given their sum; all pairs of so large counts would fill the memory.
        return float(betainc(worse, better + 1, 0.5))
    counts = np.arange(max(_MOST_COUNTED, 2 * worse) + 1.0)
    ones, others = counts[:, None], counts[None, :]
    # Ordered by their difference over its standard error.
    excess = (ones - others) / np.sqrt(np.maximum(ones + others, 1.0))
    as_extreme = excess >= (worse - better) / math.sqrt(worse + better) - 1e-9
    rates = _RATES[:, None]
    # Poisson's probabilities. scipy.stats has them too and is half of scipy, which the operator's image does without.
    chances = np.exp(xlogy(counts, rates) - gammaln(counts + 1.0) - rates)
    return float(np.einsum("ri,ij,rj->r", chances, as_extreme.astype(float), chances, optimize=True).max())


def exchanged(differences: FloatArray) -> float:
    """One-sided p-value of a sum of differences whose signs are as likely as not, exact up to 12 that are not zero.

    Beyond that 5,000 assignments of signs are drawn with a fixed seed, and the observed one counts as one of them.
    """
    given = differences[differences != 0.0]
    count = given.size
    if not count:
        return 1.0
    if count <= _EXACT_UP_TO:
        patterns = np.arange(2**count)
        signs = 1.0 - 2.0 * ((patterns[:, None] >> np.arange(count)) & 1)
        reached = int(np.sum(signs @ given >= given.sum() - 1e-9))
        return float(reached / 2**count)
    signs = np.random.default_rng(count).choice((-1.0, 1.0), size=(_DRAWS, count))
    return (1 + int(np.sum(signs @ given >= given.sum() - 1e-9))) / (_DRAWS + 1)


def _wide_gap(floor: Sequence[JudgedTokens], tokens: int) -> float:
    """Gap (nats) that no near-tie of so many tokens passes, but for a chance that is small beside the error rate.

    How many ties rounding may turn round, and how wide they are, is read off the floor; by its median, so that faults of its own do
    not widen them.
    """
    gaps = [gap for one in floor if not one.answer.form.constrained for gap in one.gaps]
    ties = [gap for gap in gaps if gap > 0.0]
    scale = float(np.median([*ties, *_PRIOR_TIES])) / math.log(2.0)
    expected = max(1.0, tokens * (len(ties) + 1.0) / (len(gaps) + 1.0))
    return max(_LEAST_WIDE_GAP, float(scale * math.log(expected / _CHANCE_OF_WIDE_TIE)))


def _faults(answers: Sequence[JudgedTokens], wide_gap: float) -> list[FaultPlace]:
    """The first fault of each answer that has one."""
    return [
        FaultPlace(one.answer.prompt, one.answer.batched, position)
        for one in answers
        if (position := one.first_beyond(wide_gap)) is not None
    ]


def _only_here(
    here: Mapping[str, list[JudgedTokens]], there: Mapping[str, list[JudgedTokens]], wide_gap: float
) -> int:
    """Number of free requests with a fault on one side and none on the other."""
    free = [name for name, answers in here.items() if not answers[0].answer.form.constrained]
    return sum(_widest(here[name]) > wide_gap >= _widest(there[name]) for name in free)


def _of_both(ones: Sequence[JudgedTokens], others: Sequence[JudgedTokens]) -> dict[str, list[JudgedTokens]]:
    """The answers by request, without those that the other side does not have in the same way of asking."""
    known = {(one.answer.prompt, one.answer.batched) for one in others}
    found: dict[str, list[JudgedTokens]] = {}
    for one in sorted(ones, key=lambda one: (one.answer.prompt, one.answer.batched)):
        if (one.answer.prompt, one.answer.batched) in known:
            found.setdefault(one.answer.prompt, []).append(one)
    return found


def _gap_sum(answers: Sequence[JudgedTokens]) -> float:
    """Mean over a request's answers of their capped gaps' sum."""
    return float(np.mean([sum(min(gap, _CAPPED_GAP) for gap in one.gaps) for one in answers]))


def _flaw_shares(given: AnswerSet) -> dict[str, float]:
    found: dict[str, list[bool]] = {}
    for answer in given.answers:
        found.setdefault(answer.prompt, []).append(answer.flaw is not None)
    return {name: sum(flaws) / len(flaws) for name, flaws in found.items()}


def _new_flaws(arm: AnswerSet, base: AnswerSet) -> Mapping[tuple[str, bool], Flaw]:
    """Flaws of the arm's answers to requests that no speculation answered without any."""
    sound = {name for name, share in _flaw_shares(base).items() if share == 0.0}
    return {
        (one.prompt, one.batched): one.flaw
        for one in arm.answers
        if one.flaw is not None and one.prompt in sound
    }


def _flaw_excess(arm: AnswerSet, base: AnswerSet) -> FloatArray:
    """Per request the share of the arm's flawed answers less the share without speculation."""
    theirs = _flaw_shares(base)
    return np.array([share - theirs[name] for name, share in _flaw_shares(arm).items() if name in theirs])


def _share_upper(worse: int, requests: int) -> float:
    """Upper bound (Clopper and Pearson) of the share of requests that are answered with a fault which the floor has not."""
    from scipy.special import betaincinv  # noqa: PLC0415  see above

    return 1.0 if worse >= requests else float(betaincinv(worse + 1, requests - worse, _BOUND_CONFIDENCE))


def _widest(answers: Sequence[JudgedTokens]) -> float:
    return max(one.widest_gap for one in answers)


def _worst(mine: Mapping[str, list[JudgedTokens]], gaps: FloatArray) -> list[FaultPlace]:
    """Where the sums of gaps exceed the floor's most, if no single gap is a fault."""
    names = list(mine)
    worst = [
        max(mine[names[index]], key=lambda one: one.widest_gap)
        for index in np.argsort(-gaps)
        if gaps[index] > 0.0
    ]
    return [FaultPlace(one.answer.prompt, one.answer.batched, one.first_beyond(0.0)) for one in worst]


def _exact(arm: AnswerSet, base: AnswerSet) -> tuple[int, int, int | None]:
    """Equal answers, compared answers, and the smallest position at which two part."""
    known = {(one.prompt, one.batched): one.token_ids for one in base.answers}
    pairs = [
        (one.token_ids, known[one.prompt, one.batched])
        for one in arm.answers
        if (one.prompt, one.batched) in known
    ]
    parted = [_parts_at(*pair) for pair in pairs if pair[0] != pair[1]]
    return len(pairs) - len(parted), len(pairs), min(parted, default=None)


def _parts_at(one: Sequence[int], other: Sequence[int]) -> int:
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
