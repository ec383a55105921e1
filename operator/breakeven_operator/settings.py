"""Settings from the environment, checked once at start: a wrong one ends the process with one clear line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import kopf

from breakeven import __version__
from breakeven.errors import InputError
from breakeven_operator.kinds import GROUP
from breakeven_operator.ports import TrialSettings

T = TypeVar("T")
_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
_URL = re.compile(r"^https?://[^\s@]+$")
# What the kubelet adds for every Service of the namespace whose name begins like ours.
_SERVICE_LINK = re.compile(r"^BREAKEVEN_(.+_)?(SERVICE_(HOST|PORT.*)|PORT(_\d+_(TCP|UDP|SCTP).*)?)$")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's own settings; every field is one environment variable of the same name with prefix BREAKEVEN_.

    Attributes:
        identity: of this replica (BREAKEVEN_POD_NAME, else the host's name and process id).
        namespace: the operator's own; the Lease lives there.
        kubeconfig: file to use (KUBECONFIG); empty: the pod's ServiceAccount.
        watch_namespaces: where services are looked for; empty: everywhere.
        cycle_s: time between two cycles that nothing has woken.
        status_refresh_s: figures and sentences of a status are renewed at most this often.
        prometheus_address: for services that name none; empty: they must.
        prometheus_bearer_file, prometheus_ca_file: for that address alone.
        prometheus_timeout_s: of one query of any Prometheus, from its beginning to the last byte of the answer.
        lease_name, lease_s: of the Lease.
        trial: what calibration Jobs have in common.
        trial_cluster_role: the ClusterRole with the drivers' rights.
        max_parallel_rolls: over all services.
        max_parallel_calibrations: over all services.
        bind_address, port: of /metrics, /healthz and /readyz.
        log_level: of the operator's own log.
        log_format: json, or text for people.
        dry_run: decide and print, write nothing.
    """

    identity: str
    namespace: str
    kubeconfig: str
    watch_namespaces: tuple[str, ...]
    cycle_s: float
    status_refresh_s: float
    prometheus_address: str
    prometheus_bearer_file: str
    prometheus_ca_file: str
    prometheus_timeout_s: int
    lease_name: str
    lease_s: float
    trial: TrialSettings
    trial_cluster_role: str
    max_parallel_rolls: int
    max_parallel_calibrations: int
    bind_address: str
    port: int
    log_level: str
    log_format: str
    dry_run: bool


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Parse and check every setting.

    Raises:
        InputError: one line that names the variable, its value and what was expected.
    """
    read = _Reader(environment)
    namespaces = tuple(
        sorted({part.strip() for part in read.text("WATCH_NAMESPACES", "").split(",") if part.strip()})
    )
    for namespace in namespaces:
        if not _LABEL.fullmatch(namespace):
            raise InputError(
                "BREAKEVEN_WATCH_NAMESPACES", f"{namespace!r}", "names of namespaces, separated by commas"
            )
    settings = Settings(
        identity=read.text("POD_NAME", f"{os.uname().nodename}-{os.getpid()}"),
        namespace=read.label("NAMESPACE", "default"),
        kubeconfig=environment.get("KUBECONFIG", ""),
        watch_namespaces=namespaces,
        cycle_s=read.number("CYCLE_SECONDS", 15.0, 0.1, 3600.0),
        status_refresh_s=read.number("STATUS_REFRESH_SECONDS", 60.0, 0.0, 86400.0),
        prometheus_address=read.matching(
            "PROMETHEUS_ADDRESS", "", _URL, "http://host:port without credentials"
        ),
        prometheus_bearer_file=read.file("PROMETHEUS_BEARER_FILE"),
        prometheus_ca_file=read.file("PROMETHEUS_CA_FILE"),
        prometheus_timeout_s=int(read.number("PROMETHEUS_TIMEOUT_SECONDS", 10, 1, 300)),
        lease_name=read.label("LEASE_NAME", "breakeven-operator"),
        lease_s=read.number("LEASE_SECONDS", 30.0, 6.0, 600.0),
        trial=TrialSettings(
            image=read.text("TRIAL_IMAGE", f"ghcr.io/breakeven-dev/breakeven:{__version__}"),
            image_pull_policy=read.one_of(
                "TRIAL_IMAGE_PULL_POLICY", "", ("", "Always", "IfNotPresent", "Never")
            ),
            priority_class=read.text("TRIAL_PRIORITY_CLASS", ""),
            queue_name=read.text("TRIAL_QUEUE_NAME", ""),
            ttl_seconds_after_finished=int(read.number("TRIAL_TTL_SECONDS", 600, 0, 604800)),
            gpu_label=read.text("GPU_LABEL", "nvidia.com/gpu.product"),
        ),
        trial_cluster_role=read.text("TRIAL_CLUSTER_ROLE", "breakeven-trial"),
        max_parallel_rolls=int(read.number("MAX_PARALLEL_ROLLS", 3, 1, 1000)),
        max_parallel_calibrations=int(read.number("MAX_PARALLEL_CALIBRATIONS", 1, 1, 100)),
        bind_address=read.text("BIND_ADDRESS", "0.0.0.0"),  # noqa: S104 - in a pod, the kubelet and Prometheus ask
        port=int(read.number("PORT", 8080, 0, 65535)),
        log_level=read.one_of("LOG_LEVEL", "INFO", _LEVELS),
        log_format=read.one_of("LOG_FORMAT", "json", ("json", "text")),
        dry_run=read.one_of("DRY_RUN", "false", ("true", "false")) == "true",
    )
    read.refuse_unknown()
    return settings


def configure_kopf(settings: kopf.OperatorSettings) -> None:
    """Kopf's settings, each with its reason; it only wakes the loop up and must neither write nor give up."""
    # Nothing of kopf's is ever written to an object; should that change, it is at least written under our own name.
    settings.persistence.finalizer = f"{GROUP}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    # Events are said by the writer, with reason words; log lines of the framework are none.
    settings.posting.enabled = False
    # Nobody takes part in peering: a forgotten ClusterKopfPeering of another team would pause us. The Lease decides.
    settings.peering.standalone = True
    # A watcher that gives up after 54 s of a missing API server is dead for ever while the process lives.
    settings.networking.error_backoffs = _Forever()
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    # A connection that died silently is noticed; bookmarks come about every minute.
    settings.watching.server_timeout = 600
    settings.watching.client_timeout = 630
    settings.watching.connect_timeout = 10
    settings.watching.reconnect_backoff = 1.0
    # Below the pod's grace period.
    settings.process.ultimate_exiting_timeout = 15


