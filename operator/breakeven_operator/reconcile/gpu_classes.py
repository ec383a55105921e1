"""Targets whose pods run on several GPU classes: a profile and a load of each class, and one profile of all requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from breakeven.arm import Arm
from breakeven.profile import Comparison
from breakeven.profile.composition import ProfilePart, composed
from breakeven.serving.counted_window import Window
from breakeven_operator.reconcile.active_profile import calibrated
from breakeven_operator.reconcile.calibration_state import Calibrated, Doubt, ProfileEntry
from breakeven_operator.reconcile.carried import with_carried
from breakeven_operator.reconcile.live_metrics import Live
from breakeven_operator.reconcile.observation import ServiceObservation
from breakeven_operator.reconcile.questions import against_none, seen_of
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.workloads.workload import Workload

# Counts of requests differ by chance; beyond so many standard deviations the classes get different rates.
_DIFFERS = 3.0
# A class that gets less than this share of its pods' part of the requests has no part in their latency.
_LEAST_PACE = 0.01


@dataclass(frozen=True, slots=True)
class GpuClass:
    """One of several GPU classes of a target.

    Attributes:
        product: its name. pods: of it that serve.
        entry: the profile in force for it; None without one.
        figures: of its pods; None while they are not known.
    """

    product: str
    pods: int
    entry: ProfileEntry | None
    figures: Window | None = None

    def compared(
        self, service: SpeculativeService, memory: MemoryStatus, running: Arm, subject: Arm
    ) -> Comparison | None:
        """A speculative arm against no speculation on this class, at its own load; None if that is not known."""
        if self.entry is None or self.entry.profile is None or self.figures is None:
            return None
        arms = {arm.name: arm for arm in (*service.spec.candidates.arms(), running)}
        return against_none(self.entry.profile, self.figures, seen_of(memory, arms), running, subject)


def calibrated_by_class(
    service: SpeculativeService,
    observation: ServiceObservation,
    workload: Workload,
    now: datetime,
    doubt: Callable[[ProfileEntry], Doubt],
) -> tuple[Calibrated, tuple[GpuClass, ...]]:
    """The state of the profile in force, and the GPU classes with the profile of each; no class if all pods share one.

    Of several classes that ask for a run the one without a profile comes first, then the one whose profile is oldest: a run
    measures one class. A profile is in force for the target if there is one of each class.
    """

    def of(one: Workload, doubt: Callable[[ProfileEntry], Doubt] | None) -> Calibrated:
        return calibrated(service, observation, one.proven_identity, workload.startup_s, now, doubt)

    parts = workload.by_class
    if len(parts) < 2:
        return of(workload, doubt), ()
    states = [of(one, None) for one in parts]
    classes = tuple(
        GpuClass(str(one.gpu_class), len(one.serving), state.entry)
        for one, state in zip(parts, states, strict=True)
    )
    order = sorted(range(len(parts)), key=lambda at: _urgency(states[at]))
    asking = states[order[0]]
    if asking.entry is None:
        ready = ", ".join(one.product for one in classes if one.entry is not None)
        said = f"; profiles are in force for {ready}" if ready else ""
        # A former profile is of one class alone.
        message = f"{parts[order[0]].gpu_class}: {asking.message}{said}"
        return replace(asking, message=message, former=None), classes
    entries = [state.entry for state in states if state.entry is not None]
    joint = _joint(entries, classes)
    oldest = min(range(len(parts)), key=lambda at: entries[at].created)
    if asking.create is None:
        doubted = doubt(joint)
        asking = of(parts[oldest], lambda _: doubted)
    message = "; ".join(
        f"{one.product} ({one.pods} of {len(workload.serving)} pods): {state.message}"
        for one, state in zip(classes, states, strict=True)
    )
    status = asking.status.replace(profile=joint.name, profile_time=joint.created, fingerprint=None)
    return replace(asking, entry=joint, message=message, status=status), classes


def _urgency(state: Calibrated) -> tuple[bool, bool, datetime | None]:
    """Sorts classes by how much they need a run."""
    entry = state.entry
    return entry is not None, state.create is None, entry.created if entry is not None else None


def _joint(entries: Sequence[ProfileEntry], classes: Sequence[GpuClass]) -> ProfileEntry:
    """The entry of all classes as one, named after the newest: what was learned under another set does not count."""
    newest = max(entries, key=lambda one: (one.created, one.name))
    arms = frozenset.intersection(*(one.arms for one in entries))
    failed = tuple(dict.fromkeys(arm for one in entries for arm in one.failed))
    # A class that measured another drafter makes the arm's one of no class: such an arm is not measured.
    drafters = {
        name: mark if all(one.drafters.get(name, mark) == mark for one in entries) else ""
        for one in entries
        for name, mark in one.drafters.items()
    }
    return replace(newest, arms=arms, failed=failed, profile=composed(_parts(classes)), drafters=drafters)


def with_loads(
    state: Calibrated,
    classes: Sequence[GpuClass],
    running: Arm | None,
    live: Live,
    seen: Callable[[GpuClass], Live],
) -> tuple[Calibrated, tuple[GpuClass, ...]]:
    """The state with the profile of all requests as they are spread over the classes now, and the classes with figures.

    What the arm in place is seen to carry corrects the profile that it belongs to.

    Args:
        state: of the target.
        classes: of its pods; none if they share one.
        running: the arm in place; None if it is not known.
        live: figures of all pods.
        seen: gives those of a class's pods alone.
    """
    figures = live.figures
    if not classes:
        return with_carried(state, running, live), ()
    if figures is None:
        return state, tuple(classes)
    found = []
    for one in classes:
        own = seen(one)
        if own.figures is None:
            found.append(one)
            continue
        # Bursts are those of the Service; the counts of one class are too few to tell.
        own = replace(own, figures=replace(own.figures, arrivals=figures.arrivals))
        entry = with_carried(replace(state, entry=one.entry), running, own).entry
        found.append(replace(one, entry=entry, figures=own.figures))
    if state.entry is None or any(one.entry is None for one in found):
        return state, tuple(found)
    profile = composed(_parts(found, figures.arrivals.dispersion_or_poisson))
    return replace(state, entry=replace(state.entry, profile=profile)), tuple(found)


def _parts(classes: Sequence[GpuClass], dispersion: float = 1.0) -> list[ProfilePart]:
    """Share of the requests of each class, and its rate per pod over the mean; the same rate for every pod unless counts differ."""
    pods = sum(one.pods for one in classes)
    even = [one.pods / pods for one in classes]
    shares = _measured_shares(classes, even, dispersion) or even
    paces = [share / of_pods for share, of_pods in zip(shares, even, strict=True)]
    busy = [at for at, pace in enumerate(paces) if pace >= _LEAST_PACE]
    total = sum(shares[at] for at in busy)
    found = []
    for at in busy:
        entry = classes[at].entry
        assert entry is not None and entry.profile is not None  # noqa: PT018, S101 - a profile in force was read
        found.append(ProfilePart(entry.profile, shares[at] / total, paces[at]))
    return found


def _measured_shares(
    classes: Sequence[GpuClass], even: Sequence[float], dispersion: float
) -> list[float] | None:
    """Measured shares of the requests; None if they are not known, or differ from those of the pods by chance alone."""
    figures = [one.figures for one in classes]
    known = [one for one in figures if one is not None]
    requests = sum(one.requests for one in known)
    loads = [one.total_rps for one in known]
    if len(known) < len(classes) or not requests or not sum(loads):
        return None
    differ = [
        abs(one.requests - share * requests)
        > _DIFFERS * math.sqrt(max(dispersion, 1.0) * requests * share * (1.0 - share))
        for one, share in zip(known, even, strict=True)
    ]
    return [load / sum(loads) for load in loads] if any(differ) else None
