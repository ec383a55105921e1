"""A target's kind, its running arm, and the reasons why it is refused."""

from __future__ import annotations

import copy
import dataclasses
import json
from types import SimpleNamespace

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven_operator.resources import SpeculativeServiceSpec
from breakeven_operator.workloads.running_arm import arm_of_value, pods_by_arm, running_arm, same_value
from breakeven_operator.workloads.target import older_claim, refuse_rolls, refuse_target
from fakes.fleet_world import EAGLE, GPU, SERVICE, VALUE, FleetWorld

SPEC = SpeculativeServiceSpec.read(SERVICE["spec"], "spec")


def unchanged(_target):
    """The target as it is."""


def deployment(edit=unchanged, value=None):
    def both(target):
        edit(target)
        if value is not None:
            target["spec"]["template"]["metadata"]["annotations"]["breakeven.dev/speculative-config"] = value

    return FleetWorld(target=both).target


def container(target):
    return target["spec"]["template"]["spec"]["containers"][0]


def args(*items):
    return lambda target: container(target).update(args=list(items))


@pytest.mark.parametrize("value", ["null", "", "None", " null "])
def test_every_word_for_nothing_is_no_speculation(value):
    assert arm_of_value(value, SPEC.candidates).arm == NO_SPECULATION


def test_an_arm_is_known_by_meaning_and_not_by_spelling():
    spelled = json.dumps(dict(reversed(json.loads(VALUE).items())), indent=1)
    assert arm_of_value(spelled, SPEC.candidates).arm == EAGLE
    assert same_value(spelled, VALUE)
    assert not same_value("null", VALUE)
    assert same_value(None, "null")


@pytest.mark.parametrize(
    ("config", "arm"),
    [
        ({"method": "eagle3", "model": "org/another", "num_speculative_tokens": 3}, Arm("eagle3", 3)),
        ({"model": "org/EAGLE3-head", "num_speculative_tokens": 3}, Arm("eagle3", 3)),
        ({"model": "org/small", "num_speculative_tokens": 3}, Arm("draft_model", 3)),
        ({"method": "deepseek_mtp"}, Arm("mtp", 1)),
        ({"method": "suffix"}, Arm("suffix", 24)),
        ({"method": "eagle3", "model": "org/another"}, Arm("eagle3", 1)),
    ],
)
def test_a_configuration_of_nobody_is_named_as_vllm_takes_it(config, arm):
    assert arm_of_value(json.dumps(config), SPEC.candidates).arm == arm


def test_text_that_is_no_json_is_a_problem_and_not_an_arm():
    found = arm_of_value("{eagle", SPEC.candidates)
    assert found.arm is None
    assert found.problem


@pytest.mark.parametrize(
    ("items", "arm"),
    [
        (["org/model"], NO_SPECULATION),
        (["org/model", f"--speculative-config={VALUE}"], EAGLE),
        (["org/model", "--speculative-config", VALUE], EAGLE),
        (["org/model", "-sc", VALUE], EAGLE),
        (["org/model", "--speculative_config", VALUE], EAGLE),
        (["org/model", "--spec-method=eagle3", "--spec-model", "org/head", "--spec-tokens", "3"], EAGLE),
        (
            [
                "org/model",
                "--speculative-config.method=eagle3",
                "--speculative-config.model=org/head",
                "--speculative-config.num_speculative_tokens",
                "3",
            ],
            EAGLE,
        ),
        (["org/model", "--speculative-config", "null"], NO_SPECULATION),
        (["org/model", "--spec-method", "ngram", "--spec-tokens=4"], Arm("ngram", 4)),
    ],
)
def test_a_static_configuration_is_the_running_arm(items, arm):
    found = running_arm(deployment(args(*items)), SPEC.candidates)
    assert (found.arm, found.source) == (arm, "Arguments")


def test_the_annotation_is_read_only_where_it_is_opted_in():
    assert running_arm(deployment(value=VALUE), SPEC.candidates).arm == EAGLE
    assert running_arm(deployment(args("org/model"), value=VALUE), SPEC.candidates).arm == NO_SPECULATION
    assert running_arm(deployment(), SPEC.candidates).source == "Unset"


def refusal(edit=unchanged, **changes):
    found = deployment(edit)
    arguments = {
        "workload": found,
        "managed_by": None,
    }
    refused = refuse_target(SPEC, **(arguments | changes))
    return refused.reason if refused else None


def shell(target):
    container(target).update(command=["sh", "-c"], args=["/start.sh org/model"])


def in_text(text):
    return lambda target: container(target).update(command=["sh", "-c"], args=[text])


