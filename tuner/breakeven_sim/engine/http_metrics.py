"""The http_* families of prometheus-fastapi-instrumentator, which vLLM serves beside its own."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, Summary

_HIGH_RESOLUTION = (.01, .025, .05, .075, .1, .25, .5, .75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60)  # fmt: skip
_BY_HANDLER = (0.1, 0.5, 1)


class HttpMetrics:
    """Counts answered requests in a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by = ["handler", "status", "method"]
        self._requests = Counter(
            "http_requests", "Total number of requests by method, status and handler.", by, registry=registry
        )
        only = "by handler. Only value of header is respected. Otherwise ignored. No percentile calculated. "
        self._request_size = Summary(
            "http_request_size_bytes",
            f"Content length of incoming requests {only}",
            ["handler"],
            registry=registry,
        )
        self._response_size = Summary(
            "http_response_size_bytes",
            f"Content length of outgoing responses {only}",
            ["handler"],
            registry=registry,
        )
        self._fine = Histogram(
            "http_request_duration_highr_seconds",
            "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. ",
            buckets=_HIGH_RESOLUTION,
            registry=registry,
        )
        self._coarse = Histogram(
            "http_request_duration_seconds",
            "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. ",
            ["handler", "method"],
            buckets=_BY_HANDLER,
            registry=registry,
        )

    def observe(self, request: web.Request, response: web.StreamResponse, seconds: float) -> None:
        """Count one answered request."""
        resource = request.match_info.route.resource
        handler = resource.canonical if resource is not None else "none"
        self._requests.labels(handler, f"{response.status // 100}xx", request.method).inc()
        self._request_size.labels(handler).observe(request.content_length or 0)
        self._response_size.labels(handler).observe(response.content_length or 0)
        self._fine.observe(seconds)
        self._coarse.labels(handler, request.method).observe(seconds)
