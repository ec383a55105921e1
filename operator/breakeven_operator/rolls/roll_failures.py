"""Requests that fail on one arm of a roll and not on the other: refused, failed and abandoned requests are counted apart.

A speculating vLLM answers HTTP 400 to requests with `min_p` or `logit_bias`, and HTTP 200 with an error in the stream where
they stream. Such requests have no latency, so that the comparison of latencies is the better the more of them there are.

- Refused: POSTs that the engine's page counts as 4xx, and POSTs of another status that began no request in an engine.
- Failed: requests that ended by an error of the engine.
- Abandoned: requests whose client left. The page counts their POST as 2xx, and no engine counts them as finished; users
  who leave are no failure of an arm. A request may be left before its first token: the longer that takes, the more are excused.
- Turned away: POSTs that the page counts as 5xx beyond the failed ones. An engine with a full queue answers 503; that is
  load, and it is said.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.phrases import percent
from breakeven.planning.roll_experiment import always_valid_radius
from breakeven.readers.prometheus import InstantSample
from breakeven.reasons import Witness
from breakeven.serving.promql import ENGINE, GENERATES, HTTP_REQUESTS, POD, EngineSeries, Matcher, selector
from breakeven_operator.case import ArmRequests, LaterReading, RollReading
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import SIBLINGS, STAT, of_workloads, with_siblings
from breakeven_operator.observing.roll_metrics import RolledPods, grown_blocks
from breakeven_operator.resources.memorystatus import RequestsBefore

CUT, ABORTED, BRIEF, TOKENS = "cut", "aborted", "brief", "answer_tokens"
POSTS, REFUSALS, SERVED = "http_posts", "http_refusals", "served"
FAULTS, BEGUN, WAITED, BROKEN = "http_faults", "started", "ttft_s", "broken"
COUNTS = (POSTS, REFUSALS, FAULTS, BEGUN, WAITED, SERVED, BROKEN, ABORTED)
_NEEDED = (POSTS, BEGUN, SERVED)
_BY_SERIES = "namespace,pod,handler,method,status"
_BY_COUNTER = ",".join((*POD, *ENGINE, "finished_reason"))
# Statuses that say nothing of an engine: a key, a path or a model that is none, a limit of rates, a client that went away.
# Pages that count by class (vLLM's own) put these under 4xx.
_CLIENTS_OWN = "4(0[1348]|29|99)"
# One client's requests come together: they count as so many fewer that are independent.
_BURST = 4.0
_CONFIDENCE_OF_ALL_LOOKS = 0.98
_CONFIDENCE = 0.95
# Fewer failures tell of a client, not of an arm.
_FEWEST_FAILURES = 10.0
# A share of requests that may be refused or fail beyond what does on the other arm. Of before against after as many again as
# there were before, because clients change.
_REFUSED = 0.005
_MOST_AS_BEFORE = 0.05
# A share of requests that may begin nowhere, beyond what does on the other arm; why they do not is in no counter.
_UNBEGUN = {Witness.SIDE_BY_SIDE: 0.01, Witness.BEFORE_AFTER: 0.05}
# Of the clients that wait for a first token at most one in ten leaves in a second.
_LEAVE_PER_S = 0.1
_FEWEST_SIDE_BY_SIDE = 20.0


def counted_requests(counts: Mapping[str, float]) -> ArmRequests:
    """The requests that counters of `COUNTS` show; only the needed ones may not be missing."""
    posts, begun, ended = (counts[name] for name in _NEEDED)
    refusals, faults, broken = (counts.get(name, 0.0) for name in (REFUSALS, FAULTS, BROKEN))
    turned_away = min(max(faults - broken, 0.0), posts)
    posts -= turned_away
    came = max(posts - refusals, 0.0)
    # A request that ends in a window may have begun before it: the larger count has it.
    served = max(begun, ended + broken)
    served = max(served, min(came, served + _LEAVE_PER_S * counts.get(WAITED, 0.0)))
    # One request may ask for several answers.
    failed = broken * min(1.0, came / max(served, 1.0))
    abandoned = max(min(came, served) - ended - broken, 0.0) + counts.get(ABORTED, 0.0)
    return ArmRequests(posts, refusals, served, failed, abandoned, turned_away)


@dataclass(frozen=True, slots=True)
class FailureFinding:
    """The requests that fail on the new arm and would not on the old one; the witness says whether both served at the same time."""

    old: ArmRequests
    new: ArmRequests
    witness: Witness

    @property
    def share(self) -> float:
        """Share of the new arm's requests that would not have failed on the old one; below 0 if fewer fail."""
        return 1.0 - self._not_lost.left * self._begun.left

    @property
    def said(self) -> str:
        """The figures as the middle of a sentence."""
        how = "side by side" if self.witness is Witness.SIDE_BY_SIDE else "before and after"
        old, new = self.old, self.new
        others = {
            "ended by an error": (new.failed, old.failed),
            "begun by no engine": (_unbegun(new), _unbegun(old)),
            "left by clients": (new.abandoned, old.abandoned),
            "turned away with 5xx": (new.turned_away, old.turned_away),
        }
        more = "".join(
            f"; {what}: {a:.0f}, against {b:.0f}" for what, (a, b) in others.items() if a + b >= 0.5
        )
        return (
            f"{percent(max(self.share, 0.0))} of its requests are refused or fail that are answered on the other arm ({how}; HTTP 4xx: "
            f"{new.refusals:.0f} of {new.posts:.0f}, against {old.refusals:.0f} of {old.posts:.0f}{more})"
        )

    def fails(self, *, last_look: bool) -> bool:
        """Whether the new arm significantly fails requests, by bounds that hold at all looks together or at the last one alone."""
        refused = _REFUSED
        if self.witness is Witness.BEFORE_AFTER:
            refused += min(self.old.lost / max(self.old.posts, 1.0), _MOST_AS_BEFORE)
        return self._not_lost.exceeds(refused, last_look=last_look) or self._begun.exceeds(
            _UNBEGUN[self.witness], last_look=last_look
        )

    @property
    def is_noticed(self) -> bool:
        """Whether more requests are refused, fail or are turned away than chance explains, however few."""
        old, new = ((arm.posts, arm.posts + arm.turned_away) for arm in (self.old, self.new))
        return any(one.exceeds(0.0, last_look=True) for one in (self._not_lost, _left(old, new)))

    @property
    def _not_lost(self) -> _Left:
        old, new = self.old, self.new
        return _left((old.posts - old.lost, old.posts), (new.posts - new.lost, new.posts))

    @property
    def _begun(self) -> _Left:
        return _left((self.old.served, self.old.came), (self.new.served, self.new.came))


