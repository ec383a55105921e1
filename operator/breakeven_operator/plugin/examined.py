"""Arguments of `breakeven doctor`, `history` and `savings`: pods, arm and profile of a service, and the Prometheus that has the series."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from breakeven.arm import NO_SPECULATION
from breakeven.errors import InputError
from breakeven_operator.plugin.kubectl_process import ForwardedPort, KubectlError
from breakeven_operator.plugin.service_view import Json, ServiceView, variable_of
from breakeven_operator.resources.speculativeservice import TargetReference
from breakeven_operator.workloads.known import kind_of

_ADDRESS, _LABELS = "BREAKEVEN_PROMETHEUS_ADDRESS", "BREAKEVEN_PROMETHEUS_LABEL_NAMES"
# NAME, NAME.NAMESPACE, NAME.NAMESPACE.svc and NAME.NAMESPACE.svc.DOMAIN; whether there is such a Service is asked.
_OF_CLUSTER = re.compile(r"([a-z][a-z0-9-]*)(?:\.([a-z0-9-]+)(?:\.svc(?:\.[a-z0-9.-]+)?)?)?\.?")


class PrometheusPlace(NamedTuple):
    """A Prometheus.

    Attributes:
        namespace: of the object that names it: a name without a namespace is looked up there.
        labels: names of the labels that name a pod, such as `pod=exported_pod`.
    """

    address: str
    namespace: str
    labels: tuple[str, ...] = ()

    def inside(self, has: Callable[[ForwardedPort], bool]) -> ForwardedPort | None:
        """The Service of the cluster that the address names; None if it names none. `has`: whether there is such a Service.

        Raises:
            InputError: it is asked by TLS, and no certificate is for a forwarded port.
        """
        parts = urlsplit(self.address)
        named = _OF_CLUSTER.fullmatch(parts.hostname or "")
        if named is None:
            return None
        place = f"service/{named[1]}"
        at = ForwardedPort(named[2] or self.namespace, place, parts.port or 80, parts.path.rstrip("/"))
        if not has(at):
            return None
        if parts.scheme == "https":
            raise InputError(
                self.address,
                "its certificate is not for a forwarded port",
                "--prometheus with an address that you reach",
            )
        return at


def prometheus_of(service: ServiceView, operators: Callable[[], Sequence[Json]]) -> PrometheusPlace:
    """The Prometheus that the operator asks about a service: its own, else the Prometheus of the operators' pods.

    Raises:
        InputError: neither names one.
    """
    own = _server(service)
    if address := own.get("address"):
        labels = tuple(f"{label}={name}" for label, name in (own.get("labelNames") or {}).items())
        return PrometheusPlace(str(address), service.namespace, labels)
    found = _of_operators(operators)
    if len(found) != 1:
        others = (
            ", and operators name several" if found else ", nor does a pod of the operator that you may read"
        )
        raise InputError(
            f"SpeculativeService {service.namespace}/{service.name}",
            f"names no Prometheus{others}",
            "--prometheus",
        )
    return found[0]


def prometheus_of_operators(operators: Callable[[], Sequence[Json]]) -> PrometheusPlace:
    """The Prometheus that the operators' pods name, which has their own metrics if it scrapes them.

    Raises:
        InputError: they name none, or several.
    """
    found = _of_operators(operators)
    if len(found) != 1:
        problem = "name several servers of Prometheus" if found else "name no Prometheus, or may not be read"
        raise InputError("pods of the operator", problem, "--prometheus")
    return found[0]


def _of_operators(operators: Callable[[], Sequence[Json]]) -> Sequence[PrometheusPlace]:
    try:
        pods = operators()
    except KubectlError:
        # Who may not list pods names the server.
        pods = ()
    return sorted({place for pod in pods for place in _addresses(pod)})


def examined(service: ServiceView, profile: Callable[[str], Path]) -> Iterator[str]:
    """Arguments of `breakeven doctor`: model, series, and the running arm with its profile's file if there is one.

    Raises:
        InputError: the operator has not read the target yet.
    """
    yield from ("--model", _model(service), "--namespace", service.namespace, *_series(service))
    named, arm = service.part("calibration").get("profile"), service.running
    if named and arm not in {None, NO_SPECULATION.name}:
        method, _, length = str(arm).rpartition("/")
        yield from ("--profile", str(profile(str(named))), "--method", method, "--k", length)


def past_of(service: ServiceView) -> Iterator[str]:
    """Arguments of `breakeven history`: series, GPU product, and the arms that might be calibrated.

    Raises:
        InputError: the operator has not read the target yet.
    """
    for matcher in (f"model_name={_model(service)}", f"namespace={service.namespace}"):
        yield from ("--match", matcher)
    yield from _series(service)
    if product := service.part("target").get("gpuProduct"):
        yield from ("--gpu", str(product))
    for method in (service.spec.get("candidates") or {}).get("methods") or ():
        for length in method.get("draftLengths") or ():
            yield from ("--arm", f"{method.get('method')}/{length}")


def _model(service: ServiceView) -> str:
    model = service.part("target").get("servedModelName")
    if not model:
        raise InputError(
            f"SpeculativeService {service.namespace}/{service.name}",
            "has no status.target.servedModelName",
            "an operator that has read the target",
        )
    return str(model)


def _series(service: ServiceView) -> Iterator[str]:
    """Options that choose the series of the target's pods within its namespace."""
    target = TargetReference.model_validate(service.spec.get("targetRef") or {})
    yield from ("--match", f"pod=~{kind_of(target).pods_of(target.name)}")
    for one in _server(service).get("extraMatchers") or ():
        yield from ("--match", f"{one['label']}={one['value']}")
    if prefix := (service.spec.get("metricsSource") or {}).get("metricPrefix"):
        yield from ("--metric-prefix", str(prefix))


def _server(service: ServiceView) -> Json:
    found: Json = (service.spec.get("metricsSource") or {}).get("prometheus") or {}
    return found


def _addresses(pod: Json) -> Iterator[PrometheusPlace]:
    namespace = str((pod.get("metadata") or {}).get("namespace"))
    for container in (pod.get("spec") or {}).get("containers") or ():
        if address := variable_of(container, _ADDRESS):
            labels = tuple(filter(None, variable_of(container, _LABELS).split(",")))
            yield PrometheusPlace(address, namespace, labels)
