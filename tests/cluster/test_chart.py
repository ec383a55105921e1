"""The chart under Helm, and on a real API server the rights it gives: enough, and nothing more."""

import copy
import json
import re
import ssl
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from breakeven import __version__
from breakeven.answering.answer import AnswerSet
from breakeven_operator.__main__ import requested_run
from breakeven_operator.calibration import schedule_job, trial_access
from breakeven_operator.calibration.answer_secrets import AnswerOwner, secret_of
from breakeven_operator.calibration.jobs import TrialLimits, arm_label, build_job
from breakeven_operator.calibration.run_plan import make_plan
from breakeven_operator.cluster.snapshot import Snapshot
from breakeven_operator.kinds import DEPLOYMENTS, MANAGED_BY, Ref
from breakeven_operator.loop.watching import watched
from breakeven_operator.resources.base import AFTER, BEFORE
from breakeven_operator.resources.calibrationrun import CalibrationRun, Trigger
from breakeven_operator.resources.speculativeservice import SpeculativeService
from breakeven_operator.settings import read_settings
from breakeven_operator.workloads.known import STATEFUL_SET
from fakes.calibration_world import World
from localcluster import LocalCluster, LocalClusterError
from operatorcluster.waiting import until

# Product files whose change runs these tests at the next landing.
COVERS = ("charts/",)

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "breakeven"
OPERATOR = "system:serviceaccount:breakeven:breakeven"


@pytest.fixture(scope="module")
def cluster():
    # Of its own: the release brings the CRDs, and is removed again.
    with LocalCluster() as running:
        yield running


@pytest.fixture(scope="module")
def release(cluster):
    cluster.helm(
        "install", "breakeven", str(CHART), "--namespace=breakeven", "--create-namespace", "--set=replicas=0",
        "--set=operator.watchAnnotated=true",
    )  # fmt: skip
    cluster.until_established()
    return "breakeven"


def render(cluster, *options):
    done = cluster.helm(
        "template", "breakeven", str(CHART), "--namespace=breakeven", "--kube-version=1.36.0", *options
    )
    # Two seconds of a core for the CRDs in Python, a tenth in C.
    return [document for document in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if document]


def only(documents, kind):
    return [document for document in documents if document["kind"] == kind]


def as_operator(cluster, *arguments, stdin="", check=False):
    return cluster.kubectl(f"--as={OPERATOR}", *arguments, stdin=stdin, check=check)