class _Forever:
    """Delays between retries that never end: 1, 2, 4, ... 60, 60, 60 s."""

    def __iter__(self):  # type: ignore[no-untyped-def]  # noqa: ANN204 - kopf asks for any iterable of numbers
        delay_s = 1.0
        while True:
            yield delay_s
            delay_s = min(60.0, 2 * delay_s)


class _Reader:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._known: set[str] = {"BREAKEVEN_SPECULATIVE_CONFIG"}

    def text(self, name: str, default: str) -> str:
        self._known.add(f"BREAKEVEN_{name}")
        return self._environment.get(f"BREAKEVEN_{name}") or default

    def number(self, name: str, default: float, low: float, high: float) -> float:
        text = self.text(name, str(default))
        value = self._parsed(name, text, float, "a number")
        if not low <= value <= high:
            raise InputError(f"BREAKEVEN_{name}", f"is {text}", f"a number from {low:g} to {high:g}")
        return value

    def label(self, name: str, default: str) -> str:
        text = self.text(name, default)
        if not _LABEL.fullmatch(text):
            raise InputError(
                f"BREAKEVEN_{name}", f"is {text!r}", "a name of lower-case letters, digits and -"
            )
        return text

    def matching(self, name: str, default: str, pattern: re.Pattern[str], expected: str) -> str:
        text = self.text(name, default)
        if text and not pattern.fullmatch(text):
            # The value may hold what it must not: credentials in an address are not repeated.
            raise InputError(f"BREAKEVEN_{name}", "is not usable", expected)
        return text

    def one_of(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        text = self.text(name, default)
        if text not in allowed:
            raise InputError(
                f"BREAKEVEN_{name}", f"is {text!r}", "one of " + ", ".join(filter(None, allowed))
            )
        return text

    def file(self, name: str) -> str:
        text = self.text(name, "")
        if text and not os.path.isfile(text):  # noqa: PTH113 - only asked, never opened here
            raise InputError(f"BREAKEVEN_{name}", f"{text!r} is no file", "a file that can be read")
        return text

    def refuse_unknown(self) -> None:
        """A misspelt variable would silently leave a default in force."""
        for name in sorted(self._environment):
            foreign = name.startswith("BREAKEVEN_SIM") or _SERVICE_LINK.match(name)
            if name.startswith("BREAKEVEN_") and name not in self._known and not foreign:
                raise InputError(name, "is not a setting", f"one of {', '.join(sorted(self._known))}")

    @staticmethod
    def _parsed(name: str, text: str, parse: Callable[[str], T], expected: str) -> T:
        try:
            return parse(text)
        except ValueError:
            raise InputError(f"BREAKEVEN_{name}", f"is {text!r}", expected) from None
