"""/metrics says what the status says, and nothing about services that are gone."""

from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from breakeven.reasons import Reason
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.serve.health import Health, serve
from breakeven_operator.serve.telemetry import SERVICE_COUNTERS, SERVICE_GAUGES, Telemetry
from fakes.manual_clock import FakeClock
from fakes.notes import notes_of

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def service(name="chat", **status):
    return SpeculativeService.read(
        {
            "metadata": {"name": name, "namespace": "llm"},
            "spec": {
                "targetRef": {"name": "chat-vllm"},
                "candidates": {"methods": [{"name": "eagle", "method": "eagle3", "model": "o/h"}]},
            },
            "status": status,
        },
        name,
    )


FULL: dict[str, Any] = {
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Watching",
            "lastTransitionTime": "2026-11-21T11:00:00Z",
        }
    ],
    "target": {"gpuProduct": "A100", "replicas": 3},
    "current": {"arm": "eagle/7", "draftLength": 7},
    "calibration": {"profile": "chat-v3", "profileTime": "2026-11-21T11:00:00Z"},
    "rollout": {"id": "r1"},
    "history": [
        {"time": "2026-11-21T11:40:00Z", "result": "Superseded"},
        {
            "time": "2026-11-21T11:30:00Z",
            "result": "Confirmed",
            "fromArm": "none",
            "toArm": "eagle/7",
            "predictedSpeedup": "1.82",
            "measuredSpeedup": "1.71",
            "measuredSpeedupLower": "1.55",
            "measuredSpeedupUpper": "1.88",
        },
    ],
    "capacity": {
        "arms": [
            {"arm": "none", "capacityRps": "5.1", "lowerRps": "4.9", "upperRps": "5.3"},
            {"arm": "eagle/7", "capacityRps": "7.5"},
        ],
        "recommendedReplicas": 4,
        "scaledBy": "kube-controller-manager",
    },
    "decision": {
        "time": "2026-11-21T11:59:58Z",
        "arm": "eagle/2",
        "comparedArm": "eagle/7",
        "profile": "chat-p1",
        "speedup": "1.82",
        "speedupLower": "1.74",
        "speedupUpper": "1.9",
        "c1Ratio": "0.48",
        "c2Ratio": "1.48",
        "breakEvenRps": "8.9",
        "breakEvenLowerRps": "8.4",
        "loadRps": "3.1",
        "expectedPeakRps": "11.5",
        "inflight": "2.2",
        "utilization": "0.13",
        "tokensPerStep": "3.4",
        "observedLatencySeconds": "0.61",
        "predictedLatencySeconds": "0.6",
        "evidenceTime": "2026-11-21T11:59:50Z",
    },
}


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def telemetry(registry):
    return Telemetry(registry)


def sample(registry, name, **labels):
    return registry.get_sample_value(name, {"specsvc_namespace": "llm", "specsvc": "chat", **labels})


