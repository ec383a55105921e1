"""The node's side: GPUs, addresses, Node objects, refusals, logs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.nodeagent import gpus, nodeobjects, refusals
from localcluster.nodeagent.addresses import AddressRange, NoAddressError
from localcluster.nodeagent.kubeletapi import tail_offset
from localcluster.nodeagent.nodeobjects import NodeFlagError, NodeSpec


def test_labels_are_those_of_gpu_feature_discovery():
    node = NodeSpec.parse("a100-0=NVIDIA-A100-SXM4-80GB:8")
    labels = node.labels()
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB"
    assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/gpu.memory"]) == ("8", "81920")
    assert (labels["nvidia.com/gpu.family"], labels["nvidia.com/gpu.compute.major"]) == ("ampere", "8")
    assert labels["kubernetes.io/hostname"] == "a100-0"
    assert node.allocatable()["nvidia.com/gpu"] == "8"


def test_a_node_without_gpus_and_one_with_unknown_gpus():
    plain = NodeSpec.parse("cpu-0")
    assert "nvidia.com/gpu" not in plain.allocatable()
    assert not any("nvidia" in label for label in plain.labels())
    unknown = NodeSpec.parse("x=Future-GPU:2").labels()
    assert unknown["nvidia.com/gpu.product"] == "Future-GPU"
    assert "nvidia.com/gpu.memory" not in unknown


@pytest.mark.parametrize("text", ["", "=X:1", "a=X", "a=X:", "a=X:many", "a=:8", "a=X:0"])
def test_a_bad_node_is_refused(text):
    with pytest.raises(NodeFlagError, match="expected NAME=GPU_PRODUCT:COUNT"):
        NodeSpec.parse(text)


def test_the_node_offers_only_an_address_that_the_api_server_can_reach():
    status = nodeobjects.node_status(NodeSpec.parse("n"), "127.64.0.1", 10250, "boot", "v1", 0.0, 10.0)
    assert status["addresses"] == [{"type": "InternalIP", "address": "127.64.0.1"}]
    assert status["daemonEndpoints"]["kubeletEndpoint"]["Port"] == 10250
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["lastTransitionTime"]) == ("True", "1970-01-01T00:00:00Z")


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 8)), max_size=20))
def test_no_gpu_is_held_twice(requests):
    ledger = gpus.Ledger(8)
    for holder, wanted in requests:
        if wanted == 0:
            ledger.release(holder)
        else:
            try:
                assert len(ledger.take(holder, wanted)) == wanted
            except LookupError:
                continue
        held = [index for indexes in ledger.held.values() for index in indexes]
        assert len(held) == len(set(held))
        assert set(held) <= set(range(8))


def test_a_holder_keeps_its_gpus_and_too_many_are_refused():
    ledger = gpus.Ledger(4)
    assert ledger.take("a", 2) == ledger.take("a", 2) == (0, 1)
    with pytest.raises(LookupError, match=r"3 of nvidia\.com/gpu asked for, 2 of 4 free"):
        ledger.take("b", 3)
    assert ledger.take("c", 0) == ()


@pytest.fixture
def addresses():
    made = []

    def make(identity):
        made.append(AddressRange(identity))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_nodes_get_ranges_of_their_own_and_the_same_ones_again(addresses):
    first, second = addresses("state/one"), addresses("state/one")
    assert first.node.rpartition(".")[0] != second.node.rpartition(".")[0]
    assert first.node.startswith("127.")
    first.close()
    assert addresses("state/one").node == first.node


def test_pods_keep_their_address_and_a_released_one_is_reused_last(addresses):
    pool = addresses("pods")
    one = pool.take("one")
    assert pool.take("one") == one
    pool.release("one")
    others = [pool.take(f"pod-{n}") for n in range(252)]
    assert one not in others
    assert pool.node not in others
    assert len(set(others)) == 252
    assert pool.take("last") == one
    with pytest.raises(NoAddressError, match="all 253 pod addresses"):
        pool.take("more")


def test_a_pod_gets_the_address_back_that_it_had_before_a_restart(addresses):
    pool = addresses("restart")
    prefix = pool.node.rpartition(".")[0]
    assert pool.take("old", f"{prefix}.77") == f"{prefix}.77"
    assert pool.take("other", f"{prefix}.77") != f"{prefix}.77"
    assert pool.take("foreign", "127.0.0.9").startswith(prefix)
    assert pool.take("node", pool.node) != pool.node


def container(**fields):
    return {"containers": [{"name": "c", **fields}]}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"hostNetwork": True}, "spec.hostNetwork"),
        ({"shareProcessNamespace": True}, "spec.shareProcessNamespace"),
        ({"ephemeralContainers": [{"name": "debug"}]}, "spec.ephemeralContainers"),
        ({"volumes": [{"name": "m", "persistentVolumeClaim": {"claimName": "m"}}]}, "spec.volumes[0] (m).persistentVolumeClaim"),
        ({"volumes": [{"name": "m", "hostPath": {"path": "/"}}]}, "spec.volumes[0] (m).hostPath"),
        ({"volumes": [{"name": "m", "projected": {"sources": [{"clusterTrustBundle": {}}]}}]}, "sources[0].clusterTrustBundle"),
        (container(securityContext={"privileged": True}), "spec.containers[0] (c).securityContext.privileged"),
        (container(securityContext={"capabilities": {"add": ["NET_ADMIN"]}}), "capabilities.add (NET_ADMIN)"),
        (container(ports=[{"containerPort": 80, "hostPort": 80}]), "ports.hostPort (80)"),
        (container(livenessProbe={"grpc": {"port": 1}, "periodSeconds": 1}), "livenessProbe.grpc"),
        (container(env=[{"name": "A", "valueFrom": {"fileKeyRef": {}}}]), "env (A).valueFrom.fileKeyRef"),
        (container(volumeDevices=[{"name": "d"}]), "volumeDevices"),
        (container(tty=True), "stdin/tty"),
        (container(restartPolicyRules=[{}]), "restartPolicy"),
        (container(volumeMounts=[{"name": "v", "mountPropagation": "Bidirectional"}]), "mountPropagation"),
        ({"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]}, "spec.initContainers[0] (i)"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(spec, field):
    (problem,) = refusals.unsupported({"spec": {"containers": [], **spec}}, isolated=True)
    assert field in problem
    assert ": " in problem


def test_what_needs_namespaces_is_refused_or_told_only_without_them():
    spec = {"hostAliases": [{"ip": "1.2.3.4"}], **container(securityContext={"readOnlyRootFilesystem": True})}
    assert (
        refusals.unsupported({"spec": spec}, isolated=True)
        == refusals.unenforced({"spec": spec}, isolated=True)
        == ()
    )
    (refused,) = refusals.unsupported({"spec": spec}, isolated=False)
    assert refused.startswith("spec.hostAliases")
    (told,) = refusals.unenforced({"spec": spec}, isolated=False)
    assert "readOnlyRootFilesystem" in told


def test_a_typical_engine_pod_is_accepted():
    main = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.11.0",
        "ports": [{"name": "http", "containerPort": 8000}],
        "startupProbe": {"httpGet": {"path": "/health", "port": "http"}, "failureThreshold": 60},
        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
        "securityContext": {"capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False},
        "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "64Gi"}},
    }
    volumes = [
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "token", "projected": {"sources": []}},
    ]
    spec = {
        "containers": [main],
        "volumes": volumes,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
    }
    assert refusals.unsupported({"spec": spec}, isolated=True) == ()


LINE = st.binary(max_size=5).map(lambda line: line.replace(b"\n", b"x"))


@given(st.lists(LINE, max_size=30), st.integers(0, 40), st.booleans())
def test_the_last_lines_of_a_log(tmp_path_factory, lines, wanted, ends):
    content = b"\n".join(lines) + (b"\n" if ends else b"")
    file = tmp_path_factory.getbasetemp() / "log"
    file.write_bytes(content)
    whole = content.split(b"\n")
    pieces = [line + b"\n" for line in whole[:-1]] + ([whole[-1]] if whole[-1] else [])
    assert content[tail_offset(file, wanted) :] == (b"".join(pieces[-wanted:]) if wanted else b"")
