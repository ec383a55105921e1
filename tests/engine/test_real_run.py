"""The stages of `make real` after calibration, against the simulated engine and a cluster that answers from a script."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from breakeven.arm import NO_SPECULATION, Arm
from fakes.lawful_profile import lawful_profile_json
from fakes.simulated_engine import simulated
from real.engines import Engines
from real.run_results import RunResults
from real.served_model import Pace, random_words
from real.stages import RealRun

ROOT = Path(__file__).resolve().parents[2]
LOOKUP = Arm("ngram", 3, "lookup")
LAWS = {NO_SPECULATION: (0.8, 0.08), LOOKUP: (0.4, 0.08)}


class ScriptedCluster:
    """A cluster whose pods are all the same one, and whose operator follows the policy at once, or keeps its arm.

    Args:
        url: of the pod.
        rolls: whether the operator rolls when it may.
    """

    def __init__(self, url: str, *, rolls: bool) -> None:
        self.url = url
        self.rolls = rolls
        self.arm, self.reason = "none", "KeepsArm"
        self.pins: list[str] = []

    def kubectl(self, *words, stdin=None):
        """Take a patch of the update policy, and nothing else."""
        assert stdin is None or words[0] == "apply"
        if words[0] != "patch":
            return
        change = json.loads(words[-2].removeprefix("--patch="))["spec"]["updatePolicy"]
        if change == {"mode": "RollingUpdate"} and self.rolls:
            self.arm, self.reason = LOOKUP.name, "Switch"
        elif "pinnedArm" in change:
            self.arm, self.reason = change["pinnedArm"], "Pinned"
            self.pins.append(self.arm)

    async def ready_pods(self, _selector, _port):
        """The one pod, whatever is asked for."""
        return {"pod": self.url}

    async def custom(self, plural):
        """The service, its run, its profile."""
        profile = lawful_profile_json(
            LAWS, {NO_SPECULATION: 1.0, LOOKUP: 3.0}, prompt_tokens=48.0, output_tokens=48.0, gpu="core"
        )
        done = [{"arm": name, "phase": "Done"} for name in ("none", "lookup/3")]
        objects = {
            "speculativeservices": {
                "status": {
                    "calibration": {"profile": "chat-1"},
                    "current": {"podsByArm": [{"arm": self.arm, "pods": 1}]},
                    "decision": {"reason": self.reason},
                }
            },
            "calibrationruns": {
                "metadata": {"name": "chat-1", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "status": {"phase": "Succeeded", "armStatuses": done, "points": []},
            },
            "speculationprofiles": {"metadata": {"name": "chat-1"}, "spec": {"profile": profile}},
        }
        return [objects[plural]]


@pytest.fixture
async def url(document):
    async with simulated(document(step__base_s=0.002, step__per_token_s=1e-6), model="chat") as url:
        yield url


@pytest.fixture
def results(tmp_path):
    return RunResults(tmp_path, Console(file=io.StringIO(), width=160))


class SelfComparedEngines(Engines):
    """Engines without vLLM's own Python; both pages of a comparison are the same pod's."""

    def flags(self):
        """Those that are stored."""
        return json.loads((ROOT / "tuner/breakeven/serving/vllm_0_32_flags.json").read_text())

    def answers(self, _url):
        """None are asked for."""
        return []


@pytest.fixture
def run(url, results, tmp_path):
    """Makes a run on a scripted cluster and returns the cluster, with the run's times shortened."""
    pace = Pace(look_s=0.05, block_s=2.5, warmup_s=0.1, cycles=1, stay_s=0.1, choice_s=0.5)

    served = replace(random_words(tmp_path), pace=pace)

    async def play(*, rolls):
        cluster = ScriptedCluster(url, rolls=rolls)
        engines = SelfComparedEngines(Path(sys.executable), tmp_path, min(os.sched_getaffinity(0)))
        await RealRun(cluster, cluster, served, engines, results).run()
        return cluster

    return play


async def test_a_run_probes_both_arms_rolls_there_and_back_and_loses_nothing(run, results, tmp_path):
    cluster = await run(rolls=True)
    record = results.record
    assert (record.decided, record.wanted) == (LOOKUP.name, {LOOKUP.name})
    assert [probed.arm for probed in record.probes] == [
        NO_SPECULATION, LOOKUP, LOOKUP, NO_SPECULATION,
    ] * 4  # fmt: skip
    assert [(roll.to, roll.reason, roll.failures) for roll in record.rolls] == [
        (LOOKUP.name, "Switch", ()),
        ("none", "Pinned", ()),
    ]
    assert cluster.pins == ["lookup/3", "none"]
    assert record.broken == []
    assert not any(record.likeness.values())
    assert "metrics with speculation" in record.likeness
    assert len(json.loads((tmp_path / "tables.json").read_text())) == 6
    _, words = results.conclude([])
    assert "checks" in words


async def test_an_operator_that_stays_is_a_failed_check_with_its_reason(run, results, tmp_path):
    cluster = await run(rolls=False)
    assert (results.record.decided, results.record.rolls, cluster.pins) == ("none", [], ["none"])
    status, words = results.conclude([])
    assert status == 1
    assert "the operator runs what the measured laws ask for" in words
    written = json.loads((tmp_path / "findings.json").read_text())["findings"]
    assert "none runs (KeepsArm); asked for: lookup/3" in {one["detail"] for one in written}
