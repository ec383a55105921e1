"""The Job of an arm: what it takes over from the target and what it leaves behind."""

from __future__ import annotations

import copy
import json
import subprocess
from dataclasses import replace

import pytest

from breakeven.serving.command_line import speculation, without_speculation
from breakeven.serving.opt_in import VARIABLE
from breakeven_operator.calibration import podcopy, schedule_job
from breakeven_operator.calibration.jobs import (
    TrialLimits,
    build_job,
    job_name,
)
from breakeven_operator.calibration.podcopy import NotCopyableError
from breakeven_operator.calibration.run_plan import make_plan
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.driver import TrialEnvironment
from breakeven_operator.kinds import ARM_LABEL, RUN_LABEL, SERVICE_LABEL, matches
from breakeven_operator.resources.calibrationrun import CalibrationRun
from breakeven_operator.resources.speculativeservice import SpeculativeService
from breakeven_operator.workloads.served_engine import ServedEngine

LIMITS = TrialLimits(sweep_s=500, active_s=1500)


@pytest.fixture
def build(world, settings):
    def job_of(arm: str = "eagle/7", selectors=({"matchLabels": {"tier": "serving"}},), policies=()):
        view = world.view()
        plan = make_plan(
            view, CalibrationRun.read(world.run, "run"), SpeculativeService.read(world.service, "service")
        )
        planned = next(each for each in plan.arms if each.arm == arm)
        view = replace(view, selectors=selectors, settings=settings, network_policies=policies)
        return build_job(view, plan, planned, LIMITS)

    return job_of


@pytest.fixture
def pod(build):
    return build()["spec"]["template"]


def container(pod, name):
    return next(c for c in [*pod["spec"]["initContainers"], *pod["spec"]["containers"]] if c["name"] == name)