@pytest.mark.always
def test_lint(cluster):
    assert "0 chart(s) failed" in cluster.helm("lint", "--strict", str(CHART)).stdout


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("imagee.tag=x", "additional properties 'imagee' not allowed"),
        ("operator.cycleSeconds=0", "minimum: got 0, want 0.1"),
        ("operator.logLevel=loud", "value must be one of"),
        ("prometheus.address=prometheus:9090", "does not match pattern"),
        ("alerts.rules.SpeculationUnprofitable.for=soon", "does not match pattern"),
        ("alerts.rules.Nope.for=1m", "no such alert; known: "),
    ],
)
def test_wrong_values_are_refused_with_their_name(cluster, setting, said):
    done = cluster.helm(
        "template", "breakeven", str(CHART), "--kube-version=1.36.0", "--set=alerts.configMap=true",
        f"--set={setting}", check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert said in done.stderr


def test_an_older_kubernetes_is_refused(cluster):
    done = cluster.helm("template", "breakeven", str(CHART), "--kube-version=1.29.0", check=False)
    assert "requires kubeVersion: >=1.30.0-0" in done.stderr


def test_the_operator_s_pod_has_no_privilege(cluster):
    (deployment,) = only(render(cluster), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]
    assert not any("hostPath" in volume for volume in pod["volumes"])


def test_a_chart_without_crds_and_with_namespaces_gives_roles_there_only(cluster):
    documents = render(cluster, "--set=crds.install=false", "--set=watchNamespaces={llm,code}")
    assert not only(documents, "CustomResourceDefinition")
    assert {role["metadata"]["namespace"] for role in only(documents, "Role")} == {"llm", "code", "breakeven"}
    (cluster_role,) = [
        role for role in only(documents, "ClusterRole") if role["metadata"]["name"] == "breakeven"
    ]
    assert [rule["resources"] for rule in cluster_role["rules"]] == [["nodes"], ["clusterroles"]]


def test_one_kind_of_calibration_pod_is_reached_and_by_one_kind_alone(cluster):
    """The driver of a gate asks the engine of before, in another pod; whoever else asks a calibration pod is not let in."""
    documents = render(cluster, "--set=watchNamespaces={llm}")
    policies = {
        one["metadata"]["name"].rpartition("-")[2]: one["spec"] for one in only(documents, "NetworkPolicy")
    }
    assert policies["calibration"]["ingress"] == []
    gate = policies["gate"]
    ours, arm = MANAGED_BY, "breakeven.dev/arm"
    assert gate["podSelector"]["matchLabels"] == {**ours, arm: "before"}
    assert gate["ingress"] == [{"from": [{"podSelector": {"matchLabels": {**ours, arm: "after"}}}]}]
    assert {arm_label(BEFORE), arm_label(AFTER)} == {"before", "after"}
    without = render(cluster, "--set=watchNamespaces={llm}", "--set=calibration.networkPolicy=false")
    assert not only(without, "NetworkPolicy")


def granted(documents):
    """Resources on which a ClusterRole of the operator allows something."""
    return {
        resource
        for role in only(documents, "ClusterRole")
        for rule in role["rules"]
        for resource in rule["resources"]
    }


def test_the_board_is_on_the_loopback_and_its_exposure_gives_two_rights_more(cluster):
    plain = render(cluster)
    exposed = render(
        cluster, "--set=board.expose.enabled=true", "--set=board.gpuPricePerHour=2.5",
        "--set=metrics.networkPolicy.enabled=true", '--set-json=board.expose.from=[{"podSelector":{}}]',
    )  # fmt: skip
    assert granted(exposed) - granted(plain) == {"tokenreviews", "subjectaccessreviews"}
    services = [
        {one["metadata"]["name"] for one in only(documents, "Service")} for documents in (plain, exposed)
    ]
    assert services == [{"breakeven-metrics"}, {"breakeven-metrics", "breakeven-board"}]
    names = [
        {
            one["name"]
            for one in only(documents, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]["env"]
        }
        for documents in (plain, exposed)
    ]
    assert "BREAKEVEN_BOARD_PORT" in names[0]
    assert names[1] - names[0] == {"BREAKEVEN_BOARD_ADDRESS", "BREAKEVEN_GPU_PRICE_PER_HOUR"}
    (policy,) = only(exposed, "NetworkPolicy")
    assert [rule["ports"][0]["port"] for rule in policy["spec"]["ingress"]] == ["board"]
    without = render(cluster, "--set=board.enabled=false", "--set=board.expose.enabled=true")
    assert granted(without) == granted(plain)
    assert {one["metadata"]["name"] for one in only(without, "Service")} == {"breakeven-metrics"}


def test_crds_stay_when_the_release_goes(cluster):
    for crd in only(render(cluster), "CustomResourceDefinition"):
        assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    for crd in only(render(cluster, "--set=crds.keep=false"), "CustomResourceDefinition"):
        assert "annotations" not in crd["metadata"]


def test_alert_rules_take_delays_severities_and_links(cluster):
    documents = render(
        cluster,
        "--set=alerts.prometheusRule=Always",
        "--set=alerts.configMap=true",
        "--set=alerts.prometheusRuleLabels.release=kps",
        "--set=alerts.labels.team=llm",
        "--set=alerts.rules.SpeculationUnprofitable.for=30m",
        "--set=alerts.rules.SpeculationUnprofitable.severity=critical",
        "--set=alerts.runbookUrlPrefix=https://wiki/",
        "--set=alerts.dashboardUrl=https://grafana/d/1",
    )
    (rule,) = only(documents, "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "kps"
    (config_map,) = [
        one for one in only(documents, "ConfigMap") if one["metadata"]["name"].endswith("-rules")
    ]
    assert yaml.safe_load(config_map["data"]["breakeven.rules.yaml"])["groups"] == rule["spec"]["groups"]
    (alert,) = [
        item for item in rule["spec"]["groups"][0]["rules"] if item.get("alert") == "SpeculationUnprofitable"
    ]
    source = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    (original,) = [
        item for item in source["groups"][0]["rules"] if item.get("alert") == "SpeculationUnprofitable"
    ]
    assert alert["for"] == "30m"
    assert alert["labels"] == {"severity": "critical", "team": "llm"}
    assert alert["expr"] == original["expr"]
    assert alert["annotations"]["runbook_url"] == "https://wiki/SpeculationUnprofitable.md"
    assert alert["annotations"]["dashboard_url"] == "https://grafana/d/1"
    assert alert["annotations"]["description"] == original["annotations"]["description"]


def test_an_alert_can_be_left_out_and_rules_go_where_the_kind_is_known(cluster):
    left_out = render(
        cluster,
        "--set=alerts.prometheusRule=Always",
        "--set=alerts.rules.SpeculationUnprofitable.enabled=false",
    )
    (rule,) = only(left_out, "PrometheusRule")
    assert "SpeculationUnprofitable" not in {item.get("alert") for item in rule["spec"]["groups"][0]["rules"]}
    assert not only(render(cluster), "PrometheusRule")
    assert only(render(cluster, "--api-versions=monitoring.coreos.com/v1/PrometheusRule"), "PrometheusRule")


def test_the_dashboard_is_found_by_its_label_and_can_be_left_out(cluster):
    (found,) = only(render(cluster), "ConfigMap")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["breakeven.json"]) == json.loads(
        (CHART / "files" / "dashboard.json").read_text()
    )
    (folder,) = only(render(cluster, "--set=dashboard.annotations.grafana_folder=LLM"), "ConfigMap")
    assert folder["metadata"]["annotations"] == {"grafana_folder": "LLM"}
    assert not only(render(cluster, "--set=dashboard.enabled=false"), "ConfigMap")


@pytest.mark.always
def test_promtool_tests_of_every_alert(cluster):
    for test in sorted((CHART / "tests").glob("*_test.yaml")):
        assert "SUCCESS" in cluster.promtool("test", "rules", str(test)).stdout


@pytest.mark.parametrize(
    ("alert", "broken", "why"),
    [
        (
            "SpeculationUnprofitable",
            ("time() - breakeven_evidence_timestamp_seconds < 600", "time() > 0"),
            "old evidence must not fire",
        ),
        (
            "SpeculationUnprofitable",
            ('breakeven_current_arm_info{arm!="none"}', "breakeven_speedup_ratio"),
            "only the running arm counts",
        ),
        (
            "SpeculationUnprofitable",
            ("> 1\n            and on", "> 0\n            and on"),
            "beyond the break-even, not below it",
        ),
        (
            "SpeculationUnprofitable",
            ("measured_speedup:ratio >= 1", "measured_speedup:ratio >= 9"),
            "measured latency outranks the law",
        ),
        (
            "SpeculationUnprofitable",
            ('breakeven_c2_ratio{bound="estimate"} > 1', "breakeven_c2_ratio"),
            "a gain that grows with load",
        ),
        (
            "SpeculationUnprofitable",
            ('breakeven_speedup_ratio{bound="upper"} < 1', "vector(0) < 0"),
            "an arm that never pays",
        ),
        (
            "SpeculationUnprofitable",
            ("max by (specsvc_namespace, specsvc, arm) (breakeven_sp", "(breakeven_sp"),
            "an operator's restart",
        ),
        (
            "BreakevenObjectiveBurningFast",
            ("max by (specsvc_namespace, specsvc, figure) (breakeven_objective_m", "(breakeven_objective_m"),
            "an operator's restart",
        ),
        ("BreakevenObjectiveBurningFast", ("share_5m > 14.4", "share_5m > -1"), "a burn that is over"),
        ("BreakevenObjectiveBurningSlow", ("share_30m > 6", "share_30m > -1"), "a burn that is over"),
    ],
)
def test_a_broken_rule_fails_its_promtool_test(cluster, tmp_path, alert, broken, why):
    rules = (CHART / "files" / "rules.yaml").read_text()
    assert broken[0] in rules
    (tmp_path / "files").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "files" / "rules.yaml").write_text(rules.replace(*broken))
    test = tmp_path / "tests" / f"{alert}_test.yaml"
    test.write_text((CHART / "tests" / test.name).read_text())
    with pytest.raises(LocalClusterError):
        cluster.promtool("test", "rules", str(test))


def test_notes_say_what_is_missing(cluster, release):
    notes = cluster.helm("get", "notes", release, "--namespace=breakeven").stdout
    assert "! prometheus.address is empty" in notes
    assert "kubectl explain specsvc.spec --recursive" in notes


@pytest.fixture
def target(cluster, release, namespace):
    cluster.kubectl("apply", f"--namespace={namespace}", f"--filename={ROOT / 'examples' / 'vllm-a100.yaml'}")
    return namespace


ANNOTATE = '{"spec":{"template":{"metadata":{"annotations":{"breakeven.dev/speculative-config":"null"}}}}}'


def patch_target(cluster, namespace, patch, kind="merge"):
    return as_operator(
        cluster,
        "patch",
        "deployment",
        "chat-vllm",
        f"--namespace={namespace}",
        f"--type={kind}",
        f"--patch={patch}",
    )


@pytest.mark.always
@pytest.mark.claim(
    "docs/opt-in.md", "The annotation is the only thing that the operator writes of a pod template"
)
def test_the_operator_may_write_its_annotation(cluster, target):
    done = patch_target(cluster, target, ANNOTATE)
    assert done.returncode == 0, done.stderr
    body = json.dumps(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "chat-vllm"},
            **json.loads(ANNOTATE.replace("null", "{}")),
        }
    )
    applied = as_operator(
        cluster, "apply", f"--namespace={target}", "--server-side", "--field-manager=breakeven",
        "--force-conflicts", "--filename=-", stdin=body,
    )  # fmt: skip
    assert applied.returncode == 0, applied.stderr


