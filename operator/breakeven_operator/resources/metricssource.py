"""Where a service's load and latency are read: the Prometheus part of a spec."""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import Field

from breakeven_operator.resources.base import Model, Rule, list_map
from breakeven_operator.resources.figures import row
from breakeven_operator.resources.meta import ObjectReference, SecretKeyReference

ADDRESS_PATTERN = r"^https?://[^\s@?#]+$"
"""Of a Prometheus: without credentials, and without the signs after which the query's path would be no path."""
LABEL_PATTERN = r"^[a-zA-Z_][a-zA-Z0-9_]*$"
# Headers by which proxies and API servers identify the caller or the real request, and metadata services accept a proof.
_TRUSTED_HEADERS = "forwarded|remote|original|rewrite|http-method|real|webauth|auth|aws|amz|google|goog"
_TENANT_HEADER = (
    r"^([Xx]-[A-Za-z0-9-]+|[Tt][Hh][Aa][Nn][Oo][Ss]-[Tt][Ee][Nn][Aa][Nn][Tt]|AccountID|ProjectID)$"
)


def may_carry(header: str) -> bool:
    """Whether a service may choose the value of this header of the operator's queries."""
    return bool(re.fullmatch(_TENANT_HEADER, header)) and not re.match(
        f"x-({_TRUSTED_HEADERS})", header.lower()
    )


class LabelMatcher(Model):
    """A label that every series must have, such as cluster or tenant; the value is escaped for you."""

    label: str = Field(min_length=1, max_length=128, pattern=LABEL_PATTERN, description="Label name.")
    value: str = Field(max_length=512, description="Label value.")


class TenantHeader(Model):
    """A header that selects the tenant (Mimir, Cortex, Thanos)."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.value) != has(self.valueSecretRef)",
            "tenantHeader has both or none of value and valueSecretRef",
            "exactly one of them",
            lambda header: (header.value is None) != (header.value_secret_ref is None),
        ),
        Rule(
            f"!self.name.lowerAscii().matches('^x-({_TRUSTED_HEADERS})')",
            "tenantHeader is one by which servers tell who asks",
            "one that selects a tenant, such as X-Scope-OrgID",
            lambda header: may_carry(header.name),
            ".name",
        ),
    )

    name: str = row(
        "Name of the header: X-..., THANOS-TENANT, AccountID or ProjectID.",
        default="X-Scope-OrgID",
        min_length=1,
        max_length=128,
        pattern=_TENANT_HEADER,
    )
    value: str | None = row(
        "Value of the header: the name of the tenant.",
        min_length=1,
        max_length=256,
        pattern=r"^[\x21-\x7e]+$",
    )
    value_secret_ref: SecretKeyReference | None = row(
        "Value of the header, from a Secret whose annotation breakeven.dev/prometheus-address names the address."
    )


class PodLabels(Model):
    """Names of the labels that name the pod of an engine's series."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.namespace != self.pod",
            "both labels have one name",
            "a name for each",
            lambda labels: labels.namespace != labels.pod,
        ),
    )

    namespace: str = row(
        "Name of the label namespace.", default="namespace", max_length=128, pattern=LABEL_PATTERN
    )
    pod: str = row("Name of the label pod.", default="pod", max_length=128, pattern=LABEL_PATTERN)


class PrometheusServer(Model):
    """A server that answers the Prometheus query API."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.address) || !(has(self.bearerTokenSecretRef) || has(self.caSecretRef) "
            "|| has(self.clientCertSecretRef) || has(self.tenantHeader) || has(self.labelNames))",
            "credentials or names of labels are given without the server they are for",
            "address as well",
            lambda prometheus: (
                prometheus.address is not None
                or all(value is None for name, value in prometheus if name != "extra_matchers")
            ),
            ".address",
        ),
    )

    address: str | None = row(
        "URL, such as http://prometheus.monitoring:9090, without query and fragment; loopback and link-local "
        "addresses where the installation allows them. Without it: the operator's own setting.",
        min_length=8,
        max_length=512,
        pattern=ADDRESS_PATTERN,
    )
    bearer_token_secret_ref: SecretKeyReference | None = row(
        "Token for the Authorization header; read again as it expires. The Secret's annotation "
        "breakeven.dev/prometheus-address names the address that it may be sent to."
    )
    ca_secret_ref: SecretKeyReference | None = row(
        "Certificate authority that signed the server's certificate (PEM)."
    )
    client_cert_secret_ref: ObjectReference | None = row(
        "A kubernetes.io/tls Secret for mutual TLS (keys tls.crt, tls.key)."
    )
    tenant_header: TenantHeader | None = row("Header that selects the tenant.")
    label_names: PodLabels | None = row(
        "Names of the labels that name a pod, where a federation or relabelling has changed them: exported_namespace, exported_pod."
    )
    extra_matchers: tuple[LabelMatcher, ...] = row(
        "Conditions added to every series, where one Prometheus holds several clusters.",
        default=(),
        extra=list_map("label"),
        max_length=8,
    )


class MetricsSource(Model):
    """How the target is watched."""

    prometheus: PrometheusServer = row("The server that is asked.", default=PrometheusServer())
    served_model_name: str | None = row(
        "vLLM's model_name label. Without it: from the target's command line.", min_length=1, max_length=512
    )
    metric_prefix: str = row(
        "What the names of vLLM's series begin with: kserve_vllm:, ray_vllm: or vllm_ where something between has renamed them.",
        default="vllm:",
        min_length=1,
        max_length=64,
        pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$",
    )
    window_seconds: int = row(
        "Time over which rates and means are taken; at least four scrape intervals.",
        default=300,
        ge=1,
        le=86400,
    )
    staleness_seconds: int = row(
        "Age of the newest sample, by the operator's clock, beyond which the figures are not used "
        "(MetricsStale); what the clocks of Prometheus and the operator differ by counts in it, ahead by a minute at most.",
        default=120,
        ge=1,
        le=86400,
    )
    min_requests: int = row(
        "Fewer finished requests than this in the window do not decide anything (TooFewRequests).",
        default=30,
        ge=0,
        le=1000000,
    )
