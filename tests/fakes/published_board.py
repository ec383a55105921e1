"""Services as a cycle of the operator leaves them for the board, and a fleet in which every state of the board is there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from breakeven_operator.board.board_server import Board
from breakeven_operator.board.publication import Publication
from breakeven_operator.case import FirstAnswer
from breakeven_operator.cluster.cluster_objects import file_profile
from breakeven_operator.kinds import PROFILES, SERVICES, NamespacedName
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.meta import Condition
from breakeven_operator.resources.targetstatus import HistoryResult, PodsOfArm, Rollout
from breakeven_operator.step import ProfileEntry
from breakeven_operator.workloads.known import target_of
from fakes.fleet_world import FleetWorld

CHAT = NamespacedName("llm", "chat")
LOSING = NamespacedName("llm", "code")
"""A running arm beyond its break-even, whose alert fires."""

ROLLING = NamespacedName("search", "rerank")
RECOMMENDED = NamespacedName("llm", "mail")
_PARTS = ("metadata", "spec", "status")


def published_of(world: FleetWorld) -> Publication:
    """The statuses and profiles that an operator wrote."""
    services = {
        NamespacedName.of(one): SpeculativeService.read({name: one[name] for name in _PARTS}, "service")
        for one in world.cluster.of(SERVICES)
    }
    profiles: dict[NamespacedName, list[ProfileEntry]] = {}
    for manifest in world.cluster.of(PROFILES):
        entry = file_profile(manifest)
        profiles.setdefault(entry.service, []).append(entry)
    targets = world.left[0].targets if world.left is not None else {}
    found = {name: targets[target_of(one)] for name, one in services.items() if target_of(one) in targets}
    return Publication(world.clock.now(), services, {}, profiles, {}, found)


def fleet_of(settled: Publication) -> Publication:
    """A fleet made of one settled service: paying, losing, rolling, waiting, paused, held, measured now, of a past, invalid."""
    now, chat = settled.time, settled.services[CHAT]
    status, target = chat.status, settled.targets[CHAT]
    confirmed = status.history[0]
    undone = confirmed.model_copy(
        update={
            "time": now - timedelta(hours=9),
            "result": HistoryResult.UNDONE,
            "measured_speedup": None,
            "message": "no speculation -> eagle/3: a new pod found no GPU in 600 s; the annotation was taken back",
        }
    )
    unproven = confirmed.model_copy(
        update={
            "time": now - timedelta(hours=5),
            "result": HistoryResult.UNPROVEN,
            "measured_speedup": 1.31,
            "measured_speedup_lower": 0.92,
            "measured_speedup_upper": 1.85,
            "message": "no speculation -> eagle/3: measured 1.31x (0.92 to 1.85): too few requests to tell",
        }
    )
    back = unproven.model_copy(
        update={
            "time": now - timedelta(hours=3),
            "from_arm": "eagle/3",
            "to_arm": "none",
            "result": HistoryResult.CONFIRMED,
            "predicted_speedup": 1.21,
            "predicted_speedup_lower": 1.05,
            "predicted_speedup_upper": 1.4,
            "measured_speedup": 1.24,
            "measured_speedup_lower": 1.1,
            "measured_speedup_upper": 1.4,
            "message": "eagle/3 -> no speculation: measured 1.24x (1.10 to 1.40) at 11.2 rps per replica",
        }
    )
    newest = confirmed.model_copy(update={"time": now - timedelta(minutes=50)})
    fleet: dict[NamespacedName, dict[str, Any]] = {
        CHAT: {
            "history": (newest, back, unproven, undone),
            "current": {"since": now - timedelta(minutes=55)},
        },
        LOSING: {
            "display": {
                "pays": "No", "speedup": "0.79 [0.66,0.95] measured", "load": "11.2 rps", "recommended": "none",
                "reason": "BeyondBreakEven",
            },
            "decision": {
                "load_rps": 11.2, "speedup": 0.79, "speedup_lower": 0.66, "speedup_upper": 0.95, "arm": "none",
                "reason": "BeyondBreakEven", "time": now - timedelta(minutes=25), "evidence_time": now,
                "message": "at 11.2 rps per replica eagle/3 is 0.79x (0.66 to 0.95); no speculation is faster beyond 9.08 rps",
            },
            "mode": "Recommend",
        },
        NamespacedName("llm", "agents"): {
            "display": {"pays": "No", "speedup": "0.93 [0.88,0.98] measured", "load": "8.4 rps"},
            "decision": {"load_rps": 8.4, "evidence_time": now - timedelta(minutes=20)},
        },
        NamespacedName("llm", "vision"): {
            "display": {"pays": "Yes", "speedup": "1.41 [1.22,1.61] expected", "load": "6 rps", "reason": "ModelDisagrees"},
            "decision": {"load_rps": 6.0, "action": "Hold", "reason": "ModelDisagrees"},
            "conditions": (
                Condition(
                    type="ModelAgrees", status="False", reason="ModelDisagrees", last_transition_time=now - timedelta(minutes=40),
                    message="measured latency is 1.34 times the predicted one (1.21 to 1.49) in 12 windows",
                ),
            ),
        },
        RECOMMENDED: {
            "display": {
                "arm": "none", "speedup": "1.63 [1.40,1.89] expected", "load": "3.15 rps", "reason": "GainAboveThreshold",
                "break_even": "9.08 rps (eagle/schedule)",
            },
            "decision": {"load_rps": 3.15, "running_arm": "none", "reason": "GainAboveThreshold", "action": "Recommend",
                "message": "eagle/3 is 1.63x (90 %: 1.40 to 1.89) at 3.15 rps per replica; it pays until 9.08 rps (8.41 or more)",
            },
            "current": {"arm": "none"},
            "mode": "Recommend",
            "history": (),
        },
        ROLLING: {
            "display": {"arm": "none", "speedup": "1.52 [1.30,1.70] expected", "load": "4.2 rps", "reason": "GainAboveThreshold"},
            "decision": {
                "load_rps": 4.2, "speedup": 1.52, "reason": "GainAboveThreshold", "action": "Switch",
                "message": "eagle/3 is 1.52x (90 %: 1.30 to 1.70) at 4.2 rps per replica; it pays until 9.08 rps (8.41 or more)",
            },
            "current": {
                "arm": "none",
                "pods_by_arm": (PodsOfArm(arm="eagle/3", pods=2), PodsOfArm(arm="none", pods=4)),
            },
            "rollout": Rollout(
                id="r1", from_arm="none", to_arm="eagle/3", reason="GainAboveThreshold", phase="Rolling",
                started_time=now - timedelta(minutes=4), deadline_time=now + timedelta(minutes=26),
                predicted_speedup=1.52, predicted_speedup_lower=1.3, predicted_speedup_upper=1.7,
            ),
        },
        NamespacedName("search", "batch"): {
            "display": {
                "arm": "none", "pays": "No", "speedup": "0.91 [0.87,0.95] expected", "load": "10.4 rps", "recommended": "none",
                "reason": "BeyondBreakEven",
            },
            "decision": {"load_rps": 10.4, "arm": "none", "running_arm": "none"},
            "current": {"arm": "none"},
        },
        NamespacedName("search", "embed"): {
            "display": {"pays": "?", "speedup": "1.02 [0.96,1.08] expected", "load": "8.8 rps", "reason": "NearBreakEven"},
            "decision": {"load_rps": 8.8, "held_until": now + timedelta(minutes=6)},
        },
        NamespacedName("search", "long"): {
            "display": {
                "arm": "none", "pays": "?", "speedup": None, "load": "1 rps", "break_even": None, "recommended": "-",
                "reason": "CalibrationRunning 4/27 points, 11 min left",
            },
            "decision": {
                "load_rps": 1.0, "speedup": None, "break_even_rps": None, "compared_arm": None, "arm": "none", "running_arm": "none",
                "message": "no profile is in force: the arms are being measured", "reason": "CalibrationRunning",
            },
            "current": {"arm": "none"},
            "calibration": {
                "run": "long-r1", "last_run": None, "profile": None, "points_done": 4, "points_planned": 27,
                "profile_time": None, "last_run_time": None,
            },
            "history": (),
        },
        NamespacedName("tools", "first"): {
            "display": {"arm": "none", "pays": "Yes (past)", "speedup": "1.30 [1.02,1.66] expected", "load": "2 rps"},
            "decision": {"load_rps": 2.0},
            "current": {"arm": "none"},
            "calibration": {"profile": None, "profile_time": None},
            "history": (),
        },
        NamespacedName("tools", "a-service-with-a-very-long-name-of-its-own"): {"paused": True},
    }  # fmt: skip
    services = {name: _changed(chat, name, {"history": (newest,), **parts}) for name, parts in fleet.items()}
    (entry,) = settled.profiles[CHAT]
    return replace(
        settled,
        services=services,
        invalid={NamespacedName("tools", "broken"): "spec.targetRef: Field required"},
        profiles={name: [replace(entry, service=name)] for name in services if name.name != "first"},
        firsts={"tools-first": FirstAnswer(entry.profile, "its last 7 days hold two arms")},
        targets=dict.fromkeys(services, target),
    )


def _changed(chat: SpeculativeService, name: NamespacedName, parts: Mapping[str, Any]) -> SpeculativeService:
    """The service under another name, with these parts of its status."""
    status, changes = chat.status, dict(parts)
    assert status.display is not None
    assert status.workings is not None
    display = status.display.model_copy(update=changes.pop("display", {}))
    mode, paused = changes.pop("mode", None), changes.pop("paused", False)
    update: dict[str, Any] = {
        "workings": status.workings.model_copy(update={"display": display}),
        **{
            part: getattr(status, part).model_copy(update=given) if isinstance(given, Mapping) else given
            for part, given in changes.items()
        },
    }
    spec = chat.spec.replace(paused=paused)
    if mode is not None:
        spec = spec.replace(update_policy=spec.update_policy.replace(mode=mode))
    meta = chat.metadata.replace(
        namespace=name.namespace, name=name.name, uid=f"{name.namespace}-{name.name}"
    )
    return chat.model_copy(
        update={"metadata": meta, "spec": spec, "status": status.model_copy(update=update)}
    )


def a_day_on(board: Board, fleet: Publication, hours: float = 12.0) -> None:
    """Publish a fleet as it was over the last hours, with a load that rises and falls."""
    for minute in range(int(60 * hours), -1, -4):
        board.publish(
            replace(fleet, services={name: _earlier(one, minute) for name, one in fleet.services.items()})
        )


def _earlier(service: SpeculativeService, minutes: int) -> SpeculativeService:
    decision = service.status.decision
    if decision is None or decision.evidence_time is None or decision.load_rps is None:
        return service
    swing = 1.0 + 0.35 * math.sin(minutes / 110.0) - 0.12 * math.sin(minutes / 13.0) * (minutes > 0)
    time = decision.evidence_time - timedelta(minutes=minutes)
    load = decision.load_rps * (swing if minutes else 1.0)
    before = decision.model_copy(update={"evidence_time": time, "load_rps": load})
    return service.with_status(service.status.model_copy(update={"decision": before}))
