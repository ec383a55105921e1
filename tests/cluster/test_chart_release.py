"""The chart's life on a real API server: from the release before to this one and back, `helm test`, optional objects; Helm 3 and 4."""

import json
from pathlib import Path

import pytest
import yaml

from localcluster import LocalCluster, LocalClusterError
from operatorcluster.optional import needs_controller
from shipping.kustomize_base import kustomize_files

# Product files whose change runs these tests at the next landing.
COVERS = ("charts/", "crds/")

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "breakeven"
# No version is released yet: the chart as it was before the values of this one. A release puts its own chart here (CONTRIBUTING.md).
PREVIOUS = ROOT / "tests" / "golden" / "releases" / "previous-chart.tgz"
HELMS = [
    "helm",
    pytest.param("helm4", marks=needs_controller("helm4", "a minute")),
]
SERVICE = "speculativeservices.breakeven.dev/chat"
RUN = "calibrationruns.breakeven.dev/imported"


@pytest.fixture(scope="module")
def cluster():
    # Of its own: releases bring CRDs and take them away.
    with LocalCluster() as running:
        running.start_nodes()
        yield running


def render(cluster, program, *options, check=True):
    done = cluster.helm(
        "template", "breakeven", str(CHART), "--namespace=breakeven", "--kube-version=1.36.0", *options,
        check=check, program=program,
    )  # fmt: skip
    return (
        [one for one in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if one] if check else done.stderr
    )


def kinds(documents):
    return {one["kind"]: one for one in documents}


@pytest.mark.parametrize("helm", HELMS)
def test_a_second_release_that_watches_everything_is_refused_and_one_with_namespaces_is_not(cluster, helm):
    """Each has a Lease of its own, so both would write the same targets."""
    first = kinds(render(cluster, helm))["Deployment"]
    first["metadata"]["namespace"], first["spec"]["replicas"] = "first", 0
    cluster.kubectl("create", "namespace", "first")
    try:
        cluster.kubectl("apply", "--filename=-", stdin=json.dumps(first))

        def install(*options, name="second", namespace="second"):
            done = cluster.helm(
                "install", name, str(CHART), f"--namespace={namespace}", "--dry-run=server", *options,
                check=False, program=helm,
            )  # fmt: skip
            return done.stderr

        for namespace in ("second", "first"):
            assert "a release in namespace first watches all namespaces already" in install(
                namespace=namespace
            )
        assert "watches all namespaces already" not in install(name="breakeven", namespace="first")
        assert "watches all namespaces already" not in install("--set=watchNamespaces={llm}")
        first["spec"]["template"]["spec"]["containers"][0]["env"] = [
            {"name": "BREAKEVEN_WATCH_NAMESPACES", "value": "llm"}
        ]
        cluster.kubectl("apply", "--filename=-", stdin=json.dumps(first))
        assert "watches all namespaces already" not in install()
    finally:
        cluster.kubectl("delete", "namespace", "first")


