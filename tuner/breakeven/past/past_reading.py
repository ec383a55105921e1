"""Reading of a past: questions to a Prometheus in chunks, windows of each, what one fingerprint's arms come to, and what they cannot say."""

from __future__ import annotations

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError, InputError
from breakeven.fitting import fit_points
from breakeven.fitting.observations import SAME_OUTPUT, SAME_PROMPT
from breakeven.laws.arrays import FloatArray
from breakeven.past.clustering import ArmPast, arm_past
from breakeven.past.courses import GAUGES, POD, PodCourse, TimeGrid, courses, questions
from breakeven.past.pod_facts import Fingerprint, PodFacts, PodKind, fact_questions, kind_of, read_facts
from breakeven.past.steady import MEANINGS, CutPast, SteadyWindow, WindowWord, cut
from breakeven.phrases import duration_text, figure, spoken
from breakeven.points.point import Point
from breakeven.profile import Conditions, Profile
from breakeven.profile.comparisons import Comparison
from breakeven.profile.fits import ArmFit, Lengths
from breakeven.readers.prometheus import Samples
from breakeven.serving.promql import PREFIXES, RUNNING, EngineSeries, Matcher, by_replica

_SAME_ACCEPTANCE = 0.10
"""Share by which tokens per step may differ and be the same."""

_TIED = 0.5
"""Share of a figure's variance between hours that the load, or time, explains from which it moved with it."""

_FEWEST_HOURS = 6
"""Hours below which nothing is said of what moved."""

_LONE_ERROR, _SLOPE_ERROR = 0.25, 0.5
"""Half-width of the bounds of C1 and of C2, relative to them, beyond which they are not known."""


_ALONE = 0.3
"""Number in flight below which a request is alone: its latency is C1 whatever the slope is."""


class PastWord(StrEnum):
    """Something that the past cannot say."""

    OTHER_ARM_NEVER_RAN = "OtherArmNeverRan"
    ONLY_LONE_LATENCY = "OnlyLoneLatency"
    ONLY_SLOPE = "OnlySlope"
    LOAD_RANGE_TOO_SMALL = "LoadRangeTooSmall"
    LENGTHS_MOVE_WITH_LOAD = "LengthsMoveWithLoad"
    ACCEPTANCE_MOVES_WITH_LOAD = "AcceptanceMovesWithLoad"
    LENGTHS_DRIFT = "LengthsDrift"
    ACCEPTANCE_DRIFTS = "AcceptanceDrifts"
    ARMS_MET_OTHER_LENGTHS = "ArmsMetOtherLengths"
    ARMS_MET_OTHER_LOADS = "ArmsMetOtherLoads"
    DAYS_DIFFER = "DaysDiffer"
    METHOD_UNKNOWN = "MethodUnknown"
    DRAFT_LENGTH_VARIES = "DraftLengthVaries"
    CHANGES_UNKNOWN = "ChangesUnknown"
    EARLIER_DIFFERS = "EarlierDiffers"


class PastDoubt(NamedTuple):
    """One thing that the past cannot say, and the figures that show it, without a full stop."""

    word: PastWord
    sentence: str


def doubts_about(arms: Sequence[ArmPast], profile: Profile | None) -> Iterator[PastDoubt]:
    """Everything that these arms of one fingerprint cannot say, the gravest first."""
    plain = [one for one in arms if not one.kind.k]
    if not plain or len(plain) == len(arms):
        ran = "no speculation" if plain else "speculation"
        yield doubt(PastWord.OTHER_ARM_NEVER_RAN, f"all windows are of {ran}")
    for one in arms:
        yield from _about_range(one, profile)
        yield from _about_mix(one)
        if one.scatter is not None and one.scatter.days_differ:
            yield doubt(
                PastWord.DAYS_DIFFER,
                f"{spoken(named(one))}: {one.scatter.days:.1%} between days, {one.scatter.hours:.1%} between hours",
            )
        yield from _about_drafts(one)
    yield from _between(arms)


