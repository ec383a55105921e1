"""The Grafana dashboard: its queries name existing series, and its lines have distinct names."""

import json
import re
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import CollectorRegistry

from breakeven_operator.serve.telemetry import SERVICE_COUNTERS, SERVICE_GAUGES, Telemetry
from shipping.generate.dashboard import ROWS, dashboard_json

CHART = Path(__file__).parents[3] / "charts" / "breakeven"
LABELS = {"specsvc_namespace", "specsvc"}
PANELS = [panel for panels in ROWS.values() for panel in panels]
QUERIES = [
    pytest.param(line.query, id=f"{panel.title}-{i}")
    for panel in PANELS
    for i, line in enumerate(panel.lines)
]


def exported():
    """Labels by metric, of all that the operator exports."""
    found = {gauge.name: LABELS | set(gauge.labels) for gauge in SERVICE_GAUGES}
    found |= {f"{name}_total": LABELS | set(counter.labels) for name, counter in SERVICE_COUNTERS.items()}
    own = CollectorRegistry()
    Telemetry(own)
    for family in own.collect():
        ending = {"counter": "_total", "histogram": "_bucket"}.get(family.type, "")
        found.setdefault(
            family.name + ending, {"reason", "outcome", "verb", "code", "le", "version", "stage"}
        )
    return found


def recorded():
    groups = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())["groups"]
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


@pytest.mark.parametrize("query", QUERIES)
def test_every_metric_of_a_panel_is_exported_with_its_labels_or_recorded(query):
    known = exported()
    # Of vLLM's own histograms the labels are Prometheus'.
    query = re.sub(r"histogram_quantile.*vllm:.* unless on \(\)", "", query)
    names = re.findall(r"\b((?:specsvc\w*:)?breakeven_[a-z0-9_]+(?::\w+)?)(?:\{([^}]*)\})?", query)
    assert names
    for name, matchers in names:
        if ":" in name:
            assert name in recorded(), name
            continue
        assert name in known, name
        made = set(re.findall(r'label_replace\([^"]*, "(\w+)"', query))
        by = re.findall(r"by \(([a-z_,]*)\)", query)
        asked = set(re.findall(r"(\w+)[!=~]+\"", matchers)) | {
            label for one in by for label in one.split(",")
        }
        assert asked - made <= known[name], name


def test_every_figure_of_a_service_is_of_the_chosen_one():
    of_operator = {
        "All services",
        "Health",
        "Time of a cycle",
        "Queries and requests",
        "Errors",
        "Rolls and calibrations",
    }
    for panel in PANELS:
        for line in panel.lines:
            chosen = 'specsvc_namespace="$namespace",specsvc="$service"' in line.query
            assert chosen is (panel.title not in of_operator), panel.title


def test_the_page_is_as_the_schema_of_grafana_says_and_has_no_holes():
    page = json.loads(dashboard_json())
    read = Dashboard.from_json(page)
    again = json.loads(JSONEncoder().encode(read))
    # The title of an annotation is no field of the library.
    titles = [one.pop("titleFormat") for one in page["annotations"]["list"]]
    assert titles == ["a roll is under way", "{{alertname}}"]
    assert again == page
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in page["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken), "no panel lies on another one"
    assert set(taken) == {(x, y) for x in range(24) for y in range(max(y for _, y in taken) + 1)}


def test_what_is_a_state_is_no_line():
    page = json.loads(dashboard_json())
    kinds = {panel["title"]: panel["type"] for panel in page["panels"]}
    assert {kinds[title] for title in ("Arm", "Reason", "Conditions")} == {"state-timeline"}
    assert {kinds[title] for title in ("Pays", "Speedup", "Load", "Break-even")} == {"stat"}


def test_the_fleet_is_a_table_of_all_services_whose_names_open_their_figures():
    page = json.loads(dashboard_json())
    table = next(panel for panel in page["panels"] if panel["type"] == "table")
    assert all(target["instant"] and target["format"] == "table" for target in table["targets"])
    merged, arranged = table["transformations"]
    assert merged["id"] == "merge"
    shown = arranged["options"]
    values = {f"Value #{target['refId']}" for target in table["targets"]}
    assert values <= shown["excludeByName"].keys() | shown["renameByName"].keys()
    assert shown["indexByName"].keys() == shown["renameByName"].keys()
    (link,) = next(
        one["properties"][0]["value"]
        for one in table["fieldConfig"]["overrides"]
        if one["matcher"]["options"] == "Service"
    )
    assert link["url"].startswith(f"/d/{page['uid']}?var-namespace=")


@pytest.mark.parametrize(
    ("pod", "matches"),
    [
        ("chat-7d9f8b6c5d-x2k4b", True), ("chat-0", True), ("chat-0-1", True),
        ("chat-predictor-7d9f8b6c5d-x2k4b", True), ("chat-large-7d9f8b6c5d-x2k4b", False), ("chatty-0", False),
    ],
)  # fmt: skip
def test_vllms_own_histograms_are_of_the_targets_pods(pod, matches):
    query = next(line.query for panel in PANELS for line in panel.lines if "vllm:" in line.query)
    pattern = re.search(r'pod=~"([^"]*)"', query)[1].replace("$target", "chat")
    assert bool(re.fullmatch(pattern, pod)) is matches


def test_panels_are_told_apart_and_legends_name_only_labels_that_the_query_keeps():
    page = json.loads(dashboard_json())
    ids = [panel["id"] for panel in page["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in page["panels"]]
    assert len(set(titles)) == len(titles)
    for panel in page["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith(".")
        refs = [target["refId"] for target in panel["targets"]]
        assert "".join(refs) == "ABCDEFGH"[: len(refs)]
        for target in panel["targets"]:
            kept = re.search(r"by \(([a-z_,]*)\)", target["expr"])
            labels = set(kept.group(1).split(",")) if kept else set()
            if panel["type"] == "stat":
                assert target["legendFormat"]
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, panel["title"]