def two_containers(target):
    target["spec"]["template"]["spec"]["containers"].append({"name": "other", "image": "vllm/other"})


def without_model(target):
    container(target).update(args=["--port=8000"])


def test_refusals_of_a_target_have_one_reason_each():
    assert refusal() is None
    assert refusal(workload=None) == "TargetNotFound"
    assert refusal(managed_by="older") == "AlreadyManaged"
    for edit, words in (
        (shell, "through a shell"),
        (two_containers, "several containers and not exactly one"),
        (without_model, "names no model"),
    ):
        assert refusal(edit) == "EngineUnclear"
        assert words in refuse_target(SPEC, deployment(edit), None).message
    assert refusal(in_text('exec vllm serve org/model --host "$(hostname)"')) is None, "looking needs no more"
    assert refusal(args("org/model", "--speculative-config={x")) == "EngineConfigRefused"


def of_classes(*products):
    """The target with a serving pod on a node of each class; an empty one has no label."""
    found = deployment()
    (pod, *_) = found.serving
    pods = tuple(
        dataclasses.replace(pod, name=f"pod-{place}", gpu_product=product)
        for place, product in enumerate(products)
    )
    named = tuple(sorted(filter(None, set(products))))
    return dataclasses.replace(found, pods=pods, gpu_products=named)


def test_a_target_on_several_gpu_classes_is_refused_and_told_to_split():
    mixed = of_classes("B", "A", "B")
    refused = refuse_target(SPEC, mixed, None)
    assert refused.reason == "TargetRefused"
    assert "run on A and B" in refused.message
    assert "make one Deployment per GPU class, each with a nodeSelector" in refused.message
    assert mixed.proven_identity is None, "neither class speaks for the other"
    assert refusal(workload=of_classes("A", "B", "")) == "TargetRefused"


def test_a_gpu_class_must_be_known():
    assert refusal(workload=of_classes("", "")) == "GpuClassUnknown"
    # Labels of a new node come late: the class of the others is taken for its own.
    labelled = of_classes("A", "A", "")
    assert refusal(workload=labelled) is None
    assert labelled.proven_identity.gpu_product == "A"


def test_pods_that_do_not_stay_make_no_class_of_their_own():
    """During a roll to other nodes the profile of the pods of the newest template counts."""
    two = of_classes("A", "B")
    for gone in ({"current": False}, {"terminating": True}):
        old = dataclasses.replace(two.pods[0], **gone)
        rolling = dataclasses.replace(two, pods=(old, two.pods[1]))
        assert refusal(workload=rolling) is None
        assert rolling.proven_identity.gpu_product == "B"


def test_a_pod_that_is_not_ready_yet_makes_a_class():
    """Else a target that flaps would be taken and refused in turn."""
    two = of_classes("A", "B")
    starting = dataclasses.replace(two.pods[0], ready_since=None)
    assert refusal(workload=dataclasses.replace(two, pods=(starting, two.pods[1]))) == "TargetRefused"


def roll_refusal(edit, spec=SPEC):
    refused = refuse_rolls(spec, deployment(edit))
    return refused.reason if refused else None


def owned(target):
    target["metadata"]["ownerReferences"] = [
        {"kind": "LLMInferenceService", "name": "x", "uid": "u", "controller": True}
    ]


def paused(target):
    target["spec"]["paused"] = True


def no_drain(target):
    container(target)["args"] = [item for item in container(target)["args"] if "shutdown" not in item]