@pytest.mark.always
@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ('{"spec":{"replicas":5}}', "nothing of a workload but its pod template's annotation"),
        ('{"spec":{"paused":true}}', "nothing of a workload but its pod template's annotation"),
        ('{"spec":{"minReadySeconds":5}}', "nothing of a workload but its pod template's annotation"),
        ('{"spec":{"strategy":{"rollingUpdate":{"maxSurge":2}}}}', "nothing of a workload but"),
        ('{"spec":{"template":{"metadata":{"annotations":{"x":"y"}}}}}', "no pod-template annotation but"),
        (
            '{"spec":{"template":{"metadata":{"annotations":{"prometheus.io/port":"1"}}}}}',
            "no pod-template annotation but",
        ),
        (
            '{"spec":{"template":{"metadata":{"annotations":{"prometheus.io/port":null}}}}}',
            "no pod-template annotation but",
        ),
        ('{"spec":{"template":{"metadata":{"labels":{"x":"y"}}}}}', "nothing of the pods"),
        ('{"spec":{"template":{"spec":{"nodeSelector":null}}}}', "nothing of the pods"),
        ('{"metadata":{"labels":{"x":"y"}}}', "no metadata of a workload"),
        ('{"metadata":{"annotations":{"x":"y"}}}', "no metadata of a workload"),
        ('{"metadata":{"finalizers":["x.io/y"]}}', "no metadata of a workload"),
        ('{"spec":{"template":{"metadata":{"finalizers":["x.io/y"]}}}}', "nothing of the pods"),
        ('{"spec":{"template":{"metadata":{"name":"x"}}}}', "nothing of the pods"),
        ('{"spec":{"template":{"metadata":{"generateName":"x"}}}}', "nothing of the pods"),
        (
            '{"spec":{"template":{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}]}}}}',
            "nothing of the pods",
        ),
    ],
)
@pytest.mark.claim(
    "SECURITY.md",
    "It compares everything else of spec, template and metadata, and refuses to create and to scale",
)
def test_the_operator_may_change_nothing_else_of_a_workload(cluster, target, patch, said):
    done = patch_target(cluster, target, patch)
    assert done.returncode != 0
    assert f"Breakeven may change {said}" in done.stderr
    # The policy binds nobody else.
    # Not for good: a finalizer would stay on the pods, and the namespace with them.
    assert cluster.kubectl(
        "patch", "deployment", "chat-vllm", f"--namespace={target}", "--type=merge", f"--patch={patch}",
        "--dry-run=server",
    )  # fmt: skip


@pytest.fixture
def stateful(cluster, release, namespace):
    """The example's pods, each with a volume of its own, as a StatefulSet."""
    documents = yaml.safe_load_all((ROOT / "examples" / "vllm-a100.yaml").read_text(encoding="utf-8"))
    target = next(one for one in documents if one["kind"] == "Deployment")
    del target["spec"]["strategy"]
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    target["kind"] = "StatefulSet"
    target["spec"] |= {
        "serviceName": "chat-vllm",
        "volumeClaimTemplates": [{"metadata": {"name": "cache"}, "spec": claim}],
    }
    cluster.kubectl("apply", f"--namespace={namespace}", "--filename=-", stdin=json.dumps(target))
    return namespace


def patch_stateful(cluster, namespace, patch):
    return as_operator(
        cluster, "patch", "statefulset", "chat-vllm", f"--namespace={namespace}", "--type=merge", f"--patch={patch}",
    )  # fmt: skip


def test_the_operator_may_write_its_annotation_into_a_stateful_set_too(cluster, stateful):
    done = patch_stateful(cluster, stateful, ANNOTATE)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ('{"spec":{"replicas":5}}', "nothing of a workload but"),
        ('{"spec":{"minReadySeconds":5}}', "nothing of a workload but"),
        (
            '{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null}}}',
            "nothing of a workload but",
        ),
        (
            '{"spec":{"updateStrategy":{"rollingUpdate":{"partition":1}}}}',
            "nothing of a workload but",
        ),
        (
            '{"spec":{"persistentVolumeClaimRetentionPolicy":{"whenScaled":"Delete"}}}',
            "nothing of a workload but",
        ),
        ('{"spec":{"ordinals":{"start":3}}}', "nothing of a workload but"),
        ('{"spec":{"template":{"metadata":{"labels":{"x":"y"}}}}}', "nothing of the pods"),
        ('{"spec":{"template":{"spec":{"nodeSelector":null}}}}', "nothing of the pods"),
        ('{"metadata":{"finalizers":["x.io/y"]}}', "no metadata of a workload"),
    ],
)
def test_the_operator_may_change_nothing_else_of_a_stateful_set(cluster, stateful, patch, said):
    done = patch_stateful(cluster, stateful, patch)
    assert done.returncode != 0
    assert f"Breakeven may change {said}" in done.stderr
    assert cluster.kubectl(
        "patch", "statefulset", "chat-vllm", f"--namespace={stateful}", "--type=merge", f"--patch={patch}",
        "--dry-run=server",
    )  # fmt: skip


def test_an_image_is_beyond_its_reach(cluster, target):
    patch = '[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"evil"}]'
    assert "may change nothing of the pods" in patch_target(cluster, target, patch, "json").stderr


@pytest.mark.always
@pytest.mark.parametrize(
    "denied",
    [
        ["delete", "deployment", "chat-vllm"],
        ["scale", "deployment", "chat-vllm", "--replicas=0"],
        ["delete", "pod", "whichever"],  # --all would find none before the controller has made one
        ["get", "secrets"],
        ["create", "configmap", "x"],
        ["auth", "can-i", "create", "pods"],
        ["auth", "can-i", "update", "speculativeservices.breakeven.dev"],
        ["auth", "can-i", "create", "deployments.apps"],
        ["auth", "can-i", "create", "pods/exec"],
        ["auth", "can-i", "impersonate", "users"],
        ["auth", "can-i", "delete", "nodes"],
    ],
    ids=" ".join,
)
def test_rights_it_does_not_have(cluster, target, denied):
    done = as_operator(cluster, *denied, f"--namespace={target}")
    assert done.returncode != 0
    assert "forbidden" in done.stderr or done.stdout.strip() == "no"


IMAGE = f"ghcr.io/breakeven-dev/breakeven:{__version__}"
"""The chart's objects if nothing else is asked for."""
OURS = {"app.kubernetes.io/managed-by": "breakeven", "breakeven.dev/service": "chat"}
SETTINGS = read_settings(
    {
        "BREAKEVEN_TRIAL_IMAGE": IMAGE,
        "BREAKEVEN_TRIAL_PRIORITY_CLASS": "breakeven-calibration",
        "BREAKEVEN_TRIAL_IMAGE_PULL_POLICY": "IfNotPresent",
    }
)
REFUSED = re.compile(
    r'"([^"\s]+)" is (?:forbidden|invalid): (?:: )?ValidatingAdmissionPolicy \'[^\']+\' with binding .* denied request: (.*)'
)


