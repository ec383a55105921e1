"""The word for an upgrade, from the records of both engines; pure.

A sound upgrade gets a word of loss in at most `ERROR_RATE` of trials. Half of that is the answers' (`breakeven.answering.answer_gate`); the
other half is shared by the ratios and the cache. A field counts as refused only if it was refused each time, which no chance does.

Windows are compared in pairs with the same prompts and arrivals, so that a state of the machine that both meet cancels. A loss is a
ratio whose interval lies beyond what is tolerated: two starts of one engine are never quite equally fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from breakeven.answering.answer import JudgedSet
from breakeven.answering.answer_gate import ERROR_RATE as ANSWERS_ERROR_RATE
from breakeven.answering.answer_gate import counted_more_often, judge_arm
from breakeven.load_driver.window import TURNED_AWAY
from breakeven.phrases import counted, figure, latency_text, percent
from breakeven.planning.roll_experiment import USUAL_COUNTS_AS, mean_of_blocks
from breakeven.points.point import ImposedLoad, Point
from breakeven.profile.student_t import t_quantile
from breakeven.reasons import Reason
from breakeven.upgrade.record import EngineRecord, UpgradeFinding, UpgradeReport, UpgradeWord

ERROR_RATE = 2 * ANSWERS_ERROR_RATE
"""Share of sound upgrades that get a word of loss, at most."""

FEWEST_PAIRS = 2
_OF_ACCEPTANCE, _OF_CACHE, _OF_LATENCIES, _OF_LENGTHS = 0.0025, 0.0015, 0.0059, 0.0001
_NO_LOSS_CONFIDENCE = 0.95
# Of prompt tokens: a cache that holds less has nothing to lose.
_LEAST_HITS = 0.05
# Nats; no rounding moves a model's own choice so far from the first one.
_SURE_GAP = 5.0
_SURE_LEVEL = 1e-3


class Limits(NamedTuple):
    """Limits of one figure, as logarithms of a ratio, or as shares.

    Attributes:
        tolerated: up to it a change for the worse is none.
        excluded: a change for the worse beyond it must be excluded before nothing counts as lost.
        level: the figure's part of the error rate.
        worse: 1 if more is worse, -1 if less is.
        loss: the word for a loss.
    """

    tolerated: float
    excluded: float
    level: float
    worse: int
    loss: UpgradeWord


ACCEPTANCE_LIMITS = Limits(0.02, 0.05, _OF_ACCEPTANCE, -1, UpgradeWord.ACCEPTANCE_LOST)


class Judged(NamedTuple):
    """A finding, and what deciding it would take; None if it is decided."""

    finding: UpgradeFinding
    needs: str | None = None


def compare(before: EngineRecord, after: EngineRecord, arm: str | None = None) -> UpgradeReport:
    """The word for an upgrade and a finding for each thing compared; both records are of one trial."""
    versions = {"before": before.version, "after": after.version}
    if after.failure is not None:
        none = UpgradeFinding(
            "answers at all", None, None, None, None, UpgradeWord.DOES_NOT_START, after.failure
        )
        return UpgradeReport(UpgradeWord.DOES_NOT_START, (none,), None, arm, versions)
    return reported(
        (
            *_fields(before, after),
            *failures(before, after),
            *_lengths(before, after),
            *_answers(before, after),
            *_cache(before, after),
            *_acceptance(before, after),
            *_latencies(before, after),
            *_shown(before, after),
        ),
        arm,
        versions,
    )


def reported(judged: Sequence[Judged], arm: str | None, versions: Mapping[str, str | None]) -> UpgradeReport:
    """The report whose word is the gravest of the findings'; undecided if none has a word."""
    words = {one.finding.word for one in judged}
    word = next((one for one in UpgradeWord if one in words), UpgradeWord.UNDECIDED)
    needs = None
    if word is UpgradeWord.UNDECIDED:
        needs = "; ".join(one.needs for one in judged if one.needs) or "something that can be compared"
    return UpgradeReport(word, tuple(one.finding for one in judged), needs, arm, versions)


