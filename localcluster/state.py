"""The state folder: everything that one cluster writes, and nothing that it does not.

`.local/` by default. It may hold other people's files: removing a cluster removes the names listed here, and the
folder itself only when nothing else is left in it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from localcluster.failure import LocalClusterError

DEFAULT: Final = Path(".local")
_OWNED: Final = (
    "alertmanager", "audit", "bin", "etcd", "helm", "kubectl", "kubeconfig", "kubeconfigs", "logs", "nodes", "pki",
    "prometheus", "endpoints.json", "supervisor.sock",
)  # fmt: skip


@dataclass(frozen=True)
class ClusterEndpoints:
    """Where the parts of a running cluster listen; kept in the state folder for other processes to find."""

    api: str
    etcd_port: int
    etcd_peer_port: int
    prometheus: str = ""
    alertmanager: str = ""

    @property
    def api_port(self) -> int:
        """Port of the API server."""
        return int(self.api.rpartition(":")[2])


@dataclass(frozen=True)
class StateFolder:
    """Names of the files of one cluster below an absolute folder."""

    root: Path

    @classmethod
    def at(cls, root: Path) -> Self:
        """The folder by its absolute path: processes started from elsewhere get these paths as arguments."""
        return cls(root.absolute())

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.root / "kubeconfig"

    def kubeconfig_of(self, user: str) -> Path:
        """Kubeconfig of a part of the cluster, by its short name."""
        return self.root / "kubeconfigs" / user

    @property
    def pki(self) -> Path:
        """Certificates and keys."""
        return self.root / "pki"

    @property
    def audit_log(self) -> Path:
        """The API server's record of all writes, one JSON event a line."""
        return self.root / "audit" / "audit.log"

    @property
    def socket(self) -> Path:
        """The supervisor's control socket."""
        return self.root / "supervisor.sock"

    def log(self, process: str) -> Path:
        """The file of a process' standard output and error."""
        return self.root / "logs" / f"{process}.log"

    def create(self) -> None:
        """Makes the folder, closed to other users: it holds the keys to run programs as this one."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        for name in ("audit", "bin", "logs", "pki", "kubeconfigs"):
            (self.root / name).mkdir(exist_ok=True)

    def save(self, endpoints: ClusterEndpoints) -> None:
        """Records where the cluster listens, in one step."""
        draft = self.root / "endpoints.json.partial"
        draft.write_text(json.dumps(asdict(endpoints)))
        draft.replace(self.root / "endpoints.json")

    def load(self) -> ClusterEndpoints:
        """Where the cluster listens.

        Raises:
            LocalClusterError: no cluster was started in this folder.
        """
        try:
            return ClusterEndpoints(**json.loads((self.root / "endpoints.json").read_text()))
        except FileNotFoundError:
            raise LocalClusterError(f"no cluster in {self.root}; start one with `make cluster-up`") from None

    def lock(self) -> int | None:
        """Takes the folder for one cluster; the descriptor holds it, also in a process that inherits it.

        Returns:
            The descriptor, or None while a cluster runs here.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        path = self.root / "lock"
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            # A stopping cluster may have unlinked the file between open and lock: then the lock is on nothing.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
            os.close(descriptor)

    def clear(self) -> None:
        """Deletes what a cluster wrote, but for the lock; whatever else lies in the folder stays."""
        for name in _OWNED:
            path = self.root / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """`clear`, and the lock as well, and the folder if nothing else is in it; only as holder of the lock."""
        self.clear()
        (self.root / "lock").unlink(missing_ok=True)
        if self.root.is_dir() and not any(self.root.iterdir()):
            self.root.rmdir()