def test_the_series_of_a_full_status(registry, telemetry):
    telemetry.fleet.publish([service(**FULL)], NOW)
    arm = {"arm": "eagle/7"}
    assert (
        sample(
            registry,
            "breakeven_service_info",
            mode="Recommend",
            target="Deployment/chat-vllm",
            gpu_product="A100",
            opted_in="",
        )
        == 1
    )
    assert sample(registry, "breakeven_paused") == 0
    assert sample(registry, "breakeven_stale") == 0
    assert sample(registry, "breakeven_current_arm_info", **arm) == 1
    assert sample(registry, "breakeven_current_draft_tokens") == 7
    assert sample(registry, "breakeven_recommended_arm_info", arm="eagle/2") == 1
    assert sample(registry, "breakeven_speedup_ratio", bound="estimate", **arm) == 1.82
    assert sample(registry, "breakeven_speedup_ratio", bound="lower", **arm) == 1.74
    assert sample(registry, "breakeven_speedup_ratio", bound="upper", **arm) == 1.9
    roll = {"from_arm": "none", "to_arm": "eagle/7", "result": "Confirmed"}
    found = [
        sample(registry, "breakeven_roll_speedup", figure=figure, bound=bound, **roll)
        for figure in ("promised", "measured")
        for bound in ("estimate", "lower", "upper")
    ]
    assert found == [1.82, None, None, 1.71, 1.55, 1.88]
    assert sample(registry, "breakeven_roll_timestamp_seconds", from_arm="none", to_arm="eagle/7") is not None
    assert sample(registry, "breakeven_c1_ratio", **arm) == 0.48
    assert sample(registry, "breakeven_c2_ratio", bound="estimate", **arm) == 1.48
    assert sample(registry, "breakeven_break_even_requests_per_second", bound="estimate", **arm) == 8.9
    assert sample(registry, "breakeven_break_even_requests_per_second", bound="lower", **arm) == 8.4
    assert sample(registry, "breakeven_load_requests_per_second") == 3.1
    assert sample(registry, "breakeven_expected_peak_requests_per_second") == 11.5
    assert sample(registry, "breakeven_capacity_requests_per_second", arm="none", bound="lower") == 4.9
    assert sample(registry, "breakeven_capacity_requests_per_second", arm="none", bound="upper") == 5.3
    assert sample(registry, "breakeven_capacity_requests_per_second", bound="estimate", **arm) == 7.5
    assert sample(registry, "breakeven_recommended_replicas") == 4
    assert sample(registry, "breakeven_target_replicas", scaled_by="kube-controller-manager") == 3
    assert sample(registry, "breakeven_inflight_requests") == 2.2
    assert sample(registry, "breakeven_utilization_ratio") == 0.13
    assert sample(registry, "breakeven_tokens_per_step") == 3.4
    assert sample(registry, "breakeven_observed_latency_seconds") == 0.61
    assert sample(registry, "breakeven_predicted_latency_seconds") == 0.6
    assert sample(registry, "breakeven_evidence_timestamp_seconds") == NOW.timestamp() - 10
    assert sample(registry, "breakeven_decision_timestamp_seconds") == NOW.timestamp() - 2
    assert sample(registry, "breakeven_profile_age_seconds") == 3600
    assert sample(registry, "breakeven_rollout_in_progress") == 1


def test_the_account_of_the_model_has_its_series(registry, telemetry):
    model = {
        "arm": "eagle/3",
        "latencyRatio": "1.41",
        "latencyRatioLower": "1.38",
        "measuredSpeedup": "1.2",
        "measuredSpeedupUpper": "1.3",
        "survival": [
            {"position": 1, "liveAccept": "0.57", "calibratedAccept": "0.92"},
            {"position": 2, "liveAccept": "0.3"},
        ],
    }

    def said(type_: str, status: str, reason: str) -> dict[str, str]:
        return {
            "type": type_,
            "status": status,
            "reason": reason,
            "lastTransitionTime": "2026-11-21T11:00:00Z",
        }

    conditions = [
        said("ModelAgrees", "False", "RollDisproved"),
        said("AcceptanceAsCalibrated", "True", "ModelAgrees"),
        said("LengthsAsCalibrated", "Unknown", "ModelUntested"),
    ]
    telemetry.fleet.publish([service(model=model, conditions=conditions)], NOW)
    arm = {"arm": "eagle/3"}
    assert sample(registry, "breakeven_model_error_ratio", bound="estimate", **arm) == 1.41
    assert sample(registry, "breakeven_model_error_ratio", bound="lower", **arm) == 1.38
    assert sample(registry, "breakeven_model_error_ratio", bound="upper", **arm) is None
    assert sample(registry, "breakeven_measured_speedup_ratio", bound="upper", **arm) == 1.3
    assert sample(registry, "breakeven_draft_survival_ratio", position="1", seen="live", **arm) == 0.57
    assert sample(registry, "breakeven_draft_survival_ratio", position="1", seen="calibrated", **arm) == 0.92
    assert sample(registry, "breakeven_draft_survival_ratio", position="2", seen="calibrated", **arm) is None
    assert sample(registry, "breakeven_doubt", reason="RollDisproved") == 1, "the word is what was measured"
    assert sample(registry, "breakeven_doubt", reason="AcceptanceDrifted") == 0
    assert sample(registry, "breakeven_doubt", reason="LengthsDrifted") is None


def test_what_is_not_known_has_no_series_rather_than_zero(registry, telemetry):
    telemetry.fleet.publish([service(**FULL)], NOW)
    # An open bound.
    assert sample(registry, "breakeven_break_even_requests_per_second", bound="upper", arm="eagle/7") is None
    assert sample(registry, "breakeven_capacity_requests_per_second", bound="lower", arm="eagle/7") is None
    telemetry.fleet.publish([service()], NOW)
    known = {
        gauge.name
        for gauge in SERVICE_GAUGES
        if b"\n" + gauge.name.encode() + b"{" in generate_latest(registry)
    }
    assert known == {
        "breakeven_service_info",
        "breakeven_stale",
        "breakeven_paused",
        "breakeven_rollout_in_progress",
    }


