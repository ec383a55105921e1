"""Everything a decision about one service may look at, frozen at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from breakeven_operator.ports import Manifest
from breakeven_operator.reconcile.calibration_state import ProfileEntry
from breakeven_operator.reconcile.first_answer import FirstAnswer
from breakeven_operator.reconcile.latency_metrics import LatencyReading
from breakeven_operator.reconcile.live_metrics import FleetReading
from breakeven_operator.reconcile.past_metrics import PastReading
from breakeven_operator.reconcile.roll_failures import LaterReading, RollAnswer
from breakeven_operator.reconcile.roll_metrics import RollReading
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.resources import CalibrationRun
from breakeven_operator.resources.updatepolicy import PRODUCTION, Timing
from breakeven_operator.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class ServiceObservation:
    """One service's surroundings.

    Attributes:
        workload: the target; None if there is none.
        managed_by: an older SpeculativeService on the same target.
        fleet: answer of the Prometheus this service is watched with.
        past: what it says about the past; None: it was not asked.
        latencies: what it says of latencies; None: it was not asked.
        roll: what it says about the roll that is under way; None: it was not asked.
        later: what it says about requests after the last roll; None: it was not asked.
        arrivals: what it says about when requests came; None: it was not asked.
        first: what the past says of a service without a profile; None: it is not asked.
        known_pods: names of all pods of the namespace.
        profiles: SpeculationProfiles of this service.
        runs: CalibrationRuns of this service that are unfinished or not yet accounted for.
        claims: PersistentVolumeClaims of its namespace, if the target mounts any and they may be read.
        written: the service's status as the API server holds it.
        failures: writes for this service that failed, and have not succeeded since.
        timing: times of the installation.
        target_problem: why the target's object could not be read; None: it could, or there is none.
    """

    workload: Workload | None
    managed_by: str | None
    fleet: FleetReading
    known_pods: frozenset[str]
    profiles: Sequence[ProfileEntry] = ()
    runs: Sequence[CalibrationRun] = ()
    past: PastReading | None = None
    latencies: LatencyReading | None = None
    roll: RollAnswer | None = None
    later: LaterReading | None = None
    arrivals: RollReading | None = None
    first: FirstAnswer | None = None
    claims: Sequence[Manifest] = ()
    written: Mapping[str, Any] = field(default_factory=dict)
    failures: Sequence[RefusedWrite] = ()
    target_problem: str | None = None
    timing: Timing = PRODUCTION


@dataclass(frozen=True, slots=True)
class CycleLimits:
    """The operator's own settings that decisions use.

    Attributes:
        status_refresh_s: figures and sentences of a status are renewed at most this often.
        may_roll: whether the fleet's number of rolls at a time allows another one.
        gpu_price_per_hour: by which a status says money; None: it says none.
    """

    status_refresh_s: float = 60.0
    may_roll: bool = True
    gpu_price_per_hour: float | None = None