def named(one: ArmPast) -> str:
    """Name of an arm."""
    return one.points[0].arm.name if one.points else "none" if not one.kind.k else f"drafts of {one.kind.k}"


def doubt(word: PastWord, shown: str) -> PastDoubt:
    """A word with its meaning and the figures that show it."""
    return PastDoubt(word, f"{MEANINGS[word]} ({shown})")


def _about_range(one: ArmPast, profile: Profile | None) -> Iterator[PastDoubt]:
    fit = profile.arm(one.points[0].arm) if profile is not None and one.points else None
    met = [window.met_inflight for window in one.windows]
    low, high = np.quantile(met, (0.05, 0.95))
    lone, slope = _known(fit, "c1", _LONE_ERROR) or high < _ALONE, _known(fit, "c2", _SLOPE_ERROR)
    if lone and slope:
        return
    only = PastWord.ONLY_LONE_LATENCY if lone else PastWord.ONLY_SLOPE
    met_text = f"{figure(low)} to {figure(high)} requests in flight at a pod, {len(one.points)} rows"
    yield doubt(only if lone or slope else PastWord.LOAD_RANGE_TOO_SMALL, f"{spoken(named(one))}: {met_text}")


def _known(fit: ArmFit | None, figure: str, most: float) -> bool:
    value, interval = getattr(fit, f"{figure}_s", None), getattr(fit, f"{figure}_ci_s", None)
    if not value or interval is None or interval[0] is None or interval[1] is None:
        return False
    return bool(0.5 * (interval[1] - interval[0]) <= most * value)


class _Mix(NamedTuple):
    """A figure of the traffic: its place among an hour's covariates, and by how much it may differ and be the same."""

    name: str
    at: int
    same: float
    with_load: PastWord
    with_time: PastWord


_MIXES = (
    _Mix("output tokens", 1, SAME_OUTPUT, PastWord.LENGTHS_MOVE_WITH_LOAD, PastWord.LENGTHS_DRIFT),
    _Mix("prompt tokens", 0, SAME_PROMPT, PastWord.LENGTHS_MOVE_WITH_LOAD, PastWord.LENGTHS_DRIFT),
    _Mix(
        "tokens per step",
        2,
        _SAME_ACCEPTANCE,
        PastWord.ACCEPTANCE_MOVES_WITH_LOAD,
        PastWord.ACCEPTANCE_DRIFTS,
    ),
)


def _about_mix(one: ArmPast) -> Iterator[PastDoubt]:
    """Lengths and acceptance that moved with the load, or with time."""
    said: set[PastWord] = set()
    if len(one.hourly) < _FEWEST_HOURS:
        return
    weights = np.array([hour.requests for hour in one.hourly])
    load = np.log1p([hour.inflight for hour in one.hourly])
    begin_s = np.array([float(hour.begin_s) for hour in one.hourly])
    days = np.array([hour.day for hour in one.hourly])
    for mix in _MIXES:
        logs = np.array([hour.covariates[mix.at] for hour in one.hourly])
        low, high = np.exp(np.quantile(logs, (0.05, 0.95)))
        found = {
            mix.with_load: _explained_by(load, logs, weights),
            # A change within a day shows in two days' means only where midnight parts it.
            mix.with_time: max(_explained_by(begin_s, logs, weights), _explained_by_day(logs, days, weights)),
        }
        for word, (share, span) in found.items():
            if word not in said and share >= _TIED and span > mix.same:
                said.add(word)
                yield doubt(word, f"{spoken(named(one))}: {figure(low)} to {figure(high)} {mix.name}")


def _explained_by(axis: FloatArray, logs: FloatArray, weights: FloatArray) -> tuple[float, float]:
    """Share of a figure's variance that a line along an axis, the load or time, explains, and the range (ln) of what it explains."""
    x, y = axis - np.average(axis, weights=weights), logs - np.average(logs, weights=weights)
    spread, total = float(weights @ x**2), float(weights @ y**2)
    if spread <= 0.0 or total <= 0.0:
        return 0.0, 0.0
    slope = float(weights @ (x * y)) / spread
    return slope**2 * spread / total, abs(slope) * float(np.ptp(axis))