@pytest.mark.parametrize("helm", HELMS)
def test_what_is_optional_is_absent_until_it_is_wanted(cluster, helm):
    optional = {"PodDisruptionBudget", "ServiceMonitor", "PodMonitor", "ResourceQuota", "LimitRange"}
    assert optional.isdisjoint(kinds(render(cluster, helm)))
    objects = [
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "{{ .Release.Name }}-quota"}, "spec": {}},
        "{apiVersion: v1, kind: LimitRange, metadata: {name: '{{ .Release.Name }}-limits'}, spec: {limits: []}}",
    ]  # fmt: skip
    spread = [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}]
    own = {"labelSelector": {"matchLabels": {"x": "y"}}}
    found = kinds(
        render(
            cluster, helm, "--set=podDisruptionBudget.enabled=true", "--set=podDisruptionBudget.maxUnavailable=50%",
            "--set=metrics.serviceMonitor.enabled=true", "--set=metrics.serviceMonitor.labels.release=kps",
            f"--set-json=extraObjects={json.dumps(objects)}",
            f"--set-json=topologySpreadConstraints={json.dumps([*spread, {**spread[0], **own}])}",
        )
    )  # fmt: skip
    assert optional - {"PodMonitor"} <= set(found)
    labels = found["Deployment"]["spec"]["selector"]["matchLabels"]
    assert found["PodDisruptionBudget"]["spec"] == {
        "maxUnavailable": "50%",
        "selector": {"matchLabels": labels},
    }
    monitor = found["ServiceMonitor"]
    assert monitor["metadata"]["labels"]["release"] == "kps"
    assert monitor["spec"] == {
        "selector": {"matchLabels": labels},
        "endpoints": [{"port": "metrics", "interval": "30s"}],
    }
    assert found["ResourceQuota"]["metadata"]["name"] == "breakeven-quota"
    assert found["LimitRange"]["metadata"]["name"] == "breakeven-limits"
    constraints = found["Deployment"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert constraints == [{**spread[0], "labelSelector": {"matchLabels": labels}}, {**spread[0], **own}]


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("metrics.serviceMonitor.enabled=true", "metrics.podMonitor.enabled=true"), "every series would be there twice"),
        (("podDisruptionBudget.maxUnavailable=some",), "does not match pattern"),
        (("podDisruptionBudget.minAvailable=1",), "additional properties 'minAvailable' not allowed"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_are_refused(cluster, helm, settings, said):
    assert said in render(cluster, helm, *(f"--set={one}" for one in settings), check=False)


@pytest.mark.parametrize("helm", HELMS)
def test_a_linted_chart_packages(cluster, helm, tmp_path):
    assert "0 chart(s) failed" in cluster.helm("lint", "--strict", str(CHART), program=helm).stdout
    cluster.helm("package", str(CHART), f"--destination={tmp_path}", program=helm)
    (package,) = tmp_path.glob("*.tgz")
    assert "runbooks" not in cluster.helm("show", "chart", str(package), program=helm).stdout


def place_objects(cluster):
    """A service, a run and a profile, as users and the operator make them."""
    service = yaml.safe_load((ROOT / "examples" / "speculativeservice.yaml").read_text())
    service["spec"]["paused"] = True
    run = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "CalibrationRun",
        "metadata": {"name": "imported"},
        "spec": {"serviceRef": {"name": "chat"}},
    }
    for one in (service, run):
        cluster.kubectl("apply", "--namespace=llm", "--filename=-", stdin=json.dumps(one))
    point = [{"arm": "none", "index": 0}]
    cluster.kubectl(
        "patch", RUN, "--namespace=llm", "--subresource=status", "--type=merge",
        f"--patch={json.dumps({'status': {'phase': 'Failed', 'points': point}})}", check=False,
    )  # fmt: skip
    # The target lets the service be decided about; its pods are not needed.
    cluster.kubectl("apply", "--namespace=llm", f"--filename={ROOT / 'examples' / 'vllm-a100.yaml'}")
    cluster.kubectl("scale", "--namespace=llm", "deployment", "--all", "--replicas=0")


def specs(cluster):
    """Uid and spec of every object of ours."""
    listed = cluster.kubectl(
        "get", "speculativeservices,calibrationruns,speculationprofiles", "--namespace=llm", "--output=json"
    )
    return {
        (one["kind"], one["metadata"]["name"], one["metadata"]["uid"]): one["spec"]
        for one in json.loads(listed.stdout)["items"]
    }


def made_today(cluster, before):
    """Specs that new objects with the specs of BEFORE have in this release: its defaults are added, and nothing else."""
    made = {}
    for (kind, name, uid), spec in before.items():
        one = {
            "apiVersion": "breakeven.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": "made-today"},
            "spec": spec,
        }
        # A field that has gone since is left out, as it is of what is stored.
        created = cluster.kubectl(
            "create", "--dry-run=server", "--validate=ignore", "--namespace=llm", "--filename=-", "--output=json", stdin=json.dumps(one)
        )  # fmt: skip
        made[kind, name, uid] = json.loads(created.stdout)["spec"]
    return made


