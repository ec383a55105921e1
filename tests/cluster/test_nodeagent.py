"""The node agent on a real control plane: it does for a pod what a kubelet does."""

import json
import re
import time
import urllib.request
from pathlib import Path

import kubernetes
import pytest
import yaml

import breakeven_sim
from localcluster.nodes import GpuNode

# Product files whose change runs these tests at the next landing.
COVERS = ("localcluster/nodeagent/",)

RIG = GpuNode("rig", "NVIDIA-L4", 4)
AGENT = "rig-agent"
DEFAULT_COSTS = Path(breakeven_sim.__file__).parent / "engine/default_costs.json"
UNTIL_S = 180


@pytest.fixture(scope="module")
def rig(cluster, tmp_path_factory):
    """A node of this file's own, whose agent may be killed and whose back-off and refreshes are short."""
    table = tmp_path_factory.mktemp("images") / "images.yaml"
    table.write_text(yaml.safe_dump([{
        "images": ["example.com/engine:*"], "entrypoint": ["echo", "engine"], "aliases": [["vllm", "serve"]],
        "defaults": {"--host": "{pod_ip}"}, "env": {"FROM_IMAGE": "yes"}, "user": 1001,
    }]))  # fmt: skip
    arguments = ["--crash-backoff", "0.5", "--refresh", "1", "--images", str(table)]
    costs = tmp_path_factory.mktemp("costs") / "costs.json"
    gpu = json.loads(DEFAULT_COSTS.read_text())["gpus"]["NVIDIA-H100-80GB-HBM3"]
    costs.write_text(
        json.dumps({"gpus": {RIG.product: {**gpu, "startup": {"base_s": 0.1, "drafter_s": 0.1}}}})
    )
    environment = {"BREAKEVEN_SIM_COSTS": str(costs)}
    cluster.start_nodes([RIG], agent=AGENT, extra_arguments=arguments, environment=environment)
    yield RIG
    cluster.stop_process(AGENT)
    cluster.kubectl("delete", "node", RIG.name)


@pytest.fixture
def do(cluster, namespace):
    """kubectl in the test's namespace."""
    return lambda *arguments, **more: cluster.kubectl(f"--namespace={namespace}", *arguments, **more).stdout


@pytest.fixture
def on_rig(do, rig):
    """Creates a pod on the test's own node."""

    def create(name="pod", script="sleep 600", containers=None, metadata=None, **spec):
        main = {"name": "main", "image": "local/exec", "command": ["sh", "-c", script]}
        body = {
            "nodeName": rig.name, "terminationGracePeriodSeconds": 2, "restartPolicy": "Never",
            "containers": [{**main, **(containers or {})}] if not isinstance(containers, list) else containers,
            **spec,
        }  # fmt: skip
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, **(metadata or {})},
            "spec": body,
        }
        do("create", "-f", "-", stdin=json.dumps(pod))

    return create


def get(do, kind, name):
    return json.loads(do("get", kind, name, "-o", "json"))


@pytest.fixture
def watched(kube, namespace):
    """The versions of an object, as a watch of the API server brings them."""
    listers = {
        "pod": kubernetes.client.CoreV1Api(kube).list_namespaced_pod,
        "event": kubernetes.client.CoreV1Api(kube).list_namespaced_event,
        "job": kubernetes.client.BatchV1Api(kube).list_namespaced_job,
        "lease": kubernetes.client.CoordinationV1Api(kube).list_namespaced_lease,
    }

    def versions(kind, selector, where=namespace):
        stream = kubernetes.watch.Watch().stream(
            listers[kind], where, field_selector=selector, timeout_seconds=UNTIL_S
        )
        return (change["raw_object"] for change in stream if change["type"] != "DELETED")

    return versions


@pytest.fixture
def until(watched):
    """Waits for a condition on an object; the object as it was then."""

    def wait(condition, name="pod", kind="pod"):
        found = None
        for found in watched(kind, f"metadata.name={name}"):
            if condition(found):
                return found
        return pytest.fail(f"{kind} {name}: {json.dumps(found and found.get('status'), indent=1)}")

    return wait