def _explained_by_day(logs: FloatArray, days: NDArray[np.int64], weights: FloatArray) -> tuple[float, float]:
    """The same, explained by the day."""
    names = np.unique(days)
    if names.size < 2:
        return 0.0, 0.0
    means = np.array([np.average(logs[days == day], weights=weights[days == day]) for day in names])
    y = logs - np.average(logs, weights=weights)
    total = float(weights @ y**2)
    within = float(weights @ (logs - means[np.searchsorted(names, days)]) ** 2)
    return 1.0 - within / total if total > 0.0 else 0.0, float(np.ptp(means))


def _about_drafts(one: ArmPast) -> Iterator[PastDoubt]:
    if not one.kind.k:
        return
    if one.kind.method is None:
        yield doubt(PastWord.METHOD_UNKNOWN, f"{spoken(named(one))}: name it with --method")
    drafted = one.seen.drafted_per_step
    if drafted is not None and drafted < one.kind.k - 0.5 and one.kind.schedule is None:
        yield doubt(
            PastWord.DRAFT_LENGTH_VARIES, f"{spoken(named(one))}: {figure(drafted)} drafted tokens per step"
        )


def _between(arms: Sequence[ArmPast]) -> Iterator[PastDoubt]:
    """Lengths and loads in which an arm differs from no speculation."""
    plain = next((one for one in arms if not one.kind.k and one.points), None)
    for one in arms:
        if plain is None or one is plain or not one.points:
            continue
        for name, same in (("prompt_tokens", SAME_PROMPT), ("output_tokens", SAME_OUTPUT)):
            own, other = getattr(one.seen, name), getattr(plain.seen, name)
            if own and other and abs(math.log(own / other)) > same:
                shown = f"{spoken(named(one))} {figure(own)}, no speculation {figure(other)} {name.replace('_', ' ')}"
                yield doubt(PastWord.ARMS_MET_OTHER_LENGTHS, shown)
                break
        rates = ([point.request_rate_rps or 0.0 for point in each.points] for each in (one, plain))
        ranges = [(min(of), max(of)) for of in rates]
        if ranges[0][0] > ranges[1][1] or ranges[1][0] > ranges[0][1]:
            shown = ", ".join(
                f"{spoken(named(each))} {figure(low)} to {figure(high)} rps"
                for each, (low, high) in zip((one, plain), ranges, strict=True)
            )
            yield doubt(PastWord.ARMS_MET_OTHER_LOADS, shown)


CHUNK_S = 86_400
"""Span of one range query, s."""

_SIGHTS = 200
"""Times at which series are looked for before anything else is asked."""

FitOfRows = Callable[[Sequence[Point]], Profile]
"""Fit of the rows of a past."""

UNNAMED = "unnamed"
"""Method of drafts of which nobody knows how they are made."""


class PastServer(Protocol):
    """A server that is asked about the past; each method raises `BreakevenError` if there is no usable answer."""

    def over(self, promql: str, grid: TimeGrid) -> Iterable[Samples]:
        """Series at the times of a grid."""
        ...

    def at(self, promql: str, time_s: int) -> Iterable[tuple[Mapping[str, str], float]]:
        """Labels and value of each element at a Unix time (s)."""
        ...


class AskedPast(NamedTuple):
    """A question about the past.

    Attributes:
        matchers: on every series.
        prefix: of their names; None for the first usual prefix that has series.
        grid: ends of the windows.
        method: how drafts are made if no series says so.
        single: whether the pods must be of one workload.
        arms: arms that the user named; what ran by the same method with the same drafts takes the name.
    """

    matchers: tuple[Matcher, ...]
    prefix: str | None
    grid: TimeGrid
    method: str | None = None
    single: bool = True
    arms: tuple[Arm, ...] = ()


