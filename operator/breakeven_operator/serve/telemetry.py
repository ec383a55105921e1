"""Metrics of the operator and its services on /metrics.

Everything about a service is read out of the status that was just written, so that a dashboard and `kubectl get` never
disagree. A service that is gone takes its series along: the collector below yields what was last published and keeps no
series of its own.

The labels are `specsvc_namespace` and `specsvc`, not `namespace` and `service`: Prometheus' own labels for the
scraped pod have those names and would rename ours to `exported_namespace` unless every user sets `honorLabels`.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import groupby
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from breakeven import __version__
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.resources import Model, SpeculativeService, SpeculativeServiceStatus
from breakeven_operator.resources.figures import FigureGauge, StatusField, ends_of, status_fields
from breakeven_operator.resources.targetstatus import HistoryEntry

SERVICE_LABELS = ("specsvc_namespace", "specsvc")
BOUNDS = ("estimate", "lower", "upper")
"""Values of the label `bound`: of a figure, and of the fields that hold its ends."""


class LabelledValue(NamedTuple):
    """One sample: the values of its own labels, and the figure."""

    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class ServiceGauge:
    """A gauge of every service; `labels` stand beside the labels that name the service."""

    name: str
    help: str
    samples: Callable[[SpeculativeService, datetime], Iterator[LabelledValue]]
    labels: tuple[str, ...] = ()


def one_value(value: float | None, *labels: str) -> Iterator[LabelledValue]:
    """One sample, or none if the value is not known."""
    if value is not None:
        yield LabelledValue(labels, float(value))


def gauges_of(status: type[Model]) -> tuple[ServiceGauge, ...]:
    """The gauges that rows of the status declare: one per name, whose fields follow each other."""
    rows = [(row, gauge) for row in status_fields(status) for gauge in row.marks(FigureGauge)]
    return tuple(_gauge(list(group)) for _, group in groupby(rows, key=lambda one: one[1].name))


def _gauge(rows: Sequence[tuple[StatusField, FigureGauge]]) -> ServiceGauge:
    def samples(service: SpeculativeService, _: datetime) -> Iterator[LabelledValue]:
        status = service.status
        for row, one in rows:
            if not (one.fresh and status.undecided):
                for part in _parts(status, row.path):
                    yield from _samples(part, row.name, one)

    _, first = rows[0]
    bound = ("bound",) if first.ends else ()
    return ServiceGauge(first.name, first.help, samples, (*first.labels, *first.fixed, *bound))


def _samples(part: Any, name: str, gauge: FigureGauge) -> Iterator[LabelledValue]:
    labels = [getattr(part, field) for field in gauge.labels.values()]
    if None in labels or (gauge.only_with and getattr(part, gauge.only_with) is None):
        return
    values = [1.0 if gauge.info else getattr(part, field) for field in (name, *gauge.ends)]
    if gauge.instead is not None:
        values[0] = gauge.instead(part)
    for bound, value in zip(BOUNDS, values, strict=False):
        own = (*map(str, labels), *gauge.fixed.values(), *([bound] if gauge.ends else []))
        yield from one_value(_shown(name, value), *own)


def _shown(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.timestamp()
    return float(value) / (100.0 if name.endswith("_percent") else 1.0)


def _parts(value: Any, path: Sequence[str]) -> Iterator[Any]:
    """The objects at the end of a path of fields, one of each item of a list."""
    if isinstance(value, tuple):
        for one in value:
            yield from _parts(one, path)
    elif value is not None and path:
        yield from _parts(getattr(value, path[0]), path[1:])
    elif value is not None:
        yield value


class CycleStage(StrEnum):
    """The stages of a cycle, in their order."""

    READING = "Reading"
    COMPARING = "Comparing"
    AWAITING = "Awaiting"
    DECIDING = "Deciding"
    WRITING = "Writing"
    REPORTING = "Reporting"
    CALIBRATING = "Calibrating"
    PUBLISHING = "Publishing"


class ServiceCounter(NamedTuple):
    """Meaning of a counter, and its labels beside those that name the service."""

    text: str
    labels: tuple[str, ...]


def _target_replicas(service: SpeculativeService, _: datetime) -> Iterator[LabelledValue]:
    target, capacity = service.status.target, service.status.capacity
    scaled_by = capacity.scaled_by if capacity is not None else None
    return one_value(target.replicas if target is not None else None, scaled_by or "")


def _survival(service: SpeculativeService, _: datetime) -> Iterator[LabelledValue]:
    model = service.status.model
    if model is None or model.arm is None:
        return
    for one in model.survival:
        for seen, value in (("live", one.live_accept), ("calibrated", one.calibrated_accept)):
            yield from one_value(value, model.arm, str(one.position), seen)


def _doubts(service: SpeculativeService, _: datetime) -> Iterator[LabelledValue]:
    for type_, word in DOUBTS.items():
        condition = service.status.condition(type_)
        if condition is not None and condition.status != "Unknown":
            # A profile comes under suspicion by a roll that was disproved as well.
            against = condition.status == "False"
            yield from one_value(float(against), condition.reason if against else word)


def _info(service: SpeculativeService, _: datetime) -> Iterator[LabelledValue]:
    target = service.spec.target_ref
    found = service.status.target
    gpu_product = found.gpu_product if found and found.gpu_product else ""
    opted_in = "" if found is None or found.opted_in is None else str(found.opted_in).lower()
    mode = str(service.spec.update_policy.mode)
    yield from one_value(1.0, mode, f"{target.kind}/{target.name}", gpu_product, opted_in)


def _last_measured(service: SpeculativeService) -> HistoryEntry | None:
    return next((one for one in service.status.history if one.measured_speedup is not None), None)


def _of_measured_roll(
    service: SpeculativeService, value: Callable[[HistoryEntry], float | None]
) -> Iterator[LabelledValue]:
    last = _last_measured(service)
    if last is not None:
        yield from one_value(value(last), last.from_arm or "", last.to_arm or "")


def _roll_speedup(service: SpeculativeService, _: datetime) -> Iterator[LabelledValue]:
    last = _last_measured(service)
    if last is None:
        return
    for said, name in (("promised", "predicted_speedup"), ("measured", "measured_speedup")):
        for bound, field in zip(BOUNDS, (name, *ends_of(name)), strict=True):
            value = getattr(last, field)
            yield from one_value(value, last.from_arm or "", last.to_arm or "", str(last.result), said, bound)


def _profile_age(service: SpeculativeService, now: datetime) -> Iterator[LabelledValue]:
    calibration = service.status.calibration
    measured = calibration.profile_time if calibration and calibration.profile else None
    return one_value((now - measured).total_seconds() if measured else None)


# Reason of each condition that is False; a profile may be under suspicion for another reason as well.
DOUBTS = {
    "ModelAgrees": "ModelDisagrees",
    "AcceptanceAsCalibrated": "AcceptanceDrifted",
    "LengthsAsCalibrated": "LengthsDrifted",
    "CostTableFits": "CostTableStale",
}
SERVICE_GAUGES: tuple[ServiceGauge, ...] = (
    ServiceGauge(
        "breakeven_service_info",
        "1 for every service; its mode, target and GPU class are labels, and opted_in is false if no annotation chooses the target's arm.",
        _info,
        ("mode", "target", "gpu_product", "opted_in"),
    ),
    ServiceGauge(
        "breakeven_stale",
        "1 while a defect of the operator keeps it from deciding: the service's other series come from its last decision.",
        lambda service, _: one_value(float(service.status.undecided)),
    ),
    ServiceGauge(
        "breakeven_paused",
        "1 if spec.paused is set.",
        lambda service, _: one_value(float(service.spec.paused)),
    ),
    ServiceGauge(
        "breakeven_target_replicas",
        "Replicas that the target asks for; scaled_by names the autoscaler that set them and is empty if none has.",
        _target_replicas,
        ("scaled_by",),
    ),
    ServiceGauge(
        "breakeven_draft_survival_ratio",
        "Share of drafts whose first tokens up to a position (from 1) were all accepted, on live traffic and in the calibration.",
        _survival,
        ("arm", "position", "seen"),
    ),
    ServiceGauge(
        "breakeven_doubt",
        "1 while live traffic says this against the profile in force (ModelDisagrees and RollDisproved: it is under suspicion; "
        "AcceptanceDrifted, LengthsDrifted, CostTableStale), 0 if significantly not; absent while not known.",
        _doubts,
        ("reason",),
    ),
    ServiceGauge(
        "breakeven_profile_age_seconds", "Time since the profile in force was measured.", _profile_age
    ),
    ServiceGauge(
        "breakeven_rollout_in_progress",
        "1 while the operator changes the arm of the target.",
        lambda service, _: one_value(float(service.status.rollout is not None)),
    ),
    *gauges_of(SpeculativeServiceStatus),
    ServiceGauge(
        "breakeven_roll_speedup",
        "Latency of the old arm over latency of the new arm in the last change of arm that was measured: what was promised for "
        "the load of the measurement, and what was measured of the pods of both arms.",
        _roll_speedup,
        ("from_arm", "to_arm", "result", "figure", "bound"),
    ),
    ServiceGauge(
        "breakeven_roll_timestamp_seconds",
        "When that change of arm ended.",
        lambda service, _: _of_measured_roll(service, lambda roll: roll.time.timestamp()),
        ("from_arm", "to_arm"),
    ),
    ServiceGauge(
        "breakeven_roll_load_requests_per_second",
        "Load per replica at which it was measured.",
        lambda service, _: _of_measured_roll(service, lambda roll: roll.load_rps),
        ("from_arm", "to_arm"),
    ),
)

# By name without `_total`.
SERVICE_COUNTERS: dict[str, ServiceCounter] = {
    "breakeven_decisions": ServiceCounter(
        "Decisions by what was done and why; one that stands counts in every cycle.", ("action", "reason")
    ),
    "breakeven_rollouts": ServiceCounter("Changes of arm that have ended, by result.", ("result",)),
    "breakeven_calibrations": ServiceCounter("Calibrations that have ended, by reason word.", ("reason",)),
    "breakeven_calibration_gpu_seconds": ServiceCounter(
        "GPUs times seconds that calibrations have held.", ()
    ),
}


class FleetCollector(Collector):
    """Series of the services that exist, from their statuses; a service that is gone has none."""

    def __init__(self) -> None:
        self._services: Sequence[SpeculativeService] = ()
        self._now: datetime | None = None
        self._tallies: dict[str, Tally[tuple[str, ...]]] = {name: Tally() for name in SERVICE_COUNTERS}

    def publish(self, services: Iterable[SpeculativeService], now: datetime) -> None:
        """Replace what /metrics says about services; forget those that are not among them."""
        self._services, self._now = tuple(services), now
        present = {_key(service) for service in self._services}
        for tally in self._tallies.values():
            for labels in [labels for labels in tally if labels[:2] not in present]:
                del tally[labels]

    def fall_silent(self) -> None:
        """Say nothing about services until the next `publish`: another replica does, and two would contradict."""
        self._now = None

    def count(self, counter: str, service: SpeculativeService, *labels: str, by: float = 1.0) -> None:
        """Add to one of SERVICE_COUNTERS.

        Raises:
            ValueError: it has other labels.
        """
        expected = SERVICE_COUNTERS[counter][1]
        if len(labels) != len(expected):
            raise ValueError(f"{counter} has the labels {expected}, got {labels}")
        # A Tally's values are annotated as int; sums of GPU-seconds are floats and add up all the same.
        self._tallies[counter][*_key(service), *labels] += by  # type: ignore[assignment]

    def collect(self) -> Iterable[Metric]:
        """Called by the registry at every scrape."""
        if self._now is None:
            return
        for gauge in SERVICE_GAUGES:
            family = GaugeMetricFamily(gauge.name, gauge.help, labels=(*SERVICE_LABELS, *gauge.labels))
            for service in self._services:
                for labels, value in gauge.samples(service, self._now):
                    family.add_metric((*_key(service), *labels), value)
            yield family
        for name, (text, labels) in SERVICE_COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=(*SERVICE_LABELS, *labels))
            for values, total in self._tallies[name].items():
                counter.add_metric(values, total)
            yield counter

    def describe(self) -> Iterable[Metric]:
        """Names for the registry's check against duplicates, without any series."""
        yield from (GaugeMetricFamily(gauge.name, gauge.help) for gauge in SERVICE_GAUGES)
        yield from (CounterMetricFamily(name, text) for name, (text, _) in SERVICE_COUNTERS.items())


