"""A container's environment, its field references and quantities."""

import pytest

from fakes.node_pods import WHERE, make_pod
from localcluster.nodeagent import fieldrefs, quantities
from localcluster.nodeagent.environment import ConfigError, assemble

OBJECTS = {
    ("configmap", "conf"): {"mode": "fast", "LEVEL": "1"},
    ("secret", "keys"): {"api": "s3cret"},
}
SERVICES = {"KUBERNETES_SERVICE_HOST": "127.0.0.1"}


async def lookup(kind, name):
    return OBJECTS.get((kind, name))


async def environment(env=(), env_from=(), **spec):
    resources = spec.pop("resources", {})
    main = {"name": "main", "env": list(env), "envFrom": list(env_from), "resources": resources}
    pod = make_pod(containers=[main], **spec)
    return await assemble(pod, pod.container("main"), WHERE, SERVICES, lookup)


def reference(kind, **body):
    return {"name": "X", "valueFrom": {kind: body}}


async def test_references_see_only_what_stands_before_them():
    found = await environment(
        [
            {"name": "EARLY", "value": "$(LATE)"},
            {"name": "LATE", "value": "1"},
            {"name": "BOTH", "value": "$(LATE)/$(EARLY)/$(KUBERNETES_SERVICE_HOST)"},
        ]
    )
    assert found["EARLY"] == "$(LATE)"
    assert found["BOTH"] == "1/$(LATE)/127.0.0.1"


async def test_env_replaces_env_from_and_services_and_later_entries_win():
    found = await environment(
        [{"name": "LEVEL", "value": "$(LEVEL)2"}, {"name": "KUBERNETES_SERVICE_HOST", "value": "mine"}],
        [{"configMapRef": {"name": "conf"}}, {"prefix": "P_", "secretRef": {"name": "keys"}}],
    )
    assert found == {"LEVEL": "12", "mode": "fast", "P_api": "s3cret", "KUBERNETES_SERVICE_HOST": "mine"}


async def test_values_of_objects_are_not_expanded():
    OBJECTS["configmap", "dollar"] = {"k": "$(A)"}
    found = await environment(
        [{"name": "A", "value": "1"}, reference("configMapKeyRef", name="dollar", key="k")]
    )
    assert found["X"] == "$(A)"


@pytest.mark.parametrize("kind", ["configMapKeyRef", "secretKeyRef"])
async def test_an_optional_reference_to_nothing_leaves_the_variable_unset(kind):
    assert "X" not in await environment([reference(kind, name="none", key="k", optional=True)])


@pytest.mark.parametrize(
    ("env", "env_from", "message"),
    [
        ([reference("configMapKeyRef", name="none", key="k")], [], 'configmap "none" not found'),
        ([reference("secretKeyRef", name="keys", key="k")], [], "couldn't find key k in secret shop/keys"),
        ([], [{"secretRef": {"name": "none"}}], 'secret "none" not found'),
        ([reference("fieldRef", fieldPath="spec.nope")], [], "unsupported fieldPath 'spec.nope'"),
    ],
)
async def test_a_missing_source_is_named(env, env_from, message):
    with pytest.raises(ConfigError, match="^" + message.replace("(", r"\(")):
        await environment(env, env_from)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "chat-0"),
        ("metadata.namespace", "shop"),
        ("metadata.uid", "u-1"),
        ("metadata.labels['app']", "web"),
        ("metadata.annotations['breakeven.dev/speculative-config']", '{"k": 3}'),
        # Kubernetes makes a missing annotation an empty variable; the opt-in relies on it.
        ("metadata.annotations['other']", ""),
        ("metadata.annotations", 'breakeven.dev/speculative-config="{\\"k\\": 3}"'),
        ("spec.nodeName", "a100"),
        ("spec.serviceAccountName", "robot"),
        ("status.podIP", "127.64.0.2"),
        ("status.podIPs", "127.64.0.2"),
        ("status.hostIP", "127.64.0.1"),
    ],
)
async def test_fields(path, value):
    metadata = {"labels": {"app": "web"}, "annotations": {"breakeven.dev/speculative-config": '{"k": 3}'}}
    found = await environment([reference("fieldRef", fieldPath=path)], **metadata)
    assert found["X"] == value


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ({"resource": "limits.memory", "divisor": "1Mi"}, "1536"),
        ({"resource": "requests.cpu", "divisor": "1m"}, "250"),
        ({"resource": "requests.cpu"}, "1"),
        # Without a limit: what the node can give.
        ({"resource": "limits.cpu"}, "96"),
        ({"resource": "limits.memory", "containerName": "main", "divisor": "0"}, "1610612736"),
    ],
)
def test_resource_fields(reference, value):
    main = {"name": "main", "resources": {"limits": {"memory": "1.5Gi"}, "requests": {"cpu": "250m"}}}
    pod = make_pod(containers=[main])
    assert fieldrefs.resource(reference, pod, pod.container("main"), WHERE) == value


def test_a_resource_field_of_another_container_or_kind_is_refused():
    pod = make_pod()
    with pytest.raises(ValueError, match="'other' of a resourceFieldRef not found"):
        fieldrefs.resource({"resource": "limits.cpu", "containerName": "other"}, pod, None, WHERE)
    with pytest.raises(ValueError, match="unsupported resource 'cpu'"):
        fieldrefs.resource({"resource": "cpu"}, pod, pod.container("main"), WHERE)


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 0.5), ("1Ki", 1024), ("2k", 2000), ("1E", 10**18), ("1e3", 1000), ("1.5Gi", 1.5 * 2**30), (4, 4), ("100n", 1e-7)],
)  # fmt: skip
def test_quantities(text, value):
    assert float(quantities.parse(text)) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("text", ["", "1 Gi", "Gi", "1KB", "0x10", "1ki"])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="is not a Kubernetes quantity"):
        quantities.parse(text)
