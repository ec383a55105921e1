"""One cycle of one run: how a changed status is written, and how a run ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from breakeven.reasons import Reason
from breakeven_operator.actions import Action, Delete, EmitEvent, WriteStatus
from breakeven_operator.calibration.display import run_display
from breakeven_operator.calibration.run_view import RunView
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import JOBS, RUNS, Ref
from breakeven_operator.ports import Manifest
from breakeven_operator.reconcile.conditions import Aspect, merge
from breakeven_operator.resources.calibrationrun import CalibrationRun, CalibrationRunStatus, RunPhase
from breakeven_operator.resources.meta import Condition

Word = ClusterReason | Reason
_EVENTS = {
    RunPhase.FAILED: str(ClusterReason.CALIBRATION_FAILED),
    RunPhase.SUCCEEDED: str(ClusterReason.CALIBRATION_SUCCEEDED),
}
"""Words of the events about a run's end; a superseded run says its reason itself."""


def job_ref(job: Manifest) -> Ref:
    """A Job as actions name it; its uid keeps a newer one of the same name alive."""
    meta = job["metadata"]
    return Ref(JOBS, meta["namespace"], meta["name"], meta.get("uid", ""))


@dataclass(frozen=True, slots=True)
class Transition:
    """One cycle of one run: what was seen, and how it is written down."""

    view: RunView
    run: CalibrationRun
    now: datetime

    @property
    def ref(self) -> Ref:
        """The run as actions name it."""
        meta = self.run.metadata
        return Ref(RUNS, meta.namespace, meta.name, meta.uid)

    def write(self, changes: Mapping[str, object], break_even: str | None = None) -> tuple[Action, ...]:
        """Write the status with these fields changed; nothing if it says that already.

        Points and answers are left out: they belong to the drivers, and applying them here would take them over.
        """
        before = self.run.status
        status = before.replace(observed_generation=self.run.metadata.generation, **changes)
        status = status.replace(
            display=run_display(status, self.now, break_even),
            conditions=self._conditions(status),
        )
        document = status.to_json_object()
        known = before.to_json_object()
        for theirs in ("points", "answers"):
            document.pop(theirs, None)
            known.pop(theirs, None)
        return () if document == known else (WriteStatus(self.ref, document),)

    def finish(
        self,
        phase: RunPhase,
        reason: Word,
        message: str,
        changes: Mapping[str, object] | None = None,
        break_even: str | None = None,
    ) -> tuple[Action, ...]:
        """End the run: say why, then leave nothing behind."""
        failed = phase is RunPhase.FAILED
        text = f"{reason}: {message}" if failed else message
        event = EmitEvent(self.ref, _EVENTS.get(phase, str(reason)), text, warning=failed)
        return (
            *self.write(
                {
                    **(changes or {}),
                    "phase": phase,
                    "reason": str(reason),
                    "message": message[:1024],
                    "finished_time": self.now,
                },
                break_even,
            ),
            *(Delete(job_ref(job)) for job in self.view.jobs),
            event,
        )

    def _conditions(self, status: CalibrationRunStatus) -> tuple[Condition, ...]:
        """Complete and Succeeded, on which `kubectl wait` can wait; unknown while the run goes on."""
        phase = status.phase or RunPhase.PENDING
        reason = status.reason or str(ClusterReason.CALIBRATION_RUNNING)
        message = status.message or ""
        succeeded = phase is RunPhase.SUCCEEDED if phase.final else None
        aspects = (
            Aspect("Complete", phase.final, reason, message),
            Aspect("Succeeded", succeeded, reason, message),
        )
        return merge(self.run.status.conditions, aspects, self.now)
