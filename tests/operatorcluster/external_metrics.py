"""An API server of `external.metrics.k8s.io` for HorizontalPodAutoscalers, which answers from the operator's /metrics.

It is what a Prometheus adapter or KEDA is on a real cluster: the cluster's API server passes the autoscaler's questions on
to it over TLS, as an APIService says. Names of metrics are the operator's; selectors are those of its labels.
"""

from __future__ import annotations

import datetime as dt
import http.server
import json
import ssl
import threading
import urllib.parse
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from prometheus_client.parser import text_string_to_metric_families

from operatorcluster.page_server import PageServer

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
_NAME = "metrics-adapter"
_ROOT = f"/apis/{GROUP}/{VERSION}"


class ExternalMetrics:
    """The server, on loopback, until the block ends.

    Args:
        page: gives the operator's /metrics.
        authority: certificate of who signs the API server's proxy client; nobody else is answered.
        namespace: where the Service is that leads to it.
        folder: for its certificate.
    """

    def __init__(self, page: Callable[[], str], authority: Path, namespace: str, folder: Path) -> None:
        self._namespace = namespace
        self._certificate = _self_signed(f"{_NAME}.{namespace}.svc", folder)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self._certificate)

        class AdapterHandler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urllib.parse.urlsplit(self.path)
                answer = _answer(url.path, dict(urllib.parse.parse_qsl(url.query)), page)
                body = json.dumps(answer or {}).encode()
                self.send_response(404 if answer is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Nothing: kubectl shows what the autoscaler makes of it."""

        self._server = PageServer(AdapterHandler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def manifests(self) -> list[dict[str, Any]]:
        """Objects that make the cluster ask here: an APIService, and the Service that it names."""
        return [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": _NAME, "namespace": self._namespace},
                # Not a cluster address: there is no proxy of Services here, and endpoints refuse loopback.
                "spec": {"type": "ExternalName", "externalName": "localhost"},
            },
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"{VERSION}.{GROUP}"},
                "spec": {
                    "group": GROUP,
                    "version": VERSION,
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "caBundle": b64encode(self._certificate.read_bytes().split(b"-----BEGIN EC")[0]).decode(),
                    "service": {
                        "name": _NAME,
                        "namespace": self._namespace,
                        "port": self._server.server_port,
                    },
                },
            },
        ]


def _answer(path: str, query: dict[str, str], page: Callable[[], str]) -> dict[str, Any] | None:
    """The answer at a path; None: nothing."""
    if path == _ROOT:
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{GROUP}/{VERSION}",
            "resources": [],
        }
    parts = path.removeprefix(_ROOT).strip("/").split("/")
    if not path.startswith(f"{_ROOT}/namespaces/") or len(parts) != 3:
        return None
    wanted = dict(part.split("=") for part in query.get("labelSelector", "").split(",") if part)
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "kind": "ExternalMetricValueList",
        "apiVersion": f"{GROUP}/{VERSION}",
        "metadata": {},
        "items": [
            {
                "metricName": parts[2],
                "metricLabels": sample.labels,
                "timestamp": now,
                "value": f"{sample.value:g}",
            }
            for family in text_string_to_metric_families(page())
            for sample in family.samples
            if sample.name == parts[2] and wanted.items() <= sample.labels.items()
        ],
    }


def _self_signed(name: str, folder: Path) -> Path:
    """One file with a certificate for a host name and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "metrics-adapter.pem"
    path.touch(mode=0o600)
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return path
