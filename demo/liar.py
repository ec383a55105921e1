"""`make demo STORY=liar`: imported results promise more than the engine gives, and the first roll is undone on its way.

Nothing is calibrated. Results of another load generator are imported as the profile. Those of no speculation are true;
those of the drafter are the same latencies divided by 1.8. On the engine hardly a draft is accepted, and a request takes
longer with that drafter.

The loss is a large one because the demo is short. A loss of 5 % takes some twenty thousand requests on either arm until
bounds that hold at every look show it: minutes of a real fleet, hours of this one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.points.point import Point
from breakeven.points.table import cells, written
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_sim.engine.costs import parse_costs
from breakeven_sim.replay.fleet_arms import CostArms
from breakeven_sim.replay.measured import measured_points
from demo import installation
from demo.performance import CALIBRATION_TIMEOUT_S, Casting, Scene, perform, what_to_try
from demo.summary import Check, safety_checks, tell_checks
from localcluster import LocalCluster
from localcluster.nodes import DEFAULT as NODES

PROMISED = 1.8
_RPS = 4.0
_ROLL_TIMEOUT_S = 600.0
_AFTERWARDS_S = 60.0
"""Time after the undoing in which no roll may begin; the back-off of production is longer."""
_CAST = Casting("chat", "A100", "RollingUpdate", replicas=7)
_READY_S = 10
"""Time after Ready until a pod counts as available (minReadySeconds): users of slow engines set it, and a roll takes longer."""
_ARM = Arm("eagle3", 3, "eagle")


@dataclass(frozen=True, slots=True)
class RollsSeen:
    """Rolls in the status, as the demo saw them.

    Attributes:
        history: changes of arm that have ended, newest first.
        running: the arm at the end.
    """

    history: Sequence[Mapping[str, Any]]
    running: str


def play(costs: Path, console: Console, *, keep: bool) -> list[Check]:
    """Play it; whether the lie was found out before it had reached every pod."""

    def installed(cluster: LocalCluster) -> str:
        installation.apply(cluster, *manifests(costs))
        return f"{_CAST.replicas} pods without speculation, and a profile that promises {PROMISED}x of {_ARM}"

    performance = perform(costs, console, (_CAST,), installed, _acts, keep=keep)
    words = [event.reason for event in performance.record.events if event.service == _CAST.name]
    checks = judge(performance.told, words, performance.writes[_CAST.name])
    checks += safety_checks(performance.record, performance.failures)
    tell_checks(console, checks)
    if keep:
        what_to_try(console, performance.cluster)
    return checks


def manifests(costs: Path) -> list[installation.Manifest]:
    """The Deployment, the imported results and their run, and the service: a run that is there first keeps it from measuring."""
    deployment, *rest = installation.deployment("vllm-a100.yaml", _CAST.replicas)
    deployment["spec"]["minReadySeconds"] = _READY_S
    service = installation.service(_CAST.name, f"{_CAST.name}-vllm", _CAST.mode)
    files = {"none.csv": NO_SPECULATION, "promised.csv": _ARM}
    points = _promised_points(costs)
    data = {name: written([cells(point) for point in points[arm]]) for name, arm in files.items()}
    sources = [
        {"arm": arm.name, "configMap": {"name": "promises", "keys": [name]}} for name, arm in files.items()
    ]
    run = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "CalibrationRun",
        "metadata": {"name": "promises"},
        "spec": {"serviceRef": {"name": _CAST.name}, "importFrom": sources},
    }
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "promises"}, "data": data}
    return [config_map, run, service, deployment, *rest]


def _promised_points(costs: Path) -> dict[Arm, list[Point]]:
    """Points by arm: the engine's own without speculation, and the same a little too good to be true."""
    engine = CostArms(parse_costs(costs.read_text(), NODES[0].product, str(costs)))
    lengths = np.array([installation.PROMPT_TOKENS]), np.array([installation.OUTPUT_TOKENS])
    true = measured_points(engine, (NO_SPECULATION,), *lengths, 1)
    better = [
        replace(
            point,
            method=_ARM.method,
            k=_ARM.k,
            candidate=_ARM.candidate,
            mean_latency_s=point.mean_latency_s / PROMISED,
        )
        for point in true
    ]
    return {NO_SPECULATION: true, _ARM: better}


async def _acts(scene: Scene) -> RollsSeen:
    """Load, the promise in force, the roll, its end, and a while in which nothing may happen."""
    player, director = scene.players[_CAST.name], scene.director

    def status() -> Mapping[str, Any]:
        return player.status

    player.traffic.set_rate(_RPS * player.replicas)
    await director.until(
        "the imported profile in force",
        lambda: bool((status().get("calibration") or {}).get("profile")),
        CALIBRATION_TIMEOUT_S,
    )
    scene.view.step(f"the profile promises {PROMISED}x; users ask {_RPS:g} rps per replica")
    await director.until("a roll begins", lambda: bool(status().get("rollout")), _ROLL_TIMEOUT_S)
    scene.view.step("the first roll has begun")
    await director.until(
        "the roll ends",
        lambda: bool(status().get("history")) and not status().get("rollout"),
        _ROLL_TIMEOUT_S,
    )
    scene.view.step(f"it has ended: {status()['history'][0].get('message')}")
    ended_s = time.time()
    await director.until(
        "a while in which nothing happens", lambda: time.time() > ended_s + _AFTERWARDS_S, 10 * _AFTERWARDS_S
    )
    await scene.photographed("board", "service")
    return RollsSeen(
        tuple(status().get("history") or ()), str((status().get("current") or {}).get("arm", ""))
    )


def judge(seen: RollsSeen, words: Sequence[str], writes: Sequence[str]) -> list[Check]:
    """Whether the lie was found out.

    Args:
        seen: of the status.
        words: reasons of the service's events, in order of time.
        writes: of the operator to the Deployment, by the API server's audit log.
    """
    first = seen.history[-1] if seen.history else {}
    figures = (f"{float(first.get(f'{which}Speedup', 'nan')):.2f}x" for which in ("measured", "predicted"))
    measured = " measured against ".join(figures) + " promised"
    return [
        Check(
            f"the roll to {_ARM} was disproved by what was measured",
            first.get("reason") == ClusterReason.ROLL_DISPROVED and first.get("result") == "Undone",
            f"{first.get('reason', 'nothing')}: {measured}",
        ),
        Check(
            "it was undone before it had reached every pod",
            ClusterReason.ROLL_UNDONE in words and ClusterReason.ROLL_FINISHED not in words,
            ", ".join(word for word in words if word.startswith("Roll")),
        ),
        Check("no speculation runs again", seen.running == NO_SPECULATION.name, seen.running),
        Check(
            "no second roll was tried",
            len(seen.history) == 1 and len(writes) == 2,
            f"{len(seen.history)} rolls ended; {len(writes)} writes to the Deployment",
        ),
    ]