def denied(cluster, namespace, documents, *, user=OPERATOR, verb="create"):
    """The policies' answer to each object, by its name; nothing is stored."""
    text = yaml.safe_dump_all(documents)
    done = cluster.kubectl(
        f"--as={user}",
        verb,
        f"--namespace={namespace}",
        "--dry-run=server",
        "--filename=-",
        stdin=text,
        check=False,
    )
    said = dict(REFUSED.findall(done.stderr))
    admitted = set(re.findall(r"/(\S+) (?:created|configured|serverside-applied)", done.stdout))
    assert len(said) + len(admitted) == len(documents), done.stderr
    return said


def trial_job(namespace, target_is=lambda _: None):
    """The Job that the operator makes for one arm of the fakes' target, with a file of prompts."""
    world = World()
    target_is(world.target["spec"]["template"]["spec"])
    for manifest in (world.run, world.service, world.target):
        manifest["metadata"]["namespace"] = namespace
    prompts = {"configMap": {"name": "prompts", "key": "p.jsonl"}}
    workload = world.service["spec"]["calibration"]["workload"] | {"prompts": prompts}
    world.service["spec"]["calibration"]["workload"] = workload
    world.config_maps["prompts"] = {
        "metadata": {"name": "prompts"},
        "data": {"p.jsonl": '{"prompt": "a"}\n' * 40},
    }
    plan = make_plan(
        world.view(), CalibrationRun.read(world.run, "run"), SpeculativeService.read(world.service, "service")
    )
    limits = TrialLimits(sweep_s=500, active_s=1500)
    view = replace(world.view(), selectors=(), settings=SETTINGS)
    return json.loads(json.dumps(build_job(view, plan, plan.arms[1], limits)))


def cron_job(namespace):
    world = World()
    world.service["metadata"]["namespace"] = namespace
    return json.loads(json.dumps(schedule_job(world.service, SETTINGS)))


def pod_of(manifest):
    inner = manifest["spec"].get("jobTemplate", manifest)
    return inner["spec"]["template"]["spec"]


def changed(manifest, name, change):
    copied = json.loads(json.dumps(manifest))
    copied["metadata"]["name"] = name
    change(copied, pod_of(copied))
    return copied


UNPRIVILEGED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
NOBODY = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}


def restricted_by_its_containers(pod):
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        container["securityContext"] = {**UNPRIVILEGED, **NOBODY}


def restricted_as_a_pod(pod):
    pod["securityContext"] = NOBODY
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        container["securityContext"] = UNPRIVILEGED


@pytest.mark.always
@pytest.mark.parametrize("target_is", [restricted_by_its_containers, restricted_as_a_pod])
def test_a_namespace_that_enforces_restricted_takes_every_pod_that_is_made_there(
    cluster, release, namespace, target_is
):
    cluster.kubectl("label", f"namespace/{namespace}", "pod-security.kubernetes.io/enforce=restricted")
    account, _ = trial_access(
        {"metadata": {"namespace": namespace, "name": "chat", "uid": "u"}}, "breakeven-trial"
    )
    cluster.kubectl("create", "serviceaccount", account["metadata"]["name"], f"--namespace={namespace}")
    (operator,) = only(render(cluster), "Deployment")
    own = {**pod_of(operator), "serviceAccountName": "default"}
    pods = {
        "trial": pod_of(trial_job(namespace, target_is)),
        "schedule": pod_of(cron_job(namespace)),
        "operator": own,
    }
    # Pod Security itself is at work here: it refuses a target that asks for nothing.
    pods["unrestricted"] = pod_of(trial_job(namespace))
    said = {}
    for name, spec in pods.items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        done = cluster.kubectl(
            "create",
            f"--namespace={namespace}",
            "--dry-run=server",
            "--filename=-",
            stdin=yaml.safe_dump(pod),
            check=False,
        )
        said[name] = done.stderr if done.returncode else ""
    refused = said.pop("unrestricted")
    assert 'violates PodSecurity "restricted:latest"' in refused
    assert "driver" not in refused
    assert not any(said.values()), said


def engine_gets(volume):
    """Mounts a volume into the engine."""

    def change(_, pod):
        pod["volumes"].append({"name": "more", **volume})
        pod["initContainers"][-1].setdefault("volumeMounts", []).append(
            {"name": "more", "mountPath": "/more"}
        )

    return change


def engine_is(**fields):
    return lambda _, pod: pod["initContainers"][-1].update(fields)


def driver_is(**fields):
    return lambda _, pod: pod["containers"][0].update(fields)


def driver_adds(field, item):
    return lambda _, pod: pod["containers"][0].setdefault(field, []).append(item)


def pod_is(**fields):
    return lambda _, pod: pod.update(fields)


def labelled(**labels):
    return lambda job, _: job["metadata"].update(labels={**job["metadata"]["labels"], **labels})


def template_is(**fields):
    return lambda job, _: job["spec"]["template"]["metadata"].update(fields)


def answers_of(job, key="answers.json.gz", *, engine=False):
    secret = {"name": job, "optional": True, "items": [{"key": key, "path": job}]}
    volume = {"name": "breakeven-answers", "projected": {"sources": [{"secret": secret}]}}

    def change(_, pod):
        pod["volumes"].append(volume)
        if engine:
            mount = {"name": "breakeven-answers", "mountPath": "/a"}
            pod["initContainers"][-1].setdefault("volumeMounts", []).append(mount)

    return change


