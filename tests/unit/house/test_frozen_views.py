"""The API server in memory shows one object to all who read it, so nobody may change what was shown."""

from __future__ import annotations

import copy
import json

import pytest

from breakeven_operator.kinds import PODS
from fakes.api_server import FakeCluster
from fakes.frozen_json import frozen
from fakes.manual_clock import FakeClock

KEY = ("pods", "llm", "a")
CHANGES = [
    lambda pod: pod.update(spec={}),
    lambda pod: pod.pop("spec"),
    lambda pod: pod["metadata"].setdefault("labels", {}),
    lambda pod: pod["metadata"].__setitem__("name", "b"),
    lambda pod: pod["spec"]["containers"].append({}),
    lambda pod: pod["spec"]["containers"][0].clear(),
    lambda pod: pod["spec"]["containers"].sort(),
]


@pytest.fixture
def cluster():
    cluster = FakeCluster(FakeClock())
    cluster.put(
        PODS, {"metadata": {"name": "a", "namespace": "llm"}, "spec": {"containers": [{"name": "vllm"}]}}
    )
    return cluster


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_shown_refuses_every_change(cluster, change):
    before = copy.deepcopy(cluster.shown(KEY))
    with pytest.raises(TypeError, match=r"change a copy\.deepcopy of it"):
        change(cluster.shown(KEY))
    assert cluster.shown(KEY) == before
    change(before)  # the copy is one's own


def test_an_object_is_shown_as_one_until_it_changes_in_place(cluster):
    shown = cluster.shown(KEY)
    assert cluster.shown(KEY) is shown
    cluster.objects[KEY]["spec"]["containers"][0]["name"] = "other"
    edited = cluster.shown(KEY)
    assert edited["spec"]["containers"] == [{"name": "other"}]
    assert shown["spec"]["containers"] == [{"name": "vllm"}]
    assert int(edited["metadata"]["resourceVersion"]) > int(shown["metadata"]["resourceVersion"])


async def test_a_field_that_one_more_manager_sets_to_the_same_value_shows_both(cluster):
    cluster.shown(KEY)
    same = {"metadata": {"name": "a", "namespace": "llm"}, "spec": {"containers": [{"name": "vllm"}]}}
    shown = await cluster.apply(PODS, same, manager="second")
    assert [entry["manager"] for entry in shown["metadata"]["managedFields"]] == ["kubectl", "second"]


def test_what_is_frozen_is_the_json_that_it_was_made_of():
    value = {"a": [1, {"b": None}], "c": "text"}
    assert frozen(value) == value
    assert json.dumps(frozen(value)) == json.dumps(value)
    assert frozen(one := frozen(value)) is one
