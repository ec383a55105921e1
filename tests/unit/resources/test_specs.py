"""Specs that a person may write: the corpus in specs.yaml against the models."""

from pathlib import Path

import pytest
import yaml

from breakeven.errors import InputError
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.candidates import Candidates, SpeculativeMethod

CORPUS = yaml.safe_load((Path(__file__).parent / "specs.yaml").read_text())
SMALLEST = {
    "targetRef": {"name": "chat-vllm"},
    "candidates": {"methods": [{"name": "lookup", "method": "ngram"}]},
}


def merged(base, change):
    """JSON merge patch (RFC 7386)."""
    if not isinstance(change, dict):
        return change
    result = dict(base) if isinstance(base, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def manifest(case):
    return {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "SpeculativeService",
        "metadata": {"name": case.get("name", "chat"), "namespace": "llm"},
        "spec": merged(SMALLEST, case.get("spec", {})),
    }


def is_refused(case):
    return "field" in case or "text" in case


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case["says"])
def test_models_accept_or_refuse(case):
    if not is_refused(case):
        service = SpeculativeService.read(manifest(case), "chat")
        assert SpeculativeService.read(service.to_json_object(), "chat") == service
        return
    with pytest.raises(InputError) as caught:
        SpeculativeService.read(manifest(case), "SpeculativeService llm/chat")
    line = str(caught.value)
    assert line.startswith("SpeculativeService llm/chat: ")
    assert "\n" not in line
    assert case.get("field", "") in line
    assert case.get("text", "") in line


def test_a_snake_case_key_is_no_field():
    wrong = merged(manifest({}), {"spec": {"update_policy": {}}})
    with pytest.raises(InputError, match=r"spec\.update_policy: is not a field; expected a field that"):
        SpeculativeService.read(wrong, "chat")


def test_the_first_wrong_field_is_named_and_the_others_counted():
    wrong = merged(
        manifest({}), {"spec": {"paused": "perhaps", "calibration": {"loads": 1, "pointSeconds": 0}}}
    )
    with pytest.raises(InputError, match=r"^chat: spec\.paused: is 'perhaps' \(and 2 more\); expected"):
        SpeculativeService.read(wrong, "chat")


def test_no_speculation_comes_first_and_lengths_ascend():
    candidates = Candidates.model_validate(
        {"methods": [{"name": "eagle", "method": "eagle3", "model": "o/h", "draftLengths": [7, 2]}]}
    )
    assert [arm.name for arm in candidates.arms()] == ["none", "eagle/2", "eagle/7", "eagle/adaptive"]


def test_an_arm_is_spelled_in_one_way_whatever_the_order_of_its_options():
    def spelled(options):
        method = {"name": "l", "method": "ngram", "draftLengths": [4], "options": options}
        candidates = Candidates.model_validate({"methods": [method]})
        return [candidates.speculative_config(arm) for arm in candidates.arms()]

    one = spelled({"prompt_lookup_max": 4, "draft_load_config": {"b": 1, "a": [2]}})
    other = spelled({"draft_load_config": {"a": [2], "b": 1}, "prompt_lookup_max": 4})
    assert one == other
    assert one == [
        "null",
        '{"draft_load_config":{"a":[2],"b":1},"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4}',
    ]


def test_an_arm_of_nobody_has_no_configuration():
    candidates = SpeculativeService.read(manifest({}), "chat").spec.candidates
    stranger = Candidates.model_validate({"methods": [{"name": "x", "method": "ngram"}]}).arms()[1]
    with pytest.raises(KeyError, match="x/2"):
        candidates.speculative_config(stranger)


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        ({"method": "ngram"}, None),
        ({"method": "mtp"}, None),
        ({"method": "eagle3", "model": "RedHatAI/head"}, None),
        ({"method": "draft_model", "model": "/models/small"}, None),
        ({"method": "eagle3", "model": "evil/head"}, "drafter 'evil/head'; expected one that begins with"),
        ({"method": "eagle3", "model": "RedHatAI"}, "drafter 'RedHatAI'"),
        ({"method": "draft_model", "model": "/models/../tmp/x"}, "drafter '/models/../tmp/x'"),
        ({"method": "telepathy", "unknownMethod": "Allow"}, "unknownMethod: Allow"),
        ({"method": "custom_class", "unknownMethod": "Allow", "model": "/models/x"}, "unknownMethod: Allow"),
    ],
)
def test_drafters_are_those_that_an_installation_allows(method, problem):
    read = SpeculativeMethod.read({"name": "m", **method}, "method")
    assert read.strays_from(()) is None
    said = read.strays_from(("RedHatAI/", "/models/"))
    assert said is None if problem is None else said.startswith(problem)
