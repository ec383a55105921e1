"""Growths of engines' counters over one span, and what is wrong with them; `counted_window` makes figures of them.

A statistic that is missing is None here, and so is every figure that needs it; a count of zero is zero. Counters that cannot be
true, are no numbers, are missing or are old are four different things, each with its own word. Figures are compared with each
other and with the limits of any engine. A figure is refused only if no engine, no traffic and no sampling of Prometheus explain
it. A figure that is merely surprising is not refused here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from breakeven.arm import Arm
from breakeven.phrases import figure
from breakeven.serving.command_line import cut, flag_number, flag_value
from breakeven.serving.findings import said

NEEDED_COUNTERS = (
    "completed",
    "started",
    "ttft_s",
    "e2e_s",
    "e2e_n",
    "generated",
    "steps",
    "prompt_tokens",
    "output_tokens",
    "output_n",
)
"""Without these nothing is said about an engine; only an engine that speculates has the others."""
GROWTHS = ("running_growth", "waiting_growth")
"""Statistics that may be below zero: what a gauge grew by."""
_FEW = 5.0
"""Requests that are no pattern, nor more than what a scrape in the middle of a request leaves over."""
_GAP = 0.05
"""Share of requests up to which begun and finished ones are the same within what Prometheus' sampling explains."""
_MOVED_SIGMAS = 3.0
"""Standard deviations of a Poisson number by which the number in flight may differ between a window's ends."""
_MOVED_SHARE = 0.1
"""Share of finished requests by which it may differ at most: among many that are in flight chance explains far more."""

AHEAD_S = 60.0
"""Seconds by which clocks of a cluster may differ: a time further ahead was not read off a clock."""