@pytest.fixture
def event(watched):
    """Waits for an event: they are written after the status they explain."""

    def wait(reason, text="", name="pod"):
        seen = []
        for found in watched("event", f"involvedObject.name={name}"):
            seen.append((found["reason"], found["message"]))
            if found["reason"] == reason and text in found["message"]:
                return
        pytest.fail(f"no {reason} event with {text!r} in {seen}")

    return wait


@pytest.fixture
def outcome(do, until):
    """The log of a pod that must succeed."""

    def log(name="pod"):
        pod = until(phase("Succeeded", "Failed"), name)
        text = do("logs", name)
        assert pod["status"]["phase"] == "Succeeded", text
        return text

    return log


def ended(pids):
    """Whether processes that are not this one's children end; no signal announces it."""
    deadline = time.monotonic() + UNTIL_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def phase(*wanted):
    return lambda pod: pod["status"].get("phase") in wanted


def ready(pod):
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


def main(pod):
    return pod["status"]["containerStatuses"][0]


def waiting_for(reason):
    return lambda pod: (
        "containerStatuses" in pod["status"] and main(pod)["state"].get("waiting", {}).get("reason") == reason
    )


def test_nodes_look_like_gpu_nodes(cluster, rig, watched):
    node = json.loads(cluster.kubectl("get", "node", rig.name, "-o", "json").stdout)
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-L4"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4"
    assert not node["spec"].get("taints")
    renewals = watched("lease", f"metadata.name={rig.name}", "kube-node-lease")
    first = next(renewals)["spec"]
    assert (first["holderIdentity"], first["leaseDurationSeconds"]) == (rig.name, 40)
    assert next(renewals)["spec"]["renewTime"] > first["renewTime"]


LOOK = """
import json, os, socket, sys
def text(path):
    try:
        return open(path).read()
    except OSError as error:
        return type(error).__name__
def writes(path):
    try:
        open(path + "/probe", "w").close()
        return True
    except OSError:
        return False
server = socket.create_server((os.environ["POD_IP"], 0))
print(json.dumps({
    "env": dict(os.environ), "args": sys.argv[1:], "cwd": os.getcwd(), "uid": os.getuid(), "name": socket.gethostname(),
    "files": {p: text(p) for p in sys.argv[1].split(",")}, "writes": [p for p in ("/conf", "/notes", "/models/chat") if writes(p)],
    "resolved": socket.gethostbyname("db.example"), "bound": server.getsockname()[0],
}))
"""


