"""Present figures of single pods in fleets too large to be read pod by pod: of the services that are decided about next."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from breakeven_operator.adapters.present_loads import PODS_PER_QUERY, FleetAnswers
from breakeven_operator.adapters.prometheus_answers import Said, Watch, parted
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import PrometheusAccess
from breakeven_operator.reconcile.fleet_query import fleet_query
from breakeven_operator.reconcile.live_metrics import FleetReading


@dataclass(frozen=True, slots=True)
class Wanted:
    """The workloads whose pods are asked for.

    Attributes:
        pods: how many each of them has.
        lost: whether one has pods and no series: then it is asked whose series there are anywhere.
    """

    pods: Mapping[NamespacedName, int]
    lost: bool


class PodsAnswer(NamedTuple):
    """The newest answer.

    Attributes:
        about: which workloads.
        reading: what it says of their pods.
        late: whether it was asked for in an earlier cycle.
    """

    about: Collection[NamespacedName]
    reading: FleetReading
    late: bool


class PresentPods(FleetAnswers[Wanted]):
    """The newest answers, one per Watch; one that comes late is of use to a later cycle."""

    async def read(self, wanted: Mapping[Watch, Wanted]) -> dict[Watch, PodsAnswer]:
        """The newest answer of each Watch that has one that is no older than its staleness.

        Args:
            wanted: by what is asked; nothing else is remembered.
        """
        began_s = self._clock.monotonic()
        known = await self._about(wanted)
        now_s = self._clock.monotonic()
        return {
            watch: PodsAnswer(answer.subjects.pods.keys(), answer.reading, answer.asked_s < began_s)
            for watch, answer in known.items()
            if now_s - answer.asked_s <= watch.staleness_s
        }

    async def _ask(self, source: PrometheusAccess, watch: Watch, wanted: Wanted) -> Said[FleetReading]:
        return await self._read(source, _promql(watch, wanted))


def _promql(watch: Watch, wanted: Wanted) -> Iterator[str]:
    for place, part in enumerate(parted(wanted.pods, PODS_PER_QUERY)):
        yield fleet_query(
            sorted({one.namespace for one in part}),
            watch.engines,
            watch.window_s,
            watch.staleness_s,
            workloads=[one.name for one in part],
            anywhere=wanted.lost and place == 0,
        )