def not_compared(name: str, why: str) -> Judged:
    """The finding of something that cannot be compared: it has no word."""
    return Judged(UpgradeFinding(name, None, None, None, None, None, f"not compared: {why}"))


def drafts_nothing(windows: Sequence[Point]) -> bool:
    """Whether steps are counted and no draft is; False without counters."""
    return any(window.tokens_per_step for window in windows) and not any(window.accept for window in windows)


def no_drafts(name: str) -> Judged:
    """The finding of an engine whose arm drafts and which counts no drafts."""
    said = "no drafts are counted any more"
    return Judged(UpgradeFinding(name, None, None, None, None, UpgradeWord.ACCEPTANCE_LOST, said))


def _fields(before: EngineRecord, after: EngineRecord) -> Iterator[Judged]:
    """What the service's requests may carry."""
    tried = set(before.accepted) & {*after.accepted, *after.refused}
    if not tried:
        yield not_compared("fields", "no field was tried on both engines")
        return
    lost = [name for name in after.refused if name in tried]
    word = UpgradeWord.REFUSED if lost else UpgradeWord.SAME
    said = (
        f"refused, and accepted before: {', '.join(lost)}"
        if lost
        else f"{counted(len(tried), 'field')} accepted by both"
    )
    yield Judged(
        UpgradeFinding("fields", float(len(tried)), float(len(tried) - len(lost)), None, None, word, said)
    )


def failures(before: EngineRecord, after: EngineRecord) -> Iterator[Judged]:
    """Requests of the load that an engine refused or broke off, and windows for which there was no time."""
    if after.lacking_s is not None:
        said = f"the time was used before {FEWEST_PAIRS} pairs of windows"
        finding = UpgradeFinding("windows", None, None, None, None, UpgradeWord.UNDECIDED, said)
        yield Judged(
            finding, f"windows: about {math.ceil(after.lacking_s)} s more than the other parts leave"
        )
    old, new = (sum(record.errors.values()) for record in (before, after))
    if not new:
        if old:
            said = f"{old} requests of the load failed before, and none fails now"
            yield Judged(UpgradeFinding("failed requests", old, new, None, None, None, said))
        return
    error = max(after.errors, key=lambda one: after.errors[one])
    if error == TURNED_AWAY:
        # An engine, or what stands before it, that is full: which windows did the other engine bear?
        bore = [{(one.replicate, one.load) for one in loaded(record.windows)} for record in (before, after)]
        lost = counted_more_often(len(bore[0] - bore[1]), len(bore[1] - bore[0])) < _SURE_LEVEL
        loss, wanted = UpgradeWord.SLOWER, "a lower load, or no limit in front of the engine"
    else:
        # One event, such as a connection that breaks, takes all requests of a window.
        often = sum(bool(one.failed) for one in after.windows) >= FEWEST_PAIRS
        lost = often and counted_more_often(new, old) < _SURE_LEVEL
        loss, wanted = UpgradeWord.REFUSED, "windows in which no request fails"
    said = f"{counted(new, 'request')} of the load failed, {old} before; most often {error}, {counted(after.errors[error], 'time')}"
    word = loss if lost else UpgradeWord.UNDECIDED
    needs = None if lost else wanted
    yield Judged(UpgradeFinding("failed requests", old, new, None, None, word, said), needs)


def _lengths(before: EngineRecord, after: EngineRecord) -> Iterator[Judged]:
    """Answers of the load that end before the tokens that both engines were asked for."""
    pairs = _matched(before.windows, after.windows).values()
    known = [
        (_tokens(old), _tokens(new)) for old, new in pairs if all(one.output_tokens for one in (*old, *new))
    ]
    if len(known) >= FEWEST_PAIRS:
        limits = Limits(0.05, 0.15, _OF_LENGTHS, -1, UpgradeWord.REFUSED)
        found = judged_pairs("tokens per answer", _logs(known), _means(known), limits, figure)
        if found.finding.word is UpgradeWord.REFUSED:
            yield found


