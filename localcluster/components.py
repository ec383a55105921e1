"""Command lines of the control plane; pure.

Every server listens on 127.0.0.1 only. Leader election is off: each part exists once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from localcluster.state import ClusterEndpoints, StateFolder

ISSUER: Final = "https://kubernetes.default.svc"
SERVICE_RANGE: Final = "10.96.0.0/16"

# The audit log records every write with the object that was sent, and no read. Several parts renew Leases every few
# seconds, and events are a log of their own: for those it records only that they happened.
AUDIT_POLICY: Final = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: None
  verbs: [get, list, watch]
- level: None
  resources: [{group: authentication.k8s.io}, {group: authorization.k8s.io}]
- level: Metadata
  resources:
  - {group: "", resources: [events, secrets, serviceaccounts/token]}
  - {group: events.k8s.io}
  - {group: coordination.k8s.io, resources: [leases]}
- level: Request
"""


def etcd(program: Path, state: StateFolder, endpoints: ClusterEndpoints) -> list[str]:
    """The store. It may forget everything on power failure: the cluster does not outlive its processes anyway."""
    client = f"https://127.0.0.1:{endpoints.etcd_port}"
    peer = f"https://127.0.0.1:{endpoints.etcd_peer_port}"
    return [
        str(program),
        "--name=localcluster",
        f"--data-dir={state.root / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=localcluster={peer}",
        f"--cert-file={state.pki / 'etcd.crt'}",
        f"--key-file={state.pki / 'etcd.key'}",
        f"--trusted-ca-file={state.pki / 'ca.crt'}",
        "--client-cert-auth",
        f"--peer-cert-file={state.pki / 'etcd.crt'}",
        f"--peer-key-file={state.pki / 'etcd.key'}",
        f"--peer-trusted-ca-file={state.pki / 'ca.crt'}",
        "--peer-client-cert-auth",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server(program: Path, state: StateFolder, endpoints: ClusterEndpoints) -> list[str]:
    """The API server: RBAC, ServiceAccount tokens, admission as in any cluster, an audit log of all writes."""
    return [
        str(program),
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={endpoints.api_port}",
        # It would publish its loopback address as endpoint of the Service `kubernetes`, which the API refuses.
        "--endpoint-reconciler-type=none",
        f"--tls-cert-file={state.pki / 'apiserver.crt'}",
        f"--tls-private-key-file={state.pki / 'apiserver.key'}",
        f"--client-ca-file={state.pki / 'ca.crt'}",
        f"--etcd-servers=https://127.0.0.1:{endpoints.etcd_port}",
        f"--etcd-cafile={state.pki / 'ca.crt'}",
        f"--etcd-certfile={state.pki / 'apiserver-etcd-client.crt'}",
        f"--etcd-keyfile={state.pki / 'apiserver-etcd-client.key'}",
        # How it passes requests on to API servers that an APIService names, and how these know that it was asked by whom.
        f"--proxy-client-cert-file={state.pki / 'front-proxy-client.crt'}",
        f"--proxy-client-key-file={state.pki / 'front-proxy-client.key'}",
        f"--requestheader-client-ca-file={state.pki / 'ca.crt'}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        # The certificate with which `kubectl logs` and `exec` reach the node agent.
        f"--kubelet-client-certificate={state.pki / 'apiserver-kubelet-client.crt'}",
        f"--kubelet-client-key={state.pki / 'apiserver-kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=Node,RBAC",
        "--anonymous-auth=false",
        "--allow-privileged=true",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={state.pki / 'service-accounts.pub'}",
        f"--service-account-signing-key-file={state.pki / 'service-accounts.key'}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--audit-policy-file={state.root / 'audit' / 'policy.yaml'}",
        f"--audit-log-path={state.audit_log}",
        "--audit-log-maxsize=1000",
        "--profiling=false",
    ]


def controller_manager(program: Path, state: StateFolder) -> list[str]:
    """All controllers but those that can only fail here."""
    kubeconfig = state.kubeconfig_of("controller-manager")
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        # EndpointSlices and Endpoints refuse loopback addresses, and every pod here has one: these controllers
        # would retry for ever and fill the Services' events. Clients follow a Service's selector instead.
        "--controllers=*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={state.pki / 'service-accounts.key'}",
        f"--root-ca-file={state.pki / 'ca.crt'}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=100",
        "--kube-api-burst=200",
        # Autoscalers look every 15 s by default; here everything else is ready within seconds.
        "--horizontal-pod-autoscaler-sync-period=5s",
        "--profiling=false",
    ]


def scheduler(program: Path, state: StateFolder) -> list[str]:
    """The default scheduler."""
    return [
        str(program),
        f"--kubeconfig={state.kubeconfig_of('scheduler')}",
        "--leader-elect=false",
        "--secure-port=0",
        "--profiling=false",
    ]


def tool_environment(state: StateFolder, environment: Mapping[str, str]) -> dict[str, str]:
    """Environment for kubectl and Helm: this cluster, and no file of theirs outside of the state folder."""
    return {
        **environment,
        "KUBECONFIG": str(state.kubeconfig),
        "KUBECACHEDIR": str(state.root / "kubectl"),
        "HELM_CACHE_HOME": str(state.root / "helm" / "cache"),
        "HELM_CONFIG_HOME": str(state.root / "helm" / "config"),
        "HELM_DATA_HOME": str(state.root / "helm" / "data"),
    }
