"""How a question is put to a server: as Prometheus reads it, or as VictoriaMetrics does.

VictoriaMetrics refuses whole questions that name functions of native histograms. It also means other times by a subquery than
Prometheus, and never says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

from breakeven.serving.engine_series import classic_only
from breakeven.serving.promql import RangeQuestion
from breakeven_operator.ports import PrometheusAccess

_PROBE = "histogram_count(vector(0))"
_REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})
_PROBED_AGAIN_S = 3600.0
# VictoriaMetrics takes younger samples for incomplete (-search.latencyOffset).
_LATE_S = 30.0


class ApiQuestion(NamedTuple):
    """A path of the query API, and the form that is sent there."""

    path: str
    form: Mapping[str, str]


class _Speech(NamedTuple):
    """Whether a server speaks MetricsQL, and until when that is known (s, of the loop's clock)."""

    metricsql: bool
    until_s: float


@dataclass(slots=True)
class QueryDialects:
    """Knows for an hour which server speaks what, because another may answer at its address later.

    Attributes:
        now: Unix time (s).
    """

    now: Callable[[], float]
    _known: dict[PrometheusAccess, _Speech] = field(default_factory=dict)

    async def question(
        self,
        source: PrometheusAccess,
        promql: str,
        status_of: Callable[[ApiQuestion], Awaitable[int]],
        *,
        past: bool,
    ) -> ApiQuestion:
        """The question as this server understands it.

        Args:
            source: the server.
            promql: as Prometheus reads it.
            status_of: puts a question to the server, for the status of its answer.
            past: whether the answer is a range vector.
        """
        classic = classic_only(promql)
        over = RangeQuestion.of_subquery(classic, self.now() - _LATE_S) if past else None
        alike = over is None and classic == promql
        if alike or not await self._speaks_metricsql(source, status_of):
            return ApiQuestion("query", {"query": promql})
        if over is None:
            return ApiQuestion("query", {"query": classic})
        times = {"start": str(over.first_s), "end": str(over.last_s), "step": f"{over.step_s}s"}
        # Else counters stand still in the newest half minute.
        return ApiQuestion("query_range", {"query": over.promql, **times, "latency_offset": "1ms"})

    async def _speaks_metricsql(
        self, source: PrometheusAccess, status_of: Callable[[ApiQuestion], Awaitable[int]]
    ) -> bool:
        now_s = asyncio.get_running_loop().time()
        known = self._known.get(source)
        if known is not None and now_s < known.until_s:
            return known.metricsql
        status = await status_of(ApiQuestion("query", {"query": _PROBE}))
        refused = status in _REFUSALS
        # The answer of a proxy, or of a server that starts, says nothing about the language.
        if refused or status == HTTPStatus.OK:
            fresh = {one: speech for one, speech in self._known.items() if now_s < speech.until_s}
            self._known = {**fresh, source: _Speech(refused, now_s + _PROBED_AGAIN_S)}
        return refused
