"""Agreement between the chart's files, checked without Helm."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from breakeven.reasons import Reason
from breakeven.serving.opt_in import ANNOTATION, engine_container, opt_in
from breakeven.serving.rolling import drain
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources import CalibrationRun, SpeculativeService
from breakeven_operator.resources.updatepolicy import PRODUCTION
from breakeven_operator.serve.telemetry import SERVICE_COUNTERS, SERVICE_GAUGES, Telemetry

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "breakeven"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((CHART / "files" / "rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]


def leaves(node, schema, path=""):
    assert schema["additionalProperties"] is False, path
    for name, child in schema["properties"].items():
        if name == "global":  # Helm adds it to every subchart
            continue
        here = f"{path}.{name}" if path else name
        if "properties" in child:
            yield from leaves(node[name], child, here)
        else:
            yield here, node[name], child


def test_schema_and_values_name_the_same_keys():
    def keys(node, schema):
        assert set(node) == set(schema["properties"]) - {"global"}
        for name, child in schema["properties"].items():
            if "properties" in child:
                keys(node[name], child)

    keys(VALUES, SCHEMA)


def test_the_readme_tells_every_value_with_its_default():
    page = (CHART / "README.md").read_text()
    table = [line for line in page.partition("## Values")[2].splitlines() if line.startswith("| `")]
    assert table == [
        f"| `{path}` | `{json.dumps(value)}` | {schema['description']} |"
        for path, value, schema in leaves(VALUES, SCHEMA)
    ]


def test_the_readme_tells_every_alert():
    told = re.findall(
        r"^\| `(\w+)` \| ", (CHART / "README.md").read_text().partition("## Values")[0], re.MULTILINE
    )
    assert told == [alert["alert"] for alert in ALERTS]


def test_every_alert_has_a_runbook_and_a_promtool_test():
    for alert in ALERTS:
        name = alert["alert"]
        runbook = (ROOT / "docs" / "runbooks" / f"{name}.md").read_text()
        for heading in (
            f"# {name}",
            "## Meaning",
            "## Impact",
            "## Diagnosis",
            "## Mitigation",
            "## Over when",
        ):
            assert f"{heading}\n" in runbook, name
        tested = yaml.safe_load((CHART / "tests" / f"{name}_test.yaml").read_text())
        asked = [check for case in tested["tests"] for check in case["alert_rule_test"]]
        assert any(check["exp_alerts"] for check in asked), f"{name} is never seen to fire"
        assert any(not check["exp_alerts"] for check in asked), f"{name} is never seen to be silent"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alerts_say_what_people_need(alert):
    assert alert["labels"]["severity"] in {"info", "warning", "critical"}
    assert "for" in alert
    assert {"summary", "description", "runbook_url"} <= alert["annotations"].keys()
    assert "{{" not in alert["annotations"]["summary"]
    assert alert["annotations"]["runbook_url"].endswith(f"/{alert['alert']}.md")


def test_rules_use_only_metrics_that_exist():
    known = {gauge.name: {"specsvc", "specsvc_namespace", *gauge.labels} for gauge in SERVICE_GAUGES}
    known |= {
        f"{name}_total": {"specsvc", "specsvc_namespace", *labels}
        for name, (_, labels) in SERVICE_COUNTERS.items()
    }
    own = CollectorRegistry()
    Telemetry(own)
    known |= {
        f"{family.name}_total" if family.type == "counter" else family.name: {
            "version", "reason", "outcome", "verb", "code"
        }
        for family in own.collect()
    }  # fmt: skip
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    for rule in RULES:
        text = rule["expr"] + " ".join(rule.get("annotations", {}).values())
        for name, matchers in re.findall(r"\b(?<!:)(breakeven_[a-z0-9_]+)(?!:)\b(?:\{([^}]*)\})?", text):
            if not any(name in record for record in recorded):
                assert name in known, name
                assert set(re.findall(r"(\w+)[!=~]+", matchers)) <= known[name], name


def test_runbooks_use_reason_words_and_fields_that_exist():
    words = {word.value for word in (*Reason, *ClusterReason)} | {alert["alert"] for alert in ALERTS}
    words |= {"MetricsAvailable"}  # a condition
    api = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    for page in (ROOT / "docs" / "runbooks").glob("*.md"):
        text = page.read_text()
        for word in re.findall(r"`([A-Z][a-z]+(?:[A-Z][A-Za-z]+)+)`", text):
            assert word in words or word in api, f"{page.name}: {word}"
        for field in re.findall(r"`([a-z]+(?:[A-Z][A-Za-z]+)+)`", text):
            assert f".{field}`" in api or f"`{field}`" in api, f"{page.name}: {field}"


def test_the_figure_of_a_saturated_arm_can_be_checked_too():
    """Such an arm has no predicted latency; the rate that its pods answer is compared with the saturation in the profile."""
    text = (ROOT / "docs" / "runbooks" / "SpeculationUnprofitable.md").read_text()
    section = text.partition("Is the figure right?")[2].partition("Which arm is best")[0]
    saturated = section.partition("**It is absent**")[2]
    assert {"inflight", "observedLatencySeconds", "saturationRps"} <= set(re.findall(r"\w+", saturated))


def test_the_chart_and_the_distribution_have_one_version():
    from breakeven import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


def test_the_deployment_sets_only_settings_that_exist():
    from breakeven_operator.settings import read_settings

    text = (CHART / "templates" / "_helpers.tpl").read_text()
    names = set(re.findall(r"name: (BREAKEVEN_[A-Z_]+)", text))
    assert len(names) > 10
    harmless = {
        "BREAKEVEN_CYCLE_SECONDS": "15",
        "BREAKEVEN_RELIST_SECONDS": "3600",
        "BREAKEVEN_STATUS_REFRESH_SECONDS": "60",
        "BREAKEVEN_LISTEN_PORT": "8080",
        "BREAKEVEN_TIMING": "{}",
        "BREAKEVEN_MAX_PARALLEL_ROLLS": "3",
        "BREAKEVEN_MAX_PARALLEL_CALIBRATIONS": "1",
        "BREAKEVEN_PROMETHEUS_TIMEOUT_SECONDS": "10",
    }
    read_settings({name: harmless.get(name, "") for name in names})
    for level in SCHEMA["properties"]["operator"]["properties"]["logLevel"]["enum"]:
        read_settings({"BREAKEVEN_LOG_LEVEL": level})


EXAMPLES = [
    pytest.param(document, id=f"{path.name}:{document['kind']}")
    for path in sorted((ROOT / "examples").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]


@pytest.mark.parametrize("document", EXAMPLES)
def test_examples_are_what_the_project_asks_of_others(document):
    if document["kind"] == "SpeculativeService":
        SpeculativeService.read(document, "example")
    elif document["kind"] == "CalibrationRun":
        CalibrationRun.read(document, "example")
    elif document["kind"] == "Deployment":
        template = document["spec"]["template"]
        container = engine_container(template["spec"])
        assert opt_in(container).ok
        assert drain(template["spec"], container).ok
        assert ANNOTATION not in template["metadata"]["annotations"]
        assert "nvidia.com/gpu.product" in template["spec"]["nodeSelector"]
    else:
        assert document["kind"] in {"Service", "ConfigMap"}


def test_the_example_asks_for_arms_of_the_example():
    def load(name):
        return yaml.safe_load((ROOT / "examples" / name).read_text())

    service = SpeculativeService.read(load("speculativeservice.yaml"), "example")
    run = CalibrationRun.read(load("calibrationrun.yaml"), "example")
    assert run.spec.service_ref.name == service.metadata.name
    assert set(run.spec.arms) <= {arm.name for arm in service.spec.candidates.arms()}


def test_the_command_of_the_notes_ends_when_it_is_pasted():
    """The end of a here-document stands at the beginning of its line, or the shell waits for ever."""
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    begin = notes.index("kubectl apply")
    end = notes.index("kubectl get specsvc", begin)
    pasted = f"kubectl() {{ cat; }}\n{notes[begin:end]}"
    done = subprocess.run(["bash"], input=pasted, capture_output=True, text=True, timeout=10, check=True)
    assert done.stderr == ""
    written = yaml.safe_load(done.stdout.replace("YOUR-VLLM-DEPLOYMENT", "chat-vllm"))
    meta = {"name": "chat", "namespace": "llm", "uid": "u"}
    SpeculativeService.read(written | {"metadata": meta}, "notes")


def test_the_chart_has_the_times_of_production():
    values = yaml.safe_load((CHART / "values.yaml").read_text())["timing"]
    assert values == PRODUCTION.to_json_object()