def test_replicas_of_an_earlier_cycle_are_not_recommended(registry, telemetry):
    """Somebody scales by them; a defect of the operator must not hold a fleet at the size of an hour ago."""
    defect = {**FULL["conditions"][0], "status": "False", "reason": "InternalError"}
    telemetry.fleet.publish([service(**{**FULL, "conditions": [defect]})], NOW)
    assert sample(registry, "breakeven_stale") == 1
    assert sample(registry, "breakeven_recommended_replicas") is None


@pytest.mark.parametrize(
    ("saturated", "value"), [(["eagle/7"], 0.0), (["none"], None), (["eagle/7", "none"], None), ([], 1.82)]
)
def test_a_saturated_arm_is_a_speedup_of_zero_to_the_alert(registry, telemetry, saturated, value):
    """The status names it and has no speedup then; the rule compares numbers."""
    decision = {**FULL["decision"], "saturatedArms": saturated}
    if saturated:
        for key in ("speedup", "speedupLower", "speedupUpper"):
            del decision[key]
    telemetry.fleet.publish([service(**{**FULL, "decision": decision})], NOW)
    found = sample(registry, "breakeven_speedup_ratio", bound="estimate", arm="eagle/7")
    assert found == value


def test_a_service_that_is_gone_takes_its_series_along(registry, telemetry):
    chat, code = service(**FULL), service("code", **FULL)
    telemetry.fleet.publish([chat, code], NOW)
    telemetry.decided(chat, "Stay", Reason.BELOW_BREAK_EVEN)
    telemetry.decided(code, "Hold", ClusterReason.METRICS_STALE)
    telemetry.fleet.publish([code], NOW)
    page = generate_latest(registry)
    assert b'specsvc="chat"' not in page
    assert b'breakeven_decisions_total{action="Hold",reason="MetricsStale",specsvc="code"' in page


def test_counters_add_up(registry, telemetry):
    chat = service()
    telemetry.fleet.publish([chat], NOW)
    for _ in range(3):
        telemetry.decided(chat, "Hold", ClusterReason.METRICS_STALE)
    telemetry.fleet.count("breakeven_calibration_gpu_seconds", chat, by=12.5)
    telemetry.fleet.count("breakeven_calibration_gpu_seconds", chat, by=0.5)
    assert sample(registry, "breakeven_decisions_total", action="Hold", reason="MetricsStale") == 3
    assert sample(registry, "breakeven_calibration_gpu_seconds_total") == 13


def test_a_counter_with_other_labels_is_refused(telemetry):
    with pytest.raises(ValueError, match="has the labels"):
        telemetry.fleet.count("breakeven_rollouts", service())


def test_names_follow_prometheus_conventions(telemetry, registry):
    for gauge in SERVICE_GAUGES:
        assert gauge.name.startswith("breakeven_")
        assert not gauge.name.endswith("_total")
        assert gauge.help.endswith(".")
        # Prometheus' own labels of the scraped pod.
        assert not {"namespace", "service", "pod", "job", "instance", "container", "endpoint"} & set(
            gauge.labels
        )
    for name in SERVICE_COUNTERS:
        assert not name.endswith("_total")
    generate_latest(registry)


def test_nothing_is_said_before_the_first_cycle(registry, telemetry):
    assert b"specsvc=" not in generate_latest(registry)


def test_a_replica_that_does_not_act_says_nothing_about_services(registry, telemetry):
    telemetry.fleet.publish([service(**FULL)], NOW)
    telemetry.lead(True)
    assert sample(registry, "breakeven_paused") == 0
    telemetry.lead(False)
    assert b"specsvc=" not in generate_latest(registry)
    assert registry.get_sample_value("breakeven_leader") == 0
    telemetry.fleet.publish([service(**FULL)], NOW)
    assert sample(registry, "breakeven_paused") == 0


READY = FULL["conditions"][0]
MISSED = {
    "figure": "ttft",
    "finding": "Missed",
    "limitSeconds": "0.5",
    "requests": 200,
    "missedRequests": 40,
    "attainmentPercent": "80",
    "p95Seconds": "3",
    "p95LowerSeconds": "2.5",
    "predictedP95Seconds": "0.4",
}


