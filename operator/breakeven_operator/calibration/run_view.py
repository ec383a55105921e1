"""A CalibrationRun as one cycle sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from breakeven.profile import Profile
from breakeven_operator.ports import Manifest, MeanLengths, TrialSettings
from breakeven_operator.workloads.fingerprint import Identity
from breakeven_operator.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class RunView:
    """Everything about one CalibrationRun that its state machine may look at.

    Attributes:
        service: the SpeculativeService it belongs to; None if that is gone.
        target: the workload it copies; None if that is gone. Before pods of its present template serve, a run is not admitted.
        jobs, pods: labelled with this run.
        selectors: label selectors in the namespace (Services, PodMonitors, PodDisruptionBudgets, ...) that must not match a
            calibration pod: `{"matchLabels": {...}, "matchExpressions": [...]}` each.
        may_start: whether this run may start new Jobs now (not paused, and a place among the fleet's calibrations).
        duplicate_of: an older unfinished run of the same service that does the same work; this one is to be Superseded.
        network_policies: of the namespace; a calibration pod is isolated wherever its target is.
        events: Events about the Jobs; the only place where a refused pod (quota, admission) shows.
        warnings: what events say of pods that do not come, by uid.
        claims: PersistentVolumeClaims of the namespace; one that only one pod may mount cannot be copied.
        config_maps: ConfigMaps that the run or its service names, while it begins; None if there is no such one. A ConfigMap that
            the operator may not read is not in it.
        files_problem: why these were not all read.
        seen_lengths: mean lengths of the target's recent requests, and how much of prompts its prefix cache held.
        in_force: the profile that decisions use now, of the same fingerprint; None without one.
        lost_nodes: nodes whose kubelet does not say that it is Ready.
    """

    run: Manifest
    service: Manifest | None
    target: Workload | None
    jobs: tuple[Manifest, ...]
    pods: tuple[Manifest, ...]
    selectors: tuple[Manifest, ...]
    may_start: bool
    duplicate_of: str | None
    settings: TrialSettings
    network_policies: tuple[Manifest, ...] = ()
    events: tuple[Manifest, ...] = ()
    warnings: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[Manifest, ...] = ()
    config_maps: Mapping[str, Manifest | None] = field(default_factory=dict)
    files_problem: str | None = None
    seen_lengths: MeanLengths | None = None
    in_force: Profile | None = None
    lost_nodes: frozenset[str] = frozenset()

    @property
    def identity(self) -> Identity | None:
        """The identity of the target as it runs now; None while that is unknown."""
        return self.target.proven_identity if self.target is not None else None
