"""The chart under Helm, and on a real API server the rights it gives: enough, and nothing more."""

import json
import re
from pathlib import Path

import pytest
import yaml

from breakeven import __version__
from localcluster import LocalCluster, LocalClusterError

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
        "install", "breakeven", str(CHART), "--namespace=breakeven", "--create-namespace", "--set=replicas=0"
    )
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=180s")
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


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ('{"spec":{"replicas":5}}', "nothing of the Deployment but its pod template's annotation"),
        ('{"spec":{"paused":true}}', "nothing of the Deployment but its pod template's annotation"),
        ('{"spec":{"minReadySeconds":5}}', "nothing of the Deployment but its pod template's annotation"),
        ('{"spec":{"strategy":{"rollingUpdate":{"maxSurge":2}}}}', "nothing of the Deployment but"),
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
    ],
)
def test_the_operator_may_change_nothing_else_of_a_workload(cluster, target, patch, said):
    done = patch_target(cluster, target, patch)
    assert done.returncode != 0
    assert f"Breakeven may change {said}" in done.stderr
    # The policy binds nobody else.
    assert cluster.kubectl(
        "patch", "deployment", "chat-vllm", f"--namespace={target}", "--type=merge", f"--patch={patch}"
    )


def test_an_image_is_beyond_its_reach(cluster, target):
    patch = '[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"evil"}]'
    assert "may change nothing of the pods" in patch_target(cluster, target, patch, "json").stderr


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
"""What the chart installs, where nothing else is asked for."""


def job(name, account, **labels):
    return yaml.safe_dump(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "template": {
                    "spec": {
                        "serviceAccountName": account,
                        "restartPolicy": "Never",
                        "containers": [{"name": "a", "image": IMAGE}],
                    }
                }
            },
        }
    )


OURS = {"app.kubernetes.io/managed-by": "breakeven", "breakeven.dev/service": "chat"}


def test_jobs_run_under_the_drivers_account_only(cluster, target):
    def create(manifest):
        return as_operator(cluster, "create", f"--namespace={target}", "--filename=-", stdin=manifest)

    assert create(job("good", "breakeven-chat", **OURS)).returncode == 0
    assert "under the account breakeven-<service>" in create(job("bad", "default", **OURS)).stderr
    assert "under the account breakeven-<service>" in create(job("bad", "breakeven-code", **OURS)).stderr
    unlabelled = create(job("bad", "breakeven-chat", **{"breakeven.dev/service": "chat"}))
    assert "carry the label" in unlabelled.stderr


def binding(name, role, labels=OURS):
    return yaml.safe_dump(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name, "labels": labels},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": "breakeven-chat", "namespace": "x"}],
        }
    )


def test_it_hands_out_the_drivers_rights_and_no_others(cluster, target):
    def create(manifest):
        return as_operator(cluster, "create", f"--namespace={target}", "--filename=-", stdin=manifest)

    assert "attempting to grant RBAC permissions" in create(binding("breakeven-chat", "cluster-admin")).stderr
    assert create(binding("breakeven-chat", "breakeven-trial")).returncode == 0
    assert (
        "called breakeven-<service> and changes none" in create(binding("somebody", "breakeven-trial")).stderr
    )
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "other", "labels": OURS}}
    assert "called breakeven-<service> and changes none" in create(yaml.safe_dump(account)).stderr


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
        ("list", run), ("patch", run), ("delete", run), ("get", "secrets"), ("get", "pods"),
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
    assert len(policies) == 3
    for policy in policies:
        warnings = policy["status"].get("typeChecking", {}).get("expressionWarnings", [])
        assert warnings == [], policy["metadata"]["name"]


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
