"""The Grafana dashboard: its queries name existing series, and its lines have distinct names."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from breakeven_operator.generate.dashboard import ROWS, dashboard_json
from breakeven_operator.serve.telemetry import SERVICE_COUNTERS, SERVICE_GAUGES, Telemetry

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
    names = re.findall(r"\b((?:specsvc\w*:)?breakeven_[a-z0-9_]+(?::\w+)?)(?:\{([^}]*)\})?", query)
    assert names
    for name, matchers in names:
        if ":" in name:
            assert name in recorded(), name
            continue
        assert name in known, name
        by = re.findall(r"by \(([a-z_,]*)\)", query)
        asked = set(re.findall(r"(\w+)[!=~]+\"", matchers)) | {
            label for one in by for label in one.split(",")
        }
        assert asked <= known[name], name


def test_every_figure_of_a_service_is_of_the_chosen_one():
    of_operator = {"Health", "Time of a cycle", "Queries and requests", "Errors", "Rolls and calibrations"}
    for panel in PANELS:
        for line in panel.lines:
            chosen = 'specsvc_namespace="$namespace",specsvc="$service"' in line.query
            assert chosen is (panel.title not in of_operator), panel.title


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
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, panel["title"]
