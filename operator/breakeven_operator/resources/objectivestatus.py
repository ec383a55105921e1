"""Latencies of a service's users against its objectives (part of a SpeculativeService's status)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from breakeven_operator.resources.base import Instant, Number, StatusModel, Word


class ObjectiveFinding(StrEnum):
    """Verdict of the measured quantile on an objective, its bounds considered."""

    KEPT = "Kept"
    MISSED = "Missed"
    UNCERTAIN = "Uncertain"
    UNMEASURED = "Unmeasured"


class ObjectiveStatus(StatusModel):
    """One figure of vLLM's histograms over the last window, and its objective where spec.slo has one."""

    figure: Annotated[
        Word,
        Field(
            description="e2e: whole requests. ttft: time to first token. tpot: time per output token, as a mean of each request."
        ),
    ]
    finding: Annotated[
        ObjectiveFinding | None,
        Field(
            description="Kept or Missed: the bounds of the measured quantile lie on one side of the limit. Uncertain: on both. "
            "Unmeasured: there is no such quantile now. Absent without an objective."
        ),
    ] = None
    since_time: Annotated[Instant | None, Field(description="Since when it has been found so.")] = None
    limit_seconds: Annotated[Number | None, Field(description="What the objective allows.")] = None
    target_percent: Annotated[
        int | None, Field(ge=0, le=100, description="Share of requests that shall keep it.")
    ] = None
    attainment_percent: Annotated[
        Number | None,
        Field(description="Share of requests that kept it, interpolated between two edges of the histogram."),
    ] = None
    attainment_lower_percent: Annotated[
        Number | None,
        Field(description="Its lower bound: sampling, and no request between the edges kept it."),
    ] = None
    attainment_upper_percent: Annotated[
        Number | None,
        Field(description="Its upper bound: sampling, and each request between the edges kept it."),
    ] = None
    requests: Annotated[int | None, Field(ge=0, description="Requests in the histogram.")] = None
    missed_requests: Annotated[
        int | None, Field(ge=0, description="Those of them that surely took longer than the limit.")
    ] = None
    p50_seconds: Annotated[
        Number | None, Field(description="Median; half of the requests took no longer.")
    ] = None
    p50_lower_seconds: Annotated[Number | None, Field(description="Its lower bound.")] = None
    p50_upper_seconds: Annotated[Number | None, Field(description="Its upper bound; absent where open.")] = (
        None
    )
    p95_seconds: Annotated[Number | None, Field(description="95th percentile.")] = None
    p95_lower_seconds: Annotated[Number | None, Field(description="Its lower bound.")] = None
    p95_upper_seconds: Annotated[Number | None, Field(description="Its upper bound; absent where open.")] = (
        None
    )
    p99_seconds: Annotated[Number | None, Field(description="99th percentile.")] = None
    p99_lower_seconds: Annotated[Number | None, Field(description="Its lower bound.")] = None
    p99_upper_seconds: Annotated[Number | None, Field(description="Its upper bound; absent where open.")] = (
        None
    )
    predicted_p95_seconds: Annotated[
        Number | None,
        Field(
            description="95th percentile that the profile predicts for the running arm at the present load; absent where none was calibrated."
        ),
    ] = None
    predicted_p95_lower_seconds: Annotated[Number | None, Field(description="Its lower bound.")] = None
    predicted_p95_upper_seconds: Annotated[
        Number | None, Field(description="Its upper bound; absent where open.")
    ] = None
