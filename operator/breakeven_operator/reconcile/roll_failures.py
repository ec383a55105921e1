"""Requests that fail on one arm of a roll and not on the other: HTTP refusals, and requests that no engine finished.

A speculating vLLM answers HTTP 400 to requests with `min_p` or `logit_bias`, and HTTP 200 with an error in the stream where
they stream. Such requests have no latency, so that the comparison of latencies is the better the more of them there are.
What both kinds have in common: the engine finished no request for an HTTP request that came. So the measure of an arm is
the number of requests finished per HTTP request; requests for several answers at a time move it on both arms by the same factor.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.phrases import percent
from breakeven.planning.roll_experiment import Witness, always_valid_radius
from breakeven.serving.engine_series import ENGINE, POD, EngineSeries
from breakeven.serving.promql import Matcher, selector
from breakeven.serving.refused_requests import GENERATES, HTTP_REQUESTS
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import InstantSample
from breakeven_operator.reconcile.fleet_query import SIBLINGS, STAT, of_workloads, siblings_of, with_siblings
from breakeven_operator.reconcile.roll_answers import FINISHED, answer_counters
from breakeven_operator.reconcile.roll_metrics import RolledPods, RollReading, grown_blocks

POSTS, REFUSALS, SERVED = "http_posts", "http_refusals", FINISHED

_BY_SERIES = "namespace,pod,handler,method,status"
_BY_COUNTER = ",".join((*POD, *ENGINE, "finished_reason"))

# One client's requests come together: they count as so many fewer that are independent.
_BURST = 4.0
_CONFIDENCE_OF_ALL_LOOKS = 0.98
_CONFIDENCE = 0.95
# Fewer failures tell of a client, not of an arm.
_FEWEST_FAILURES = 10.0
# A share of requests that may fail beyond what fails on the other arm; of before against after more, as clients change.
_TOLERATED = {Witness.SIDE_BY_SIDE: 0.01, Witness.BEFORE_AFTER: 0.05}
_FEWEST_SIDE_BY_SIDE = 20.0


class RollAnswer(NamedTuple):
    """Prometheus' answers about a roll: latencies of both arms, and requests that failed."""

    latencies: RollReading
    failures: RollReading


class ArmRequests(NamedTuple):
    """HTTP requests of one arm: how many came, were answered with 4xx or 5xx, and were finished by an engine."""

    posts: float
    refusals: float
    served: float


@dataclass(frozen=True, slots=True)
class FailureFinding:
    """The share of requests that fails on the new arm beyond the old one's.

    Attributes:
        old, new: requests of both arms.
        witness: whether both served at the same time.
        share: of the new arm's requests that would not have failed on the old one; below 0 where fewer fail.
        log_sd: standard error of the logarithm of what is left of them.
    """

    old: ArmRequests
    new: ArmRequests
    witness: Witness
    share: float
    log_sd: float

    @property
    def said(self) -> str:
        """The figures as the middle of a sentence."""
        how = "side by side" if self.witness is Witness.SIDE_BY_SIDE else "before and after"
        return (
            f"{_percent(self.share)} of its requests are finished by no engine that are on the other arm ({how}; HTTP 4xx or "
            f"5xx: {self.new.refusals:.0f} of {self.new.posts:.0f}, against {self.old.refusals:.0f} of {self.old.posts:.0f})"
        )

    def fails(self, *, last_look: bool) -> bool:
        """Whether the new arm significantly fails requests, by bounds that hold at all looks together or at the last one alone."""
        if self.share * self.new.posts < _FEWEST_FAILURES:
            return False
        radius = (
            NormalDist().inv_cdf((1.0 + _CONFIDENCE) / 2.0) * self.log_sd
            if last_look
            else always_valid_radius(self.log_sd, _CONFIDENCE_OF_ALL_LOOKS)
        )
        # The upper end of what is left of the requests.
        most_left = math.exp(math.log1p(-min(self.share, 1.0 - 1e-9)) + radius)
        return 1.0 - most_left > _TOLERATED[self.witness]


def failures_query(
    workloads: Iterable[tuple[str, str]],
    engines: EngineSeries,
    span_s: int,
    step_s: int,
) -> str:
    """Counters of HTTP requests, of requests that engines finished and of their answers, once per block of a roll.

    A series that differs only in labels that are not the server's (a second scrape job) counts once.

    Args: see fleet_query.roll_query.

    Returns:
        An instant query whose result is a range vector with the labels namespace, pod and `stat`.

    Raises:
        ValueError: a matcher that is none.
    """
    own = engines.only(*of_workloads(workloads))
    answers = answer_counters(own.matchers, own.prefix, lambda series: f"max by ({_BY_COUNTER}) ({series})")
    joined = "\nor ".join(
        f'label_replace(sum by (namespace,pod) ({expression}), "{STAT}", "{stat}", "", "")'
        for stat, expression in (_counters(own) | answers).items()
    )
    return f"({joined})[{int(span_s)}s:{int(step_s)}s]"