def test_the_engine_is_a_native_sidecar_that_counts_once_it_answers(pod):
    engine = container(pod, "engine")
    assert pod["spec"]["initContainers"][-1] is engine
    assert engine["restartPolicy"] == "Always"
    probe = engine["startupProbe"]
    assert probe["httpGet"] == {"path": "/health", "port": "http"}
    assert probe["periodSeconds"] * probe["failureThreshold"] == 600
    assert engine["image"] == "vllm/vllm-openai:v0.32.0"
    assert engine["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert engine["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_arm_replaces_every_form_of_speculation(build):
    for arm, config in (
        ("none", None),
        ("eagle/7", {"method": "eagle3", "model": "org/eagle", "num_speculative_tokens": 7}),
    ):
        engine = container(build(arm)["spec"]["template"], "engine")
        flags = [item for item in [*engine["command"], *engine["args"]] if "spec" in item]
        assert len(flags) == 1
        assert json.loads(flags[0].removeprefix("--speculative-config=")) == config
        assert engine["args"][:3] == ["Qwen/Qwen3-8B", "--port=8001", "--served-model-name=chat"]
        assert all(entry["name"] != "BREAKEVEN_SPECULATIVE_CONFIG" for entry in engine["env"])


def test_kubernetes_does_not_expand_variables_inside_the_arms_json(world):
    engine = world.target["spec"]["template"]["spec"]["containers"][0]
    sidecar = podcopy.engine_sidecar(
        ServedEngine.of({"spec": {"containers": [engine]}}, None), {"method": "x", "note": "$(CHAT_KEY)"}, 10
    )
    assert "$$(CHAT_KEY)" in sidecar["args"][-1]


def test_what_serving_pods_share_is_gone(pod):
    spec = pod["spec"]
    for name in ("hostNetwork", "nodeName", "priority", "topologySpreadConstraints"):
        assert name not in spec
    assert set(spec["affinity"]) == {"nodeAffinity"}
    assert spec["priorityClassName"] == "calibration"
    names = [c["name"] for c in [*spec["initContainers"], *spec["containers"]]]
    assert names == ["fetch-drafter", "engine", "driver"]
    engine = container(pod, "engine")
    assert engine["ports"] == [{"name": "http", "containerPort": 8001}]
    assert not {"lifecycle", "livenessProbe", "readinessProbe"} & engine.keys()


def test_what_the_engine_needs_is_kept_on_the_same_gpu_class(pod):
    spec = pod["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["schedulerName"] == "bin-packer"
    assert {"name": "weights", "persistentVolumeClaim": {"claimName": "weights"}} in spec["volumes"]


def test_labels_that_anything_selects_on_are_lost_and_others_kept(build):
    selectors = (
        {"matchLabels": {"tier": "serving"}},
        {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
    )
    labels = build(selectors=selectors)["spec"]["template"]["metadata"]["labels"]
    assert labels["team"] == "nlp"
    assert not {"app", "tier", "kueue.x-k8s.io/queue-name"} & labels.keys()
    assert labels[SERVICE_LABEL] == "chat"
    assert labels[RUN_LABEL] == "chat-7f3c2"
    assert labels[ARM_LABEL] == "eagle-7"
    assert not any(matches(selector, labels) for selector in selectors)


def test_the_targets_own_selector_does_not_match_even_if_nothing_else_selects(build):
    labels = build(selectors=())["spec"]["template"]["metadata"]["labels"]
    assert "app" not in labels
    assert labels["tier"] == "serving"


def test_a_selector_that_picks_by_absence_is_refused(build):
    with pytest.raises(NotCopyableError, match="picks calibration pods too"):
        build(selectors=({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["batch"]}]},))


def test_annotations_that_scrape_inject_or_choose_the_arm_are_lost(pod):
    assert pod["metadata"]["annotations"] == {
        "vault.hashicorp.com/role": "llm",
        "sidecar.istio.io/inject": "false",
        "linkerd.io/inject": "disabled",
        "consul.hashicorp.com/connect-inject": "false",
        "sidecar.opentelemetry.io/inject": "false",
        "appmesh.k8s.aws/sidecarInjectorWebhook": "disabled",
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sidecar.istio.io/inject", "true"),
        ("istio.io/rev", "stable"),
        ("inject.istio.io/templates", "sidecar,spire"),
        ("proxy.istio.io/config", "{}"),
        ("istio.io/dataplane-mode", "ambient"),
        ("linkerd.io/inject", "enabled"),
        ("config.linkerd.io/proxy-await", "enabled"),
        ("kuma.io/sidecar-injection", "enabled"),
        ("kuma.io/mesh", "default"),
        ("consul.hashicorp.com/connect-inject", "true"),
        ("consul.hashicorp.com/connect-service", "llm"),
        ("dapr.io/enabled", "true"),
        ("dapr.io/app-id", "llm"),
        ("sidecar.opentelemetry.io/inject", "true"),
        ("instrumentation.opentelemetry.io/inject-python", "true"),
        ("sidecar.jaegertracing.io/inject", "true"),
        ("vault.hashicorp.com/agent-inject", "true"),
        ("vault.hashicorp.com/agent-inject-secret-key", "kv/llm"),
        ("openservicemesh.io/sidecar-injection", "enabled"),
        ("appmesh.k8s.aws/sidecarInjectorWebhook", "enabled"),
        ("injector.nsm.nginx.com/auto-inject", "true"),
        ("azure.workload.identity/inject-proxy-sidecar", "true"),
        ("agent.datadoghq.com/sidecar", "fargate"),
        ("injector.example.com/request", "yes"),
        ("example.com/logSidecar", "on"),
    ],
)
@pytest.mark.parametrize("place", ["labels", "annotations"])
def test_a_copy_asks_no_injector_for_a_container(world, build, place, key, value):
    world.target["spec"]["template"]["metadata"][place] |= {key: value, "team": "nlp"}
    kept = build()["spec"]["template"]["metadata"][place]
    assert kept.get(key) in {None, "false", "disabled"}
    assert kept["team"] == "nlp"