@dataclass(frozen=True, slots=True)
class Growths:
    """Growths of counters and means of gauges over one span, by the names of `promql.COUNTED`; of accepted drafts by position.

    Attributes:
        mixed: labels of series that look like copies of one engine and count different things.
        ended: names of series that ended within the span.
    """

    stats: Mapping[str, float]
    accepted: Mapping[int, float] = field(default_factory=dict)
    span_s: float = 0.0
    mixed: tuple[Mapping[str, str], ...] = ()
    ended: tuple[str, ...] = ()

    @classmethod
    def summed(cls, parts: Sequence[Growths]) -> Growths:
        """Sums over pods, with their mean span and the shortest queue of any pod."""
        stats: dict[str, float] = defaultdict(float)
        accepted: dict[int, float] = defaultdict(float)
        for part in parts:
            for name, value in part.stats.items():
                stats[name] += value
            for position, value in part.accepted.items():
                accepted[position] += value
        # A pod of which the least is unknown may have no queue at all.
        stats["waiting_min"] = min((part.stats.get("waiting_min", 0.0) for part in parts), default=0.0)
        return cls(dict(stats), dict(accepted), sum(part.span_s for part in parts) / max(len(parts), 1))

    def over(self, pods: int) -> Growths:
        """The mean of so many pods whose sums these are."""
        return Growths(
            {name: value / pods for name, value in self.stats.items()},
            {position: value / pods for position, value in self.accepted.items()},
            self.span_s,
        )

    @property
    def answering(self) -> int:
        """Requests that are being answered; 0 if that is not known."""
        return round(self.stats.get("running", 0.0))

    @property
    def offered(self) -> float | None:
        """Requests that were asked for.

        Requests that began and what the queue grew by, or requests that finished and what was added to those in the engine:
        the larger of the two. The first one counts clients that give up later, the second one requests whose first token is
        not there yet. Whoever gives up in the queue is in neither. A queue that shrinks is old demand.
        """
        begun, finished = self.stats.get("started"), self.stats.get("completed")
        if finished is not None:
            finished += self.stats.get("running_growth", 0.0)
        counts = [count for count in (begun, finished) if count is not None]
        return max(max(counts) + self.stats.get("waiting_growth", 0.0), 0.0) if counts else None

    @property
    def inflight_growth(self) -> float:
        """Requests that were added to those running or waiting."""
        return sum(self.stats.get(name, 0.0) for name in GROWTHS)

    @property
    def queue_moved(self) -> bool:
        """Whether requests in flight became more or fewer by more than chance, or than a tenth of those that finished."""
        inflight = self.stats.get("running", 0.0) + self.stats.get("waiting", 0.0)
        chance = _MOVED_SIGMAS * math.sqrt(2.0 * max(inflight, 1.0))
        return abs(self.inflight_growth) > min(
            chance, max(_MOVED_SHARE * self.stats.get("completed", 0.0), _FEW)
        )

    @property
    def occupied(self) -> float:
        """Mean number in flight by Little's law: time that finished requests took, over the span."""
        return self.stats.get("e2e_s", 0.0) / self.span_s if self.span_s > 0 else 0.0

    @property
    def given_up(self) -> float | None:
        """Requests whose clients went away after the first token: begun, not finished, and not in the engine any more.

        The running ones are counted from admission, the begun ones from their first token, and a preempted request runs no
        longer. So a fall of the running ones is no sign of anybody who left: only their growth is taken off.
        """
        begun, finished = self.stats.get("started"), self.stats.get("completed")
        if begun is None or finished is None:
            return None
        return begun - finished - max(self.stats.get("running_growth", 0.0), 0.0)

    @property
    def before_first_token(self) -> float:
        """Mean number of requests between admission and first token, by Little's law; at most all that run.

        Those that wait in the queue are taken off. While a queue drains their earlier waiting is left over: too many, not too few.
        """
        if not self.span_s > 0.0:
            return 0.0
        unanswered = self.stats.get("ttft_s", 0.0) / self.span_s - self.stats.get("waiting", 0.0)
        return min(max(unanswered, 0.0), self.stats.get("running", 0.0))

    @property
    def clients_give_up(self) -> bool:
        """Whether so many clients gave up that finished requests do not represent all.

        A queue that moves changes how many requests in the engine have begun, by as many as it moved at most.
        """
        begun = self.stats.get("started", 0.0)
        moved = sum(abs(self.stats.get(name, 0.0)) for name in GROWTHS)
        explained = _GAP * begun + _FEW + self.before_first_token + moved
        return begun > 0 and (self.given_up or 0.0) > explained

    @property
    def given_up_share(self) -> float:
        """Share of begun requests that clients gave up; 0 within what sampling explains."""
        return min((self.given_up or 0.0) / self.stats["started"], 1.0) if self.clients_give_up else 0.0

    @property
    def latency_s(self) -> float | None:
        """Mean time from request to answer, of finished requests."""
        return self.per("e2e_s", "e2e_n")

    @property
    def ttft_s(self) -> float | None:
        """Mean time to the first token, of requests that began."""
        return self.per("ttft_s", "started")

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, of finished requests.

        A ratio of means, as in E2E = TTFT + (g - 1) * TPOT; vLLM's own histogram per request is a mean of ratios.
        """
        ttft_s, finished = self.ttft_s, self.stats.get("e2e_n", 0.0)
        tokens, requests = self.stats.get("output_tokens"), self.stats.get("output_n")
        if ttft_s is None or tokens is None or requests is None or not tokens > requests or finished <= 0:
            return None
        tpot_s = (self.stats.get("e2e_s", 0.0) - ttft_s * finished) / (tokens - requests)
        # Those that began wait longer than those that finished: nothing is known of either's tokens.
        return tpot_s if tpot_s >= 0.0 else None

    @property
    def prompt_tokens(self) -> float | None:
        """Mean prompt of finished requests."""
        return self.per("prompt_tokens", "prompt_n" if "prompt_n" in self.stats else "output_n")

    @property
    def output_tokens(self) -> float | None:
        """Mean answer: of all requests where clients give up, whose answers are shorter; else of those that finished.

        While a queue moves, tokens belong to other requests than those that begin, and finished ones alone tell.
        """
        of_all = self.clients_give_up and not self.queue_moved
        return self.per("generated", "started") if of_all else self.finished_tokens

    @property
    def finished_tokens(self) -> float | None:
        """Mean answer of finished requests."""
        return self.per("output_tokens", "output_n")

    @property
    def decoded(self) -> float | None:
        """Tokens that steps made: all but the first of each request."""
        made, begun = self.stats.get("generated"), self.stats.get("started")
        return made - begun if made is not None and begun is not None else None

    @property
    def tokens_per_step(self) -> float | None:
        """E per request-step, bonus token included; None without steps."""
        steps = self.stats.get("steps", 0.0)
        return max(self.decoded, 0.0) / steps if self.decoded is not None and steps > 0 else None

    @property
    def survival(self) -> tuple[float, ...]:
        """Share of drafts whose tokens up to each position were accepted; empty without drafts.

        It ends before a position that was not counted: the next one's share would stand in its place.
        """
        drafts = self.stats.get("drafts", 0.0)
        found: list[float] = []
        while drafts > 0 and len(found) in self.accepted:
            found.append(self.accepted[len(found)] / drafts)
        return tuple(found)

    @property
    def accepted_per_draft(self) -> float:
        """Tokens of a draft that were accepted, of counts by position or of one over all positions; 0 without drafts."""
        accepted = sum(self.accepted.values()) if self.accepted else self.stats.get("accepted", 0.0)
        drafts = self.stats.get("drafts", 0.0)
        return accepted / drafts if drafts > 0 else 0.0

    @property
    def queue_s(self) -> float | None:
        """Mean wait for a place in the batch beyond the rest of a step.

        A request that comes while a step is under way waits for its end on an idle engine too: up to a whole step, which is
        a seventh of the latency where an answer takes six.
        """
        waited_s, step_s = self.per("queued_s", "admitted"), self.per("step_s", "steps")
        return None if waited_s is None or step_s is None else max(0.0, waited_s - step_s)

    def per(self, part: str, whole: str) -> float | None:
        """One statistic over another; None if either is missing, or nothing was counted."""
        over = self.stats.get(whole, 0.0)
        return self.stats[part] / over if part in self.stats and over > 0 else None


ENGINES = "engines"
"""Statistic: how many engines a pod has by the labels of its series."""
# Prometheus extrapolates every counter to the window's ends by itself, for a young pod by some percent more or less than
# its neighbour; vLLM's front end merges outputs of consecutive steps and counts a few steps too few (3 in 10,000).
_SLACK = 0.05
# Launching a step's kernels alone takes longer, whatever the model.
_FASTEST_STEP_S = 1e-4
# The front end accepts requests in one process per pod; none takes so many in a second.
MOST_RPS = 1e5
# Each request takes kilobytes of that process's memory.
_MOST_HELD = 1e7
# Ten times the longest context that a published model has.
_LONGEST_TOKENS = 1e8
# `metricsSource.windowSeconds` asks for at least four scrapes: so often a gauge is looked at.
_LOOKS = 4
_SIGMAS = 6.0
# Flags by which the engines of one deployment stand in several pods.
_RANKED = (
    "--data-parallel-rank",
    "--data-parallel-start-rank",
    "--data-parallel-size-local",
    "--data-parallel-address",
    "--data-parallel-hybrid-lb",
    "--data-parallel-external-lb",
    "--headless",
)
# A request's latency begins in the front end, before any gauge counts it; overloaded, that is as long again.
_UNSEEN = 2.0


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of one pod's engine; None if they are not known.

    Attributes:
        tokens_per_step: E of a step whose drafts are all accepted.
        running: requests in a batch, over all engines of the pod.
        tokens: prompt and answer of one request.
        in_order: whether requests begin in the order in which they came.
        engines: in the pod, by its command line. all_engines: whether the pod has all of them.
    """

    tokens_per_step: float | None = None
    running: int | None = None
    tokens: int | None = None
    in_order: bool = True
    engines: int | None = None
    all_engines: bool = True