def _counters(engines: EngineSeries, within: str = "") -> dict[str, str]:
    """Each counter once, by statistic; or what it grew by within a range."""
    posts = [*engines.matchers, Matcher("method", "=", "POST"), Matcher("handler", "=~", GENERATES)]
    refused = [*posts, Matcher("status", "=~", "[45].*")]
    finished = Matcher("finished_reason", "!=", "error")

    def once(labels: str, series: str) -> str:
        return f"max by ({labels}) ({f'increase({series}{within})' if within else series})"

    return {
        POSTS: once(_BY_SERIES, f"{HTTP_REQUESTS}{selector(posts)}"),
        REFUSALS: once(_BY_SERIES, f"{HTTP_REQUESTS}{selector(refused)}"),
        SERVED: once(_BY_COUNTER, engines.named("request_success_total", finished)),
    }


@dataclass(frozen=True, slots=True)
class LaterReading:
    """The answer about requests after rolls that have their last word; or why there is none.

    Attributes:
        requests: of the last windows, by namespace and by what the names of a ReplicaSet's pods have in common.
        error: one line when Prometheus gave no usable answer.
    """

    requests: Mapping[NamespacedName, ArmRequests] = field(default_factory=dict)
    error: str | None = None

    def of(self, namespace: str, pod: str) -> ArmRequests | None:
        """Those of a pod and its siblings; None if no page counts them."""
        return self.requests.get(NamespacedName(namespace, siblings_of(pod)))


def later_query(workloads: Iterable[tuple[str, str]], engines: EngineSeries, span_s: int) -> str:
    """The same counters as `failures_query`, by how much they grew, summed over the pods of each ReplicaSet.

    Args: see failures_query.

    Returns:
        An instant query whose result has the labels namespace, siblings and `stat`.

    Raises:
        ValueError: a matcher that is none.
    """
    parts = _counters(engines.only(*of_workloads(workloads)), within=f"[{int(span_s)}s]")
    return "\nor ".join(
        f'label_replace(sum by (namespace,{SIBLINGS}) ({with_siblings(expression)}), "{STAT}", "{stat}", "", "")'
        for stat, expression in parts.items()
    )


def read_later(series: Iterable[InstantSample]) -> LaterReading:
    """Sort the elements of a later query's result by ReplicaSet; one that lacks requests or finished ones is left out."""
    found: dict[NamespacedName, dict[str, float]] = defaultdict(dict)
    for one in series:
        if 0.0 <= one.value < math.inf:
            owner = NamespacedName(one.labels.get("namespace", ""), one.labels.get(SIBLINGS, ""))
            found[owner][one.labels.get(STAT, "")] = one.value
    return LaterReading(
        {
            owner: ArmRequests(stats[POSTS], stats.get(REFUSALS, 0.0), stats[SERVED])
            for owner, stats in found.items()
            if POSTS in stats and SERVED in stats
        }
    )


def find_later(before: ArmRequests, now: ArmRequests | None) -> FailureFinding | None:
    """The failures of now that the arm before the last roll did not have; None if they are not counted."""
    if now is None or now.posts < 1.0:
        return None
    return _finding(before, now, Witness.BEFORE_AFTER)


def find_failures(reading: RollReading | None, rolled: RolledPods | None) -> FailureFinding | str:
    """The failures on the new arm that the old one does not have; or why they are not measured, as the end of a sentence."""
    if reading is None or reading.error is not None:
        return f"Prometheus gives no figures of them ({reading.error if reading else 'it was not asked'})"
    if rolled is None:
        return "which pods run which arm was not seen"
    old, new = grown_blocks(reading, rolled, (POSTS, REFUSALS, SERVED), (POSTS, SERVED))
    for arm, blocks in (("old", old), ("new", new)):
        if not np.isfinite(blocks[0]).any():
            return f"no {HTTP_REQUESTS} beside vllm:request_success_total of the {arm} arm's pods"
    together = (np.nan_to_num(old[0]) > 0) & (np.nan_to_num(new[0]) > 0)
    of_old, of_new = _requests(old[:, together]), _requests(new[:, together])
    if min(of_old.posts, of_new.posts) >= _FEWEST_SIDE_BY_SIDE:
        return _finding(of_old, of_new, Witness.SIDE_BY_SIDE)
    of_old, of_new = _requests(old), _requests(new)
    if min(of_old.posts, of_new.posts) < 1.0:
        return "no HTTP request came to one of the arms"
    return _finding(of_old, of_new, Witness.BEFORE_AFTER)


def _finding(old: ArmRequests, new: ArmRequests, witness: Witness) -> FailureFinding:
    if old.served <= 0.0:
        # Nothing is finished on the arm that ran before either: no failure is the new arm's.
        return FailureFinding(old, new, witness, 0.0, 1.0)
    # Half a request keeps the logarithm of an arm that finishes none.
    left = ((new.served + 0.5) / (new.posts + 0.5)) / ((old.served + 0.5) / (old.posts + 0.5))
    log_sd = math.sqrt(_BURST * (_variance(old) + _variance(new)))
    return FailureFinding(old, new, witness, 1.0 - left, log_sd)


def _variance(arm: ArmRequests) -> float:
    """Of the logarithm of requests finished per HTTP request."""
    share = (arm.served + 0.5) / (arm.posts + 0.5)
    # Where one request asks for several answers the count of them scatters as well.
    failing = max(1.0 - share, 1.0 / (arm.posts + 1.0)) if share <= 1.0 else 1.0
    return failing / (arm.served + 0.5)


def _requests(blocks: FloatArray) -> ArmRequests:
    return ArmRequests(*(float(total) for total in np.nansum(blocks, axis=1)))


def _percent(share: float) -> str:
    return percent(max(share, 0.0))