@dataclass(frozen=True, slots=True)
class EarlierPast:
    """Windows that are left out because they are of another fingerprint, by the facts that differ.

    They cover so many hours and end at a Unix time; of each arm the longest draft is known, 0 for no speculation.
    """

    differs: tuple[str, ...]
    fingerprint: Fingerprint
    hours: float
    arms: tuple[int, ...]
    end_s: int


@dataclass(frozen=True, slots=True)
class KnownPast:
    """Everything that a past says.

    Attributes:
        grid: ends of the windows that were asked for.
        arms: of the present fingerprint, no speculation first.
        cut: its windows, and how many were dropped for which reason.
        earlier: what is left out, the latest first.
        profile: the fit of the arms' rows; None if there are too few.
    """

    grid: TimeGrid
    pods: int
    arms: tuple[ArmPast, ...]
    cut: CutPast
    earlier: tuple[EarlierPast, ...]
    profile: Profile | None
    doubts: tuple[PastDoubt, ...]

    def lengths(self) -> Lengths:
        """Lengths at which the arms are compared: the mean over the arms.

        Each at its own, arms whose answers differ by half a percent seem to differ by half a percent of latency.
        """
        prompts = [one.seen.prompt_tokens for one in self.arms if one.seen.prompt_tokens]
        outputs = [one.seen.output_tokens for one in self.arms if one.seen.output_tokens]
        return Lengths(*(sum(each) / len(each) if each else None for each in (prompts, outputs)))

    def in_words(self, most: int) -> str:
        """Hours of each arm, and at most so many words for what the past cannot say, as a clause."""
        ran = ", ".join(f"{duration_text(3600 * one.hours)} of {spoken(named(one))}" for one in self.arms)
        words = list(dict.fromkeys(str(one.word) for one in self.doubts))[:most]
        unknown = f"; the past cannot say everything: {', '.join(words)}" if words else ""
        return f"{ran} at steady loads{unknown}"

    def against_none(self, arm: Arm, confidence: float) -> Comparison | None:
        """An arm against no speculation at the arm's mean load; None if one of both is not known well enough."""
        profile = self.profile
        one = next((each for each in self.arms if each.points and each.points[0].arm == arm), None)
        if profile is None or one is None or arm == NO_SPECULATION:
            return None
        at = self.lengths()
        conditions = Conditions(prompt_tokens=at.prompt_tokens, output_tokens=at.output_tokens)
        with contextlib.suppress(BreakevenError):
            return profile.compare(arm, rps=one.seen.rps, conditions=conditions, confidence=confidence)
        return None