def test_objectives_have_their_series_and_a_figure_without_one_its_quantiles_alone(registry, telemetry):
    telemetry.fleet.publish([service(objectives=[MISSED, {"figure": "e2e", "p50Seconds": "1"}])], NOW)
    assert sample(registry, "breakeven_objective_seconds", figure="ttft") == 0.5
    assert sample(registry, "breakeven_objective_attainment_ratio", figure="ttft", bound="estimate") == 0.8
    assert sample(registry, "breakeven_objective_attainment_ratio", figure="ttft", bound="lower") is None
    assert sample(registry, "breakeven_objective_predicted_seconds", figure="ttft", bound="estimate") == 0.4
    assert sample(registry, "breakeven_objective_requests", figure="e2e") is None
    quantiles = {"figure": "e2e", "quantile": "0.5", "bound": "estimate"}
    assert sample(registry, "breakeven_latency_quantile_seconds", **quantiles) == 1


def test_requests_of_an_earlier_cycle_are_not_counted_again(registry, telemetry):
    stuck = {**READY, "status": "False", "reason": "InternalError"}
    telemetry.fleet.publish([service(objectives=[MISSED], conditions=[stuck])], NOW)
    assert sample(registry, "breakeven_objective_requests", figure="ttft") is None
    assert sample(registry, "breakeven_stale") == 1


def test_alerts_find_words_deadlines_and_what_failed_in_a_row(registry, telemetry):
    deadline = {"id": "r1", "deadlineTime": "2026-11-21T12:10:00Z"}
    made = {"action": "Hold", "reason": "BackingOff"}
    telemetry.fleet.publish(
        [
            service(
                conditions=[READY],
                rollout=deadline,
                decision=made,
                calibration={"failures": 2},
                workings={"notes": notes_of({"failures": 3})},
            ),
            service("done", rollout={**deadline, "finishedTime": "2026-11-21T11:50:00Z"}),
        ],
        NOW,
    )
    ready = {"condition": "Ready", "status": "True", "reason": "Watching"}
    assert sample(registry, "breakeven_condition_info", **ready) == 1
    assert sample(registry, "breakeven_decision_info", **made) == 1
    assert sample(registry, "breakeven_rollout_deadline_timestamp_seconds") == NOW.timestamp() + 600
    assert sample(registry, "breakeven_calibrations_failed") == 2
    assert sample(registry, "breakeven_rolls_undone") == 3
    done = {"specsvc_namespace": "llm", "specsvc": "done"}
    assert registry.get_sample_value("breakeven_rollout_deadline_timestamp_seconds", done) is None


async def test_of_the_page_only_what_is_named_is_made():
    registry = CollectorRegistry()
    telemetry = Telemetry(registry)
    telemetry.services.set(3)
    runner = await serve(registry, Health(FakeClock(), 15.0), "127.0.0.1", 0)
    address = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    try:
        async with aiohttp.ClientSession() as session:
            whole = await (await session.get(address)).text()
            named = await (await session.get(address, params=[("name[]", "breakeven_services")])).text()
    finally:
        await runner.cleanup()
    lines = [line for line in named.splitlines() if not line.startswith("#")]
    assert lines == ["breakeven_services 3.0"]
    assert set(lines) < set(whole.splitlines())
    assert [line for line in named.splitlines() if line.startswith("# TYPE")] == [
        "# TYPE breakeven_services gauge"
    ]


async def test_the_page_is_made_once_per_cycle():
    registry = CollectorRegistry()
    telemetry, health, made = Telemetry(registry), Health(FakeClock(), 15.0), []
    collected = telemetry.fleet.collect
    telemetry.fleet.collect = lambda: made.append(1) or collected()
    runner = await serve(registry, health, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    try:
        async with aiohttp.ClientSession() as session:

            async def page(*names):
                return await (await session.get(address, params=[("name[]", name) for name in names])).text()

            telemetry.services.set(3)
            pages = [await page("breakeven_services")]
            # A thousand services are no part of the question.
            assert not made
            pages += [await page(), await page()]
            assert len(made) == 1
            flood = [await page(f"breakeven_{place}", "breakeven_paused") for place in range(9)]
            assert len(made) == 2
            assert [flood[0], *{*flood[1:]}] == ["", pages[1]]
            telemetry.services.set(4)
            health.loop_turned()
            assert "breakeven_services 4.0" in await page()
            assert all("breakeven_services 3.0" in text for text in pages)
            assert len(made) == 3
    finally:
        await runner.cleanup()
