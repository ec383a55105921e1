"""Targets that are refused for good, by name and in every mode: nothing of them is calibrated, decided or rolled."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakeven_operator.kinds import DEPLOYMENTS, JOBS, RUNS
from fakes.fleet_world import VALUE, FleetWorld

CONFIG = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})


def hand_caches_on(target: dict[str, Any]) -> None:
    target["spec"]["template"]["spec"]["containers"][0]["args"] += ["--kv_transfer_config", CONFIG]


def asked(world: FleetWorld, name: str = "by-hand") -> dict[str, Any]:
    """A run that a person or a CronJob made."""
    body = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "CalibrationRun",
        "metadata": {"namespace": "llm", "name": name},
        "spec": {"serviceRef": {"name": "chat"}},
    }
    return world.cluster.put(RUNS, body, manager="person")


def at_once(spec: dict[str, Any]) -> None:
    spec["updatePolicy"].update(cooldownSeconds=0, stabilizationWindowSeconds=0)


@pytest.mark.parametrize("mode", ["Recommend", "RollingUpdate"])
async def test_a_target_that_hands_caches_on_is_neither_decided_about_nor_rolled(mode):
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode=mode), hand_caches_on)
    world.calibrate()
    world.load(3.0)
    for _ in range(6):
        await world.cycle()
    assert (world.reason, world.decision["action"]) == ("KvTransferPair", "Hold")
    assert "arm" not in world.decision
    assert "let one engine read prompts and decode" in world.decision["message"]
    assert world.condition("Ready")["reason"] == "KvTransferPair"
    assert (world.rolls, world.cluster.of(RUNS)) == ([], [])


async def test_a_run_of_a_target_that_hands_caches_on_fails_by_name():
    world = FleetWorld(target=hand_caches_on)
    asked(world)
    await world.until(lambda: bool(world.cluster.of(RUNS)[0].get("status")), cycles=4)
    status = world.cluster.of(RUNS)[0]["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "KvTransferPair")
    assert world.cluster.of(JOBS) == []


async def test_a_roll_that_is_made_stays_and_is_not_measured_once_its_target_hands_caches_on():
    world = FleetWorld(at_once)
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.phase == "Confirming")
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", hand_caches_on)
    await world.until(lambda: world.phase is None, cycles=4)
    entry = world.status["history"][0]
    assert entry["result"] == "Unmeasured"
    assert "--kv-transfer-config" in entry["message"]
    assert world.value == VALUE
    assert world.reason == "KvTransferPair"