def test_environment_volumes_and_identity(do, on_rig, outcome):
    do("create", "configmap", "conf", "--from-literal=mode=fast", "--from-literal=app.yaml=a: 1")
    do("create", "secret", "generic", "keys", "--from-literal=api=s3cret")
    paths = "/conf/mode,/one.yaml,/keys/k,/all/ns,/all/labels,/notes/x,/run/secrets/kubernetes.io/serviceaccount/namespace"
    on_rig(
        containers={
            "image": "example.com/engine:1",
            "command": ["python3", "-c", LOOK],
            "args": [paths, "--config=$(SPEC)", "$$(SPEC)", "$(NOT_SET)"],
            "workingDir": "/somewhere/new",
            "env": [
                {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "SPEC", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['breakeven.dev/speculative-config']"}}},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "api"}}},
                {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k", "optional": True}}},
                {"name": "JOINED", "value": "$(KEY)-$(POD_IP)"},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
            ],
            "envFrom": [{"prefix": "C_", "configMapRef": {"name": "conf", "optional": True}}],
            "resources": {"limits": {"cpu": "1500m"}},
            "volumeMounts": [
                {"name": "conf", "mountPath": "/conf"},
                {"name": "conf", "mountPath": "/one.yaml", "subPath": "app.yaml"},
                {"name": "keys", "mountPath": "/keys"},
                {"name": "all", "mountPath": "/all"},
                {"name": "work", "mountPath": "/notes"},
                {"name": "work", "mountPath": "/models/chat", "readOnly": True},
            ],
        },
        initContainers=[{
            "name": "fill", "image": "busybox", "command": ["sh", "-c", "echo filled > /out/x"],
            "volumeMounts": [{"name": "work", "mountPath": "/out"}],
        }],
        metadata={"labels": {"app": "web"}, "annotations": {"breakeven.dev/speculative-config": '{"method": "ngram"}'}},
        hostAliases=[{"ip": "127.9.9.9", "hostnames": ["db.example"]}],
        volumes=[
            {"name": "conf", "configMap": {"name": "conf"}},
            {"name": "keys", "secret": {"secretName": "keys", "items": [{"key": "api", "path": "k"}]}},
            {"name": "work", "emptyDir": {}},
            {"name": "all", "projected": {"sources": [{"downwardAPI": {"items": [
                {"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}},
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
            ]}}]}},
        ],
    )  # fmt: skip
    seen = json.loads(outcome())
    pod = get(do, "pod", "pod")
    namespace = pod["metadata"]["namespace"]
    address = pod["status"]["podIP"]
    assert seen["args"][1:] == ['--config={"method": "ngram"}', "$(SPEC)", "$(NOT_SET)"]
    wanted = {
        "KEY": "s3cret",
        "JOINED": f"s3cret-{address}",
        "CPU": "1500",
        "C_mode": "fast",
        "FROM_IMAGE": "yes",
    }
    assert {name: seen["env"].get(name) for name in wanted} == wanted
    assert "NONE" not in seen["env"]
    assert seen["env"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert list(seen["files"].values()) == [
        "fast",
        "a: 1",
        "s3cret",
        namespace,
        'app="web"',
        "filled\n",
        namespace,
    ]
    assert seen["writes"] == ["/notes"]
    assert (seen["cwd"], seen["uid"], seen["name"]) == ("/somewhere/new", 1001, "pod")
    assert (seen["resolved"], seen["bound"]) == ("127.9.9.9", address)
    # Nothing of it has touched this machine's own file system.
    assert not any(Path(path).exists() for path in ("/conf", "/one.yaml", "/models/chat", "/somewhere"))
    assert main(pod)["imageID"].startswith("example.com/engine@sha256:")


ASK = """
import json, os, ssl, urllib.error, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
context = ssl.create_default_context(cafile=folder + "ca.crt")
url = f"https://{host}:{port}/api/v1/namespaces/{open(folder + 'namespace').read()}/"
def ask(what):
    request = urllib.request.Request(url + what, headers={"Authorization": "Bearer " + open(folder + "token").read()})
    try:
        return urllib.request.urlopen(request, context=context).status
    except urllib.error.HTTPError as error:
        return error.code
print(ask("pods"), ask("secrets"))
"""


def test_a_volume_at_tmp_and_a_read_only_root(do, on_rig, outcome):
    """Like our operator's pod: the state folder of this cluster lies below /tmp, and nothing but volumes can be written."""
    script = "touch /tmp/x && echo tmp; touch /etc/x || touch $HOME/x || echo refused; pwd; python3 -c 'import breakeven'"
    on_rig(
        script=script,
        containers={
            "securityContext": {"readOnlyRootFilesystem": True},
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        },
        volumes=[{"name": "tmp", "emptyDir": {}}],
    )
    assert [line for line in outcome().splitlines() if "touch:" not in line] == [
        "tmp",
        "refused",
        "/pod-home",
    ]


def test_a_pod_has_its_service_account_s_rights_and_no_others(do, on_rig, outcome):
    do("create", "serviceaccount", "reader")
    do("create", "role", "reader", "--verb=list", "--resource=pods")
    namespace = do("get", "serviceaccount", "reader", "-o", "jsonpath={.metadata.namespace}")
    do("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace}:reader")
    on_rig(containers={"command": ["python3", "-c", ASK]}, serviceAccountName="reader")
    assert outcome() == "200 403\n"


@pytest.mark.parametrize(
    "command",
    [
        {"args": ["llama", "--port=8000", "--speculative-config=$(SPEC)"]},
        {"command": ["sh", "-c", "exec vllm serve llama --port 8000 --speculative-config $SPEC"]},
    ],
    ids=["args", "shell"],
)
def test_a_vllm_pod_is_a_simulated_engine_on_its_own_address(on_rig, until, command):
    container = {
        "name": "vllm", "image": "vllm/vllm-openai:v0.11.0", **command,
        "env": [{"name": "SPEC", "value": '{"method":"ngram","num_speculative_tokens":3}'}],
        "ports": [{"name": "http", "containerPort": 8000}], "resources": {"limits": {"nvidia.com/gpu": 1}},
        "startupProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1, "failureThreshold": 60},
    }  # fmt: skip
    on_rig(containers=[container])
    address = until(ready)["status"]["podIP"]
    with urllib.request.urlopen(f"http://{address}:8000/v1/models") as answer:
        assert json.load(answer)["data"][0]["id"] == "llama"
    with urllib.request.urlopen(f"http://{address}:8000/metrics") as answer:
        assert b"vllm:spec_decode_num_drafts" in answer.read()


def test_our_own_image(on_rig, outcome):
    image = "ghcr.io/breakeven-dev/breakeven:0.1.0"
    on_rig("tool", containers={"image": image, "command": ["breakeven"], "args": ["--version"]})
    on_rig("operator", containers={"image": image, "command": None, "args": ["--help"]})
    assert "breakeven" in outcome("tool")
    assert "usage" in outcome("operator").lower()


def test_init_containers_sidecars_and_a_job_that_completes(do, rig, until):
    """The shape of a calibration Job: the engine is a sidecar, the driver the main container."""
    work = {"volumeMounts": [{"name": "work", "mountPath": "/notes"}], "image": "local/exec"}
    engine = "echo engine up >> /notes/log; trap 'echo engine down >> /notes/log; cp /notes/log /dev/termination-log; exit 0' TERM; touch /notes/up; while :; do sleep 0.1; done"
    proxy = engine.replace("engine", "proxy").replace("touch /notes/up;", "")
    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "trial"},
        "spec": {"backoffLimit": 0, "template": {"spec": {
            "nodeName": rig.name, "restartPolicy": "Never", "terminationGracePeriodSeconds": 5,
            "volumes": [{"name": "work", "emptyDir": {}}],
            "initContainers": [
                {"name": "first", "command": ["sh", "-c", "echo first >> /notes/log"], **work},
                {"name": "proxy", "restartPolicy": "Always", "command": ["sh", "-c", proxy], **work},
                {"name": "engine", "restartPolicy": "Always", "command": ["sh", "-c", "sleep 0.5;" + engine], **work,
                 "startupProbe": {"exec": {"command": ["test", "-e", "/notes/up"]}, "periodSeconds": 1}},
                {"name": "second", "command": ["sh", "-c", "echo second >> /notes/log"], **work},
            ],
            "containers": [{"name": "driver", "command": ["sh", "-c", "echo driver >> /notes/log"], **work}],
        }}},
    }  # fmt: skip
    do("create", "-f", "-", stdin=json.dumps(job))
    until(lambda job: job["status"].get("succeeded") == 1, "trial", "job")
    pod = json.loads(do("get", "pods", "-l", "job-name=trial", "-o", "json"))["items"][0]
    sidecars = {
        c["name"]: c["state"]["terminated"]
        for c in pod["status"]["initContainerStatuses"]
        if c["name"] in {"proxy", "engine"}
    }
    assert [sidecars[name]["exitCode"] for name in ("engine", "proxy")] == [0, 0]
    assert sidecars["proxy"]["message"].split("\n") == [
        "first", "proxy up", "engine up", "second", "driver", "engine down", "proxy down", "",
    ]  # fmt: skip
    assert pod["status"]["phase"] == "Succeeded"


def test_probes_gate_readiness_and_restart_the_dead(on_rig, until, event):
    server = "touch /www/live; cd /www && exec python3 -u -m http.server --bind $POD_IP 8000"
    exec_probe = {"command": ["test", "-e", "/www/live"]}
    # Of a busy machine the default of a second would be a failure.
    slow = {"periodSeconds": 1, "timeoutSeconds": 20}
    www = {
        "ports": [{"name": "web", "containerPort": 8000}],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "volumeMounts": [{"name": "www", "mountPath": "/www"}],
        "startupProbe": {"tcpSocket": {"port": "web"}, "failureThreshold": 60, **slow},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "web"}, "failureThreshold": 1, **slow},
        "livenessProbe": {"exec": exec_probe, "failureThreshold": 2, **slow},
    }  # fmt: skip
    on_rig(script=server, containers=www, volumes=[{"name": "www", "emptyDir": {}}], restartPolicy="Always")
    started = until(main_started)
    assert not ready(started)
    served = Path(volume_folder(started, "www"))
    (served / "ready").touch()
    until(ready)
    (served / "ready").unlink()
    until(lambda pod: not ready(pod))
    event("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 404")
    (served / "ready").touch()
    (served / "live").unlink()
    restarted = until(lambda pod: main(pod)["restartCount"] == 1)
    assert main(restarted)["lastState"]["terminated"]["exitCode"] == 143
    event("Killing", "failed liveness probe, will be restarted")
    until(ready)