def engine_limits(
    command_line: Sequence[str], running: Arm | None, candidates: Sequence[Arm]
) -> EngineLimits:
    """The limits that a target's command line and its arm set.

    The draft length of an arm that is no candidate may come from the drafter, not from the arm.
    """
    drafts = running.k if running is not None and (running.k == 0 or running in candidates) else None
    batch = flag_number(command_line, "--max-num-seqs")
    given = flag_value(command_line, "--data-parallel-size")
    engines = 1 if given is None else flag_number(command_line, "--data-parallel-size")
    elsewhere = flag_value(command_line, "--config") is not None and given is None
    return EngineLimits(
        tokens_per_step=None if drafts is None else drafts + 1.0,
        running=batch * engines if batch and engines else None,
        tokens=flag_number(command_line, "--max-model-len"),
        in_order=flag_value(command_line, "--scheduling-policy") in {None, "fcfs"},
        engines=None if elsewhere else engines,
        all_engines=not any(flag.name.startswith(_RANKED) for flag in cut(command_line)),
    )


def not_a_number(counters: Growths) -> str | None:
    """The first statistic that is no number; None if all are numbers."""
    # The share at a position and the time may be absent; whatever is there must be a number.
    bad = [name for name, value in counters.stats.items() if not math.isfinite(value)]
    bad += ["accepted" for value in counters.accepted.values() if not math.isfinite(value)]
    return bad[0] if bad else None


