"""The columns of `kubectl get specsvc`."""

from __future__ import annotations

from breakeven.arm import NO_SPECULATION
from breakeven.errors import BreakevenError
from breakeven.profile import Comparison
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.cycle_facts import CycleFacts
from breakeven_operator.reconcile.formatting import FORMER_MARK, PAST_MARK, break_even, figure, speedup
from breakeven_operator.reconcile.paying import overruling, pays_now
from breakeven_operator.resources.decisionstatus import Basis
from breakeven_operator.resources.servicestatus import ServiceDisplay
from breakeven_operator.resources.targetstatus import ArmSource, Current
from breakeven_operator.workloads.running_arm import pods_by_arm


def _calibrated(cycle: CycleFacts) -> Comparison | None:
    """Without live figures: the running arm with its calibrated acceptance, which still has a break-even."""
    profile, running = cycle.calibrated.profile, cycle.running
    if profile is None or running is None or running.arm is None or running.arm.k == 0:
        return None
    try:
        return profile.compare(running.arm, NO_SPECULATION, rps=0.0)
    except BreakevenError:
        return None


def _running_arm(cycle: CycleFacts, current: Current | None) -> str:
    """The column ARM: what serves, and what the target is on its way to while no pod of that serves yet."""
    if current is None or current.arm is None:
        return "?"
    pods = cycle.workload.pods if cycle.workload is not None else ()
    # Of an older template too: those are what serves until the first new one is Ready.
    ready = [pod for pod in pods if pod.ready and not pod.terminating]
    if current.source is ArmSource.COMMAND_LINE:
        return current.arm
    arms = pods_by_arm(ready, cycle.service.spec.candidates)
    there = sorted(str(arm) for arm in arms if arm is not None)
    return current.arm if current.arm in there or not there else f"{', '.join(there)} -> {current.arm}"[:128]


def columns_of(cycle: CycleFacts, current: Current | None) -> ServiceDisplay:
    """The columns of a service, whose arm is the current one."""
    target, verdict = cycle.service.spec.target_ref, cycle.verdict
    comparison = cycle.verdict.against_none
    figures = cycle.live.figures if cycle.live is not None else None
    reason = str(verdict.reason)
    # A reader of this column alone must see that nothing is measured.
    marks = {Basis.PAST: PAST_MARK, Basis.FORMER: FORMER_MARK}
    marked = marks.get(cycle.verdict.basis, "") if comparison is not None else ""
    run = cycle.calibrated.run
    if run is not None and run.status.display is not None and run.status.display.points:
        progress = f"{run.status.display.points} points"
        if run.status.display.left:
            progress += f", {run.status.display.left} left"
        measuring = verdict.reason is ClusterReason.CALIBRATION_RUNNING
        reason += f" {progress}" if measuring else f"; calibrating {progress}"
    return ServiceDisplay(
        target=f"{target.kind}/{target.name}"[:128],
        arm=_running_arm(cycle, current),
        pays={True: "Yes", False: "No", None: "?"}[pays_now(verdict)] + marked,
        speedup=speedup(comparison, overruling(verdict)),
        break_even=break_even(comparison or _calibrated(cycle)),
        load=figure(figures.rps, "rps") if figures is not None else "-",
        recommended=verdict.arm.name
        if verdict.arm is not None and cycle.calibrated.entry is not None
        else "-",
        reason=reason[:128],
    )