def fields(cluster):
    """Fields that the API server knows of a service's spec and status."""
    crd = json.loads(
        cluster.kubectl("get", "crd", "speculativeservices.breakeven.dev", "--output=json").stdout
    )
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


@pytest.mark.parametrize("helm", HELMS)
def test_from_the_release_before_to_this_one_and_back_no_object_is_lost(cluster, helm):
    run = ("--namespace=breakeven", "--wait", "--timeout=240s")
    cluster.kubectl("create", "namespace", "llm")
    try:
        values = (
            "--set=prometheus.address=http://127.0.0.1:1",
            "--set=prometheus.allowedAddresses={127.0.0.0/8}",
        )
        cluster.helm("install", "breakeven", str(PREVIOUS), "--create-namespace", *run, *values, program=helm)
        cluster.until_established()
        place_objects(cluster)
        before, old_fields = specs(cluster), fields(cluster)
        assert {kind for kind, _, _ in before} == {"SpeculativeService", "CalibrationRun"}

        more = ("--reset-then-reuse-values", "--set=podDisruptionBudget.enabled=true")
        cluster.helm("upgrade", "breakeven", str(CHART), *run, *more, program=helm)
        assert specs(cluster) == made_today(cluster, before)
        assert cluster.kubectl("get", "pdb", "--namespace=breakeven", "--output=name").stdout.split() == [
            "poddisruptionbudget.policy/breakeven"
        ]
        # A cycle of the new operator over the old objects, under its own account.
        said = cluster.helm("test", "breakeven", "--namespace=breakeven", "--logs", program=helm)
        assert "Phase:          Succeeded" in said.stdout
        assert "llm/chat" in said.stdout

        cluster.helm("rollback", "breakeven", "1", *run, program=helm)
        assert specs(cluster) == before
        assert fields(cluster) == old_fields
        assert not cluster.kubectl("get", "pdb", "--namespace=breakeven", "--output=name").stdout
    finally:
        cluster.helm("uninstall", "breakeven", "--namespace=breakeven", "--wait", check=False, program=helm)
        cluster.kubectl(
            "delete", "namespace", "llm", "breakeven", "--wait=true", "--timeout=180s", check=False
        )


@pytest.mark.parametrize("helm", HELMS)
def test_helm_test_fails_where_a_right_is_missing(cluster, helm):
    try:
        cluster.helm(
            "install", "breakeven", str(CHART), "--namespace=breakeven", "--create-namespace", "--set=replicas=0",
            "--set=rbac.create=false", program=helm,
        )  # fmt: skip
        cluster.until_established()
        with pytest.raises(LocalClusterError):
            cluster.helm("test", "breakeven", "--namespace=breakeven", "--timeout=180s", program=helm)
        log = cluster.kubectl("logs", "--namespace=breakeven", "breakeven-test").stdout
        assert "forbidden" in log
    finally:
        cluster.helm("uninstall", "breakeven", "--namespace=breakeven", "--wait", check=False, program=helm)
        cluster.kubectl("delete", "namespace", "breakeven", "--wait=true", "--timeout=180s", check=False)


def test_the_kustomize_base_installs_what_the_chart_does(cluster, tmp_path):
    rendered = cluster.helm(
        "template", "breakeven", str(CHART), "--namespace=breakeven", "--kube-version=1.36.0", "--skip-tests"
    )
    for name, text in kustomize_files(rendered.stdout).items():
        (tmp_path / name).write_text(text)
    try:
        cluster.kubectl("apply", "--server-side", "--kustomize", str(tmp_path))
        cluster.kubectl(
            "rollout", "status", "--namespace=breakeven", "deployment/breakeven", "--timeout=240s"
        )
    finally:
        cluster.kubectl("delete", "--kustomize", str(tmp_path), "--wait=true", "--timeout=180s", check=False)