TOKEN = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
EXEC = {"exec": {"command": ["sh", "-c", "cat /var/run/secrets/kubernetes.io/serviceaccount/token"]}}
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u"}
NOT_OURS = {
    "unlabelled": (labelled(**{"app.kubernetes.io/managed-by": "x"}), "carry the label"),
    "other-service": (labelled(**{"breakeven.dev/service": "code"}), "under the account breakeven-<service>"),
    "other-account": (pod_is(serviceAccountName="default"), "under the account breakeven-<service>"),
    "no-owner": (lambda job, _: job["metadata"].pop("ownerReferences"), "go with its own object"),
    "other-owner": (lambda job, _: job["metadata"].update(ownerReferences=[OWNER]), "go with its own object"),
    "finalizer": (lambda job, _: job["metadata"].update(finalizers=["x.io/y"]), "go with its own object"),
    "pod-finalizer": (template_is(finalizers=["x.io/y"]), "no name, owner or finalizer"),
    "pod-owner": (template_is(ownerReferences=[OWNER]), "no name, owner or finalizer"),
    "pod-labels": (template_is(labels={}), "Pods of Breakeven carry its labels"),
    "many": (lambda job, _: job["spec"].update(parallelism=9, completions=9), "run one pod"),
    "endless": (lambda job, _: job["spec"].pop("activeDeadlineSeconds"), "run one pod, for a time"),
    "host-network": (pod_is(hostNetwork=True), "share neither the node's namespaces"),
    "host-pid": (pod_is(hostPID=True), "share neither the node's namespaces"),
    "host-ipc": (pod_is(hostIPC=True), "share neither the node's namespaces"),
    "shared-processes": (pod_is(shareProcessNamespace=True), "nor their containers'"),
    "on-a-node": (pod_is(nodeName="a100-0"), "pass no scheduler by"),
    "first-class": (pod_is(priorityClassName="system-node-critical"), "rank of calibrations"),
    "mounted-token": (pod_is(automountServiceAccountToken=True), "no token into all"),
    "token-unsaid": (lambda _, pod: pod.pop("automountServiceAccountToken"), "no token into all"),
    "privileged": (engine_is(securityContext={"privileged": True}), "run no privileged container"),
    "privileged-fetch": (
        lambda _, pod: pod["initContainers"][0].update(securityContext={"privileged": True}),
        "run no privileged container",
    ),
    "capable": (engine_is(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), "add no capability"),
    "host-port": (engine_is(ports=[{"containerPort": 80, "hostPort": 80}]), "no port of a node"),
    "host-path": (engine_gets({"hostPath": {"path": "/"}}), "no path of a node"),
    "git-repo": (engine_gets({"gitRepo": {"repository": "https://x/y.git"}}), "no path of a node"),
    "flex": (engine_gets({"flexVolume": {"driver": "x/y"}}), "no path of a node"),
    "second-token": (engine_gets(TOKEN), "one token, in the volume"),
    "token-for-others": (
        lambda _, pod: pod["volumes"][1]["projected"]["sources"][0]["serviceAccountToken"].update(audience="vault"),
        "for the API server alone",
    ),
    "engine-has-token": (
        engine_is(volumeMounts=[{"name": "breakeven-token", "mountPath": "/t"}]),
        "Nobody but the load driver",
    ),
    "engine-has-prompts": (
        engine_is(volumeMounts=[{"name": "breakeven-prompts", "mountPath": "/p"}]),
        "Nobody but the load driver",
    ),
    "prompts-by-another-name": (engine_gets({"configMap": {"name": "prompts"}}), "Nobody but the load driver"),
    "prompts-projected": (
        engine_gets({"projected": {"sources": [{"configMap": {"name": "prompts"}}]}}),
        "Nobody but the load driver",
    ),
    "prompts-as-variables": (
        engine_is(envFrom=[{"configMapRef": {"name": "prompts"}}]),
        "Nobody but the load driver",
    ),
    "prompt-as-variable": (
        engine_is(env=[{"name": "P", "valueFrom": {"configMapKeyRef": {"name": "prompts", "key": "p.jsonl"}}}]),
        "Nobody but the load driver",
    ),
    "engine-has-answers": (answers_of("chat-7f3c2-none", engine=True), "Nobody but the load driver"),
    "another-runs-answers": (answers_of("chat-00000-none"), "answers that arms of its run left"),
    "secret-as-answers": (answers_of("chat-7f3c2-none", key="token"), "answers that arms of its run left"),
    "whole-secret-as-answers": (
        lambda _, pod: pod["volumes"].append({"name": "breakeven-answers", "secret": {"secretName": "chat-key"}}),
        "answers that arms of its run left",
    ),
    "other-image": (driver_is(image="evil"), "its own image and command"),
    "other-command": (driver_is(command=["python", "-c", "print()"]), "its own image and command"),
    "other-arguments": (driver_is(args=["run"]), "its own image and command"),
    "no-command": (lambda _, pod: pod["containers"][0].pop("command"), "its own image and command"),
    "second-container": (
        lambda _, pod: pod["containers"].append({"name": "b", "image": IMAGE}),
        "its own image and command",
    ),
    "hook": (driver_is(lifecycle={"postStart": EXEC}), "runs nothing but itself"),
    "probe": (driver_is(livenessProbe=EXEC), "runs nothing but itself"),
    "directory": (driver_is(workingDir="/var/run/breakeven/prompts"), "runs nothing but itself"),
    "python-path": (
        driver_adds("env", {"name": "PYTHONPATH", "value": "/var/run/breakeven/prompts"}),
        "runs nothing but itself",
    ),
    "python-path-from": (driver_adds("envFrom", {"configMapRef": {"name": "x"}}), "runs nothing but itself"),
    "driver-privileged": (driver_is(securityContext={}), "without privilege"),
    "over-the-program": (
        driver_adds("volumeMounts", {"name": "weights", "mountPath": "/usr/local/lib", "readOnly": True}),
        "mounts its token, its prompts",
    ),
    "written-by-the-driver": (
        driver_adds("volumeMounts", {"name": "weights", "mountPath": "/var/run/breakeven/certificate"}),
        "mounts its token, its prompts",
    ),
}  # fmt: skip


@pytest.mark.claim(
    "SECURITY.md", "one Job per arm and one CronJob per service, of the forms that the operator makes"
)
def test_jobs_are_calibrations_and_nothing_else(cluster, target):
    job = trial_job(target)
    wrong = [changed(job, name, change) for name, (change, _) in NOT_OURS.items()]
    said = denied(cluster, target, [job, *wrong])
    assert said.keys() == NOT_OURS.keys()
    for name, (_, words) in NOT_OURS.items():
        assert words in said[name], name


def test_a_copy_of_a_stateful_sets_pod_has_a_claim_of_its_own(cluster, stateful):
    """The policies admit it, the pod's claim is none of the target's, and it goes with the pod."""
    found = cluster.kubectl(
        "get", "statefulset", "chat-vllm", f"--namespace={stateful}", "--output=json"
    ).stdout
    volumes = STATEFUL_SET.template(json.loads(found))["spec"]["volumes"]

    def mounted(spec):
        spec["volumes"] = volumes
        spec["containers"][0]["volumeMounts"] = [{"name": "cache", "mountPath": "/cache"}]

    job = trial_job(stateful, mounted)
    assert denied(cluster, stateful, [job]) == {}
    run = requested_run(stateful, "chat", "", Trigger.MANUAL)
    created = cluster.kubectl("create", "--output=json", "--filename=-", stdin=yaml.safe_dump(run)).stdout
    job["metadata"]["ownerReferences"][0] |= {
        name: json.loads(created)["metadata"][name] for name in ("name", "uid")
    }
    cluster.kubectl("create", "serviceaccount", "breakeven-chat", f"--namespace={stateful}")
    cluster.kubectl("create", f"--namespace={stateful}", "--filename=-", stdin=yaml.safe_dump(job))

    def owned_by_a_pod():
        claims = cluster.kubectl(
            "get", "persistentvolumeclaims", f"--namespace={stateful}", "--output=json"
        ).stdout
        return [
            claim["metadata"]["name"]
            for claim in json.loads(claims)["items"]
            if any(owner["kind"] == "Pod" for owner in claim["metadata"].get("ownerReferences", ()))
        ]

    (claim,) = until("the copy has a claim", owned_by_a_pod)
    assert claim.startswith(job["metadata"]["name"])


