"""`breakeven-operator trial`: the load driver of one calibration Job.

The driver runs beside the engine in one pod and sweeps it. After each point it applies the arm's points to the
CalibrationRun, under a field manager of its own: always the arm's whole list, so that applying twice changes nothing. A
pod that replaces a preempted one finds the points there and goes on.

Exit codes: 0 the sweep came to its end; 1 the engine cannot be measured; 2 the environment is wrong; 3 the API server
does not take the points; 4 the run is gone; 5 the file of prompts cannot be used; 6 the time was up before there were points
enough; 143 stopped by SIGTERM. The last line on stderr says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace

from breakeven.errors import InputError
from breakeven.load_driver.client import EngineClient, EngineError
from breakeven.load_driver.design import Finished, of_the_sweep
from breakeven.load_driver.sweep import SweepProgress, run_sweep
from breakeven.points.point import Point
from breakeven_operator.adapters.kubernetes import KubernetesCluster
from breakeven_operator.answer_trial import ask_and_keep, judge_kept
from breakeven_operator.calibration.measurements import measured_of, usable_points
from breakeven_operator.calibration.trial_state import OUT_OF_TIME, WORKLOAD_UNREADABLE
from breakeven_operator.point_store import PointStore, RunGoneError
from breakeven_operator.ports import Cluster, ClusterError
from breakeven_operator.resources.base import AGAIN
from breakeven_operator.serve.logs import TextLines
from breakeven_operator.trial_environment import PromptsError, TrialEnvironment

_LOG = logging.getLogger("trial")
OK, ENGINE_FAILED, BAD_ENVIRONMENT, NOT_STORED, RUN_GONE, TERMINATED = 0, 1, 2, 3, 4, 143
_READY_S = 120.0  # the engine's startup probe has succeeded already


class OutOfTimeError(Exception):
    """The arm's share of the budget was used before there were points enough for a law."""


_CODES: Mapping[type[Exception], int] = {
    InputError: BAD_ENVIRONMENT,
    PromptsError: WORKLOAD_UNREADABLE,
    RunGoneError: RUN_GONE,
    ClusterError: NOT_STORED,
    EngineError: ENGINE_FAILED,
    OutOfTimeError: OUT_OF_TIME,
}


async def run_trial(trial: TrialEnvironment, runs: Cluster) -> Finished:
    """Sweep the engine and store each point.

    Raises:
        RunGoneError: nobody waits for the points.
        ClusterError: points cannot be stored.
        EngineError: the engine cannot be measured.
        OutOfTimeError: no usable point fitted into the time.
    """
    store = PointStore(trial, runs)
    run = await store.load()
    name = trial.arm_name.removesuffix(AGAIN)
    first = measured_of(run.status.points_of(name)) if trial.second_start else []
    others = measured_of(point for point in run.status.points if point.arm.removesuffix(AGAIN) != name)
    known, identity = [*others, *first], trial.sweep.workload.identity
    if any(point.sweep not in {None, identity} for point in known):
        raise PromptsError(
            "workload.prompts: the file changed since the arm before it was measured; expected the same text for all arms"
        )
    # Rates measured before this start are taken over if they fit, so that arms meet at equal loads.
    rates = tuple(sorted({point.load.rps for point in known if point.load.rps is not None and point.usable}))
    settings, question = replace(trial.sweep.settings, reference_rps=rates), trial.sweep.question
    if question is not None:
        question = replace(question, settings=settings)
    sweep = replace(
        trial.sweep,
        settings=settings,
        question=question,
        others=tuple(of_the_sweep(others)),
        before=tuple(of_the_sweep(first)),
    )
    if store.points:
        _LOG.info("%s: going on after %d points", trial.arm_name, len(store.points))
    shown = ""

    def show(progress: SweepProgress) -> None:
        nonlocal shown
        line = f"{trial.arm_name}: point {progress.step.number} of {progress.total}: {progress.step.load}"
        if line != shown:
            _LOG.info("%s; about %.0f s left", line, progress.seconds_left)
            shown = line

    async def keep(point: Point) -> None:
        await store.add(point)
        _LOG.info(
            "%s: %s: latency %.4g s, %.3g in flight, %.0f requests%s",
            trial.arm_name,
            point.load,
            point.mean_latency_s,
            point.measured_inflight,
            point.requests,
            f" ({', '.join(point.flags)})" if point.flags else "",
        )

    async with EngineClient(trial.endpoint, sweep.workload.sampling) as client:
        await client.wait_until_ready(_READY_S)
        if trial.answers is not None and len(trial.answers.judged) > len(run.status.answers) + 1:
            # Before the load, and once: an engine that dies under it has judged.
            await judge_kept(trial.answers, client, store.add_answers)
        measured, engines = [*first, *measured_of(store.points)], dict.fromkeys(sweep.arms, client)
        finished = await run_sweep(engines, sweep, measured, on_point=keep, on_progress=show)
        if trial.answers is not None and not trial.answers.judged:
            # After the load: a cache that a drafter has spoilt is full by then.
            await ask_and_keep(trial.answers, client, runs)
    if finished.out_of_time and not usable_points(store.points):
        raise OutOfTimeError(finished.reason)
    return finished


async def _main(trial: TrialEnvironment) -> int:
    cluster = await KubernetesCluster.connect(os.environ.get("KUBECONFIG"))
    this = asyncio.current_task()
    if this is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    try:
        finished = await run_trial(trial, cluster)
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await cluster.close()
    _LOG.info("%s: %s", trial.arm_name, finished.reason)
    return OK


def main() -> int:
    """Entry point; returns the exit code."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        return asyncio.run(_main(TrialEnvironment.read(os.environ)))
    except tuple(_CODES) as error:
        code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
        why = f"points cannot be stored: {error}" if code == NOT_STORED else str(error)
    except asyncio.CancelledError:
        code, why = TERMINATED, "stopped by SIGTERM; points measured so far are stored"
    _LOG.error("%s", why)
    return code
