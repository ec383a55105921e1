"""Laws of the generated schemas: what the API server demands of a CRD, and that it fills in what the models would."""

import re

import pytest

from breakeven_operator.resources import SpeculativeService
from shipping.generate.definitions import DEFINITIONS, manifest, structural

KINDS = pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.kind)


def nodes(node, path=""):
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in node:
        yield from nodes(node["items"], f"{path}[]")
    if "additionalProperties" in node:
        yield from nodes(node["additionalProperties"], f"{path}{{}}")


def parts(definition):
    for part in ("spec", "status"):
        yield from nodes(structural(definition.model)["properties"][part], part)


@KINDS
def test_structural(definition):
    for path, node in parts(definition):
        assert "type" in node or node["x-kubernetes-preserve-unknown-fields"], path
        assert not {"$ref", "anyOf", "oneOf", "allOf", "title", "const", "exclusiveMinimum"} & node.keys(), (
            path
        )


@KINDS
def test_everything_has_a_limit_because_rules_are_priced_by_it(definition):
    for path, node in parts(definition):
        kinds = {"array", "string", "map"} if "type" not in node else {node["type"]}
        if "additionalProperties" in node:
            kinds.add("map")
        assert not kinds & {"array"} or "maxItems" in node, path
        assert not kinds & {"string"} or "maxLength" in node or "enum" in node, path
        assert not kinds & {"map"} or "maxProperties" in node, path


@KINDS
def test_no_field_takes_json_of_any_size(definition):
    for path, node in parts(definition):
        free = node.get("x-kubernetes-preserve-unknown-fields", False)
        # Of the values below it the innermost admits no further ones.
        below = {"items", "additionalProperties"} <= node.keys() or node.get("maxItems") == 0 == node.get(
            "maxProperties"
        )
        assert not free or below, path


@KINDS
def test_every_field_is_described_by_a_sentence(definition):
    for path, node in parts(definition):
        if path.endswith(("[]", "{}")):
            continue
        text = node.get("description", "")
        assert re.fullmatch(r"(?s)\S.*[.]", text), path
        assert "  " not in text, path


@KINDS
def test_field_names_follow_the_conventions(definition):
    for path, _ in parts(definition):
        name = path.rpartition(".")[2].rstrip("[]{}")
        assert re.fullmatch(r"[a-z][A-Za-z0-9]*", name), path
        # e2e_p95 must not become e2EP95.
        assert not re.search(r"[0-9][A-Z]{2}", name), path


@KINDS
def test_figures_say_their_unit_or_are_ratios(definition):
    # A decimal string without a unit in its name must be one of these plain numbers.
    plain = re.compile(
        r"(?i)(nats|pValue|speedup|dispersion|ratio|lower|upper|utilization|inflight|tokensPerStep|tokens|tokensSq|accept|drafts|concurrency"
        r"|draftedPerStep|error|scatter|littleResidual|kvUsageMax|precision\w+|pull\w+"
        # The engine's own words for how it draws tokens, and shares.
        r"|temperature|topP|penalty|rates"
        # Counts of requests and of GPUs.
        r"|posts|refusals|served|queuedRequests|queuedWithout|gpusNotNeeded"
        # In the unit of a user's own expression.
        r"|max)$"
    )
    unit = re.compile(r"([Ss]econds|Rps|Percent|S|Used|tokensPerSecond|Left)$")
    for path, node in parts(definition):
        if "[0-9]{1,15}" in node.get("pattern", ""):
            name = path.rpartition(".")[2].rstrip("[]")
            assert unit.search(name) or plain.search(name), path


def test_a_status_has_no_defaults():
    for definition in DEFINITIONS:
        for path, node in nodes(structural(definition.model)["properties"]["status"], "status"):
            assert "default" not in node, path


def defaulted(node, value):
    """A value after the API server's defaulting: absent fields with a default get it, depth first."""
    if node["type"] == "object" and isinstance(value, dict):
        filled = dict(value)
        for name, child in node.get("properties", {}).items():
            if name not in filled and "default" in child:
                filled[name] = child["default"]
            if name in filled:
                filled[name] = defaulted(child, filled[name])
        return filled
    if node["type"] == "array":
        return [defaulted(node["items"], item) for item in value]
    return value


def test_the_schema_fills_in_what_columns_and_rules_read():
    body = {
        "metadata": {"name": "chat", "namespace": "llm"},
        "spec": {"targetRef": {"name": "x"}, "candidates": {"methods": [{"name": "l", "method": "ngram"}]}},
    }
    schema = structural(SpeculativeService)["properties"]["spec"]
    by_server = defaulted(schema, body["spec"])
    read = SpeculativeService.read(body, "chat")
    assert SpeculativeService.read({**body, "spec": by_server}, "chat") == read
    # Whatever else is filled in would be a line of `kubectl describe` that nobody wrote.
    assert by_server == {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"},
        "updatePolicy": {"mode": "Recommend"},
        "candidates": {"methods": [{"name": "l", "method": "ngram", "draftLengths": [2, 7]}]},
    }


def test_descriptions_end_with_default_and_bounds():
    spec = structural(SpeculativeService)["properties"]["spec"]
    policy = spec["properties"]["updatePolicy"]["properties"]
    assert policy["cooldownSeconds"]["description"].endswith(" Default 3600 seconds. 0 to 604800 seconds.")
    assert policy["mode"]["description"].endswith(" Default Recommend.")
    assert spec["properties"]["paused"]["description"].endswith(" Default false.")
    assert policy["pinnedArm"]["description"].endswith("not rolled out.")


def test_columns_point_at_fields_that_exist():
    for definition in DEFINITIONS:
        known = {path for path, _ in parts(definition)}
        for column in definition.columns:
            if column.path.startswith(".metadata") or "conditions" in column.path:
                continue
            assert column.path.removeprefix(".") in known, column


def test_rules_are_those_of_the_models():
    crd = manifest(DEFINITIONS[0])
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    messages = {
        rule["message"] for _, node in nodes(schema) for rule in node.get("x-kubernetes-validations", ())
    }
    assert (
        "metadata.name is too long or has a dot for the CronJob breakeven-<name>; expected at most 42 characters, no dot"
        in messages
    )
    assert len(messages) == 22
    for _, node in nodes(schema):
        for rule in node.get("x-kubernetes-validations", ()):
            if "fieldPath" in rule:
                inside = node
                for name in rule["fieldPath"].removeprefix(".").split("."):
                    inside = inside["properties"][name]