def test_where_the_namespace_asks_for_a_proxy_the_copy_declines_by_label_and_annotation(build):
    meta = build()["spec"]["template"]["metadata"]
    assert meta["labels"]["sidecar.istio.io/inject"] == "false"
    assert meta["labels"]["kuma.io/sidecar-injection"] == "disabled"


@pytest.mark.parametrize(("only_before", "kept"), [("true", True), ("false", False), (None, False)])
def test_vaults_agent_stays_if_it_ends_before_the_engine_starts(world, build, only_before, kept):
    asked = {"vault.hashicorp.com/agent-inject": "true", "vault.hashicorp.com/agent-inject-token": ""}
    given = {"vault.hashicorp.com/agent-pre-populate-only": only_before} if only_before else {}
    world.target["spec"]["template"]["metadata"]["annotations"] |= asked | given
    found = build()["spec"]["template"]["metadata"]["annotations"]
    assert (asked.keys() <= found.keys()) is kept


@pytest.mark.parametrize(
    "key", ["gke-gcsfuse/volumes", "operator.example.com/owner", "topology.istio.example/zone"]
)
def test_what_injects_nothing_or_only_a_volume_stays(world, build, key):
    world.target["spec"]["template"]["metadata"]["annotations"][key] = "true"
    assert key in build()["spec"]["template"]["metadata"]["annotations"]


def test_nothing_outlives_the_job(build):
    job = build()
    assert job["spec"]["backoffLimit"] == 0
    assert job["spec"]["activeDeadlineSeconds"] == 1500
    assert job["spec"]["ttlSecondsAfterFinished"] == 600
    rules = job["spec"]["podFailurePolicy"]["rules"]
    assert rules == [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    (owner,) = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["blockOwnerDeletion"]) == ("CalibrationRun", "run-uid", False)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "calibration"


