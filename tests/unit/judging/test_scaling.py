"""Who scales the target, how many replicas it needs, and the sentence about it."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.profile import Profile
from breakeven.profile.credit import with_steps_times
from breakeven.serving.counted_window import Load
from breakeven.serving.growths import engine_limits
from breakeven_operator.case import Case, Live
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.judging.scaling import with_capacity
from breakeven_operator.observing.questions import seen_of
from breakeven_operator.resources import SpeculativeService, SpeculativeServiceSpec
from breakeven_operator.resources.memorystatus import LiveEvidence, MemoryStatus, SeenAcceptance
from breakeven_operator.resources.updatepolicy import PRODUCTION
from breakeven_operator.step import RolloutContext
from breakeven_operator.workloads.known import DEPLOYMENT as KIND
from breakeven_operator.workloads.running_arm import RunningArm
from breakeven_operator.workloads.workload import NearbyObjects, Workload, observe
from fakes.cases import CHAT
from fakes.fleet_world import EAGLE, SERVICE, TARGET, VALUE, profile_json

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
PROFILE = Profile.from_json(profile_json())
FIGURES = Load(
    rps=8.0, total_rps=24.0, requests=500.0, window_s=300.0, inflight=10.0, latency_s=1.2, ttft_s=None,
    tpot_s=None, tokens_per_step=None, prompt_tokens=200.0, output_tokens=100.0, saturated=False, replicas=3,
    age_s=1.0,
)  # fmt: skip
NONE_RUNS = RunningArm(NO_SPECULATION, "Annotation")
SCALED = {
    "manager": "kube-controller-manager",
    "operation": "Update",
    "subresource": "scale",
    "fieldsV1": {"f:spec": {"f:replicas": {}}},
}


def deployment(*managed: dict[str, Any], edit=lambda _: None) -> Workload:
    manifest = copy.deepcopy(TARGET)
    manifest["metadata"] |= {"uid": "u", "managedFields": list(managed)}
    edit(manifest)
    return observe(KIND, manifest, NearbyObjects(), container_name=None, gpu_label="gpu", now=NOW)


def pod(value: str | None, **changes: Any) -> Any:
    return SimpleNamespace(value=value, terminating=False, **changes)


def need(
    figures: Load | None = FIGURES,
    running: RunningArm = NONE_RUNS,
    target: Workload | None = None,
    memory: MemoryStatus | None = None,
    profile: Profile | None = PROFILE,
    **slo: int,
) -> Any:
    """A case with what its target is found to need."""
    spec = SpeculativeServiceSpec.read(SERVICE["spec"] | {"slo": slo or {"e2eP95Milliseconds": 2000}}, "spec")
    live = Live(ClusterReason.METRICS_AVAILABLE, "", figures)
    target = target or deployment()
    assert target.engine is not None
    can = engine_limits(target.engine.words, None, ())
    context = RolloutContext(
        PRODUCTION,
        target,
        memory or MemoryStatus(),
        None,
        may_write=True,
        startup_s=None,
        now=NOW,
        service=CHAT,
    )
    service = SpeculativeService.read(SERVICE, "service").replace(spec=spec)
    return with_capacity(Case(service, context, SimpleNamespace(profile=profile), running, live, can))


def recommended(*given: Any, **changes: Any) -> int | None:
    found = need(*given, **changes).capacity
    return found.recommended_replicas if found is not None else None


@pytest.mark.parametrize(
    ("entry", "manager"),
    [
        (SCALED, "kube-controller-manager"),
        (SCALED | {"manager": "keda-operator"}, "keda-operator"),
        (SCALED | {"manager": "kubectl"}, None),
        (SCALED | {"subresource": ""}, None),
        (SCALED | {"subresource": "status"}, None),
        (SCALED | {"fieldsV1": {"f:spec": {"f:paused": {}}}}, None),
        (SCALED | {"fieldsV1": None}, None),
    ],
)
def test_an_autoscaler_is_told_from_managed_fields_alone(entry, manager) -> None:
    """`kubectl scale` writes the same subresource, the Deployment controller as the same manager: neither scales by load."""
    assert deployment(entry).scaled_by == manager


def test_the_replicas_recommended_carry_the_whole_fleet_s_load() -> None:
    found = need()
    none = next(one for one in found.capacity.arms if one.arm == "none")
    assert found.capacity.recommended_replicas == -(-1.2 * 24.0 // none.lower_rps)
    assert found.fewest is not None
    assert set(found.fewest.needs) == {NO_SPECULATION, EAGLE}


def test_a_scaled_target_is_told_which_arm_needs_fewest_replicas() -> None:
    """With 10 s to answer in, none has a capacity of 18 rps, and eagle/3, which is faster at today's load, of 11.9."""
    found = need(
        target=deployment(SCALED), running=RunningArm(EAGLE, "Annotation"), e2eP95Milliseconds=10_000
    )
    status = found.capacity
    assert status is not None
    assert status.scaled_by == "kube-controller-manager"
    assert status.message is not None
    assert status.message.startswith(
        "kube-controller-manager scales the target, so the arm that needs fewest replicas is the one to run; for 24 rps no speculation"
        " needs 2 replicas"
    )


