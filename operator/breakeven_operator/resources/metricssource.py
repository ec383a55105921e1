"""Where a service's load and latency are read: the Prometheus part of a spec."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from breakeven_operator.resources.base import Model, Rule, list_map
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


class MatchOperator(StrEnum):
    """How a label is compared. Words, not PromQL's signs: YAML readers stumble over a bare `=`."""

    EQUAL = "Equal"
    NOT_EQUAL = "NotEqual"
    MATCHES = "Matches"
    NOT_MATCHES = "NotMatches"

    @property
    def sign(self) -> str:
        """The operator as PromQL writes it."""
        return {"Equal": "=", "NotEqual": "!=", "Matches": "=~", "NotMatches": "!~"}[self]


class LabelMatcher(Model):
    """One more condition on every series, such as cluster or tenant; the value is escaped for you."""

    label: Annotated[
        str,
        Field(min_length=1, max_length=128, pattern=LABEL_PATTERN, description="Label name."),
    ]
    operator: Annotated[
        MatchOperator,
        Field(description="Equal, NotEqual, Matches or NotMatches: =, !=, =~ and !~ of PromQL."),
    ] = MatchOperator.EQUAL
    value: Annotated[
        str,
        Field(max_length=512, description="Label value, or an RE2 expression for Matches and NotMatches."),
    ]


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

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=128,
            pattern=_TENANT_HEADER,
            description="Name of the header: X-..., THANOS-TENANT, AccountID or ProjectID.",
        ),
    ] = "X-Scope-OrgID"
    value: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=256,
            pattern=r"^[\x21-\x7e]+$",
            description="Value of the header: the name of the tenant.",
        ),
    ] = None
    value_secret_ref: Annotated[
        SecretKeyReference | None,
        Field(
            description="Value of the header, from a Secret whose annotation breakeven.dev/prometheus-address names the address."
        ),
    ] = None


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

    namespace: Annotated[
        str, Field(max_length=128, pattern=LABEL_PATTERN, description="Name of the label namespace.")
    ] = "namespace"
    pod: Annotated[
        str, Field(max_length=128, pattern=LABEL_PATTERN, description="Name of the label pod.")
    ] = "pod"


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
                or not any(
                    (
                        prometheus.bearer_token_secret_ref,
                        prometheus.ca_secret_ref,
                        prometheus.client_cert_secret_ref,
                        prometheus.tenant_header,
                        prometheus.label_names,
                    )
                )
            ),
            ".address",
        ),
    )

    address: Annotated[
        str | None,
        Field(
            min_length=8,
            max_length=512,
            pattern=ADDRESS_PATTERN,
            description="URL, such as http://prometheus.monitoring:9090, without query and fragment; loopback and link-local "
            "addresses where the installation allows them. Without it: the operator's own setting.",
        ),
    ] = None
    bearer_token_secret_ref: Annotated[
        SecretKeyReference | None,
        Field(
            description="Token for the Authorization header; read again as it expires. The Secret's annotation "
            "breakeven.dev/prometheus-address names the address that it may be sent to."
        ),
    ] = None
    ca_secret_ref: Annotated[
        SecretKeyReference | None,
        Field(description="Certificate authority that signed the server's certificate (PEM)."),
    ] = None
    client_cert_secret_ref: Annotated[
        ObjectReference | None,
        Field(description="A kubernetes.io/tls Secret for mutual TLS (keys tls.crt, tls.key)."),
    ] = None
    tenant_header: Annotated[TenantHeader | None, Field(description="Header that selects the tenant.")] = None
    label_names: Annotated[
        PodLabels | None,
        Field(
            description="Names of the labels that name a pod, where a federation or relabelling has changed them: exported_namespace, exported_pod."
        ),
    ] = None
    extra_matchers: Annotated[
        tuple[LabelMatcher, ...],
        Field(
            max_length=8,
            json_schema_extra=list_map("label"),
            description="Conditions added to every series, where one Prometheus holds several clusters.",
        ),
    ] = ()


class MetricsSource(Model):
    """How the target is watched."""

    prometheus: Annotated[PrometheusServer, Field(description="The server that is asked.")] = (
        PrometheusServer()
    )
    served_model_name: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=512,
            description="vLLM's model_name label. Without it: from the target's command line.",
        ),
    ] = None
    metric_prefix: Annotated[
        str,
        Field(
            min_length=1,
            max_length=64,
            pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$",
            description="What the names of vLLM's series begin with: kserve_vllm:, ray_vllm: or vllm_ where something between has renamed them.",
        ),
    ] = "vllm:"
    window_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=86400,
            description="Time over which rates and means are taken; at least four scrape intervals.",
        ),
    ] = 300
    staleness_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=86400,
            description="Age of the newest sample, by the operator's clock, beyond which the figures are not used "
            "(MetricsStale); what the clocks of Prometheus and the operator differ by counts in it.",
        ),
    ] = 120
    min_requests: Annotated[
        int,
        Field(
            ge=0,
            le=1000000,
            description="Fewer finished requests than this in the window do not decide anything (TooFewRequests).",
        ),
    ] = 30
