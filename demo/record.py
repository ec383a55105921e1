"""Record of a demo: samples once a second per service, phases with their outcome, events; plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from demo.story import Phase


@dataclass(frozen=True, slots=True)
class Sample:
    """One service at one moment, as a person with kubectl and a stopwatch would have seen it.

    Attributes:
        at_s: wall clock.
        offered_rps: what the users offer per replica.
        latency_s: mean of the answers of the last seconds, by the users' own watch; None without answers.
        arm: what the pods run; `recommended`: what the operator wants.
        pays, speedup, reason: columns of `kubectl get specsvc`.
        alert: whether Alertmanager holds SpeculationUnprofitable for it.
        calibration: progress as `kubectl get calrun` shows it, empty when none runs.
    """

    at_s: float
    offered_rps: float
    latency_s: float | None
    arm: str
    recommended: str
    pays: str
    speedup: str
    reason: str
    alert: bool
    calibration: str


@dataclass(frozen=True, slots=True)
class Happening:
    """A Kubernetes event of one service."""

    at_s: float
    service: str
    kind: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """One phase of one service, after it ended.

    Attributes:
        settled_s: wall clock from which the arm ran that the profile calls best (for a Recommend service: from which it was recommended); None: never.
        latency_s, requests: of the answered requests sent after that (where it is None, in the whole phase).
        answered_rps: requests answered of those sent after that, per second and replica.
        arm, recommended, reason: at the end.
        alert: whether the alert was firing at the end.
    """

    phase: Phase
    started_s: float
    ended_s: float
    settled_s: float | None
    latency_s: float | None
    requests: int
    answered_rps: float
    arm: str
    recommended: str
    reason: str
    alert: bool


class Speedup(NamedTuple):
    """Latency of the old arm over that of the new one, with its bounds; None: open."""

    value: float
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True, slots=True)
class EndedRoll:
    """A change of arm that has ended, as the service's history tells it.

    Attributes:
        at_s: wall clock at which its last word was spoken.
        from_arm, to_arm: the arms.
        result: that word.
        promised: for the load of the measurement; None: there was none.
        measured: of the pods of both arms; None: nothing could be measured.
        requests: behind the measurement.
    """

    at_s: float
    from_arm: str
    to_arm: str
    result: str
    promised: Speedup | None
    measured: Speedup | None
    requests: int


@dataclass(slots=True)
class ServiceRecord:
    """Everything seen of one service."""

    name: str
    gpu: str
    mode: str
    samples: list[Sample] = field(default_factory=list)
    phases: list[PhaseResult] = field(default_factory=list)
    rolls: list[EndedRoll] = field(default_factory=list)


@dataclass(slots=True)
class Record:
    """Everything the demo has seen."""

    started_s: float
    services: dict[str, ServiceRecord]
    events: list[Happening] = field(default_factory=list)
    requests: int = 0
    failures: list[str] = field(default_factory=list)
    shortened: Sequence[tuple[str, str, str]] = ()
