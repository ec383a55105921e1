"""Changes of a service as patches and manifests, and what still keeps them from having an effect."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from breakeven_operator.plugin.service_change import (
    after,
    manifest,
    pausing,
    pinning,
    recalibrating,
    resuming,
)
from breakeven_operator.plugin.service_view import ServiceView
from breakeven_operator.resources import SpeculativeService

NOW = datetime(2026, 11, 26, 10, 30, tzinfo=UTC)


def merged(old, patch):
    """RFC 7386, as the API server merges."""
    result = dict(old)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key) or {}, value) if isinstance(value, dict) else value
    return result


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (pausing(), lambda one: one.spec.paused),
        (resuming(NOW, retry=False), lambda one: not one.spec.paused),
        (
            resuming(NOW, retry=True),
            lambda one: one.metadata.annotations == {"breakeven.dev/resume": "2026-11-26T10:30:00Z"},
        ),
        (pinning("none"), lambda one: one.spec.update_policy.pinned_arm == "none"),
        (pinning(None), lambda one: one.spec.update_policy.pinned_arm is None),
        (
            recalibrating(NOW),
            lambda one: one.metadata.annotations == {"breakeven.dev/recalibrate": "2026-11-26T10:30:00Z"},
        ),
    ],
)
def test_a_patch_makes_a_service_that_the_operator_reads_so(settled, change, seen):
    old = {key: settled.service[key] for key in ("apiVersion", "kind", "metadata", "spec")}
    old["metadata"] = {"name": "chat", "namespace": "llm"}
    read = SpeculativeService.read(merged(old, change.fields), "test")
    assert seen(read)
    assert read.spec.update_policy.cooldown_seconds == 600, "the rest stays"


def test_a_manifest_names_the_object_and_nothing_else():
    assert manifest(pinning("eagle/3"), "chat", "llm") == {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "SpeculativeService",
        "metadata": {"name": "chat", "namespace": "llm"},
        "spec": {"updatePolicy": {"pinnedArm": "eagle/3"}},
    }
    asked = manifest(recalibrating(NOW), "chat", None)
    assert asked["metadata"] == {
        "name": "chat",
        "annotations": {"breakeven.dev/recalibrate": "2026-11-26T10:30:00Z"},
    }


def said(world, change):
    return " ".join(after(change, ServiceView.of(world.service), world.clock.now()))


def test_resume_offers_the_annotation_after_undone_rolls(settled):
    assert said(settled, resuming(NOW, retry=False)) == ""
    until = settled.clock.now() + timedelta(seconds=60)
    settled.memory |= {"backoffUntilTime": until.isoformat()}
    text = said(settled, resuming(NOW, retry=False))
    assert "rolls still wait (BackingOff until 20" in text
    assert "`kubectl breakeven resume chat --retry`" in text
    assert said(settled, resuming(NOW, retry=True)) == ""
    settled.clock.advance(61.0)
    assert said(settled, resuming(NOW, retry=False)) == ""


@pytest.mark.parametrize("word", ["TakenOver", "RevertedTwice", "RollsStopped", "ArmCrashes"])
def test_resume_offers_the_annotation_for_every_word_that_it_ends(settled, word):
    settled.status["decision"]["reason"] = word
    assert f"rolls still wait ({word})" in said(settled, resuming(NOW, retry=False))


def test_a_pin_that_rolls_nothing_says_so(recommending, settled):
    assert said(settled, pinning("none")) == ""
    assert "the mode is Recommend, so the target is not rolled to eagle/3" in said(
        recommending, pinning("eagle/3")
    )
    settled.service["spec"]["paused"] = True
    assert "spec.paused is true, so the target is not rolled to no speculation" in said(
        settled, pinning("none")
    )
    assert "no calibration starts before `kubectl breakeven resume chat`" in said(settled, recalibrating(NOW))
    assert said(settled, pinning(None)) == ""