def main_started(pod):
    return "containerStatuses" in pod["status"] and main(pod).get("started") is True


def volume_folder(pod, name):
    """Where an emptyDir lies on this machine: the state folder is the only thing above it that a test may know."""
    uid = pod["metadata"]["uid"]
    (found,) = Path("/").glob(f"tmp/breakeven-cluster-*/nodes/*/pods/{RIG.name}/{uid}/volumes/{name}")
    return found


def test_a_pod_that_the_node_controller_set_not_ready_in_an_outage_is_ready_again(do, on_rig, until):
    on_rig("kept")
    until(ready, "kept")
    missed = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}}
    do("patch", "pod", "kept", "--subresource=status", "--type=strategic", "-p", json.dumps(missed))
    until(ready, "kept")


def test_crashes_back_off_and_keep_the_last_words(do, on_rig, until, event):
    on_rig(script="echo run $$$$; echo why >&2; exit 3", containers={"terminationMessagePolicy": "FallbackToLogsOnError"}, restartPolicy="Always")  # fmt: skip
    pod = until(lambda pod: waiting_for("CrashLoopBackOff")(pod) and main(pod)["restartCount"] >= 2)
    last = main(pod)["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (3, "Error")
    assert re.fullmatch(r"run \d+\nwhy\n", last["message"])
    assert "back-off" in main(pod)["state"]["waiting"]["message"]
    event("BackOff")
    assert re.fullmatch(r"run \d+\nwhy\n", do("logs", "pod", "--previous"))


@pytest.mark.parametrize(
    ("policy", "script", "end", "restarts"),
    [
        ("Never", "exit 4", ("Failed", "Error", 4), 0),
        ("OnFailure", "test -e /notes/x || { touch /notes/x; exit 1; }", ("Succeeded", "Completed", 0), 1),
        ("Never", "exec no-such-program", ("Failed", "Error", 127), 0),
    ],
)
def test_how_pods_end(on_rig, policy, script, end, restarts, until):
    mounts = {"volumeMounts": [{"name": "work", "mountPath": "/notes"}]}
    on_rig(script=script, containers=mounts, restartPolicy=policy, volumes=[{"name": "work", "emptyDir": {}}])
    pod = until(phase("Succeeded", "Failed"))
    ended = main(pod)["state"]["terminated"]
    assert (pod["status"]["phase"], ended["reason"], ended["exitCode"]) == end
    assert main(pod)["restartCount"] == restarts


def test_a_command_that_does_not_exist_and_a_pod_past_its_deadline(on_rig, until):
    on_rig("none", containers={"command": ["no-such-program"]})
    ended = main(until(phase("Failed"), "none"))["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("StartError", 128)
    assert "no-such-program" in ended["message"]
    on_rig("late", activeDeadlineSeconds=1)
    late = until(phase("Failed"), "late")
    assert late["status"]["reason"] == "DeadlineExceeded"
    assert main(late)["state"]["terminated"]["exitCode"] in {137, 143}


def test_a_deleted_pod_gets_its_hook_its_signal_and_its_time(do, on_rig, until):
    script = "trap 'echo term >> /notes/log; sleep 0.3; echo bye >> /notes/log; exit 0' TERM; touch /notes/up; while :; do sleep 0.1; done"
    on_rig(
        script=script,
        containers={
            "lifecycle": {
                "postStart": {"exec": {"command": ["sh", "-c", "echo started >> /notes/log"]}},
                "preStop": {"exec": {"command": ["sh", "-c", "echo prestop >> /notes/log; sleep 0.3"]}},
            },
            "readinessProbe": {"exec": {"command": ["test", "-e", "/notes/up"]}, "periodSeconds": 1},
            "volumeMounts": [{"name": "work", "mountPath": "/notes"}],
        },
        volumes=[{"name": "work", "emptyDir": {}}],
        terminationGracePeriodSeconds=20,
        # Keeps the object so that its last state can be read.
        metadata={"finalizers": ["example.com/keep"]},
    )
    pod = until(ready)
    log = volume_folder(pod, "work") / "log"
    do("delete", "pod", "pod", "--wait=false")
    pod = until(phase("Succeeded", "Failed"))
    assert log.read_text().split() == ["started", "prestop", "term", "bye"]
    assert main(pod)["state"]["terminated"]["exitCode"] == 0
    do("patch", "pod", "pod", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    do("wait", "pod/pod", "--for=delete", f"--timeout={UNTIL_S}s")
    assert not log.parents[2].exists()


def test_a_pod_that_ignores_its_signal_is_killed_with_all_it_started(do, on_rig, until):
    on_rig(
        script="trap '' TERM; setsid sleep 600 & echo $!; while :; do sleep 0.1; done",
        terminationGracePeriodSeconds=2,
    )
    until(ready)
    child = do("logs", "pod").strip()
    assert Path(f"/proc/{child}").exists()
    began = time.monotonic()
    do("delete", "pod", "pod", f"--timeout={UNTIL_S}s")
    assert time.monotonic() - began > 1.5
    assert ended([child])
    on_rig("forced", script="trap '' TERM; while :; do sleep 0.1; done")
    until(ready, "forced")
    do("delete", "pod", "forced", "--force", "--grace-period=0", f"--timeout={UNTIL_S}s")


def test_what_cannot_be_honoured_is_refused_loudly(do, on_rig, until, event):
    on_rig("host", hostNetwork=True)
    on_rig("claim", volumes=[{"name": "m", "persistentVolumeClaim": {"claimName": "m"}}])
    for name, field in [("host", "spec.hostNetwork"), ("claim", "spec.volumes[0] (m).persistentVolumeClaim")]:
        pod = until(waiting_for("UnsupportedByNodeAgent"), name)
        assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Pending", "UnsupportedByNodeAgent")
        assert field in pod["status"]["message"]
        event("UnsupportedByNodeAgent", field, name)
        do("delete", "pod", name, f"--timeout={UNTIL_S}s")


def test_errors_that_the_user_can_repair(do, on_rig, until, event, outcome):
    on_rig("image", containers={"image": "nginx:1.29"}, restartPolicy="Always")
    on_rig(
        "env",
        script="echo $K",
        containers={"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "late", "key": "k"}}}]},
    )
    on_rig("volume", script="cat /late/k", containers={"volumeMounts": [{"name": "late", "mountPath": "/late"}]},
           volumes=[{"name": "late", "secret": {"secretName": "late"}}])  # fmt: skip
    until(waiting_for("ImagePullBackOff"), "image")
    event("Failed", 'no program of the image table stands for image "nginx:1.29"', "image")
    pod = until(waiting_for("CreateContainerConfigError"), "env")
    assert main(pod)["state"]["waiting"]["message"] == 'secret "late" not found'
    event("FailedMount", 'MountVolume.SetUp failed for volume "late" : secret "late" not found', "volume")
    do("create", "secret", "generic", "late", "--from-literal=k=now")
    assert outcome("env") == "now\n"
    assert outcome("volume") == "now"
    do("set", "image", "pod/image", "main=local/exec")
    until(ready, "image")


def test_a_changed_image_restarts_the_container(do, on_rig, until):
    on_rig(script='trap "exit 0" TERM; while :; do sleep 0.1; done', restartPolicy="Always")
    until(ready)
    do("set", "image", "pod/pod", "main=busybox:2")
    pod = until(lambda pod: ready(pod) and main(pod)["restartCount"] == 1)
    assert main(pod)["image"] == "busybox:2"


def test_gpus_are_counted_by_the_scheduler_and_told_apart_by_the_node(do, rig, until):
    def engine(name, gpus):
        container = {
            "name": "main", "image": "local/exec", "resources": {"limits": {"nvidia.com/gpu": gpus}},
            "command": ["sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES $BREAKEVEN_SIM_GPU; sleep 600"],
        }  # fmt: skip
        spec = {
            "nodeSelector": {"nvidia.com/gpu.product": rig.product},
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        }
        do(
            "create",
            "-f",
            "-",
            stdin=json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}),
        )

    engine("one", 3)
    engine("two", 1)
    for name in ("one", "two"):
        until(ready, name)
    held = [do("logs", name).split() for name in ("one", "two")]
    assert sorted(",".join(devices for devices, _ in held).split(",")) == ["0", "1", "2", "3"]
    assert {product for _, product in held} == {"NVIDIA-L4"}
    engine("three", 2)
    until(
        lambda pod: any(c.get("reason") == "Unschedulable" for c in pod["status"].get("conditions", [])),
        "three",
    )
    do("delete", "pod", "one", f"--timeout={UNTIL_S}s")
    until(ready, "three")


def test_logs(do, on_rig, cluster, namespace, until):
    on_rig(script="seq 1 2000; exec sleep 600")
    until(ready)
    assert do("logs", "pod").split() == [str(n) for n in range(1, 2001)]
    assert do("logs", "pod", "--tail=3") == "1998\n1999\n2000\n"
    assert do("logs", "pod", "--limit-bytes=4") == "1\n2\n"
    refused = cluster.kubectl(f"--namespace={namespace}", "logs", "pod", "--timestamps", check=False)
    assert "does not record when a line was written" in refused.stderr
    none = cluster.kubectl(f"--namespace={namespace}", "logs", "pod", "--previous", check=False)
    assert none.returncode != 0
    on_rig("brief", script="echo one; sleep 1; echo two")
    until(phase("Running", "Succeeded"), "brief")
    assert do("logs", "-f", "brief") == "one\ntwo\n"


def test_mounted_objects_and_tokens_are_kept_up_to_date(do, on_rig, until, outcome):
    do("create", "configmap", "conf", "--from-literal=k=old")
    on_rig(script="while grep -q old /conf/k; do sleep 0.1; done; cat /conf/k", containers={"volumeMounts": [{"name": "conf", "mountPath": "/conf"}]},
           volumes=[{"name": "conf", "configMap": {"name": "conf"}}])  # fmt: skip
    until(phase("Running"))
    do("patch", "configmap", "conf", "--type=merge", "-p", '{"data": {"k": "new"}}')
    assert outcome() == "new"


def test_a_deployment_rolls_by_one_annotation(do, rig):
    container = {
        "name": "main", "image": "local/exec", "command": ["sh", "-c", "echo arm=$(ARM); trap 'exit 0' TERM; while :; do sleep 0.2; done"],
        "env": [{"name": "ARM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['breakeven.dev/speculative-config']"}}}],
    }  # fmt: skip
    spec = {
        "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"nodeName": rig.name, "containers": [container]}},
    }  # fmt: skip
    do(
        "create",
        "-f",
        "-",
        stdin=json.dumps(
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
        ),
    )
    do("rollout", "status", "deployment/web", f"--timeout={UNTIL_S}s")
    assert set(do("logs", "-l", "app=web").split()) == {"arm="}
    patch = {
        "spec": {"template": {"metadata": {"annotations": {"breakeven.dev/speculative-config": "null"}}}}
    }
    do("patch", "deployment", "web", "-p", json.dumps(patch))
    do("rollout", "status", "deployment/web", f"--timeout={UNTIL_S}s")
    pods = json.loads(do("get", "pods", "-l", "app=web", "-o", "json"))["items"]
    current = [p for p in pods if "deletionTimestamp" not in p["metadata"]]
    assert {do("logs", p["metadata"]["name"]) for p in current} == {"arm=null\n"}
    assert len({p["status"]["podIP"] for p in current}) == 2
    assert all(main(p)["restartCount"] == 0 for p in current)


