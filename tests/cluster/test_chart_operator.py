"""The operator as the chart installs it: under its own account, it lacks no right that its work needs."""

import json
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from localcluster import LocalCluster
from localcluster.free_ports import free_ports
from operatorcluster.waiting import until
from shipping.image import FACTS, ROOT_FILES, sources_digest

# Product files whose change runs these tests at the next landing.
COVERS = ("charts/", "Dockerfile")

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "breakeven"
COSTS = ROOT / "examples" / "engine-costs" / "demo.json"
OPERATOR = "system:serviceaccount:breakeven:breakeven"
DRIVER = "system:serviceaccount:llm:breakeven-chat"
SHORT = {
    "budget": {"maxGpuSeconds": 600, "maxDurationSeconds": 480},
    "loads": 4,
    "pointSeconds": 4,
    "warmupSeconds": 0,
    "answers": {"maxSecondsPerArm": 40, "outputTokens": 16},
    "schedule": "0 3 * * 0",
    "workload": {"promptTokens": 64, "outputTokens": 32},
}


@contextmanager
def installed(*values, images=()):
    with LocalCluster() as cluster:
        tables = [word for table in images for word in ("--images", str(table))]
        cluster.start_nodes(environment={"BREAKEVEN_SIM_COSTS": str(COSTS)}, extra_arguments=tables)
        cluster.start_prometheus(scrape_interval_s=1.0, alertmanager=False)
        cluster.kubectl("create", "namespace", "llm")
        cluster.helm(
            "install", "breakeven", str(CHART), "--namespace=breakeven", "--create-namespace",
            f"--set=prometheus.address={cluster.prometheus_url}", "--set=operator.cycleSeconds=1",
            # On the loopback, which the operators of all clusters share.
            f"--set=board.port={free_ports(1)[0]}", "--wait", "--timeout=300s", *values,
        )  # fmt: skip
        # Of the example's minutes for weights that are really loaded nothing is needed here.
        example = (ROOT / "examples" / "vllm-a100.yaml").read_text()
        for field in ("replicas", "periodSeconds"):
            example = re.sub(rf"{field}: \d+", f"{field}: 1", example)
        cluster.kubectl("apply", "--namespace=llm", "--filename=-", stdin=example)
        cluster.kubectl("apply", "--namespace=llm", "--filename=-", stdin=yaml.safe_dump(service()))
        yield cluster


def service():
    manifest = yaml.safe_load((ROOT / "examples" / "speculativeservice.yaml").read_text())
    manifest["spec"]["calibration"] = SHORT
    manifest["spec"]["candidates"]["methods"] = [{"name": "lookup", "method": "ngram", "draftLengths": [3]}]
    return manifest


def wait_for_phase(cluster, *phases, timeout_s=500):
    deadline = time.monotonic() + timeout_s
    run = None
    while run is None or run.get("status", {}).get("phase") not in phases:
        assert time.monotonic() < deadline, f"not {phases}: {run and run.get('status')}"
        # Returns at the next change of the run, or after a while.
        cluster.kubectl(
            "wait", "--namespace=llm", "calrun", "--all", "--for=jsonpath={.status.phase}=" + phases[0],
            "--timeout=3s", check=False,
        )  # fmt: skip
        items = json.loads(cluster.kubectl("get", "--namespace=llm", "calrun", "--output=json").stdout)[
            "items"
        ]
        run = items[0] if items else None
    return run


def refused(cluster, *users):
    ours = [event for event in cluster.audit_events() if ":breakeven" in event.user]
    assert {event.user for event in ours} >= set(users)
    return [event for event in ours if event.code in {401, 403, 422}]


def complaints(cluster):
    log = cluster.kubectl("logs", "--namespace=breakeven", "deployment/breakeven").stdout
    lines = [line for line in log.splitlines() if re.search(r'"level": "(error|critical)"|Traceback', line)]
    # A kind that has just been created answers its first requests so; they are repeated.
    return [line for line in lines if "storage is (re)initializing" not in line]


def query(cluster, expression):
    url = f"{cluster.prometheus_url}/api/v1/query?query={urllib.parse.quote(expression)}"
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)["data"]["result"]


def test_it_calibrates_a_service_and_is_refused_nothing():
    with installed() as cluster:
        cluster.kubectl("wait", "--namespace=llm", "specsvc/chat", "--for=condition=Ready", "--timeout=180s")
        # Any end will do: how good a fit a few short points give is not asked here.
        run = wait_for_phase(cluster, "Succeeded", "Failed")
        assert {point["arm"] for point in run["status"]["points"]} >= {"none", "lookup/3"}, run["status"]
        assert refused(cluster, OPERATOR, DRIVER) == []
        assert complaints(cluster) == []
        *_, again, judge = run["status"]["armStatuses"]
        assert (again["arm"], judge["arm"], judge["phase"]) == ("lookup/3/again", "none/again", "Done")
        # The budget decides whether there is room.
        assert again["phase"] == "Done" or again["reason"] == "ArmSkipped", again
        # The answers went from pod to pod in Secrets of the arms' Jobs, which are gone with them.
        words = {found["arm"]: found["word"] for found in run["status"]["answers"]}
        assert words.pop("lookup/3") == "AnswersAgree", run["status"]["answers"]
        assert set(words) <= {"lookup/schedule"}
        made = [
            event
            for event in cluster.audit_events()
            if event.user == DRIVER and event.resource == "secrets" and event.verb == "create"
        ]
        assert len(made) == 2 + len(words)
        cluster.kubectl(
            "wait", "--namespace=llm", "secret", "--selector=app.kubernetes.io/managed-by=breakeven",
            "--for=delete", "--timeout=180s",
        )  # fmt: skip
        (info,) = query(cluster, "breakeven_service_info")
        assert info["metric"]["specsvc"] == "chat"
        assert info["metric"]["specsvc_namespace"] == "llm"
        assert info["metric"]["namespace"] == "breakeven"


