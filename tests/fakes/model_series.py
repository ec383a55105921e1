"""Series of one model's pods at a steady load, as a Prometheus holds them: for `breakeven doctor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fakes.held_series import STALE, NativeHistogram, SeriesStore

END_S: Final = 1_700_000_000
"""The newest sample of a pod that goes on."""
WINDOW_S: Final = 300
RPS: Final = 2.0
_SECONDS, _STEP_S = 600, 15
_LATENCY_S = 1.5


class ModelSeries:
    """Pods of the model `chat`, each at the same load."""

    def __init__(self, prefix: str = "vllm:", end_s: int = END_S) -> None:
        self.store = SeriesStore()
        self._prefix, self._end_s = prefix, end_s

    def pod(
        self,
        name: str,
        *,
        label: str = "pod",
        until_s: int | None = None,
        marked: bool = True,
        ended: Mapping[str, int] | None = None,
        without: frozenset[str] | set[str] = frozenset(),
        finished: float = 1.0,
        began: float = 1.0,
        posts: float = 0.0,
        refused: float = 0.0,
        copies: Sequence[str] = ("",),
        native: bool = False,
    ) -> ModelSeries:
        """Add a pod.

        Args:
            name: its name. label: that carries it.
            until_s: its last sample; None: the newest.
            marked: whether a marker of staleness follows that.
            ended: series without prefix that end before the others do, and when.
            without: series that it does not have.
            finished, began, posts, refused: shares of its requests that finish, begin, are posted by HTTP and refused.
            copies: labels of the Prometheus servers that scrape it.
            native: whether its histograms are native ones.
        """
        last_s = self._end_s if until_s is None else until_s
        for copy in copies:
            own = {label: name, "namespace": "llm", "model_name": "chat", "replica_of": copy}
            for series, rate, more in _rates(finished, began):
                if series in without or (native and series.endswith(("_sum", "_count"))):
                    continue
                labels = {**own, **more}
                self._add(
                    f"{self._prefix}{series}", labels, rate, (ended or {}).get(series, last_s), marked=marked
                )
            if native:
                self._native(own, last_s, finished, began)
            for gauge in ("num_requests_running", "num_requests_waiting"):
                self._add(f"{self._prefix}{gauge}", own, 0.0, last_s, marked=marked)
        http = {label: name, "namespace": "llm", "handler": "/v1/completions", "method": "POST"}
        for status, share in (("2xx", posts - refused), ("4xx", refused)):
            if posts:
                labels = http | {"status": status}
                self._add("http_requests_total", labels, share * RPS, last_s, marked=marked)
        return self

    def _times(self, last_s: int) -> range:
        return range(self._end_s - _SECONDS, last_s + 1, _STEP_S)

    def _add(self, name: str, labels: Mapping[str, str], rate: float, last_s: int, *, marked: bool) -> None:
        for at_s in self._times(last_s):
            self.store.add(name, labels, at_s, rate * (at_s - self._end_s + _SECONDS))
        if marked and last_s < self._end_s:
            self.store.add(name, labels, last_s + _STEP_S, STALE)

    def _native(self, own: Mapping[str, str], last_s: int, finished: float, began: float) -> None:
        rates = {series: rate for series, rate, _ in _rates(finished, began)}
        for series, rate in rates.items():
            family = series.removesuffix("_sum")
            for at_s in self._times(last_s) if family != series else ():
                age_s = at_s - self._end_s + _SECONDS
                count = rates[f"{family}_count"] * age_s
                histogram = NativeHistogram(count, rate * age_s, 0, 0, (count,))
                self.store.add(f"{self._prefix}{family}", own, at_s, histogram)


def _rates(finished: float, began: float) -> list[tuple[str, float, Mapping[str, str]]]:
    done, begun = finished * RPS, began * RPS
    return [
        ("request_success_total", done, {"finished_reason": "stop"}),
        ("time_to_first_token_seconds_count", begun, {}),
        ("time_to_first_token_seconds_sum", 0.1 * begun, {}),
        ("e2e_request_latency_seconds_count", done, {}),
        ("e2e_request_latency_seconds_sum", _LATENCY_S * done, {}),
        ("generation_tokens_total", 100 * begun, {}),
        ("inter_token_latency_seconds_count", 50 * begun, {}),
        ("inter_token_latency_seconds_sum", 1.4 * begun, {}),
        ("request_prompt_tokens_count", done, {}),
        ("request_prompt_tokens_sum", 50 * done, {}),
        ("request_generation_tokens_count", done, {}),
        ("request_generation_tokens_sum", 100 * done, {}),
        ("spec_decode_num_drafts_total", 50 * begun, {}),
        ("spec_decode_num_accepted_tokens_per_pos_total", 40 * begun, {"position": "0"}),
    ]