def _tokens(windows: Sequence[Point]) -> float:
    """Mean tokens of an answer."""
    requests = [one.requests or 1.0 for one in windows]
    return float(np.average([one.output_tokens or 0.0 for one in windows], weights=requests))


def _answers(before: EngineRecord, after: EngineRecord) -> Iterator[Judged]:
    """Answers of each engine by the other's judgement, so that what rounds differently counts on both sides alike."""
    if after.answers and (lost := after.answers.given.refused):
        said = f"{counted(lost, 'prompt')} refused, and answered before"
        yield Judged(UpgradeFinding("refused prompts", None, None, None, None, UpgradeWord.REFUSED, said))
    if not (before.answers and before.answers.judged and after.answers and after.answers.judged):
        yield not_compared("answers", "an engine judges no answers (prompt_logprobs)")
        return
    found = judge_arm(after.answers, before.answers)
    wrong, own = _surely_wrong(before.answers), _surely_wrong(before.own)
    differs = found.word in {Reason.ANSWERS_DIFFER, Reason.ANSWERS_BROKEN}
    judges_otherwise = before.own is not None and counted_more_often(wrong, own) < _SURE_LEVEL
    count = max(found.differing, wrong) if judges_otherwise else found.differing
    same = f"{found.equal} of {found.compared} are equal token for token"
    if differs or judges_otherwise:
        flaws = f", {found.flawed} are empty, invalid or looping" if found.flawed else ""
        said = f"{count} of {found.answers} answers hold tokens that the other engine would not choose{flaws}; {same}"
        word = UpgradeWord.ANSWERS_DIFFER
    else:
        decided = found.word is Reason.ANSWERS_AGREE
        word = UpgradeWord.SAME if decided else UpgradeWord.UNDECIDED
        said = (
            f"{found.answers} answers, some asked again after others: at most {percent(found.share_upper)} of requests are "
            f"answered differently; {same}"
        )
    needs = "more prompts whose answers are compared" if word is UpgradeWord.UNDECIDED else None
    finding = UpgradeFinding("answers", None, None, None, None, word, said)
    yield Judged(finding, needs)


def _surely_wrong(judged: JudgedSet | None) -> int:
    """Requests with a free answer that the judge would never have given."""
    found = judged.judged if judged is not None else ()
    return len(
        {one.answer.prompt for one in found if not one.answer.form.constrained and one.widest_gap > _SURE_GAP}
    )


def _cache(before: EngineRecord, after: EngineRecord) -> Iterator[Judged]:
    """Prompts that begin alike, in rounds."""
    rounds = [*zip(before.prefix_hits, after.prefix_hits, strict=False)]
    if not rounds:
        yield not_compared("prefix-cache hits", "an engine does not count them")
        return
    old, new = (float(np.mean(shares)) for shares in zip(*rounds, strict=True))
    if old < _LEAST_HITS:
        why = f"{percent(old)} of prompt tokens were found before, so that there is nothing to lose"
        yield not_compared("prefix-cache hits", why)
        return
    limits = Limits(0.05, 0.15, _OF_CACHE, -1, UpgradeWord.CACHE_LOST)
    changes = [later - earlier for earlier, later in rounds]
    yield judged_pairs("prefix-cache hits", changes, (old, new), limits, percent, shares=True)


