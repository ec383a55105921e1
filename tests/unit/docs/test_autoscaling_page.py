"""The series that the page and the example scale by exist, belong to the examples' own objects, and are read in their unit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from breakeven.planning.capacity import HEADROOM, CapacityLimit
from breakeven_operator.serve.telemetry import SERVICE_GAUGES, SERVICE_LABELS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "autoscaling.md").read_text(encoding="utf-8")
SCALED_OBJECT = yaml.safe_load((ROOT / "examples" / "keda" / "scaledobject.yaml").read_text(encoding="utf-8"))
(SCALER,) = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


def named(file: str, kind: str) -> set[str]:
    documents = yaml.safe_load_all((ROOT / "examples" / file).read_text(encoding="utf-8"))
    return {one["metadata"]["name"] for one in documents if one["kind"] == kind}


def gauges() -> dict[str, tuple[str, ...]]:
    return {gauge.name: (*SERVICE_LABELS, *gauge.labels) for gauge in SERVICE_GAUGES}


def test_the_scaled_object_scales_the_example_s_target_by_a_metric_that_the_operator_exports() -> None:
    spec = SCALED_OBJECT["spec"]
    assert spec["scaleTargetRef"]["name"] in named("vllm-a100.yaml", "Deployment")
    (trigger,) = spec["triggers"]
    (metric,) = re.findall(r"breakeven_\w+", trigger["metadata"]["query"])
    selected = dict(re.findall(r'(\w+)="(\w+)"', trigger["metadata"]["query"]))
    assert metric == "breakeven_recommended_replicas"
    assert set(selected) == set(SERVICE_LABELS) <= set(gauges()[metric])
    assert selected["specsvc"] in named("speculativeservice.yaml", "SpeculativeService")


def test_a_number_of_replicas_is_held_against_one_per_replica_and_absence_is_no_zero() -> None:
    (trigger,) = SCALED_OBJECT["spec"]["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
    # KEDA reads strings only.
    assert (trigger["metadata"]["threshold"], trigger["metadata"]["ignoreNullValues"]) == ("1", "false")
    assert SCALED_OBJECT["spec"]["minReplicaCount"] >= 1
    external: dict[str, Any] = SCALER["spec"]["metrics"][0]["external"]
    assert external["target"] == {"type": "AverageValue", "averageValue": "1"}
    # The query sums all its matches: a service of the same name elsewhere must not count.
    assert set(external["metric"]["selector"]["matchLabels"]) == set(SERVICE_LABELS)
    assert external["metric"]["name"] in gauges()


def test_the_page_names_the_metrics_limits_and_headroom_that_there_are() -> None:
    assert set(re.findall(r"`(breakeven_\w+)`", PAGE)) <= set(gauges())
    assert all(f"`{limit}`" in PAGE for limit in CapacityLimit)
    assert f"times {HEADROOM:g}" in PAGE
