"""Arguments of `breakeven doctor` about a service: its pods, its arm, its profile, and the Prometheus that has their series."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from breakeven.arm import NO_SPECULATION
from breakeven.errors import InputError
from breakeven_operator.plugin.kubectl_process import KubectlError
from breakeven_operator.plugin.service_view import Json, ServiceView

_ADDRESS = "BREAKEVEN_PROMETHEUS_ADDRESS"
# NAME, NAME.NAMESPACE, NAME.NAMESPACE.svc and NAME.NAMESPACE.svc.DOMAIN; whether there is such a Service is asked.
_OF_CLUSTER = re.compile(r"([a-z][a-z0-9-]*)(?:\.([a-z0-9-]+)(?:\.svc(?:\.[a-z0-9.-]+)?)?)?\.?")


class ServicePort(NamedTuple):
    """A port of a Service of the cluster, and the path below which it answers."""

    namespace: str
    name: str
    port: int
    path: str

    def behind(self, local_port: str) -> str:
        """The address behind a forwarded port."""
        return f"http://127.0.0.1:{local_port}{self.path}"


class PrometheusPlace(NamedTuple):
    """A Prometheus.

    Attributes:
        namespace: of whoever names it: a name without a namespace is looked up there.
    """

    address: str
    namespace: str

    def inside(self) -> ServicePort | None:
        """The Service of the cluster that the address may name; None if it names none.

        Raises:
            InputError: it is asked by TLS, and no certificate is for a forwarded port.
        """
        parts = urlsplit(self.address)
        named = _OF_CLUSTER.fullmatch(parts.hostname or "")
        if named is None:
            return None
        if parts.scheme == "https":
            raise InputError(
                self.address,
                "its certificate is not for a forwarded port",
                "--prometheus with an address that you reach",
            )
        return ServicePort(named[2] or self.namespace, named[1], parts.port or 80, parts.path.rstrip("/"))


def prometheus_of(service: ServiceView, operators: Callable[[], Sequence[Json]]) -> PrometheusPlace:
    """The Prometheus that the operator asks about a service.

    Args:
        service: whose own one comes first.
        operators: pods of operators, if the service names none.

    Raises:
        InputError: neither names one.
    """
    own = ((service.spec.get("metricsSource") or {}).get("prometheus") or {}).get("address")
    if own:
        return PrometheusPlace(str(own), service.namespace)
    try:
        pods = operators()
    except KubectlError:
        # Who may not list pods names the server.
        pods = ()
    found = sorted({place for pod in pods for place in _addresses(pod)})
    if len(found) != 1:
        raise InputError(
            f"SpeculativeService {service.namespace}/{service.name}",
            "names no Prometheus"
            + (
                ", and operators name several"
                if found
                else ", nor does a pod of the operator that you may read"
            ),
            "--prometheus",
        )
    return found[0]


def examined(service: ServiceView, profile: Callable[[str], Path]) -> Iterator[str]:
    """Arguments of `breakeven doctor`: model, pods, and the running arm with its profile if there is one.

    Args:
        service: with the status of the operator.
        profile: the file of a profile.

    Raises:
        InputError: the operator has not read the target yet.
    """
    model = service.part("target").get("servedModelName")
    if not model:
        raise InputError(
            f"SpeculativeService {service.namespace}/{service.name}",
            "has no status.target.servedModelName",
            "an operator that has read the target",
        )
    target = re.escape(str((service.spec.get("targetRef") or {}).get("name")))
    yield from ("--model", str(model), "--namespace", service.namespace, "--match", f"pod=~{target}-.+")
    named, arm = service.part("calibration").get("profile"), service.running
    if named and arm not in {None, NO_SPECULATION.name}:
        method, _, length = str(arm).rpartition("/")
        yield from ("--profile", str(profile(str(named))), "--method", method, "--k", length)


def _addresses(pod: Json) -> Iterator[PrometheusPlace]:
    namespace = str((pod.get("metadata") or {}).get("namespace"))
    for container in (pod.get("spec") or {}).get("containers") or ():
        for one in container.get("env") or ():
            if one.get("name") == _ADDRESS and one.get("value"):
                yield PrometheusPlace(str(one["value"]), namespace)