def _key(service: SpeculativeService) -> NamespacedName:
    return NamespacedName(service.metadata.namespace, service.metadata.name)


class Telemetry:
    """Every metric of the operator, registered in one registry of its own; `fleet` has the metrics of services."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.fleet = FleetCollector()
        registry.register(self.fleet)
        self.build_info = Gauge(
            "breakeven_build_info", "1; the operator's version is a label.", ["version"], registry=registry
        )
        self.build_info.labels(__version__).set(1)
        self.leader = Gauge("breakeven_leader", "1 if this replica acts.", registry=registry)
        self.services = Gauge(
            "breakeven_services", "SpeculativeServices that are watched.", registry=registry
        )
        self.gpu_price = Gauge(
            "breakeven_gpu_price_per_hour",
            "Price of a GPU-hour by the chart's board.gpuPricePerHour; 0 without one.",
            registry=registry,
        )
        self.services_left = Gauge(
            "breakeven_services_left",
            "SpeculativeServices that the last pass left to the next one for lack of time.",
            registry=registry,
        )
        self.watched_left = Gauge(
            "breakeven_watched_left",
            "Workloads whose annotation asks for a SpeculativeService and that have none, because as many are made as may be.",
            registry=registry,
        )
        self._of_cycles(registry)
        self._of_reading(registry)

    def _of_cycles(self, registry: CollectorRegistry) -> None:
        self.cycle_duration = Histogram(
            "breakeven_cycle_duration_seconds",
            "Time of one pass: reading, deciding for a second at most, writing.",
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30),
            registry=registry,
        )
        self.cycle_stages = Histogram(
            "breakeven_cycle_stage_seconds",
            f"Time of one stage of a pass. They are, in their order: {', '.join(CycleStage)}. A stage that failed has no time.",
            ["stage"],
            buckets=(0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30),
            registry=registry,
        )
        self.errors = Counter("breakeven_errors", "Errors by reason word.", ["reason"], registry=registry)

    def _of_reading(self, registry: CollectorRegistry) -> None:
        self.unreadable_objects = Counter(
            "breakeven_unreadable_objects",
            "Objects of the API server that could not be read, each version once; the log names them.",
            ["kind"],
            registry=registry,
        )
        self.prometheus_queries = Counter(
            "breakeven_prometheus_queries",
            "Queries to Prometheus by outcome: ok, empty or error.",
            ["outcome"],
            registry=registry,
        )
        self.api_requests = Counter(
            "breakeven_api_requests",
            "Requests to the API server by verb and status code.",
            ["verb", "code"],
            registry=registry,
        )

    def stages(self, monotonic: Callable[[], float]) -> Callable[[CycleStage], None]:
        """A function to be called at the end of each stage: it notes the time since its last call, at first since now."""
        ended_s = monotonic()

        def passed(stage: CycleStage) -> None:
            nonlocal ended_s
            began_s, ended_s = ended_s, monotonic()
            self.cycle_stages.labels(str(stage)).observe(ended_s - began_s)

        return passed

    def lead(self, acts: bool) -> None:
        """Whether this replica acts; one that does not has nothing to say about services."""
        self.leader.set(float(acts))
        if not acts:
            self.fleet.fall_silent()

    def decided(self, service: SpeculativeService, action: str, reason: str) -> None:
        """Count a decision; the reason is the word that status, event and log use."""
        self.fleet.count("breakeven_decisions", service, action, reason)
