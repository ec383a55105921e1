"""Metrics pages that claim to be a pod's, scraped by the real Prometheus: for what a healthy engine never shows."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, Self

from operatorcluster.page_server import PageServer
from operatorcluster.target_engine import MODEL, OUTPUT_TOKENS, PROMPT_TOKENS

Page = Callable[[], str | None]
"""The text of a metrics page; None: the scrape fails."""


@dataclass(frozen=True, slots=True)
class PosedTraffic:
    """Figures of a page: requests at a steady rate since `began`, each as long as `latency_s`.

    Attributes:
        tokens_per_step: of the arm that is posed as; 1 without speculation.
    """

    rps: float
    latency_s: float
    began: float
    model: str = MODEL
    tokens_per_step: float = 1.0

    def page(self, **overrides: str) -> str:
        """The page of this moment, as an engine writes it; `overrides` by short name."""
        requests = self.rps * (time.monotonic() - self.began) + 1
        values = {
            "num_requests_running": f"{self.rps * self.latency_s}",
            "num_requests_waiting": "0",
            "request_success_total": f"{requests}",
            "time_to_first_token_seconds_count": f"{requests}",
            "time_to_first_token_seconds_sum": f"{requests * self.latency_s / OUTPUT_TOKENS}",
            "e2e_request_latency_seconds_count": f"{requests}",
            "e2e_request_latency_seconds_sum": f"{requests * self.latency_s}",
            "generation_tokens_total": f"{requests * OUTPUT_TOKENS}",
            "inter_token_latency_seconds_count": f"{requests * (OUTPUT_TOKENS - 1) / self.tokens_per_step}",
            "inter_token_latency_seconds_sum": f"{requests * self.latency_s * (1 - 1 / OUTPUT_TOKENS)}",
            "prompt_tokens_total": f"{requests * PROMPT_TOKENS}",
            "prefix_cache_hits_total": "0",
            "request_prompt_tokens_sum": f"{requests * PROMPT_TOKENS}",
            "request_generation_tokens_sum": f"{requests * OUTPUT_TOKENS}",
            "request_generation_tokens_count": f"{requests}",
            **overrides,
        }
        return "".join(
            f'vllm:{name}{{model_name="{self.model}"}} {value}\n' for name, value in values.items()
        )


class Posers:
    """A server of such pages, and the list of them as Prometheus discovers it."""

    def __init__(self) -> None:
        self._pages: dict[str, tuple[Mapping[str, str], Page]] = {}
        pages = self._pages

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                host = f"127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]
                if self.path == "/targets":
                    found = [
                        {"targets": [host], "labels": {"__metrics_path__": f"/{key}", **labels}}
                        for key, (labels, _) in list(pages.items())
                    ]
                    self._answer("application/json", json.dumps(found))
                    return
                _, page = pages.get(self.path.lstrip("/"), ({}, lambda: None))
                text = page()
                if text is None:
                    self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
                else:
                    self._answer("text/plain; version=0.0.4", text)

            def _answer(self, kind: str, text: str) -> None:
                body = text.encode()
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = PageServer(Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def scrape(self) -> dict[str, Any]:
        """The entry of Prometheus' configuration that finds them."""
        url = f"http://127.0.0.1:{self._server.server_port}/targets"
        return {"job_name": "posers", "http_sd_configs": [{"url": url, "refresh_interval": "1s"}]}

    def pose(self, key: str, page: Page, **labels: str) -> None:
        """Serve a page under these labels from now on; the same key again changes it."""
        self._pages[key] = (labels, page)
