"""A profile that measurements have contradicted: it is not taken at its word until another one is in force."""

from __future__ import annotations

from datetime import datetime

from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.memorystatus import MemoryStatus, Suspicion


def suspected(
    memory: MemoryStatus, profile_name: str, reason: ClusterReason, message: str, now: datetime
) -> MemoryStatus:
    """The memory with a profile under suspicion; one that is so already keeps its first reason and time."""
    if suspicion_of(memory, profile_name) is not None:
        return memory
    suspicion = Suspicion(profile=profile_name, reason=str(reason), message=message[:1024], since_time=now)
    return memory.replace(suspicion=suspicion)


def suspicion_of(memory: MemoryStatus, profile_name: str | None) -> Suspicion | None:
    """Why this profile is not taken at its word; None: it is."""
    suspicion = memory.suspicion
    return suspicion if suspicion is not None and suspicion.profile == profile_name else None