class _Left(NamedTuple):
    """The requests that an arm answers, as a share of those that the other arm answers: 1 if as many fail.

    Attributes:
        log_sd: standard error of its logarithm.
        came: requests on the new arm.
    """

    left: float
    log_sd: float
    came: float

    def exceeds(self, tolerated: float, *, last_look: bool) -> bool:
        """Whether more is lost than a share, by bounds at all looks together or at the last one alone."""
        if (1.0 - self.left) * self.came < _FEWEST_FAILURES:
            return False
        radius = (
            NormalDist().inv_cdf((1.0 + _CONFIDENCE) / 2.0) * self.log_sd
            if last_look
            else always_valid_radius(self.log_sd, _CONFIDENCE_OF_ALL_LOOKS)
        )
        return 1.0 - math.exp(math.log(self.left) + radius) > tolerated


def failures_query(
    workloads: Iterable[tuple[str, str]],
    engines: EngineSeries,
    span_s: int,
    step_s: int,
) -> str:
    """Counters of HTTP requests, of requests that engines finished and of their answers, once per block of a roll.

    A series that differs only in labels that are not the server's (a second scrape job) counts once. Arguments and errors are
    as for `fleet_query.roll_query`.

    Returns:
        An instant query whose result is a range vector with the labels namespace, pod and `stat`.
    """
    own = engines.only(*of_workloads(workloads))
    answers = answer_counters(own.matchers, own.prefix, lambda series: f"max by ({_BY_COUNTER}) ({series})")
    joined = "\nor ".join(
        f'label_replace(sum by (namespace,pod) ({expression}), "{STAT}", "{stat}", "", "")'
        for stat, expression in (_counters(own) | answers).items()
    )
    return f"({joined})[{int(span_s)}s:{int(step_s)}s]"


