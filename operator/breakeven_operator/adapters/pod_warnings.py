"""Events about pods that do not come: asked for a few pods, by name, after some seconds, and seldom.

Events are the most numerous objects of many clusters, and the API server looks through all of a namespace for a selector.
So none are watched or listed for pods that come, or for pods whose conditions and containers state the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from breakeven_operator.adapters.api_json import problem_of
from breakeven_operator.kinds import EVENTS
from breakeven_operator.ports import Clock, Cluster, ClusterError, Manifest
from breakeven_operator.workloads.object_facts import owner_uid, parse_time
from breakeven_operator.workloads.trouble import is_silent, refusal_of, warning_of

_LOG = logging.getLogger(__name__)
# Most pods have an image's word by then.
_SILENT_S = 5.0
_AGAIN_S = 10.0
_MOST_PER_CYCLE = 8


class _SaidOfPod(NamedTuple):
    """The words about a pod, and the time at which they were asked for; monotonic, s."""

    warning: str
    asked_s: float


class _Subject(NamedTuple):
    """An object whose events are asked for.

    Attributes:
        manifest: the object. field: a further part of the field selector.
        read: makes one text of its events.
    """

    manifest: Manifest
    field: str
    read: Callable[[Iterable[Manifest]], str]


class PodWarnings:
    """Remembers the newest answer about each pod that is asked about.

    Args:
        cluster, clock: ports.
    """

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._asked: dict[str, _SaidOfPod] = {}

    async def read(self, pods: Iterable[Manifest], lacking: Iterable[Manifest] = ()) -> dict[str, str]:
        """The warnings, by uids of pods and workloads; of each controller's pods the oldest one speaks.

        An answer that does not come is none: nothing else waits for it.

        Args:
            pods: that may be awaited.
            lacking: workloads with fewer pods than they want, whose events may say why.
        """
        subjects = [
            _Subject(pod, "regarding.kind=Pod,", partial(warning_of, pod)) for pod in self._awaited(pods)
        ]
        subjects += [_Subject(one, "", refusal_of) for one in lacking]
        awaited = {one.manifest["metadata"]["uid"]: one for one in subjects}
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in awaited}
        now_s = self._clock.monotonic()
        due = [
            uid for uid in awaited if uid not in self._asked or now_s - self._asked[uid].asked_s >= _AGAIN_S
        ]
        due.sort(key=lambda uid: self._asked[uid].asked_s if uid in self._asked else 0.0)
        await asyncio.gather(*(self._ask(uid, awaited[uid]) for uid in due[:_MOST_PER_CYCLE]))
        return {uid: asked.warning for uid, asked in self._asked.items() if asked.warning}

    def _awaited(self, pods: Iterable[Manifest]) -> Iterable[Manifest]:
        oldest: dict[str, Manifest] = {}
        now = self._clock.now()
        for pod in pods:
            made = parse_time(pod["metadata"].get("creationTimestamp"))
            if made is None or (now - made).total_seconds() < _SILENT_S or not is_silent(pod):
                continue
            known = oldest.get(owner_uid(pod))
            if known is None or _age(pod) < _age(known):
                oldest[owner_uid(pod)] = pod
        return oldest.values()

    async def _ask(self, uid: str, subject: _Subject) -> None:
        meta = subject.manifest["metadata"]
        warning, about = "", f"{subject.field}regarding.uid={uid}"
        try:
            events = await self._cluster.list_all(EVENTS, meta["namespace"], fields=about)
            warning = subject.read(event for event in events if problem_of(event) is None)
        except ClusterError as error:
            _LOG.debug("events about %s: %s", meta["name"], error)
        self._asked[uid] = _SaidOfPod(warning, self._clock.monotonic())


def _age(pod: Manifest) -> tuple[str, str]:
    return str(pod["metadata"]["creationTimestamp"]), pod["metadata"]["uid"]
