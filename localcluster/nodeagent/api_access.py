"""Where the API server is and how to authenticate, from a kubeconfig file.

Reads what one machine's clusters use: certificates or a token, inline or in files. Programs that log in (exec plugins, OIDC)
are refused with a line that says so.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml


class KubeconfigError(ValueError):
    """The file cannot be used; the message names it and the field."""


@dataclass(frozen=True)
class Connection:
    """One API server and one identity."""

    server: str
    ssl: ssl.SSLContext | None
    token: str | None

    @property
    def host(self) -> str:
        """The server's host: a container's KUBERNETES_SERVICE_HOST."""
        return urlsplit(self.server).hostname or ""

    @property
    def port(self) -> int:
        """The server's port: a container's KUBERNETES_SERVICE_PORT."""
        parts = urlsplit(self.server)
        return parts.port or (443 if parts.scheme == "https" else 80)


def load(path: Path) -> Connection:
    """The current context of a kubeconfig.

    Raises:
        KubeconfigError: the file is missing, is no kubeconfig or logs in by a program.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        context = _named(document, "contexts", document["current-context"])["context"]
        cluster = _named(document, "clusters", context["cluster"])["cluster"]
        user = _named(document, "users", context["user"])["user"]
        server = str(cluster["server"])
    except (OSError, yaml.YAMLError, LookupError, TypeError) as error:
        raise KubeconfigError(f"{path}: cannot be used as a kubeconfig: {error}") from error
    for field in ("exec", "auth-provider"):
        if field in user:
            raise KubeconfigError(
                f"{path}: users[].user.{field} is not supported; give a certificate or a token"
            )
    try:
        context_tls = _tls(cluster, user, path.parent) if server.startswith("https") else None
        return Connection(server.rstrip("/"), context_tls, _token(user, path.parent))
    except (OSError, ValueError) as error:
        raise KubeconfigError(f"{path}: {error}") from error


def _named(document: Mapping[str, Any], group: str, name: str) -> Mapping[str, Any]:
    for entry in document[group]:
        if entry["name"] == name:
            found: Mapping[str, Any] = entry
            return found
    raise LookupError(f"{group} has no entry {name!r}")


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif authority := _content(cluster, "certificate-authority", folder):
        context.load_verify_locations(cadata=authority.decode())
    certificate, key = _content(user, "client-certificate", folder), _content(user, "client-key", folder)
    if certificate and key:
        # The ssl module takes client certificates from files only.
        with tempfile.NamedTemporaryFile(prefix="nodeagent-", suffix=".pem") as file:
            file.write(certificate + b"\n" + key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _token(user: Mapping[str, Any], folder: Path) -> str | None:
    if "tokenFile" in user:
        return Path(folder, user["tokenFile"]).read_text(encoding="utf-8").strip()
    return str(user["token"]) if "token" in user else None


def _content(section: Mapping[str, Any], name: str, folder: Path) -> bytes | None:
    if data := section.get(f"{name}-data"):
        return base64.b64decode(data)
    return Path(folder, section[name]).read_bytes() if section.get(name) else None