def test_what_a_target_needs_can_be_allowed(cluster):
    texts = [
        text
        for document in only(
            render(
                cluster,
                "--set=admissionPolicy.allowedHostPaths={/data/models}",
                "--set=admissionPolicy.allowedCapabilities={IPC_LOCK}",
                "--set=admissionPolicy.allowedConfigMaps={templates}",
            ),
            "ValidatingAdmissionPolicy",
        )
        if document["metadata"]["name"] == "breakeven-jobs"
        for text in (validation["expression"] for validation in document["spec"]["validations"])
    ]
    for words in ('["/data/models"].exists(path', 'capability in ["IPC_LOCK"]', 'in ["templates"]'):
        assert any(words in text for text in texts), words


@pytest.mark.claim(
    "SECURITY.md", "Jobs and CronJobs that Breakeven made, CalibrationRuns and SpeculationProfiles"
)
def test_jobs_of_others_are_neither_changed_nor_deleted(cluster, target):
    run = requested_run(target, "chat", "", Trigger.MANUAL)
    created = cluster.kubectl("create", "--output=json", "--filename=-", stdin=yaml.safe_dump(run)).stdout
    job = trial_job(target)
    # Of a run that is there: without its owner the garbage collector would take it.
    job["metadata"]["ownerReferences"][0] |= {
        name: json.loads(created)["metadata"][name] for name in ("name", "uid")
    }
    foreign = changed(job, "foreign", lambda made, _: made["metadata"].pop("ownerReferences"))
    unlabelled = changed(job, "unlabelled", labelled(**{"app.kubernetes.io/managed-by": "x"}))
    manifests = yaml.safe_dump_all([job, foreign, unlabelled])
    cluster.kubectl("create", f"--namespace={target}", "--filename=-", stdin=manifests)

    def delete(name):
        return as_operator(cluster, "delete", "--wait=false", "job", name, f"--namespace={target}").stderr

    for name in ("foreign", "unlabelled"):
        assert "deletes no Job and no CronJob of others" in delete(name)
    assert delete(job["metadata"]["name"]) == ""
    for verb in ("patch", "update"):
        done = as_operator(cluster, "auth", "can-i", verb, "jobs.batch", f"--namespace={target}")
        assert done.stdout.strip() == "no"


CRON_NOT_OURS = {
    "engine": (lambda _, pod: pod.update(initContainers=[{"name": "engine", "image": "x"}]), "runs Breakeven alone"),
    "volume": (lambda _, pod: pod["volumes"].append({"name": "m", "secret": {"secretName": "x"}}), "no other volume"),
    "trial": (driver_is(args=["trial"]), "its own image and command"),
    "token": (pod_is(automountServiceAccountToken=True), "no token into all"),
    "privileged": (driver_is(securityContext={"privileged": True}), "run no privileged container"),
}  # fmt: skip


def test_cronjobs_ask_for_calibrations_and_do_nothing_else(cluster, target):
    made = cron_job(target)
    assert denied(cluster, target, [made]) == {}
    assert "called breakeven-<service>" in denied(cluster, target, [changed(made, "x", lambda *_: None)])["x"]
    for change, words in CRON_NOT_OURS.values():
        wrong = changed(made, "breakeven-chat", change)
        assert words in denied(cluster, target, [wrong])["breakeven-chat"]
    foreign = changed(made, "breakeven-chat", labelled(**{"app.kubernetes.io/managed-by": "x"}))
    del foreign["metadata"]["ownerReferences"]
    cluster.kubectl("create", f"--namespace={target}", "--filename=-", stdin=yaml.safe_dump(foreign))
    done = as_operator(
        cluster, "apply", f"--namespace={target}", "--server-side", "--field-manager=breakeven", "--force-conflicts",
        "--filename=-", stdin=yaml.safe_dump(made),
    )  # fmt: skip
    assert "changes no CronJob of others" in done.stderr


def binding(name, role, *, namespace, labels=OURS, kind="ClusterRole", subjects=None):
    own = [{"kind": "ServiceAccount", "name": "breakeven-chat", "namespace": namespace}]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "labels": labels},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": own if subjects is None else subjects,
    }


@pytest.mark.claim(
    "SECURITY.md",
    "A policy admits bindings of `breakeven-trial` to the account of the same name and namespace alone",
)
def test_it_hands_out_the_drivers_rights_and_no_others(cluster, target):
    def create(manifest, namespace=target):
        return as_operator(
            cluster, "create", f"--namespace={namespace}", "--filename=-", stdin=yaml.safe_dump(manifest)
        )

    world = World()
    world.service["metadata"]["namespace"] = target
    account, made = trial_access(world.service, "breakeven-trial")
    for manifest in (account, made):
        assert create(manifest).returncode == 0
    subject = made["subjects"][0]
    mallory = {"kind": "User", "name": "mallory", "apiGroup": "rbac.authorization.k8s.io"}
    other = {**OURS, "breakeven.dev/service": "x"}

    def bound(role="breakeven-trial", name="breakeven-x", **more):
        return create(binding(name, role, namespace=target, labels=other, **more)).stderr

    assert "attempting to grant RBAC permissions" in bound("cluster-admin")
    only_this = "binds the drivers' role to the account of the same name and to nobody else"
    # The operator holds its own role's rights, so RBAC itself lets it bind that.
    assert only_this in bound("breakeven", subjects=[mallory])
    assert only_this in bound("breakeven", subjects=[{**subject, "name": "breakeven-x"}])
    assert only_this in bound(subjects=[mallory])
    assert only_this in bound(subjects=[subject])
    assert only_this in bound(subjects=[])
    own = {**subject, "name": "breakeven-x"}
    assert only_this in bound(subjects=[own, mallory])
    assert only_this in bound(subjects=[{**own, "namespace": "kube-system"}])
    assert bound(subjects=[own]) == ""
    assert "called breakeven-<service> and changes none" in bound(name="somebody")
    for closed in ("kube-system", "breakeven"):
        denial = create(binding("breakeven-x", "breakeven-trial", namespace=closed, labels=other, subjects=[{**own, "namespace": closed}]), closed)  # fmt: skip
        assert "in the cluster's own namespaces and in its own" in denial.stderr
        assert "in the cluster's own namespaces and in its own" in create(
            {**account, "metadata": {"name": "breakeven-chat", "labels": OURS}}, closed
        ).stderr  # fmt: skip
    meta = {"name": "breakeven-x", "labels": other}
    bare = {**account, "metadata": meta}
    named = {**bare, "metadata": {**meta, "name": "other"}}
    assert "called breakeven-<service> and changes none" in create(named).stderr
    for wrong in (
        {**bare, "metadata": {**meta, "annotations": {"eks.amazonaws.com/role-arn": "admin"}}},
        {**bare, "automountServiceAccountToken": True},
        {**bare, "imagePullSecrets": [{"name": "somebodys"}]},
    ):
        assert "no annotation, no Secret and no token" in create(wrong).stderr


