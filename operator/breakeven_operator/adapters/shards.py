"""Installations that share the services of a cluster: each has a label selector, and a Lease of its own that shows it.

Two of them must never decide about one service. So whose Lease is younger leaves services alone that both select. An
installation that has just begun leaves all of those alone for a while, because the other one looks once per cycle.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from breakeven.errors import InputError
from breakeven_operator.kinds import LEASES, NamespacedName
from breakeven_operator.labels import SELECTOR_ANNOTATION, matches
from breakeven_operator.ports import Clock, Cluster, ClusterError, Manifest
from breakeven_operator.resources.labelselector import LabelSelector

_LOG = logging.getLogger(__name__)


class _Rival(NamedTuple):
    """Another installation: its Lease, and what it selects."""

    lease: str
    made: tuple[str, str]
    selector: Manifest


class Shards:
    """The services of this installation among all.

    Args:
        cluster, clock: ports.
        lease: namespace and name of this installation's own.
        selector: of its services.
        settle_s: how long one that has just begun gives way to every other.
    """

    def __init__(
        self, cluster: Cluster, clock: Clock, lease: NamespacedName, selector: LabelSelector, settle_s: float
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._lease = lease
        self._selector = selector.to_json_object()
        self._settle_s = settle_s
        self._began_s: float | None = None
        self._said: frozenset[str] = frozenset()

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations of the Lease by which others learn what this installation selects."""
        return {SELECTOR_ANNOTATION: json.dumps(self._selector, sort_keys=True)}

    def rest(self) -> None:
        """There are no cycles for a while; another replica may decide meanwhile."""
        self._began_s = None

    async def own(self, services: Sequence[Manifest]) -> list[Manifest]:
        """The services that this installation decides about; those that another selects too are named in the log.

        Raises:
            ClusterError: nobody knows what other installations select.
        """
        if self._began_s is None:
            self._began_s = self._clock.monotonic()
        settled = self._clock.monotonic() - self._began_s >= self._settle_s
        selected = [one for one in services if _picks(self._selector, one)]
        own = selected
        leases, sentences = await self._leases()
        mine = next((_made(one) for one in leases if one["metadata"]["name"] == self._lease.name), None)
        for rival in self._rivals(leases, sentences):
            both = {one["metadata"]["uid"] for one in selected if _picks(rival.selector, one)}
            if not both:
                continue
            # A dry run has no Lease, and writes nothing.
            younger = mine is not None and rival.made < mine
            if younger or (mine is not None and not settled):
                own = [one for one in own if one["metadata"]["uid"] not in both]
            first = next(one for one in selected if one["metadata"]["uid"] in both)
            sentences.append(
                f"operator.serviceSelector of Leases {self._lease.name} and {rival.lease} overlap (services: {len(both)}, the first is "
                f"{'/'.join(NamespacedName.of(first))}): the holder of {rival.lease if younger else self._lease.name}, which is older, "
                "decides about them; make the selectors disjoint, or delete the Lease of an installation that is gone"
            )
        for sentence in sentences:
            if sentence not in self._said:
                _LOG.warning("%s", sentence)
        self._said = frozenset(sentences)
        return own

    async def _leases(self) -> tuple[list[Manifest], list[str]]:
        """The Leases of all installations; or what keeps them from being seen, as a sentence."""
        namespace = self._lease.namespace
        try:
            return await self._cluster.list_all(LEASES, namespace), []
        except ClusterError as error:
            if error.status != 403:
                raise
            return [], [
                f"Leases of {namespace} may not be listed, so services of two installations are not found"
            ]

    def _rivals(self, leases: Sequence[Manifest], sentences: list[str]) -> Iterator[_Rival]:
        """The other installations; an annotation that cannot be read becomes a sentence."""
        for lease in leases:
            name = lease["metadata"]["name"]
            text = (lease["metadata"].get("annotations") or {}).get(SELECTOR_ANNOTATION)
            held = (lease.get("spec") or {}).get("holderIdentity")
            if text is None or not held or name == self._lease.name:
                continue
            try:
                selector = LabelSelector.read(json.loads(text), f"Lease {name}").to_json_object()
            except (ValueError, RecursionError, TypeError, InputError) as error:
                sentences.append(f"Lease {name}: annotation {SELECTOR_ANNOTATION} cannot be read ({error})")
                continue
            yield _Rival(name, _made(lease), selector)


def _made(lease: Manifest) -> tuple[str, str]:
    """When a Lease was made, by the API server's clock; of two of one second the first by name."""
    return str(lease["metadata"].get("creationTimestamp") or ""), lease["metadata"]["name"]


def _picks(selector: Manifest, service: Manifest) -> bool:
    return matches(selector, service["metadata"].get("labels") or {})