def _acceptance(before: EngineRecord, after: EngineRecord) -> Iterator[Judged]:
    """Tokens per step decide; shares by position show where they were lost."""
    if not any(window.accept for window in (*before.windows, *after.windows)):
        yield not_compared("tokens per step", "neither engine drafts, or drafts are not counted")
        return
    name = "tokens per step"
    if drafts_nothing(after.windows):
        yield no_drafts(name)
        return
    if not all(any(one.tokens_per_step for one in record.windows) for record in (before, after)):
        said = "an engine shows no counters"
        finding = UpgradeFinding(name, None, None, None, None, UpgradeWord.UNDECIDED, said)
        yield Judged(finding, f"{name}: counters of both engines (/metrics)")
        return
    pairs = _matched(before.windows, after.windows)
    steps = [(_tokens_per_step(old), _tokens_per_step(new)) for old, new in pairs.values()]
    known = [(old, new) for old, new in steps if old is not None and new is not None]
    if len(known) < FEWEST_PAIRS:
        yield too_few(name)
    else:
        yield judged_pairs(name, _logs(known), _means(known), ACCEPTANCE_LIMITS, figure)
    for place in range(max(len(window.accept) for window in (*before.windows, *after.windows))):
        shares = [(_accepted(old, place), _accepted(new, place)) for old, new in pairs.values()]
        both = [(old, new) for old, new in shares if old is not None and new is not None]
        if both:
            old, new = _means(both)
            said = f"{percent(old)} of drafts before, {percent(new)} after"
            ratio = new / old if old > 0.0 else None
            yield Judged(
                UpgradeFinding(f"accepted at position {place + 1}", old, new, ratio, None, None, said)
            )


def _latencies(before: EngineRecord, after: EngineRecord) -> Iterator[Judged]:
    """Times per output token and to the first token, at each load."""
    loads = list(dict.fromkeys(window.load for window in before.windows))
    for load in loads:
        pairs = _matched(before.windows, after.windows, load)
        for name, at in LATENCIES.items():
            known = [*_times(pairs.values(), at)]
            shown = f"{name} at {load}"
            if len(known) < FEWEST_PAIRS:
                yield too_few(shown)
            else:
                yield judged_pairs(
                    shown, _logs(known), _means(known), latency_limits(at, len(loads)), latency_text
                )
    if not loads:
        yield too_few("latencies")


LATENCIES = {"time per output token": "tpot_mean_s", "time to first token": "ttft_mean_s"}
"""Latencies that are compared, and their column in points."""


def latency_limits(column: str, loads: int) -> Limits:
    """Limits of a latency at one of so many loads: a first token waits for the end of a step, whose share is chance."""
    tolerated, excluded = (0.02, 0.05) if column == "tpot_mean_s" else (0.05, 0.15)
    return Limits(tolerated, excluded, _OF_LATENCIES / (len(LATENCIES) * loads), 1, UpgradeWord.SLOWER)


def _shown(before: EngineRecord, after: EngineRecord) -> Iterator[Judged]:
    """Figures without a word: one start each is no sample."""
    for name, old, new, show in (
        ("start", before.start_s, after.start_s, latency_text),
        ("tokens of the KV cache", before.kv_tokens, after.kv_tokens, lambda tokens: f"{tokens:.0f}"),
    ):
        if old is None or new is None:
            yield not_compared(name, "not known of both engines")
            continue
        ratio = new / old if old > 0 else None
        said = f"{show(float(old))} before, {show(float(new))} after"
        yield Judged(UpgradeFinding(name, float(old), float(new), ratio, None, None, said))


def judged_pairs(
    name: str,
    changes: Sequence[float],
    means: tuple[float, float],
    limits: Limits,
    show: Callable[[float], str],
    *,
    shares: bool = False,
) -> Judged:
    """The finding of a figure from its changes in pairs: logarithms of ratios, or differences of `shares`."""
    zeros = np.zeros(len(changes))
    known = mean_of_blocks(np.array(changes), zeros, zeros)
    if known is None:
        return too_few(name)
    sd, dof = math.sqrt(known.variance), len(changes) - 1 + int(USUAL_COUNTS_AS)
    return judged_change(name, (known.mean, sd, dof, len(changes)), means, limits, show, shares=shares)