def missing(counters: Growths, needed: Collection[str]) -> list[str]:
    """Statistics that are needed and that the other series of the same engine stand without: not counted is not zero."""
    return [name for name in needed if name not in counters.stats]


def fresh(seen_s: float, now_s: float, allowed_s: float) -> bool:
    """Whether a time is at most `allowed_s` ago; one that is more than a minute ahead is no time of a sample."""
    return -min(allowed_s, AHEAD_S) <= now_s - seen_s <= allowed_s


def stale(
    pod: str, seen_s: float | None, evaluated_s: float | None, now_s: float, allowed_s: float
) -> str | None:
    """Samples too old to decide on, an answer that is, or clocks too far apart to tell; None if it is none of these.

    Args:
        pod: whose samples.
        seen_s: Unix time of the newest one; None if longer ago than Prometheus was asked for.
        evaluated_s: when the answer was made, by Prometheus' clock; None if the answer does not say.
        now_s: by the operator's clock.
        allowed_s: largest age, s.
    """
    figures = {"pod": pod, "allowed_s": allowed_s}
    if seen_s is None:
        return said("no sample", **figures)
    if fresh(seen_s, now_s, allowed_s):
        return None
    if seen_s > now_s:
        return said("future sample", **figures, ahead_s=seen_s - now_s)
    if evaluated_s is not None and now_s - evaluated_s > evaluated_s - seen_s:
        # Most of the sample's age came after Prometheus had looked.
        return said("old answer", **figures, made_s=now_s - evaluated_s, age_s=now_s - seen_s)
    return said("old sample", **figures, age_s=now_s - seen_s)


def impossible(counters: Growths, limits: EngineLimits, window_s: float) -> str | None:
    """The first contradiction in the finite statistics of one pod, as a sentence without a full stop.

    Statistics that are absent are not checked. A young pod saw only a part of the window. A wrong count also makes everything
    derived from it wrong, so counts come first.
    """
    checks = (
        _wrong_counts(counters, limits),
        _wrong_steps(counters, limits),
        _wrong_times(counters, window_s),
        _wrong_numbers(counters, limits, window_s),
    )
    return next(chain.from_iterable(checks), None)


def _wrong_counts(means: Growths, limits: EngineLimits) -> Iterator[str]:
    stats = means.stats
    negative = next((name for name, value in stats.items() if value < 0 and name not in GROWTHS), None)
    if negative is not None:
        yield f"{negative} is {figure(stats[negative])}, and nothing counts below zero"
    # Engines by their labels, and by the command line; a label that a relabelling drops hides all but one.
    found, started = stats.get(ENGINES), limits.engines
    if found is not None and started and (found > started or (found < started and limits.all_engines)):
        several = f"{figure(found)} engines by their labels, where --data-parallel-size starts {started}"
        yield several if found > started else f"{several}: does a relabelling drop the label engine?"
    # One event of the engine counts in three places.
    counts = [stats[name] for name in ("completed", "e2e_n", "output_n") if name in stats]
    if len(counts) > 1 and max(counts) > 2 * min(counts) + _FEW:
        yield f"{figure(min(counts))} and {figure(max(counts))} requests finished in the same time by two of its counters"


def _wrong_steps(means: Growths, limits: EngineLimits) -> Iterator[str]:
    stats, made, most = means.stats, means.decoded, limits.tokens_per_step
    steps, drafts = stats.get("steps"), stats.get("drafts")
    if steps is not None and made is not None:
        # A step makes one token at least, and one more than it drafts at most. The slack is a share of all tokens: where answers are
        # a token long, decoded ones are a small difference of large counts.
        slack = _SLACK * stats["generated"] + _FEW
        if made + slack < steps or (most is not None and made - slack > most * steps):
            e = means.tokens_per_step
            per = "tokens per step" if e is not None else "tokens decoded in no step"
            able = "at least 1" if most is None else "exactly 1" if most == 1 else f"1 to {most:g}"
            yield f"{figure(made if e is None else e)} {per}, where the arm that runs makes {able}"
    # A step has one draft at most; the front end merges outputs of steps, overloaded a good part of them.
    if drafts is not None and steps is not None and drafts > 2 * steps + _FEW:
        yield f"{figure(drafts)} drafts in {figure(steps)} steps"
    # No position accepts what was not drafted, or not accepted before.
    before, whose = drafts or 0.0, "were drafted"
    for position, count in sorted(means.accepted.items()) if drafts is not None else ():
        if count > before * (1 + _SLACK) + _FEW:
            yield f"{figure(count)} drafts were accepted at position {position + 1}, where {figure(before)} {whose}"
        before, whose = count, "were at the one before"
    longest = limits.tokens or _LONGEST_TOKENS
    tokens = (means.prompt_tokens or 0.0) + (means.finished_tokens or 0.0)
    if tokens > longest * (1 + _SLACK) + _FEW:
        allows = "--max-model-len allows" if limits.tokens else "the longest contexts hold"
        yield f"{figure(tokens)} tokens per request, where {allows} {figure(longest)}"