def test_the_policies_cannot_be_left_behind(cluster, target):
    """With nothing but the operator's token: no rights for anybody, and no pod that reaches a node or the cluster."""
    for namespace in (target, "kube-system"):
        manifest = binding(
            "breakeven-x", "breakeven", namespace=namespace, labels={"breakeven.dev/service": "x"},
            subjects=[{"kind": "User", "name": "mallory", "apiGroup": "rbac.authorization.k8s.io"}],
        )  # fmt: skip
        done = as_operator(
            cluster, "create", f"--namespace={namespace}", "--filename=-", stdin=yaml.safe_dump(manifest)
        )
        assert "ValidatingAdmissionPolicy 'breakeven-bindings'" in done.stderr
    image = '{"spec":{"template":{"spec":{"containers":[{"name":"vllm","image":"evil"}]}}}}'
    done = cluster.kubectl(
        "--as=mallory", "patch", "deployment", "chat-vllm", f"--namespace={target}", "--type=merge", f"--patch={image}",
        check=False,
    )  # fmt: skip
    assert 'User "mallory" cannot' in done.stderr
    job = trial_job("kube-system")
    assert (
        "no pods in the cluster's own namespaces and in its own"
        in denied(cluster, "kube-system", [job])["chat-7f3c2-eagle-2"]
    )
    job = trial_job("breakeven")
    assert (
        "no pods in the cluster's own namespaces and in its own"
        in denied(cluster, "breakeven", [job])["chat-7f3c2-eagle-2"]
    )


@pytest.mark.always
@pytest.mark.claim(
    "SECURITY.md",
    "new ones without settings of their own, and `status.points`, `status.answers` and `status.findings` of those that are there",
)
def test_a_driver_adds_points_to_runs_of_its_service_and_nothing_else(cluster, target):
    driver = f"system:serviceaccount:{target}:breakeven-chat"
    cluster.kubectl(
        "create", "rolebinding", "breakeven-chat", f"--namespace={target}", "--clusterrole=breakeven-trial",
        f"--serviceaccount={target}:breakeven-chat",
    )  # fmt: skip

    def as_driver(*arguments, stdin=""):
        return cluster.kubectl(
            f"--as={driver}", *arguments, f"--namespace={target}", stdin=stdin, check=False
        )

    def ask(service, **spec):
        run = requested_run(target, service, "", Trigger.SCHEDULE)
        run["spec"] |= spec
        return as_driver("create", "--output=name", "--filename=-", stdin=yaml.safe_dump(run))

    name = ask("chat").stdout.strip().partition("/")[2]
    assert name
    assert "runs of its own service alone" in ask("code").stderr
    imported = [{"arm": "none", "configMap": {"name": "x", "keys": ["a"]}}]
    assert "as its service describes it" in ask("chat", importFrom=imported).stderr
    # Who may not start pods is refused a gate by another policy too, and the API server names either.
    cluster.kubectl("create", "role", "starts", f"--namespace={target}", "--verb=create", "--resource=pods")
    cluster.kubectl(
        "create", "rolebinding", "starts", f"--namespace={target}", "--role=starts",
        f"--serviceaccount={target}:breakeven-chat",
    )  # fmt: skip
    until("it may start pods", lambda: as_driver("auth", "can-i", "create", "pods").stdout.strip() == "yes")
    assert "as its service describes it" in ask("chat", gate=["vllm:v0.31.0", "vllm:v0.32.0"]).stderr
    other = requested_run(target, "code", "", Trigger.MANUAL)
    foreign = cluster.kubectl(
        "create", "--output=name", f"--namespace={target}", "--filename=-", stdin=yaml.safe_dump(other)
    ).stdout.strip().partition("/")[2]  # fmt: skip

    def patch(run, status):
        """The API server's answer to a merge patch; kubectl would read the status first, which a driver may not."""
        pki = cluster.state_dir / "pki"
        context = ssl.create_default_context(cafile=pki / "ca.crt")
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        path = f"/apis/breakeven.dev/v1alpha1/namespaces/{target}/calibrationruns/{run}/status"
        request = urllib.request.Request(
            cluster.api_url + path,
            json.dumps({"status": status}).encode(),
            {"Content-Type": "application/merge-patch+json", "Impersonate-User": driver},
            method="PATCH",
        )
        try:
            with urllib.request.urlopen(request, context=context):
                return ""
        except urllib.error.HTTPError as error:
            return json.load(error)["message"]

    cluster.kubectl(
        "patch", "calrun", name, f"--namespace={target}", "--subresource=status", "--type=merge",
        '--patch={"status":{"phase":"Measuring"}}',
    )  # fmt: skip
    points: dict[str, object] = {"points": [{"arm": "none", "index": 0}]}
    assert patch(name, points) == ""
    assert patch(name, {**points, "findings": [{"figure": "upgrade", "word": "Same"}]}) == ""
    assert "runs of its own service alone" in patch(foreign, points)
    for status in ({"phase": "Succeeded"}, {"phase": None}, {"message": "x"}, {"reason": "Done", **points}):
        assert "nothing of a run but its points" in patch(name, status)
    # Somebody else is not held by it.
    assert cluster.kubectl("patch", "calrun", name, f"--namespace={target}", "--subresource=status", "--type=merge", '--patch={"status":{"message":"x"}}')  # fmt: skip


@pytest.mark.claim("SECURITY.md", "Policies hold the Secrets to answers of one arm, owned by its Job.")
def test_a_driver_makes_secrets_of_answers_and_no_others(cluster, target):
    driver = f"system:serviceaccount:{target}:breakeven-chat"
    cluster.kubectl(
        "create", "rolebinding", "breakeven-chat", f"--namespace={target}", "--clusterrole=breakeven-trial",
        f"--serviceaccount={target}:breakeven-chat",
    )  # fmt: skip

    def made(change=lambda _: None):
        secret = secret_of(
            AnswerSet("none"), AnswerOwner(target, "chat", "chat-7f3c2", "chat-7f3c2-none", "u")
        )
        change(secret)
        answer = cluster.kubectl(
            f"--as={driver}", "create", "--dry-run=server", "--filename=-", f"--namespace={target}",
            stdin=yaml.safe_dump(secret), check=False,
        )  # fmt: skip
        return answer.stderr

    assert made() == ""
    token = {"kubernetes.io/service-account.name": "default"}
    for change, said in (
        (lambda one: one.update(type="Opaque"), "Secrets of answers and no others"),
        (lambda one: one.update(data={"password": "eA=="}), "Secrets of answers and no others"),
        (lambda one: one.update(immutable=False), "Secrets of answers and no others"),
        (lambda one: one["metadata"].update(annotations=token), "Secrets of answers and no others"),
        (
            lambda one: one["metadata"]["labels"].update({"breakeven.dev/service": "code"}),
            "its own service alone",
        ),
        (lambda one: one["metadata"].pop("ownerReferences"), "go with the Job"),
        (lambda one: one["metadata"].update(name="other"), "go with the Job"),
    ):
        assert said in made(change)