def test_a_killed_agent_leaves_no_process_and_its_successor_goes_on(do, on_rig, cluster, until):
    script = "echo $$$$; setsid sleep 600 & echo $!; trap 'exit 0' TERM; while :; do sleep 0.1; done"
    on_rig("always", script=script, restartPolicy="Always")
    on_rig("never", script=script)
    before = {name: until(ready, name) for name in ("always", "never")}
    pids = [pid for name in before for pid in do("logs", name).split()]
    cluster.stop_process(AGENT)
    assert ended(pids)
    cluster.restart_process(AGENT)
    always = until(lambda pod: ready(pod) and main(pod)["restartCount"] == 1, "always")
    assert always["status"]["podIP"] == before["always"]["status"]["podIP"]
    assert "restarted" in main(always)["lastState"]["terminated"]["message"]
    never = until(phase("Failed"), "never")
    assert main(never)["state"]["terminated"]["exitCode"] == 137


def test_without_namespaces_paths_are_rewritten_and_clients_get_a_kubeconfig(
    do, cluster, until, event, outcome
):
    node = GpuNode("plain", "NVIDIA-L4", 1)
    cluster.start_nodes([node], agent="plain-agent", extra_arguments=["--no-namespaces"])
    try:
        do("create", "configmap", "conf", "--from-literal=k=v")
        container = {
            "name": "main", "image": "local/exec",
            "command": ["sh", "-c", "cat /conf/k $CONF; kubectl auth whoami -o jsonpath={.status.userInfo.username}"],
            "env": [{"name": "CONF", "value": "/conf/k"}, {"name": "PATH", "value": cluster.environment["PATH"]}],
            "volumeMounts": [{"name": "conf", "mountPath": "/conf"}],
            "securityContext": {"readOnlyRootFilesystem": True},
        }  # fmt: skip
        spec = {
            "nodeName": node.name,
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": [{"name": "conf", "configMap": {"name": "conf"}}],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
        do("create", "-f", "-", stdin=json.dumps(pod))
        assert re.fullmatch(r"vvsystem:serviceaccount:[a-z0-9-]+:default", outcome().strip())
        event("NotEnforcedByNodeAgent", "readOnlyRootFilesystem")
        aliased = {
            **pod,
            "metadata": {"name": "aliased"},
            "spec": {**spec, "hostAliases": [{"ip": "127.0.0.1"}]},
        }
        do("create", "-f", "-", stdin=json.dumps(aliased))
        refused = until(waiting_for("UnsupportedByNodeAgent"), "aliased")
        assert "user namespaces" in refused["status"]["message"]
        do("delete", "pod", "--all", f"--timeout={UNTIL_S}s")
    finally:
        cluster.stop_process("plain-agent")
        cluster.kubectl("delete", "node", node.name)
