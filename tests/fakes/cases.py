"""Cases of one service, made of what a test wants to say and the usual rest."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.planning.forecast import PastRates
from breakeven.profile import Profile
from breakeven.serving.counted_window import Load
from breakeven.serving.growths import EngineLimits
from breakeven_operator.case import Case, Live
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.resources import SpeculativeService, SpeculativeServiceSpec
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.servicestatus import CalibrationStatus, CapacityStatus
from breakeven_operator.resources.updatepolicy import PRODUCTION
from breakeven_operator.step import Calibrated, ProfileEntry, RolloutContext
from breakeven_operator.workloads.running_arm import RunningArm
from fakes.fleet_world import GPU, SERVICE, FleetWorld

CHAT = SpeculativeService.read(SERVICE, "service").ref
TARGET = FleetWorld().target
"""A settled target of two replicas."""


def a_case(
    spec: SpeculativeServiceSpec,
    profile: Profile,
    figures: Load,
    now: datetime,
    *,
    running: Arm = NO_SPECULATION,
    memory: MemoryStatus | None = None,
    past: PastRates | None = None,
    scaled: bool = False,
    startup_s: float = 60.0,
    unavailable: int = 0,
) -> Case:
    """A case of profile `chat-p1` in force, with figures of as many replicas as they say."""
    service = SpeculativeService.read(SERVICE, "service").replace(spec=spec)
    workload = replace(TARGET, desired=figures.replicas, max_unavailable=unavailable)
    entry = ProfileEntry("chat-p1", "u", NamespacedName("llm", "chat"), "f", GPU, now, frozenset(), profile)
    return Case(
        service,
        RolloutContext(
            PRODUCTION,
            workload,
            memory or MemoryStatus(),
            None,
            True,
            startup_s,
            now=now,
            service=service.ref,
        ),
        Calibrated(entry, ClusterReason.PROFILE_IN_FORCE, "", None, None, None, CalibrationStatus(), None),
        RunningArm(running, "Annotation"),
        Live(ClusterReason.METRICS_AVAILABLE, "", figures, past=past or PastRates()),
        EngineLimits(),
        capacity=CapacityStatus(scaled_by="keda-operator") if scaled else None,
    )