def read_past(
    server: PastServer, asked: AskedPast, progress: Callable[[float], None], fit: FitOfRows = fit_points
) -> KnownPast:
    """Read a past; the share that is done, 0 to 1, is shown, and the fit raises `BreakevenError` if rows determine nothing.

    Raises:
        InputError: no series, series of several workloads, or no window that counts.
        BreakevenError: the server has no usable answer.
    """
    engines, grid = _found(server, asked)
    facts: dict[tuple[str, str], PodFacts] = {}
    found, names, newest = CutPast(), set[tuple[str, str]](), list[PodKind]()

    def kind(one: PodCourse) -> PodKind:
        known = facts.get((one.name.namespace, one.name.replica), PodFacts())
        drafts = one.values("drafts") is not None
        return kind_of(one.name.model, drafts, one.longest_draft, known, asked.method)

    chunks = list(grid.chunks(max(CHUNK_S // grid.step_s, 1)))
    for number, grid in enumerate(chunks):

        def shown(share: float, done: int = number) -> None:
            progress((done + share) / len(chunks))

        pods, more = _chunk(server, engines, grid, shown)
        facts |= more
        names |= {(one.name.namespace, one.name.replica) for one in pods}
        if asked.single:
            _check_single(pods)
        # Cut at once, so that memory does not grow with pods that came and went.
        found += cut(grid, pods, kind)
        if pods:
            newest = [kind(one) for one in pods if _is_there(one)]
    return known_past(asked, found, names, newest, fit)


def _found(server: PastServer, asked: AskedPast) -> tuple[EngineSeries, TimeGrid]:
    """The series, under the prefix that has some, and the grid from where they begin; a refused input if there are none."""
    grid = asked.grid
    step_s = max(grid.step_s, (grid.last_s - grid.first_s) // _SIGHTS // grid.step_s * grid.step_s)
    sights = TimeGrid(
        grid.last_s - (grid.last_s - grid.first_s) // step_s * step_s,
        step_s,
        (grid.last_s - grid.first_s) // step_s + 1,
    )
    prefixes = (asked.prefix,) if asked.prefix is not None else PREFIXES
    for prefix in prefixes:
        engines = EngineSeries(asked.matchers, prefix, POD, by_replica)
        seen = [
            one.values[0].time_s
            for one in server.over(f"count({engines.named(RUNNING)})", sights)
            if one.values
        ]
        if seen:
            # They may have begun at any time since the sight before.
            return engines, grid.since(int(min(seen)) - step_s)
    name = f"{prefixes[0]}{RUNNING}"
    others = [
        " ".join(f"{label}={labels[label]!r}" for label in ("namespace", "model_name") if labels.get(label))
        for labels, _ in server.at(f"group by(namespace,model_name)({name})", grid.last_s)
    ]
    there = f"series of {', '.join(sorted(filter(None, others))[:4])}" if any(others) else "series of a vLLM"
    chosen = ",".join(one.render() for one in asked.matchers)
    raise InputError("--prometheus", f"no {name}{{{chosen}}} in the whole span", there)


def _chunk(
    server: PastServer, engines: EngineSeries, grid: TimeGrid, progress: Callable[[float], None]
) -> tuple[tuple[PodCourse, ...], dict[tuple[str, str], PodFacts]]:
    asked = questions(engines, grid.step_s)
    answers = []
    for number, (stat, promql) in enumerate(asked.items()):
        answers.append((stat, tuple(server.over(promql, grid))))
        progress((number + 1) / (len(asked) + 1))
    pods = courses(grid, answers)
    named = [(one.name.namespace, one.name.replica) for one in pods if one.name.namespace]
    facts = {}
    if named:
        about = fact_questions(named, engines, grid.last_s - grid.first_s)
        facts = {
            fact: [labels for labels, _ in server.at(promql, grid.last_s)] for fact, promql in about.items()
        }
    return pods, read_facts(facts)


def _is_there(one: PodCourse) -> bool:
    running = one.values(GAUGES[0])
    return running is not None and not math.isnan(running[-1])


def _check_single(pods: Sequence[PodCourse]) -> None:
    """Refuse pods of several workloads, naming some of them."""
    owners = sorted({"/".join(filter(None, (one.name.namespace, _owner(one.name.replica)))) for one in pods})
    if len(owners) > 1:
        shown = ", ".join(owners[:4]) + (" and others" if len(owners) > 4 else "")
        wanted = "--deployment NS/NAME or --match of one of them"
        raise InputError("--prometheus", f"series of several workloads ({shown})", wanted)


def _owner(replica: str) -> str:
    """Name of the workload, of its pod's: a Deployment's pods end in two words, a StatefulSet's in a number; of an address none."""
    if ":" in replica:
        return ""
    parts = replica.split("-")
    own = 2 if len(parts) > 2 and not parts[-1].isdigit() else 1
    return "-".join(parts[:-own]) or replica


def known_past(
    asked: AskedPast,
    found: CutPast,
    pods: Iterable[tuple[str, str]],
    newest: Sequence[PodKind],
    fit: FitOfRows = fit_points,
) -> KnownPast:
    """Everything that windows of all chunks say, with the pods (namespace, name) that there were and the kinds at the end; pure.

    Raises:
        InputError: no window counts.
    """
    names = sorted(set(pods))
    if not found.windows:
        reasons = ", ".join(f"{word} {count}" for word, count in found.dropped.most_common())
        problem = f"none of {found.dropped.total()} windows is steady ({reasons})"
        raise InputError("--since", problem, _wanted(found))
    present = _present(found.windows, newest)
    own = [one for one in found.windows if not one.kind.fingerprint.differs(present)]
    earlier = _earlier([one for one in found.windows if one.kind.fingerprint.differs(present)], present)
    arms = _arms(own, names, asked)
    points = [point for one in arms for point in one.points]
    profile = None
    with contextlib.suppress(BreakevenError):
        profile = fit(points) if points else None
    doubts = [*doubts_about(arms, profile), *_about_facts(present, earlier)]
    kept = tuple(window for one in arms for window in one.windows)
    near = Counter({WindowWord.NEAR_SATURATION: sum(one.near_saturation for one in arms)})
    counted = replace(found, windows=kept, dropped=found.dropped + near)
    return KnownPast(asked.grid, len(names), arms, counted, earlier, profile, tuple(doubts))


def _wanted(found: CutPast) -> str:
    """The remedy for a past without a window."""
    if found.missing:
        return f"stored series of {', '.join(sorted(found.missing)[:4])}"
    if found.contradiction:
        return f"counters of one engine ({found.contradiction})"
    return "a longer past, or another --window-seconds"


def _present(windows: Sequence[SteadyWindow], newest: Sequence[PodKind]) -> Fingerprint:
    """The present fingerprint: of the pods at the end the newest fingerprint, else the fingerprint of the last window."""
    now = {one.fingerprint for one in newest}
    first: dict[Fingerprint, int] = {}
    for one in sorted(windows, key=lambda one: one.end_s):
        first.setdefault(one.kind.fingerprint, one.end_s)
    there = [one for one in first if one in now] or [max(windows, key=lambda one: one.end_s).kind.fingerprint]
    return max(there, key=lambda one: (first[one], tuple(str(fact) for fact in one)))


def _arms(
    windows: Sequence[SteadyWindow], names: Sequence[tuple[str, str]], asked: AskedPast
) -> tuple[ArmPast, ...]:
    """The arms of one fingerprint, no speculation first."""
    by_arm: dict[tuple[int, str, str], list[SteadyWindow]] = defaultdict(list)
    for one in windows:
        by_arm[one.kind.k, one.kind.method or "", one.kind.schedule or ""].append(one)
    workload = "/".join(filter(None, (names[0][0], _owner(names[0][1])))) if names else "past"
    # Of two drafters of one method nothing tells which one ran.
    drafters = Counter(replace(arm, candidate=None) for arm in asked.arms)
    own = {replace(arm, candidate=None): arm.candidate for arm in asked.arms}
    own = {arm: name for arm, name in own.items() if drafters[arm] == 1}
    found = (
        arm_past(members, key[1] or asked.method or UNNAMED, workload)
        for key, members in sorted(by_arm.items())
    )
    return tuple(
        replace(one, points=tuple(replace(row, candidate=own.get(row.arm)) for row in one.points))
        for one in found
    )


def _earlier(windows: Sequence[SteadyWindow], present: Fingerprint) -> tuple[EarlierPast, ...]:
    groups: dict[Fingerprint, list[SteadyWindow]] = defaultdict(list)
    for one in windows:
        groups[one.kind.fingerprint].append(one)
    found = [
        EarlierPast(
            differs=known.differs(present),
            fingerprint=known,
            hours=sum(one.span_s for one in members) / 3600.0,
            arms=tuple(sorted({one.kind.k for one in members})),
            end_s=max(one.end_s for one in members),
        )
        for known, members in groups.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.end_s))


def _about_facts(present: Fingerprint, earlier: Sequence[EarlierPast]) -> Iterable[PastDoubt]:
    if earlier:
        facts = sorted({name for one in earlier for name in one.differs})
        hours = sum(one.hours for one in earlier)
        yield doubt(PastWord.EARLIER_DIFFERS, f"{', '.join(facts)}; {hours:.1f} h of windows")
    if present.image is None and present.gpu is None:
        lacking = "kube_pod_container_info, kube_pod_info and DCGM's series are not there"
        yield doubt(PastWord.CHANGES_UNKNOWN, lacking)