def test_the_driver_talks_to_its_own_pod_with_the_key_by_reference(pod):
    driver = container(pod, "driver")
    env = {entry["name"]: entry for entry in driver["env"]}
    assert env["POD_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert env["BREAKEVEN_URL"]["value"] == "http://$(POD_IP):8001"
    assert list(env).index("POD_IP") < list(env).index("BREAKEVEN_URL"), "only earlier variables are expanded"
    assert env["BREAKEVEN_API_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "chat-key", "key": "token"}}
    trial = json.loads(env["BREAKEVEN_TRIAL"]["value"])
    assert (trial["plan"]["servedModelName"], trial["maxSeconds"]) == ("chat", 500)
    assert driver["resources"]["requests"]["cpu"]
    assert driver["command"] == ["breakeven-operator"]
    assert driver["args"] == ["trial"]
    assert driver["securityContext"]["runAsNonRoot"]


def test_only_the_driver_holds_a_token(pod):
    spec = pod["spec"]
    assert spec["serviceAccountName"] == "breakeven-chat"
    assert spec["automountServiceAccountToken"] is False
    token = next(v["name"] for v in spec["volumes"] if "projected" in v)
    assert any(mount["name"] == token for mount in container(pod, "driver")["volumeMounts"])
    assert all(mount["name"] != token for mount in container(pod, "engine")["volumeMounts"])


def test_a_pod_that_runs_as_root_is_not_forbidden_to(world, build):
    world.target["spec"]["template"]["spec"]["securityContext"] = {"runAsUser": 0}
    assert "runAsNonRoot" not in container(build()["spec"]["template"], "driver")["securityContext"]


def test_a_tls_engine_is_asked_over_https_with_its_own_certificate(world, build):
    engine = world.target["spec"]["template"]["spec"]["containers"][0]
    engine["args"] += ["--ssl-certfile", "/tls/tls.crt", "--ssl-keyfile", "/tls/tls.key"]
    engine["volumeMounts"].append({"name": "tls", "mountPath": "/tls"})
    driver = container(build()["spec"]["template"], "driver")
    env = {entry["name"]: entry.get("value") for entry in driver["env"]}
    assert env["BREAKEVEN_URL"].startswith("https://")
    assert env["BREAKEVEN_CA_FILE"] == "/var/run/breakeven/certificate/tls.crt"
    mount = {"name": "tls", "mountPath": "/var/run/breakeven/certificate", "readOnly": True}
    assert mount in driver["volumeMounts"]


def test_a_key_in_the_arguments_is_not_copied(world, build):
    engine = world.target["spec"]["template"]["spec"]["containers"][0]
    engine["args"][-1] = "--api-key=s3cret"
    with pytest.raises(NotCopyableError) as refusal:
        build()
    assert "s3cret" not in refusal.value.message
    assert "VLLM_API_KEY" in refusal.value.message


@pytest.mark.parametrize(
    ("modes", "copyable"),
    [
        (["ReadWriteOnce"], False),
        (["ReadWriteOncePod"], False),
        (["ReadOnlyMany"], True),
        (["ReadWriteOnce", "ReadWriteMany"], True),
    ],
)
def test_a_volume_that_one_pod_has_is_refused(world, modes, copyable):
    claim = {"metadata": {"name": "weights"}, "spec": {"accessModes": modes}}
    template = world.target["spec"]["template"]
    if copyable:
        podcopy.check_copyable(template["spec"], [claim])
        return
    with pytest.raises(NotCopyableError) as refusal:
        podcopy.check_copyable(template["spec"], [claim])
    assert refusal.value.reason is ClusterReason.VOLUME_NOT_SHAREABLE


def test_claims_of_others_do_not_matter(world):
    claim = {"metadata": {"name": "other"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    podcopy.check_copyable(world.target["spec"]["template"]["spec"], [claim])


def test_a_resource_claim_by_name_is_refused(world):
    template = copy.deepcopy(world.target["spec"]["template"])
    template["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "gpu-0"}]
    with pytest.raises(NotCopyableError, match="gpu-0"):
        podcopy.check_copyable(template["spec"], [])
    template["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    podcopy.check_copyable(template["spec"], [])


def in_shell(world, text, **env):
    """The target's engine, started by the text of a shell."""
    template = copy.deepcopy(world.target["spec"]["template"])
    container = template["spec"]["containers"][0]
    container |= {"command": ["bash", "-c"], "args": [text]}
    container["env"] = [*container["env"], *({"name": name, "value": value} for name, value in env.items())]
    return ServedEngine.of(template, "vllm")


@pytest.mark.parametrize(
    "text",
    [
        "/start.sh",
        "if [ $A ]; then exec vllm serve m; fi",
        "for i in 1 2; do vllm serve m; done",
        "exec vllm serve $(cat /model)",
        "exec vllm serve 'm",
        "bash -c 'exec vllm serve m'",
        pytest.param("exec vllm serve m" + " --x 1" * 1000, id="too long"),
    ],
)
def test_a_shell_whose_text_does_not_show_the_command_line_is_refused(world, text):
    with pytest.raises(NotCopyableError) as refusal:
        podcopy.engine_of(in_shell(world, text))
    assert refusal.value.reason is ClusterReason.ENGINE_UNCLEAR


CONFIG = {"method": "eagle3", "model": 'it\'s $(odd) "x"', "num_speculative_tokens": 3}
TEXTS = [
    "exec vllm serve org/chat-8b",
    "pip list\nexport A=1\nexec vllm serve org/chat-8b --port 8001 \\\n  --seed 1\n",
    "vllm serve org/chat-8b --port $PORT > /dev/null; echo done",
    'exec vllm serve org/chat-8b --speculative-config \'{"method": "ngram", "num_speculative_tokens": 2}\' --seed 1',
    "exec vllm serve org/chat-8b \\\n  --spec-method ngram --spec-tokens 3 \\\n  --seed 1 \\\n  -sc.prompt_lookup_max 4",
    'ulimit -n 9999 && exec vllm serve org/chat-8b --speculative-config "$BREAKEVEN_SPECULATIVE_CONFIG"',
    'é=1; exec vllm serve "org/chät 8b" -sc=null # --speculative-config {}',
]


@pytest.fixture
def by_bash(tmp_path):
    """The words that a real bash hands to vLLM for a text."""
    for program in ("vllm", "pip"):
        path = tmp_path / program
        path.write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" > {tmp_path}/{program}.words\n')
        path.chmod(0o755)

    def words(text: str) -> list[str]:
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PORT": "8001", VARIABLE: ""}
        subprocess.run(["bash", "-c", text], env=environment, check=True)
        return ["vllm", *(tmp_path / "vllm.words").read_text(encoding="utf-8").split("\0")[:-1]]

    return words


@pytest.mark.parametrize("config", [None, CONFIG])
@pytest.mark.parametrize("text", TEXTS)
def test_a_real_shell_hands_an_arms_pod_the_targets_words_and_the_arms_own(world, text, config, by_bash):
    engine = podcopy.engine_of(in_shell(world, text, PORT="8001"))
    assert without_speculation(by_bash(text)) == without_speculation(engine.words)
    sidecar = podcopy.engine_sidecar(engine, config, 60)
    (changed,) = sidecar["args"]
    found = by_bash(changed.replace("$$(", "$("))
    assert without_speculation(found) == without_speculation(engine.words)
    assert speculation(found).config == config
    assert sidecar["command"] == ["bash", "-c"]


def test_names_of_jobs_fit_their_pods_label_and_stay_apart():
    long = "a-very-long-service-name-of-forty-two-char-12345"
    names = {job_name(long, f"candidate-of-24-chars-xy/{k}") for k in (1, 11)}
    assert len(names) == 2
    assert all(len(name) <= 57 for name in names)
    assert job_name("chat-7f3c2", "eagle/7") == "chat-7f3c2-eagle-7"


def test_the_ceiling_asks_no_more_than_the_engine_runs_at_once(world):
    engine = world.target["spec"]["template"]["spec"]["containers"][0]
    assert podcopy.max_concurrency(ServedEngine.of({"spec": {"containers": [engine]}}, None)) == 64
    engine["args"] += ["--max-num-seqs", "16"]
    assert podcopy.max_concurrency(ServedEngine.of({"spec": {"containers": [engine]}}, None)) == 16


def policy(name, labels, *directions):
    spec = {"podSelector": {"matchLabels": labels}, "policyTypes": list(directions)}
    return {"metadata": {"name": name}, "spec": spec}


EGRESS = policy("no-internet", {"app": "chat-vllm"}, "Egress")


@pytest.mark.parametrize(
    ("policies", "open_ways"),
    [
        ((), None),
        ((policy("others", {"app": "web"}, "Ingress", "Egress"),), None),
        ((EGRESS,), "egress"),
        (
            (EGRESS, policy("gateway", {"app": "chat-vllm", "tier": "serving"}, "Ingress")),
            "egress and ingress",
        ),
        # The copy keeps the label, because nothing else selects by it.
        ((policy("team", {"team": "nlp"}, "Egress"),), None),
        ((EGRESS, policy("all", {}, "Egress")), None),
        ((EGRESS, policy("ours", {SERVICE_LABEL: "chat"}, "Egress")), None),
        ((EGRESS, policy("ours", {SERVICE_LABEL: "chat"}, "Ingress")), "egress"),
        # The API server fills this in if no direction is named.
        (
            ({"metadata": {"name": "old"}, "spec": {"podSelector": {"matchLabels": {"app": "chat-vllm"}}}},),
            "ingress",
        ),
    ],
)
def test_a_copy_is_isolated_wherever_its_target_is(build, policies, open_ways):
    if open_ways is None:
        build(policies=policies)
        return
    with pytest.raises(NotCopyableError, match=f"restricts the target's {open_ways} by labels") as refusal:
        build(policies=policies)
    assert refusal.value.reason is ClusterReason.POD_NOT_COPIED
    assert f"selects {SERVICE_LABEL}=chat" in refusal.value.message


def test_a_run_whose_copy_would_leave_a_network_policy_ends_with_the_word(world):
    world.network_policies = (EGRESS,)
    world.turn()
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Failed", "PodNotCopied")
    assert world.most_jobs == 0


def test_the_node_s_ipc_is_refused_with_what_to_do(world):
    template = world.target["spec"]["template"]
    template["spec"]["hostIPC"] = True
    with pytest.raises(NotCopyableError, match="emptyDir of medium Memory"):
        podcopy.check_copyable(template["spec"], [])


@pytest.mark.parametrize("source", ["serviceAccountToken", "podCertificate"])
def test_a_credential_of_the_targets_account_is_refused(world, source):
    template = world.target["spec"]["template"]
    template["spec"]["volumes"].append({"name": "vault", "projected": {"sources": [{source: {"path": "t"}}]}})
    with pytest.raises(NotCopyableError, match="volume vault of the target holds a token or certificate"):
        podcopy.check_copyable(template["spec"], [])


def test_variables_of_the_engine_reach_the_driver_under_names_that_no_interpreter_reads(world, build):
    engine = world.target["spec"]["template"]["spec"]["containers"][0]
    engine["args"].pop()
    engine["envFrom"] = [
        {"secretRef": {"name": "keys"}},
        {"prefix": "VLLM_", "configMapRef": {"name": "more"}},
    ]
    driver = container(build()["spec"]["template"], "driver")
    assert driver["envFrom"] == [
        {"secretRef": {"name": "keys"}, "prefix": "BREAKEVEN_ENGINE_"},
        {"configMapRef": {"name": "more"}, "prefix": "BREAKEVEN_ENGINE_VLLM_"},
    ]
    told = {entry["name"]: entry.get("value", "llm") for entry in driver["env"]}
    trial = TrialEnvironment.read({**told, "BREAKEVEN_ENGINE_VLLM_API_KEY": "s3cret"})
    assert trial.endpoint.api_key == "s3cret"


@pytest.mark.parametrize(
    ("mounts", "place", "read"),
    [
        (
            [{"name": "weights", "mountPath": "/"}, {"name": "tls", "mountPath": "/tls/"}],
            {"name": "tls", "mountPath": "/var/run/breakeven/certificate", "readOnly": True},
            "/var/run/breakeven/certificate/tls.crt",
        ),
        (
            [{"name": "tls", "mountPath": "/tls/tls.crt", "subPath": "tls.crt"}],
            {
                "name": "tls",
                "mountPath": "/var/run/breakeven/certificate/tls.crt",
                "subPath": "tls.crt",
                "readOnly": True,
            },
            "/var/run/breakeven/certificate/tls.crt",
        ),
        ([{"name": "other", "mountPath": "/tlsx"}], None, "/tls/tls.crt"),
    ],
)
def test_the_engine_s_certificate_lies_where_it_hides_no_program(world, build, mounts, place, read):
    engine = world.target["spec"]["template"]["spec"]["containers"][0]
    engine["args"] += ["--ssl-certfile", "/tls/tls.crt"]
    engine["volumeMounts"] = mounts
    driver = container(build()["spec"]["template"], "driver")
    env = {entry["name"]: entry.get("value") for entry in driver["env"]}
    assert env["BREAKEVEN_CA_FILE"] == read
    assert [mount for mount in driver["volumeMounts"] if mount["name"] != "breakeven-token"] == (
        [place] if place else []
    )


def test_drivers_run_under_the_restricted_pod_security_standard(pod, world, settings):
    cron = schedule_job(world.service, settings)["spec"]["jobTemplate"]["spec"]["template"]["spec"][
        "containers"
    ]
    for driver in (container(pod, "driver"), *cron):
        context = driver["securityContext"]
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["runAsNonRoot"] is True