def test_a_driver_may_ask_for_runs_and_store_points(cluster, target):
    cluster.kubectl(
        "create", "rolebinding", "breakeven-chat", f"--namespace={target}", "--clusterrole=breakeven-trial",
        f"--serviceaccount={target}:breakeven-chat",
    )  # fmt: skip

    def can(verb, resource, *options):
        return cluster.kubectl(
            "auth", "can-i", verb, resource, *options, f"--namespace={target}",
            f"--as=system:serviceaccount:{target}:breakeven-chat", check=False,
        ).stdout.strip()  # fmt: skip

    run = "calibrationruns.breakeven.dev"
    assert can("get", run) == can("create", run) == can("patch", run, "--subresource=status") == "yes"
    for verb, resource in [
        ("list", run), ("patch", run), ("delete", run), ("get", "secrets"), ("list", "secrets"), ("delete", "secrets"), ("get", "pods"),
        ("get", "speculativeservices.breakeven.dev"), ("create", "jobs.batch"),
    ]:  # fmt: skip
        assert can(verb, resource) == "no", (verb, resource)


def test_the_policies_compile_against_the_real_types(cluster, release):
    # The controller manager checks every expression against the schemas and writes what does not fit.
    cluster.kubectl(
        "wait",
        "--for=jsonpath={.status.observedGeneration}=1",
        "validatingadmissionpolicy",
        "--all",
        "--timeout=180s",
    )
    policies = json.loads(cluster.kubectl("get", "validatingadmissionpolicy", "--output=json").stdout)[
        "items"
    ]
    assert len(policies) == 14
    for policy in policies:
        warnings = policy["status"].get("typeChecking", {}).get("expressionWarnings", [])
        assert warnings == [], policy["metadata"]["name"]


def service_rules(documents):
    (role,) = [one for one in only(documents, "ClusterRole") if one["metadata"]["name"] == "breakeven"]
    return sorted(
        verb
        for rule in role["rules"]
        if rule["resources"] == ["speculativeservices"]
        for verb in rule["verbs"]
    )


def test_services_are_made_only_where_the_value_is_set(cluster):
    def names(documents):
        (operator,) = only(documents, "Deployment")
        (container,) = operator["spec"]["template"]["spec"]["containers"]
        policies = {one["metadata"]["name"] for one in only(documents, "ValidatingAdmissionPolicy")}
        return {one["name"]: one.get("value") for one in container["env"]}, policies

    off, on = render(cluster), render(cluster, "--set=operator.watchAnnotated=true")
    assert service_rules(off) == ["list", "watch"]
    assert service_rules(on) == ["create", "delete", "list", "watch"]
    (settings, without), (watching, policies) = names(off), names(on)
    assert policies - without == {"breakeven-services"}
    added = {name: watching[name] for name in watching.keys() - settings.keys()}
    read = read_settings(added)
    assert (read.watch_annotated, read.most_watched, read.most_watched_per_namespace) == ("true", 50, 10)
    assert [one.method for one in read.default_candidates.methods] == ["ngram_gpu"]


RESUMED = {
    "unpaused": lambda made: made["spec"].update(paused=False),
    "rolling": lambda made: made["spec"].update(updatePolicy={"mode": "RollingUpdate"}),
    "elsewhere": lambda made: made["spec"].update(metricsSource={"prometheus": {"address": "http://x"}}),
    "held": lambda made: made["metadata"].update(finalizers=["example.com/wait"]),
    "unlabelled": lambda made: made["metadata"].update(labels={}),
}


@pytest.mark.claim(
    "SECURITY.md",
    "Then a policy admits those alone that are paused, in mode Recommend, and name no Prometheus",
)
def test_a_service_that_it_makes_looks_and_it_deletes_no_other(cluster, target):
    ref = Ref(DEPLOYMENTS, target, "chat-vllm")
    found = json.loads(
        cluster.kubectl("get", "deployment", "chat-vllm", f"--namespace={target}", "--output=json").stdout
    )
    candidates = json.dumps({"methods": [{"name": "ngram", "method": "ngram"}]})
    settings = read_settings({"BREAKEVEN_DEFAULT_CANDIDATES": candidates})
    world = replace(Snapshot(), annotated={ref: found})
    ((plan,), _) = watched(world, settings)
    (action,) = plan.actions
    made = action.body
    assert denied(cluster, target, [made]) == {}
    for change in RESUMED.values():
        wrong = copy.deepcopy(made)
        change(wrong)
        assert denied(cluster, target, [wrong]).keys() == {made["metadata"]["name"]}
    done = as_operator(cluster, "create", f"--namespace={target}", "--filename=-", stdin=yaml.safe_dump(made))
    assert done.returncode == 0
    theirs = copy.deepcopy(made)
    theirs["metadata"] |= {"name": "theirs", "labels": {}}
    cluster.kubectl("create", f"--namespace={target}", "--filename=-", stdin=yaml.safe_dump(theirs))

    def delete(name):
        return as_operator(cluster, "delete", "--wait=false", "specsvc", name, f"--namespace={target}").stderr

    assert "changes none" in delete("theirs")
    assert delete(made["metadata"]["name"]) == ""


def test_people_with_edit_may_make_services(cluster, release, namespace):
    cluster.kubectl(
        "create", "rolebinding", "dev", f"--namespace={namespace}", "--clusterrole=edit", "--user=dev"
    )
    # The controller manager adds rules to `edit` some time after the release is in.
    cluster.kubectl(
        "wait", "--for=jsonpath={.rules[?(@.resources[0]=='speculationprofiles')].verbs}", "clusterrole/edit",
        "--timeout=180s",
    )  # fmt: skip
    for verb, resource, expected in [
        ("create", "speculativeservices.breakeven.dev", "yes"),
        ("create", "calibrationruns.breakeven.dev", "yes"),
        ("create", "speculationprofiles.breakeven.dev", "no"),
        ("delete", "speculationprofiles.breakeven.dev", "yes"),
    ]:
        said = cluster.kubectl(
            "auth", "can-i", verb, resource, "--as=dev", f"--namespace={namespace}", check=False
        ).stdout.strip()
        assert said == expected, (verb, resource)


def test_uninstalling_leaves_the_services(cluster, release, namespace):
    body = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "SpeculativeService",
        "metadata": {"name": "chat"},
        "spec": {"targetRef": {"name": "x"}, "candidates": {"methods": [{"name": "l", "method": "ngram"}]}},
    }
    cluster.kubectl("apply", f"--namespace={namespace}", "--filename=-", stdin=yaml.safe_dump(body))
    said = cluster.helm("uninstall", release, "--namespace=breakeven")
    assert re.search(r"kept|keep", said.stdout + said.stderr)
    assert "chat" in cluster.kubectl("get", "specsvc", f"--namespace={namespace}", "--no-headers").stdout
