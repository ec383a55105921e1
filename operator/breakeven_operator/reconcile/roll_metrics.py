"""Work of the pods of both arms of a roll, block by block, from the counters that Prometheus has kept.

Everything is read again in each cycle: nothing is added up in memory, so a restart loses nothing, and no block is counted
twice. Counters of finished requests are left out: the requests that have finished are not those that came (`ArmBlocks`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.planning.arm_blocks import ArmBlocks
from breakeven.serving.plausibility import MOST_RPS
from breakeven_operator.ports import Samples
from breakeven_operator.reconcile.fleet_query import ROLLED, SAMPLED, STAT
from breakeven_operator.reconcile.live_metrics import SeriesOwner
from breakeven_operator.resources.rolloutstatus import Rollout

# Kubernetes cuts the name of whatever makes a pod here, and adds five letters.
_NAME_KEPT = 58
# No latency of a request that anybody waited for; what is longer is a counter that is none.
_LONGEST_S = 1e7
# Nor an answer of any request.
_MOST_TOKENS = 1e7
WAITING_NOW = "waiting"
_COUNTERS = ROLLED[:4]
_PROMPTS = ROLLED[4:]


@dataclass(frozen=True, slots=True)
class RollReading:
    """The answer to one roll query; or why there is none.

    Attributes:
        times_s: ends of the blocks (Unix time, s), ascending.
        pods: statistics by pod and name, each of one value per time; NaN if there is none.
        error: one line when Prometheus gave no usable answer.
    """

    times_s: tuple[float, ...] = ()
    pods: Mapping[SeriesOwner, Mapping[str, FloatArray]] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RolledPods:
    """Whose figures count in a roll, by the labels of their series.

    Attributes:
        namespace, model_name: of the service.
        from_replica_set, to_replica_set: whose pods run the old and the new arm.
        started: when the roll was decided; a ReplicaSet that is brought back had pods before, in another roll.
    """

    namespace: str
    model_name: str
    from_replica_set: str
    to_replica_set: str
    started: datetime

    @classmethod
    def of(cls, rollout: Rollout, namespace: str, model_name: str) -> RolledPods | None:
        """Of a roll; None before its new pods are known."""
        if rollout.started_time is None or not rollout.from_replica_set or not rollout.to_replica_set:
            return None
        return cls(
            namespace, model_name, rollout.from_replica_set, rollout.to_replica_set, rollout.started_time
        )


@dataclass(frozen=True, slots=True, eq=False)
class BothArms:
    """The blocks of the old arm's pods and of the new one's, over the same times."""

    old: ArmBlocks
    new: ArmBlocks


def read_roll(samples: Iterable[Samples]) -> RollReading:
    """Sort the elements of a roll query's result by pod."""
    elements = [one for one in samples if one.labels.get("pod") and one.labels.get(STAT)]
    times_s = sorted({timed.time_s for one in elements for timed in one.values})
    place = {time_s: index for index, time_s in enumerate(times_s)}
    pods: dict[SeriesOwner, dict[str, FloatArray]] = defaultdict(dict)
    for one in elements:
        labels = one.labels
        owner = SeriesOwner(labels.get("namespace", ""), labels["pod"], labels.get("model_name", ""))
        values = np.full(len(times_s), np.nan)
        for timed in one.values:
            values[place[timed.time_s]] = timed.value
        pods[owner][labels[STAT]] = values
    return RollReading(tuple(times_s), dict(pods))


def both_arms(reading: RollReading, rolled: RolledPods) -> BothArms:
    """The blocks of a roll's pods; arms without pods have none."""
    old, new = [], []
    began = np.array(reading.times_s) > rolled.started.timestamp()
    for owner, stats in sorted(reading.pods.items()):
        if (owner.namespace, owner.model_name) != (rolled.namespace, rolled.model_name):
            continue
        blocks = _blocks(stats, len(reading.times_s))
        if blocks is None:
            continue
        if made_by(owner.pod, rolled.from_replica_set):
            old.append(blocks)
        elif made_by(owner.pod, rolled.to_replica_set):
            new.append(np.where(began, blocks, np.nan))
    count = len(reading.times_s)
    return BothArms(*(_arm(blocks, count) for blocks in (old, new)))


def made_by(pod: str, replica_set: str) -> bool:
    """Whether a pod is of a ReplicaSet, by its name."""
    return pod.startswith(pods_begin(replica_set))


def pods_begin(replica_set: str) -> str:
    """The part that the names of a ReplicaSet's pods have in common."""
    return f"{replica_set}-"[:_NAME_KEPT]


def _arm(pods: list[FloatArray], count: int) -> ArmBlocks:
    """All pods of one arm; without any, one that was never seen."""
    parts = np.stack(pods, axis=1) if pods else np.full((len(fields(ArmBlocks)), 1, count), np.nan)
    return ArmBlocks(*parts)


def _blocks(stats: Mapping[str, FloatArray], count: int) -> FloatArray | None:
    """Work of one pod between each two samples: the rows of `ArmBlocks`.

    A time at which there is no new sample ends no block. A counter that has fallen belongs to a process that began again.
    """
    if any(name not in stats for name in (*_COUNTERS, WAITING_NOW, SAMPLED)):
        return None
    counters = np.stack([stats[name] for name in _COUNTERS])
    waiting, sampled_s = stats[WAITING_NOW], stats[SAMPLED]
    prompts = np.stack([stats.get(name, np.full(count, np.nan)) for name in _PROMPTS])
    known = np.isfinite(np.vstack([counters, waiting, sampled_s])).all(axis=0)
    found = np.full((len(fields(ArmBlocks)), count), np.nan)
    last = None
    for index in np.flatnonzero(known):
        if last is not None and sampled_s[index] <= sampled_s[last]:
            continue
        if last is not None:
            waited_s, begun, stepped_s, generated = (counters[:, index] - counters[:, last]).tolist()
            watched_s = float(sampled_s[index] - sampled_s[last])
            # The first token of a request comes in no step.
            needed = (
                waited_s,
                begun,
                stepped_s,
                generated - begun,
                watched_s,
                min(waiting[last], waiting[index]),
            )
            if _possible(*needed):
                of_prompts = prompts[:, index] - prompts[:, last]
                found[:, index] = (*needed, *np.where(of_prompts >= 0.0, of_prompts, np.nan))
        last = index
    return found


def _possible(
    waited_s: float, begun: float, stepped_s: float, tokens: float, watched_s: float, queued: float
) -> bool:
    most = MOST_RPS * watched_s
    return (
        0.0 <= begun <= most
        and 0.0 <= waited_s <= _LONGEST_S * begun
        and 0.0 <= tokens <= _MOST_TOKENS * most
        and 0.0 <= stepped_s <= _LONGEST_S * max(tokens, 1.0)
        and queued >= 0.0
    )