@pytest.fixture
def built_image():
    """The facts of the image that `make image` built of this checkout."""
    facts = json.loads(FACTS.read_text()) if FACTS.exists() else {}
    if facts.get("sources") != sources_digest(ROOT):
        state = "was built of other sources" if facts else "was not built"
        pytest.skip(
            f"the operator's image {state}: make image builds it (two minutes, docker, podman or buildah)"
        )
    return facts


def test_from_the_files_of_its_image_the_operator_and_its_drivers_do_the_same(built_image, tmp_path):
    """Nothing of this checkout or of this machine's Python is in their root file system, which is read-only."""
    program = {
        "images": ["*/breakeven@*"],
        "entrypoint": built_image["entrypoint"],
        "env": dict(word.split("=", 1) for word in built_image["env"]),
        "user": int(built_image["user"].partition(":")[0]),
        "root": str(ROOT_FILES),
    }
    table = tmp_path / "images.yaml"
    table.write_text(yaml.safe_dump([program]))
    with installed(f"--set=image.digest={built_image['digest']}", images=[table]) as cluster:
        run = wait_for_phase(cluster, "Succeeded", "Failed")
        assert {point["arm"] for point in run["status"]["points"]} >= {"none", "lookup/3"}, run["status"]
        # The child process of the fit needs what was left of scipy.
        assert "Error" not in run["status"]["message"], run["status"]["conditions"]
        assert refused(cluster, OPERATOR, DRIVER) == []
        assert complaints(cluster) == []
        (pod,) = json.loads(cluster.kubectl("get", "--namespace=breakeven", "pods", "--output=json").stdout)[
            "items"
        ]
        (status,) = pod["status"]["containerStatuses"]
        assert status["imageID"].endswith(built_image["digest"])
        assert status["ready"]
        sys.stdout.write(
            f"{pod['metadata']['name']} runs {status['imageID']}: {run['status']['phase']} {run['status']['reason']}\n"
        )
        sys.stdout.write(cluster.kubectl("get", "--namespace=llm", "specsvc,calrun,specprof").stdout)


def page_of(address, token=None, path=""):
    """Status and text of a page of the board."""
    request = urllib.request.Request(address + path)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=180) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def shown(address, token):
    """Services on the board, for whoever has the token."""
    text = page_of(address, token)[1]
    return {where for where in ("llm/chat", "code/elsewhere") if f'/services/{where}"' in text}


def reader(cluster, name, *binding):
    """A token of an account of its own, with a binding where one is given."""
    cluster.kubectl("create", "serviceaccount", "--namespace=default", name)
    if binding:
        kind, *options = binding
        account = f"--serviceaccount=default:{name}"
        cluster.kubectl("create", kind, name, "--clusterrole=breakeven-view", account, *options)
    return cluster.kubectl("create", "token", "--namespace=default", name).stdout.strip()


def test_the_board_shows_a_real_service_and_each_reader_his_namespaces():
    port = free_ports(1)[0]
    values = (f"--set=board.port={port}", "--set=board.expose.enabled=true", "--set=board.pathPrefix=/fleet")
    with installed(*values) as cluster:
        cluster.kubectl("create", "namespace", "code")
        elsewhere = service()
        elsewhere["metadata"]["name"] = "elsewhere"
        cluster.kubectl("apply", "--namespace=code", "--filename=-", stdin=yaml.safe_dump(elsewhere))
        for where in ("--namespace=llm specsvc/chat", "--namespace=code specsvc/elsewhere"):
            cluster.kubectl("wait", *where.split(), "--for=jsonpath={.status.conditions}", "--timeout=180s")
        (pod,) = json.loads(cluster.kubectl("get", "pods", "--namespace=breakeven", "--output=json").stdout)[
            "items"
        ]
        loopback, network = (
            f"http://127.0.0.1:{port}/fleet/",
            f"http://{pod['status']['podIP']}:{port}/fleet/",
        )
        until("the board shows both services", lambda: "code/elsewhere" in page_of(loopback)[1])
        status, text = page_of(loopback, path="services/llm/chat")
        assert status == 200
        assert "Deployment/chat-vllm" in text

        assert page_of(network)[0] == 401
        assert page_of(network, "not-a-token")[0] == 401
        nobody = reader(cluster, "nobody")
        one = reader(cluster, "one", "rolebinding", "--namespace=llm")
        everyone = reader(cluster, "everyone", "clusterrolebinding")
        # The API server knows of a binding a while after it was made.
        for token, seen in (
            (everyone, {"llm/chat", "code/elsewhere"}),
            (one, {"llm/chat"}),
            (nobody, set()),
        ):
            until(
                "a reader sees his namespaces", lambda token=token, seen=seen: shown(network, token) == seen
            )
        for path in ("services/code/elsewhere", "json/services/code/elsewhere"):
            assert page_of(network, one, path)[0] == 404
        assert page_of(network, one, "services/llm/chat")[0] == 200
        assert refused(cluster, OPERATOR) == []
        assert complaints(cluster) == []


def test_with_a_role_in_one_namespace_it_works_there():
    with installed("--set=watchNamespaces={llm}") as cluster:
        cluster.kubectl("wait", "--namespace=llm", "specsvc/chat", "--for=condition=Ready", "--timeout=180s")
        # Having measured is as good: a phase may pass between two looks.
        wait_for_phase(cluster, "Measuring", "Fitting", "Succeeded")
        assert refused(cluster, OPERATOR) == []
        assert complaints(cluster) == []