def judged_change(
    name: str,
    change: tuple[float, float, int, int],
    means: tuple[float, float],
    limits: Limits,
    show: Callable[[float], str],
    *,
    shares: bool = False,
) -> Judged:
    """The finding of a figure from a mean change, its standard error, their degrees of freedom, and the pairs behind it."""
    mean, sd, dof, pairs = change
    radius = t_quantile(1.0 - 2.0 * limits.level, dof) * sd
    likely = t_quantile(2.0 * _NO_LOSS_CONFIDENCE - 1.0, dof) * sd
    loss = limits.worse * mean
    if loss - radius > limits.tolerated:
        word = limits.loss
    elif loss + radius < -limits.tolerated and limits.loss is UpgradeWord.SLOWER:
        word = UpgradeWord.FASTER
    else:
        word = UpgradeWord.SAME if loss + likely < limits.excluded else UpgradeWord.UNDECIDED
    old, new = means
    # Of shares the change is a difference, beside the share of before.
    back = (lambda value: 1.0 + value / old) if shares else math.exp
    ratio, interval = back(mean), (back(mean - likely), back(mean + likely))
    said = (
        f"{show(old)} before, {show(new)} after: {ratio:.3f} times ({interval[0]:.3f} to {interval[1]:.3f})"
    )
    needs = None
    if word is UpgradeWord.UNDECIDED:
        rooms = (limits.excluded - loss, likely), (loss - limits.tolerated, radius)
        more = max(
            math.ceil(min(pairs * (width / room) ** 2 for room, width in rooms if room > 0.0)), pairs + 1
        )
        needs = f"{name}: about {more} pairs of windows in place of {pairs}, {figure(more / pairs)} times the seconds"
    return Judged(UpgradeFinding(name, old, new, ratio, interval, word, said), needs)


def too_few(name: str) -> Judged:
    """The finding of a figure whose windows are too few."""
    said = "too few windows that can be compared"
    finding = UpgradeFinding(name, None, None, None, None, UpgradeWord.UNDECIDED, said)
    return Judged(finding, f"{name}: at least {FEWEST_PAIRS} pairs of windows in which no request fails")


def loaded(windows: Iterable[Point]) -> tuple[Point, ...]:
    """Windows that bore all of their load: an engine that refuses requests has less to do."""
    return tuple(one for one in windows if not one.failed and Reason.DRIVER_LAGGING not in one.flags)


def _matched(
    before: Iterable[Point], after: Iterable[Point], load: ImposedLoad | None = None
) -> dict[str, tuple[list[Point], list[Point]]]:
    """Windows of both engines by the number of their pair, at one load or at all."""
    old, new = (
        {(one.replicate, one.load): one for one in loaded(windows) if load in {None, one.load}}
        for windows in (before, after)
    )
    found: dict[str, tuple[list[Point], list[Point]]] = {}
    for place in (one for one in old if one in new):
        for side, windows in enumerate((old, new)):
            found.setdefault(str(place[0]), ([], []))[side].append(windows[place])
    return found


def _times(pairs: Iterable[tuple[list[Point], list[Point]]], column: str) -> Iterator[tuple[float, float]]:
    for old, new in pairs:
        times = [getattr(one[0], column) for one in (old, new)]
        if all(times):
            yield times[0], times[1]


def _tokens_per_step(windows: Sequence[Point]) -> float | None:
    """E over windows: their tokens over their steps."""
    known = [
        (one.requests * one.output_tokens, one.tokens_per_step)
        for one in windows
        if one.requests and one.output_tokens and one.tokens_per_step
    ]
    return sum(tokens for tokens, _ in known) / sum(tokens / e for tokens, e in known) if known else None


def _accepted(windows: Sequence[Point], place: int) -> float | None:
    """Share of drafts accepted up to a position; 0 where the engine drafts fewer."""
    drafts = sum(one.drafts or 0.0 for one in windows)
    accepted = sum((one.drafts or 0.0) * one.accept[place] for one in windows if place < len(one.accept))
    return accepted / drafts if drafts > 0.0 else None


def _logs(pairs: Sequence[tuple[float, float]]) -> list[float]:
    return [math.log(new / old) for old, new in pairs]


def _means(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    old, new = zip(*pairs, strict=True)
    return float(np.mean(old)), float(np.mean(new))
