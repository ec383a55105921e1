"""`breakeven-operator trial` in the two pods of a gate: the pod of before holds its engine, the driver of now asks both.

The driver of before ends once the findings are there or the run is over, so that no engine outlives a dead operator for long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from urllib.parse import urlsplit

from breakeven.arm import arm_drafting
from breakeven.load_driver.client import Endpoint
from breakeven.upgrade.record import UpgradeReport
from breakeven.upgrade.trial import UpgradePlan, try_upgrade
from breakeven_operator.driver import PointStore, TrialEnvironment
from breakeven_operator.resources.base import AFTER, BEFORE
from breakeven_operator.resources.calibrationrun import (
    UPGRADE,
    CalibrationRun,
    GateFindingStatus,
)

_LOG = logging.getLogger("trial")
_LOOK_S = 10.0
# The operator notes both starts within a few cycles; the engine of before may start later than this one.
_STARTS_NOTED_S = 45.0
_ANSWERS_S = 60.0
# Of the time that the budget leaves: the rest is for writing down, and for engines to stop.
_SHARE = 0.9


async def run_gate(trial: TrialEnvironment, store: PointStore) -> str:
    """Hold the engine of before, or compare both engines and store the findings; returns what was done.

    Before the fields, of which an engine may die, all else is stored without the gate's own word.

    Raises:
        RunGoneError: nobody waits for the findings.
        ClusterError: findings cannot be stored.
        EngineError: the engine of before does not answer.
    """
    run = await store.load()
    if trial.arm_name == BEFORE:
        while not any(one.figure == UPGRADE for one in run.status.findings):
            await asyncio.sleep(_LOOK_S)
            run = await store.load()
        return "both engines were asked"
    planned, plan = trial.document.arm, UpgradePlan()
    arm = arm_drafting(planned.method, planned.k, planned.candidate, trial.document.drafts)
    run = await _both_started(run, store)
    report = await try_upgrade(
        _elsewhere(trial.endpoint, trial.document.other_address or ""),
        trial.endpoint,
        replace(
            plan,
            arm=arm,
            workload=trial.sweep.workload,
            max_seconds=min(plan.max_seconds, _seconds_left(trial, run)),
            start_timeout_s=_ANSWERS_S,
            start_s=(_start_s(run, BEFORE), _start_s(run, AFTER)),
        ),
        _LOG.info,
        lambda found: store.add_findings(islice(findings_of(found), 1, None)),
    )
    await store.add_findings(findings_of(report))
    return str(report.word)


async def _both_started(run: CalibrationRun, store: PointStore) -> CalibrationRun:
    """The run once the operator has noted when both engines answered; the start of this one is waited for a while only."""
    waited_s = 0.0
    while True:
        noted = {one.arm for one in run.status.arm_statuses if one.ready_time is not None}
        if {BEFORE, AFTER} <= noted or (BEFORE in noted and waited_s >= _STARTS_NOTED_S):
            return run
        await asyncio.sleep(_LOOK_S)
        waited_s += _LOOK_S
        run = await store.load()


def _start_s(run: CalibrationRun, name: str) -> float | None:
    for arm in run.status.arm_statuses:
        if arm.arm == name and arm.ready_time is not None and arm.started_time is not None:
            return (arm.ready_time - arm.started_time).total_seconds()
    return None


def _elsewhere(endpoint: Endpoint, address: str) -> Endpoint:
    """The same engine at another pod's address."""
    parts = urlsplit(endpoint.url)
    host = f"[{address}]" if ":" in address else address
    return replace(endpoint, url=f"{parts.scheme}://{host}:{parts.port}")


def _seconds_left(trial: TrialEnvironment, run: CalibrationRun) -> float:
    """Time for asking: what the budget leaves to two pods since the run began."""
    plan, now = trial.document.plan, datetime.now(UTC)
    since_s = (now - (run.status.started_time or now)).total_seconds()
    gpus = 2 * max(1, plan.gpus_per_pod)
    budget_s = min(plan.budget.max_gpu_seconds / gpus, plan.budget.max_duration_seconds)
    return max(1.0, _SHARE * (budget_s - since_s))


def findings_of(report: UpgradeReport) -> Iterator[GateFindingStatus]:
    """The rows of a run's status: the gate's own word first."""
    yield GateFindingStatus(figure=UPGRADE, word=str(report.word), message=sentence_of(report)[:1024])
    for one in report.findings:
        word = str(one.word) if one.word is not None else None
        yield GateFindingStatus(figure=one.figure[:128], word=word, message=one.sentence[:1024])


def sentence_of(report: UpgradeReport) -> str:
    """What the word rests on: the findings with that word, and what a decision would take."""
    said = "; ".join(one.sentence for one in report.findings if one.word == report.word)
    versions = " against ".join(filter(None, (report.versions.get("before"), report.versions.get("after"))))
    return "; ".join(filter(None, (said, report.needs, versions))) or str(report.word)
