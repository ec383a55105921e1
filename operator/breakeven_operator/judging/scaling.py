"""How many replicas the target needs: what each arm carries within the objectives, against the load of the whole fleet.

The operator never changes the number of replicas. It says what an autoscaler can scale by, and which arm a target that an
autoscaler scales should run: it needs fewest replicas, whichever is faster at today's load per replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.planning.capacity import (
    HEADROOM,
    Capacity,
    FewestReplicas,
    capacity_along,
    fewest_replicas,
    recommended_replicas,
)
from breakeven.planning.observed_load import live_conditions
from breakeven.profile import Conditions
from breakeven.serving.counted_window import Load
from breakeven_operator.case import Case, Live
from breakeven_operator.observing.questions import as_measured, policy_of, seen_of
from breakeven_operator.resources.servicestatus import ArmCapacity, CapacityStatus
from breakeven_operator.workloads.running_arm import pods_by_arm

# A load summed over pods that were watched for less than this share of the window is mostly chance.
_WATCHED = 0.5


def with_capacity(case: Case) -> Case:
    """The case with the capacity of the target's replicas for people and autoscalers, and the arm that needs fewest of them."""
    figures, running = _known(case.live, case.spec.metrics_source.window_seconds), case.running.arm
    found = _capacities(case, figures)
    capacities = tuple(one for one in found.values() if one is not None)
    recommended = fewest = None
    if figures is not None and running is not None:
        arms = {running, *_of_pods(case)}
        recommended = recommended_replicas(figures.total_rps, [found.get(arm) for arm in arms if arm])
        if None in arms:
            recommended = None
        fewest = fewest_replicas(capacities, figures.total_rps, running)
    scaled_by = case.workload.scaled_by
    if not capacities and scaled_by is None:
        return case
    needs = fewest.needs if fewest is not None else {}
    status = CapacityStatus(
        arms=tuple(
            ArmCapacity(
                arm=one.arm.name,
                capacity_rps=one.rps,
                lower_rps=one.lower_rps,
                upper_rps=one.upper_rps,
                limit=one.limit.value,
                replicas=round(needs[one.arm].value or 1) if one.arm in needs else None,
            )
            for one in capacities
        ),
        fleet_load_rps=figures.total_rps if figures is not None else None,
        recommended_replicas=recommended,
        scaled_by=scaled_by,
        message=_sentence(scaled_by, figures, fewest)[:1024],
    )
    return replace(case, capacity=status, fewest=fewest)


def _sentence(scaled_by: str | None, figures: Load | None, fewest: FewestReplicas | None) -> str:
    who = (
        f"{scaled_by} scales the target, so the arm that needs fewest replicas is the one to run"
        if scaled_by is not None
        else "no autoscaler has scaled the target"
    )
    if figures is None:
        return f"{who}; how many are needed is not known: the present load is not"
    if fewest is None:
        return f"{who}; how many are needed is not known: what the running arm carries is not"
    return f"{who}; {fewest.sentence}; each with room for {HEADROOM:g} times that load"


def _known(live: Live, window_s: float) -> Load | None:
    """The live window if it is long enough to give a load; few requests are enough, because few replicas carry them."""
    figures = live.figures
    return figures if figures is not None and figures.window_s >= _WATCHED * window_s else None


def _of_pods(case: Case) -> Sequence[Arm | None]:
    """Arms that pods run beside the arm of the template, during a roll; None for an arm that is not known."""
    if case.running.source == "Arguments":
        return ()
    there = [pod for pod in case.workload.pods if not pod.terminating]
    return [*pods_by_arm(there, case.spec.candidates)]


def _capacities(case: Case, figures: Load | None) -> Mapping[Arm, Capacity | None]:
    spec, running = case.spec, case.running.arm
    if case.profile is None:
        return {}
    confidence = spec.update_policy.confidence_percent / 100
    profile = as_measured(case.profile, running, case.memory, case.now, confidence)
    arms = {
        arm.name: arm for arm in (NO_SPECULATION, *spec.candidates.arms(), *([running] if running else []))
    }
    seen = seen_of(case.memory, arms)
    fits, slo = {fit.arm: fit for fit in profile.arms}, policy_of(spec).slo
    found: dict[Arm, Capacity | None] = {}
    for arm in arms.values():
        fit = fits.get(arm)
        if fit is None or not fit.measurements:
            continue
        wanted = Conditions()
        if figures is not None:
            wanted = live_conditions(profile, figures, seen)(arm)
        if fit.tokens_per_step is None:
            wanted = replace(wanted, tokens_per_step=None)
        try:
            curve, room = profile.curve(arm, wanted), case.engine_limits.running
            found[arm] = capacity_along(profile, arm, curve, slo, max_num_seqs=room)
        except BreakevenError:
            # The measurements do not cover these lengths.
            found[arm] = None
    return found