def short_grace(target):
    target["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 120


def no_pre_stop(target):
    container(target).pop("lifecycle")


def static_beside(target):
    container(target)["args"] += ["--spec-method", "ngram"]


def test_refusals_of_rolls_have_one_reason_each():
    assert roll_refusal(unchanged) is None
    assert roll_refusal(owned) == "TargetOwned"
    assert roll_refusal(paused) == "TargetPaused"
    assert roll_refusal(args("org/model")) == "NotOptedIn"
    assert roll_refusal(static_beside) == "NotOptedIn"
    assert "remove under " in refuse_rolls(SPEC, deployment(static_beside)).message
    for edit in (no_drain, short_grace, no_pre_stop):
        assert roll_refusal(edit) == "DrainNotConfigured"


TRANSFER = {
    "NixlConnector": True,
    "P2pNcclConnector": True,
    "MultiConnector": True,
    "LMCacheConnectorV1": False,
    "OffloadingConnector": False,
}


@pytest.mark.parametrize(("connector", "pair"), TRANSFER.items())
def test_an_engine_that_hands_caches_on_is_refused_in_every_mode(connector, pair):
    """A restarted pod leaves stale connections at the other end, whatever the method."""

    def transferring(target):
        said = json.dumps({"kv_connector": connector, "kv_role": "kv_both"})
        container(target)["args"] += ["--kv-transfer-config", said]

    assert refusal(transferring) == ("TargetRefused" if pair else None)


OFFLOAD, NIXL = (
    {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"},
    {"kv_connector": "NixlConnector"},
)


@pytest.mark.parametrize(
    ("config", "pair"),
    [
        ({"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"connectors": found}}, pair)
        for found, pair in (([OFFLOAD, OFFLOAD], False), ([NIXL, OFFLOAD], True), ("x", True), ([1], True))
    ]
    + [
        ({"kv_connector": "MultiConnector", "kv_role": "kv_both"}, True),
        ({**OFFLOAD, "kv_role": "kv_consumer"}, True),
        ({**NIXL, "kv_role": "kv_producer"}, True),
        ({"kv_connector": "MooncakeConnector", "kv_role": "kv_consumer"}, True),
        ({"kv_connector": "LMCacheConnectorV1"}, False),
        ([], True),
    ],
)  # fmt: skip
def test_only_an_engine_that_keeps_its_own_caches_is_taken(config, pair):
    def transferring(target):
        container(target)["args"] += [f"--kv-transfer-config={json.dumps(config)}"]

    assert refusal(transferring) == ("TargetRefused" if pair else None)


def test_an_offload_with_a_role_is_half_of_a_pair():
    def producing(target):
        container(target)["args"] += [
            '--kv-transfer-config={"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_producer"}'
        ]

    assert refusal(producing) == "TargetRefused"
    assert (
        "the engines at the other end keep connections"
        in refuse_target(SPEC, deployment(producing), None).message
    )


def test_loss_can_be_accepted_and_recommend_needs_nothing():
    spec = copy.deepcopy(SERVICE["spec"])
    spec["updatePolicy"]["drain"] = "AcceptLoss"
    assert roll_refusal(no_drain, SpeculativeServiceSpec.read(spec, "spec")) is None
    spec["updatePolicy"] = {"mode": "Recommend"}
    assert roll_refusal(args("org/model"), SpeculativeServiceSpec.read(spec, "spec")) is None


def test_the_older_service_keeps_its_target():
    young, old = ("2026-01-02", "u2", "young"), ("2026-01-01", "u1", "old")
    assert older_claim([young, old], young) == "old"
    assert older_claim([young, old], old) is None
    assert older_claim([], old) is None


def fingerprint(edit=unchanged, value=None):
    return deployment(edit, value).identity.fingerprint


def annotated(target):
    target["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = "now"


def scaled(target):
    target["spec"]["replicas"] = 3


def with_sidecar(target):
    target["spec"]["template"]["spec"]["containers"].append(
        {"name": "proxy", "image": "envoy", "resources": {"limits": {"cpu": "1"}}}
    )
    container(target)["image"] = "vllm/vllm-openai:v0.32.0"


def two_gpus(target):
    container(target)["resources"] = {"limits": {"nvidia.com/gpu": 2}}


@pytest.mark.parametrize("edit", [annotated, scaled, with_sidecar])
def test_what_does_not_move_latency_does_not_recalibrate(edit):
    assert fingerprint(edit) == fingerprint()


def test_neither_does_the_arm():
    assert fingerprint(value=VALUE) == fingerprint(value="null") == fingerprint()
    static = fingerprint(args("org/model", "--served-model-name=chat", f"--speculative-config={VALUE}"))
    assert static == fingerprint(args("org/model", "--served-model-name=chat"))


def test_another_number_of_gpus_does():
    assert fingerprint(two_gpus) != fingerprint()


def test_identity_names_what_is_measured():
    identity = deployment().identity
    assert (identity.model, identity.served_model, identity.gpu_product, identity.gpus) == (
        "org/model",
        "chat",
        GPU,
        1,
    )


def test_pods_are_counted_by_arm_and_each_value_is_read_once(monkeypatch):
    eagle = SPEC.candidates.speculative_config(EAGLE)
    spelled = json.dumps(json.loads(eagle), indent=1)
    values = [eagle, eagle, spelled, "null", None, "{eagle", eagle]
    read = []
    monkeypatch.setattr(
        "breakeven_operator.workloads.running_arm.arm_of_value",
        lambda value, candidates: read.append(value) or arm_of_value(value, candidates),
    )
    found = pods_by_arm([SimpleNamespace(value=value) for value in values], SPEC.candidates)
    assert found == {EAGLE: 4, NO_SPECULATION: 2, None: 1}
    assert len(read) == len(set(values)), "hundreds of pods have two values"