def _wrong_times(means: Growths, window_s: float) -> Iterator[str]:
    stats, latency_s, ttft_s = means.stats, means.latency_s, means.ttft_s
    if latency_s is None:
        return
    # An answer takes a step for its first token, and for every E further ones another.
    tokens = means.finished_tokens or 1.0
    steps = 1.0 + max(tokens - 1.0, 0.0) / max(means.tokens_per_step or math.inf, 1.0)
    if latency_s < steps * _FASTEST_STEP_S:
        yield (
            f"requests of {figure(tokens)} tokens took {figure(latency_s)} s, and no engine makes {figure(steps)} steps in less than "
            f"{figure(steps * _FASTEST_STEP_S)} s"
        )
    # Requests begin in order, so both waits differ by at most a window.
    if ttft_s is not None and ttft_s > latency_s + window_s:
        yield f"first tokens came after {figure(ttft_s)} s, and whole answers after {figure(latency_s)} s"
    if not {"running", "waiting"} <= stats.keys():
        return
    # Little's law: requests that finished were in flight while they lasted, and were seen there. The converse does not hold:
    # requests that last longer than the window are in flight and do not finish.
    needed, seen = stats["e2e_s"] / window_s, stats["running"] + stats["waiting"]
    # Requests in flight when the window began started before it. They are as many as the gauges fell by, or as are there
    # now, and last twice the mean latency each, as for exponential lengths.
    before = max(seen, -sum(stats.get(name, 0.0) for name in GROWTHS))
    edge = before * 2 * latency_s / window_s
    # A gauge has a few samples only; short requests pass between two of them.
    if needed > _UNSEEN * (seen + edge) + _SIGMAS * math.sqrt(needed / _LOOKS):
        yield (
            f"{figure(stats['e2e_n'] / window_s)} requests a second of {figure(latency_s)} s each are {figure(needed)} in flight, "
            f"where {figure(seen)} were seen"
        )


def _wrong_numbers(means: Growths, limits: EngineLimits, window_s: float) -> Iterator[str]:
    stats = means.stats
    begun = max(stats.get("completed", 0.0), stats.get("started", 0.0))
    offered = begun + sum(max(stats.get(name, 0.0), 0.0) for name in GROWTHS)
    if offered > MOST_RPS * window_s:
        yield f"{figure(offered / window_s)} requests a second, and no server takes more than {figure(MOST_RPS)}"
    # A request that is held makes one token in the fastest step; a count beyond that overflows the sum over pods.
    most = _MOST_HELD / _FASTEST_STEP_S
    for name in ("generated", "steps", "drafts"):
        if stats.get(name, 0.0) > most * window_s:
            yield f"{name} grew by {figure(stats[name] / window_s)} a second, and no server makes more than {figure(most)}"
    running, waiting = stats.get("running", 0.0), stats.get("waiting", 0.0)
    least = stats.get("waiting_min", 0.0)
    if limits.running is not None and running > limits.running * (1 + _SLACK):
        yield f"{figure(running)} requests run at once, where --max-num-seqs allows {limits.running}"
    if running + waiting > _MOST_HELD:
        yield f"{figure(running + waiting)} requests in flight, and no server holds more than {figure(_MOST_HELD)}"
    if least > waiting * (1 + _SLACK):
        yield f"{figure(least)} requests wait at least, and {figure(waiting)} on average"
    # More requests wait all the time than began, so those that began waited since before the window, half of it on average.
    overtaken = limits.in_order and least > 2 * stats.get("started", 0.0) + _FEW
    if overtaken and means.ttft_s is not None and means.ttft_s < _SLACK * window_s:
        yield f"{figure(least)} requests wait for longer than {window_s:g} s, while others begin after {figure(means.ttft_s)} s"
