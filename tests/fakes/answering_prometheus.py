"""A Prometheus' HTTP API over a store of series, evaluated in memory: instant and range queries."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fakes.held_series import SeriesStore
from fakes.promql_evaluation import evaluate


@contextlib.contextmanager
def answering(store: SeriesStore) -> Iterator[str]:
    """Serve a store on loopback; yields the address."""

    class PastHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urllib.parse.urlsplit(self.path)
            asked = dict(urllib.parse.parse_qsl(address.query))
            found = _range(store, asked) if address.path.endswith("query_range") else _instant(store, asked)
            body = json.dumps({"status": "success", "data": found}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), PastHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _instant(store: SeriesStore, asked: dict[str, str]) -> dict[str, Any]:
    # Without a time it is asked about now: the end of what is stored.
    time_s = float(asked.get("time") or max(one.times_ms[-1] for one in store.series) / 1000.0)
    found = evaluate(store, asked["query"], time_s)
    return {
        "resultType": "vector",
        "result": [{"metric": one.labels, "value": [time_s, str(one.value)]} for one in found],
    }


def _range(store: SeriesStore, asked: dict[str, str]) -> dict[str, Any]:
    begin, end, step = (int(asked[name].rstrip("s")) for name in ("start", "end", "step"))
    series: dict[str, dict[str, Any]] = {}
    for time_s in range(begin, end + 1, step):
        for one in evaluate(store, asked["query"], time_s):
            key = json.dumps(one.labels, sort_keys=True)
            series.setdefault(key, {"metric": one.labels, "values": []})["values"].append(
                [time_s, str(one.value)]
            )
    return {"resultType": "matrix", "result": list(series.values())}