def _counters(engines: EngineSeries, within_s: int | None = None) -> dict[str, str]:
    """Each counter once, by statistic; or what it grew by within a time."""
    posts = (
        *engines.matchers,
        Matcher("method", "=", "POST"),
        Matcher("handler", "=~", GENERATES),
        Matcher("status", "!~", _CLIENTS_OWN),
    )

    def once(labels: str, series: str) -> str:
        return f"max by ({labels}) ({series if within_s is None else f'increase({series}[{within_s}s])'})"

    def http(*status: Matcher) -> str:
        return once(_BY_SERIES, f"{HTTP_REQUESTS}{selector((*posts, *status))}")

    def ended(how: str) -> str:
        chosen = engines.named("request_success_total", Matcher("finished_reason", how, "error"))
        return once(_BY_COUNTER, chosen)

    def begins(stat: str) -> str:
        counted = engines.counter(stat) if within_s is None else engines.increase(stat, within_s)
        return engines.once("max", counted)

    return {
        POSTS: http(),
        REFUSALS: http(Matcher("status", "=~", "4.*")),
        FAULTS: http(Matcher("status", "=~", "5.*")),
        BEGUN: begins(BEGUN),
        WAITED: begins(WAITED),
        SERVED: ended("!="),
        BROKEN: ended("="),
    }


def later_query(workloads: Iterable[tuple[str, str]], engines: EngineSeries, span_s: int) -> str:
    """The same counters as `failures_query`, by how much they grew, summed over the pods of each ReplicaSet.

    Returns:
        An instant query whose result has the labels namespace, siblings and `stat`.
    """
    parts = _counters(engines.only(*of_workloads(workloads)), within_s=int(span_s))
    return "\nor ".join(
        f'label_replace(sum by (namespace,{SIBLINGS}) ({with_siblings(expression)}), "{STAT}", "{stat}", "", "")'
        for stat, expression in parts.items()
    )


def read_later(series: Iterable[InstantSample]) -> LaterReading:
    """Sort the elements of a later query's result by ReplicaSet; one that lacks a counter that is needed is left out."""
    found: dict[NamespacedName, dict[str, float]] = defaultdict(dict)
    for one in series:
        if 0.0 <= one.value < math.inf:
            owner = NamespacedName(one.labels.get("namespace", ""), one.labels.get(SIBLINGS, ""))
            found[owner][one.labels.get(STAT, "")] = one.value
    return LaterReading(
        {owner: counted_requests(stats) for owner, stats in found.items() if set(_NEEDED) <= stats.keys()}
    )


def find_later(before: RequestsBefore, now: ArmRequests | None) -> FailureFinding | None:
    """The failures of now that the arm before the last roll did not have; None if they are not counted."""
    if now is None or now.posts < 1.0:
        return None
    old = ArmRequests(before.posts, before.refusals, before.served)
    return FailureFinding(old, now, Witness.BEFORE_AFTER)


def find_failures(reading: RollReading | None, rolled: RolledPods | None) -> FailureFinding | str:
    """The failures on the new arm that the old one does not have; or why they are not measured, as the end of a sentence."""
    if reading is None or reading.error is not None:
        return f"Prometheus gives no figures of them ({reading.error if reading else 'it was not asked'})"
    if rolled is None:
        return "which pods run which arm was not seen"
    old, new = grown_blocks(reading, rolled, COUNTS, _NEEDED)
    for arm, blocks in (("old", old), ("new", new)):
        if not np.isfinite(blocks[0]).any():
            return f"no {HTTP_REQUESTS} beside vllm's counters of begun and finished requests of the {arm} arm's pods"
    together = (np.nan_to_num(old[0]) > 0) & (np.nan_to_num(new[0]) > 0)
    of_old, of_new = _requests(old[:, together]), _requests(new[:, together])
    if min(of_old.posts, of_new.posts) >= _FEWEST_SIDE_BY_SIDE:
        return FailureFinding(of_old, of_new, Witness.SIDE_BY_SIDE)
    of_old, of_new = _requests(old), _requests(new)
    if min(of_old.posts, of_new.posts) < 1.0:
        return "no HTTP request came to one of the arms"
    return FailureFinding(of_old, of_new, Witness.BEFORE_AFTER)


def _left(old: tuple[float, float], new: tuple[float, float]) -> _Left:
    """Compare what is left of the requests that came, on both arms."""
    if old[0] <= 0.0:
        # The arm that ran before answers nothing either: no failure is due to the new arm.
        return _Left(1.0, 1.0, new[1])
    # Half a request keeps the logarithm of an arm that answers none.
    (old_kept, old_came), (new_kept, new_came) = ((kept + 0.5, came + 0.5) for kept, came in (old, new))
    variance = _variance(old_kept / old_came, *old) + _variance(new_kept / new_came, *new)
    return _Left((new_kept / new_came) / (old_kept / old_came), math.sqrt(_BURST * variance), new[1])


def _variance(share: float, kept: float, came: float) -> float:
    """Of the logarithm of the share of requests that is left."""
    # Where one request asks for several answers the count of them scatters as well.
    failing = max(1.0 - share, 1.0 / (came + 1.0)) if share <= 1.0 else 1.0
    return failing / (kept + 0.5)