@pytest.mark.parametrize(
    "unknown",
    [
        {"figures": None},
        {"figures": replace(FIGURES, window_s=100.0)},
        {"running": RunningArm(None, "Annotation", "bad JSON")},
        {"profile": None},
        {"profile": replace(PROFILE, arms=())},
        {"e2eP95Milliseconds": 100},
        {"tpotP95Milliseconds": 40},
    ],
)
def test_what_is_not_known_is_not_recommended(unknown) -> None:
    """No load (pods too young among it), no arm, no capacity, none above 0, or an objective that nothing was measured of."""
    assert recommended(**unknown) is None


def test_few_requests_are_a_load_too() -> None:
    assert recommended(replace(FIGURES, total_rps=0.01, requests=2.0)) == 1


def test_during_a_roll_the_arm_that_carries_least_counts() -> None:
    both = replace(deployment(), pods=(pod(None), pod(VALUE)))
    assert [recommended(target=target, e2eP95Milliseconds=10_000) for target in (deployment(), both)] == [
        2,
        3,
    ]
    unread = replace(deployment(), pods=(pod(None), pod("{")))
    assert recommended(target=unread) is None


def test_live_acceptance_moves_the_capacity_as_it_moves_the_prediction() -> None:
    def eagle(memory: MemoryStatus) -> float:
        return next(one.capacity_rps for one in need(memory=memory).capacity.arms if one.arm == EAGLE.name)

    lost = MemoryStatus(seen=(SeenAcceptance(arm="eagle/3", tokens_per_step=1.5),))
    assert eagle(lost) < eagle(MemoryStatus())


def test_the_batch_of_the_command_line_bounds_what_is_carried() -> None:
    def few(manifest: dict[str, Any]) -> None:
        manifest["spec"]["template"]["spec"]["containers"][0]["args"].append("--max-num-seqs=4")

    limited = need(target=deployment(edit=few)).capacity
    assert {one.limit for one in limited.arms} == {"MaxNumSeqs"}
    assert limited.recommended_replicas > recommended()


def test_nothing_known_leaves_no_status() -> None:
    assert need(profile=None).capacity is None
    only_who = need(profile=None, target=deployment(SCALED)).capacity
    assert only_who is not None
    assert (only_who.scaled_by, only_who.arms) == ("kube-controller-manager", ())


def test_what_was_seen_live_survives_a_restart_with_its_scatter():
    """A drafter that no longer runs shows no acceptance: other draft lengths still need its survival per position."""
    eagle = Arm("eagle3", 3, "eagle")
    status = MemoryStatus(
        seen=(SeenAcceptance(arm="eagle/3", tokens_per_step=1.9, relative_scatter=0.1, accept=(0.6, 0.3)),)
    )
    read = MemoryStatus.read(status.to_json_object(), "x")
    (found,) = seen_of(read, {"eagle/3": eagle})
    assert (found.arm, found.tokens_per_step, found.survival) == (eagle, 1.9, (0.6, 0.3))
    assert found.relative_scatter == pytest.approx(0.1)


def evidence_of(factor: float, precision: float = 100.0) -> MemoryStatus:
    """Live latency of eagle/3 that is so many times what its law says, alone and among others."""
    pull = precision * math.log(factor)
    seen = LiveEvidence(
        arm=EAGLE.name, time=NOW, precision_alone=precision, precision_both=0.0, precision_company=precision,
        pull_alone=pull, pull_company=pull,
    )  # fmt: skip
    return MemoryStatus(evidence=(seen,))


def eagle_runs(memory: MemoryStatus | None = None, profile: Profile = PROFILE) -> Any:
    return need(
        running=RunningArm(EAGLE, "Annotation"), memory=memory, profile=profile, e2eP95Milliseconds=10_000
    ).capacity


@pytest.mark.parametrize("factor", [1.3, 1.5, 1.7, 2.27, 3.0, 4.0])
def test_once_measured_latency_excludes_the_promise_capacity_and_replicas_are_those_of_the_measurement(
    factor: float,
) -> None:
    found, promised = eagle_runs(evidence_of(factor)), eagle_runs()
    assert found.arms == eagle_runs(profile=with_steps_times(PROFILE, EAGLE, factor)).arms
    none, eagle = found.arms
    assert none == promised.arms[0], "it was not measured"
    assert eagle.capacity_rps < promised.arms[1].capacity_rps / factor**0.5
    assert found.recommended_replicas > promised.recommended_replicas


@pytest.mark.parametrize(
    "memory",
    [evidence_of(0.3), evidence_of(0.9), evidence_of(1.0), evidence_of(1.1), evidence_of(1.15), evidence_of(3.0, 0.1)],
    ids=["much faster", "faster", "as promised", "a little slower", "as slow as profiles err", "one window that says little"],
)  # fmt: skip
def test_latency_that_excludes_no_promise_leaves_the_capacity_alone(memory: MemoryStatus) -> None:
    """A request that is faster alone proves no larger load: only a rate that is carried does."""
    assert eagle_runs(memory) == eagle_runs()
