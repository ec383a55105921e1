"""Kubeconfig files: one user, one cluster, certificates inside, so that the file works wherever it is copied."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from localcluster.pki import write_private


def write(path: Path, *, server: str, pki: Path, identity: str) -> None:
    """Writes the kubeconfig of an identity whose certificate lies in `pki`; readable by its owner only."""

    def embedded(name: str) -> str:
        return base64.b64encode((pki / name).read_bytes()).decode()

    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "localcluster",
        "clusters": [
            {
                "name": "localcluster",
                "cluster": {"server": server, "certificate-authority-data": embedded("ca.crt")},
            }
        ],
        "users": [
            {
                "name": identity,
                "user": {
                    "client-certificate-data": embedded(f"{identity}.crt"),
                    "client-key-data": embedded(f"{identity}.key"),
                },
            }
        ],
        "contexts": [
            {
                "name": "localcluster",
                "context": {"cluster": "localcluster", "user": identity, "namespace": "default"},
            }
        ],
    }
    write_private(path, yaml.safe_dump(document, sort_keys=False).encode())