def _requests(blocks: FloatArray) -> ArmRequests:
    return counted_requests(
        {name: float(total) for name, total in zip(COUNTS, np.nansum(blocks, axis=1), strict=True)}
    )


def _unbegun(arm: ArmRequests) -> float:
    return max(arm.came - arm.served, 0.0)


_STATS = (SERVED, CUT, ABORTED, BRIEF, TOKENS)
_FEWEST_ANSWERS = 100.0
_FEWEST_BLOCKS = 5
# Three shares and the length are looked at once, at the roll's last word: about one false alarm in a thousand rolls.
_SIGNIFICANT = 3.6
_SHARE = 0.01
_LENGTH = 0.1
_SIGNIFICANT_LENGTH = 6.0


class AnswerShift(NamedTuple):
    """How answers of the new arm differ from the old one's in the same time, as a sentence; `differing` names what does significantly."""

    said: str
    differing: tuple[str, ...]


def answer_counters(matchers: Sequence[Matcher], prefix: str, once: Callable[[str], str]) -> dict[str, str]:
    """Counters of answers, by statistic; `once` makes each series of a counter count once."""

    def finished(reason: str) -> str:
        chosen = selector([*matchers, Matcher("finished_reason", "=", reason)])
        return once(f"{prefix}request_success_total{chosen}")

    brief = selector([*matchers, Matcher("le", "=~", "1(\\.0)?")])
    return {
        CUT: finished("length"),
        ABORTED: finished("abort"),
        BRIEF: once(f"{prefix}request_generation_tokens_bucket{brief}"),
        TOKENS: once(f"{prefix}request_generation_tokens_sum{selector(matchers)}"),
    }


def find_answers(reading: RollReading | None, rolled: RolledPods | None) -> AnswerShift | None:
    """The answers of both arms in the blocks in which both served; None if too few were seen."""
    if reading is None or reading.error is not None or rolled is None:
        return None
    old, new = grown_blocks(reading, rolled, _STATS, (SERVED, TOKENS))
    together = (np.nan_to_num(old[0]) > 0) & (np.nan_to_num(new[0]) > 0)
    old, new = old[:, together], new[:, together]
    counts = [np.nansum(blocks, axis=1) for blocks in (old, new)]
    if min(one[0] for one in counts) < _FEWEST_ANSWERS or min(one[4] for one in counts) <= 0.0:
        return None
    differing = [
        name
        for place, name in enumerate(("cut", "aborted", "brief"), 1)
        if _differs(*((one[place], one[0]) for one in counts), both_ways=name == "cut")
    ]
    if _lengths_differ(old, new):
        differing.append("tokens")
    of_old, of_new = map(_answers_said, counts)
    what = f" ({', '.join(differing)} differ significantly)" if differing else ""
    return AnswerShift(f"answers: {of_new}, against {of_old}{what}", tuple(differing))


def _answers_said(counts: FloatArray) -> str:
    """The sums of `_STATS` of one arm in words."""
    finished, *others, tokens = counts
    cut, aborted, brief = (percent(float(one / finished)) for one in others)
    return f"{tokens / finished:.0f} tokens, {cut} ended at max_tokens, {aborted} aborted, {brief} of one token at most"


def _differs(of_old: tuple[float, float], of_new: tuple[float, float], *, both_ways: bool) -> bool:
    """Whether two shares of answers, each as count and answers, differ significantly, and by at least one percent of all answers."""
    (old, of_all), (new, now_all) = of_old, of_new
    change = new / now_all - old / of_all
    pooled = (old + new + 1.0) / (of_all + now_all + 2.0)
    sd = math.sqrt(_BURST * pooled * (1.0 - pooled) * (1.0 / of_all + 1.0 / now_all))
    size = abs(change) if both_ways else change
    return bool(size > _SHARE and size > _SIGNIFICANT * sd)


def _lengths_differ(old: FloatArray, new: FloatArray) -> bool:
    """Whether mean lengths differ significantly, by how their ratio scatters from block to block."""
    known = (old[4] > 0) & (new[4] > 0)
    if np.count_nonzero(known) < _FEWEST_BLOCKS:
        return False
    ratios = np.log((new[4] / new[0])[known]) - np.log((old[4] / old[0])[known])
    mean, error = float(ratios.mean()), float(ratios.std(ddof=1)) / math.sqrt(ratios.size)
    return abs(mean) > math.log1p(_LENGTH) and abs(mean) > _SIGNIFICANT_LENGTH * error
