"""`breakeven-operator trial`: the load driver of one calibration Job.

The driver runs beside the engine in one pod and sweeps it. After each point it applies the arm's points to the
CalibrationRun, under a field manager of its own: always the arm's whole list, so that applying twice changes nothing. A
pod that replaces a preempted one finds the points there and goes on. Nothing of a request or an answer is logged: answers of
the arm go into a Secret, findings into the run's status.

Exit codes: 0 the sweep came to its end; 1 the engine cannot be measured; 2 the environment is wrong; 3 the API server
does not take the points; 4 the run is gone; 5 the file of prompts cannot be used; 6 the time was up before there were points
enough; 143 stopped by SIGTERM. The last line on stderr says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from breakeven.answering.answer import JudgedSet
from breakeven.answering.answer_gate import GateFinding, judge_arm
from breakeven.answering.prompt_set import ANSWER_TOKENS
from breakeven.arm import ADAPTIVE, Arm, arm_drafting
from breakeven.errors import InputError
from breakeven.load_driver.asking import ask, gate_prompts, judge
from breakeven.load_driver.client import Endpoint, EngineClient, EngineError
from breakeven.load_driver.course import Beside, Sweep
from breakeven.load_driver.dataset import Dataset, read_dataset
from breakeven.load_driver.design import Finished, SweepSettings, of_the_sweep
from breakeven.load_driver.question import Question
from breakeven.load_driver.sweep import SweepProgress, run_sweep
from breakeven.points.point import ON_MACHINE, Point
from breakeven_operator.calibration.answer_secrets import (
    MOUNT_PATH,
    AnswerOwner,
    answers_status,
    kept_answers,
    secret_of,
)
from breakeven_operator.calibration.jobs import ENGINE_VARIABLES, TrialPlan, arm_label, job_name
from breakeven_operator.calibration.sending import sent, text_name, workload_spec
from breakeven_operator.calibration.transition import measured_of, stored, usable_points
from breakeven_operator.calibration.trial_state import OUT_OF_TIME, WORKLOAD_UNREADABLE
from breakeven_operator.cluster.kubernetes import KubernetesCluster
from breakeven_operator.kinds import RUNS, SECRETS
from breakeven_operator.ports import Cluster, ClusterError, Manifest
from breakeven_operator.resources.base import AFTER, AGAIN, BEFORE
from breakeven_operator.resources.calibrationrun import (
    ArmAnswers,
    ArmPhase,
    CalibrationRun,
    GateFindingStatus,
    PlannedArm,
    StoredPoint,
)
from breakeven_operator.resources.calibrationspec import PromptSource
from breakeven_operator.serve.logs import TextLines

T = TypeVar("T")
_STORE_ATTEMPTS = 8  # with pauses doubling from 0.5 s: about a minute of an absent API server


class RunGoneError(Exception):
    """The CalibrationRun was deleted or has ended: nobody waits for points any more."""


class PointStore:
    """The arm's points in the CalibrationRun's status; of the judge, its findings about answers."""

    def __init__(self, trial: TrialEnvironment, runs: Cluster, *, pause_s: float = 0.5) -> None:
        self._trial = trial
        self._runs = runs
        self._pause_s = pause_s
        self._points: list[StoredPoint] = []
        self._answers: list[ArmAnswers] = []
        self._findings: list[GateFindingStatus] = []

    async def load(self) -> CalibrationRun:
        """Read the run and remember this arm's points.

        Raises:
            RunGoneError: there is no such run, or it has ended.
            ClusterError: the API server does not answer.
        """
        run = await self.read()
        self._points = list(run.status.points_of(self._trial.arm_name))
        self._answers = list(run.status.answers)
        self._findings = list(run.status.findings)
        return run

    async def read(self) -> CalibrationRun:
        """The run as it is now; raises as `load` does."""
        found = await self._persistently(self._get)
        if found is None:
            raise RunGoneError(
                f"there is no CalibrationRun {self._trial.namespace}/{self._trial.document.run}"
            )
        run = CalibrationRun.read(found, f"CalibrationRun {self._trial.namespace}/{self._trial.document.run}")
        if run.status.ended:
            raise RunGoneError(f"CalibrationRun {self._trial.document.run} is {run.status.phase} already")
        return run

    @property
    def points(self) -> tuple[StoredPoint, ...]:
        """This arm's points, stored ones and new ones."""
        return tuple(self._points)

    async def add(self, measured: Point) -> None:
        """Make one more point durable; returns only when the API server has it, and raises as `load` does."""
        identity = self._trial.sweep.workload.identity
        point = replace(
            measured, sweep=identity, schedule=self._trial.document.drafts, start=self._trial.start
        )
        index = 1 + max((stored_before.index for stored_before in self._points), default=-1)
        self._points.append(stored(self._trial.arm_name, index, point, datetime.now(UTC)))
        await self._persistently(self._apply)

    async def add_answers(self, found: GateFinding) -> None:
        """Make a finding durable, as `add` does, in place of an earlier one about the same arm."""
        self._answers = [*(one for one in self._answers if one.arm != found.arm), answers_status(found)]
        await self._persistently(self._apply)

    async def add_findings(self, findings: Iterable[GateFindingStatus]) -> None:
        """Make the findings of a gate durable, as `add` does."""
        self._findings = list(findings)
        await self._persistently(self._apply)

    async def _get(self) -> Manifest | None:
        return await self._runs.get(RUNS, self._trial.namespace, self._trial.document.run)

    async def _apply(self) -> Manifest:
        body = {
            "apiVersion": RUNS.api_version,
            "kind": RUNS.kind,
            "metadata": {"name": self._trial.document.run, "namespace": self._trial.namespace},
            # All of it each time: what a manager leaves out of an apply is taken away.
            "status": {
                name: [one.to_json_object() for one in kept]
                for name, kept in (
                    ("points", self._points),
                    ("answers", self._answers),
                    ("findings", self._findings),
                )
                if kept
            },
        }
        try:
            return await self._runs.apply(
                RUNS, body, force=True, subresource="status", manager=self._trial.field_manager
            )
        except ClusterError as error:
            if error.status == 404:
                raise RunGoneError(f"CalibrationRun {self._trial.document.run} was deleted") from error
            raise

    async def _persistently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat what an absent or overloaded API server refused; what it answers for good is not repeated."""
        pause_s = self._pause_s
        for attempt in range(_STORE_ATTEMPTS):
            try:
                return await call()
            except ClusterError as error:
                for_good = error.status in range(400, 500) and error.status not in {408, 409, 429}
                if for_good or attempt == _STORE_ATTEMPTS - 1:
                    raise
                _LOG.warning("the API server: %s; trying again in %.1f s", error, pause_s)
                await asyncio.sleep(pause_s)
                pause_s *= 2
        raise AssertionError("unreachable")


_WHERE = "BREAKEVEN_TRIAL"


class PromptsError(Exception):
    """The file of prompts is not there, or is none; one line that shows no prompt."""


@dataclass(frozen=True, slots=True)
class TrialEnvironment:
    """Settings from the Job's pod template, read from environment variables.

    Attributes:
        document: the measurement.
        prompts: the user's own requests; None for made-up ones.
        node: the pod's node, if other arms are measured at the same time; else empty.
        job_uid: uid of the Job whose answers are kept for the judge; empty if none are.
        answers: folder of the answers that are judged.
    """

    namespace: str
    document: TrialPlan
    sweep: Sweep
    endpoint: Endpoint
    prompts: Dataset | None = None
    node: str = ""
    job_uid: str = ""
    answers: Path = Path(MOUNT_PATH)

    @classmethod
    def read(cls, env: Mapping[str, str]) -> TrialEnvironment:
        """Parse and check the variables that `calibration.jobs` sets.

        Raises:
            InputError: a variable is missing, or a field of its document is not what it should be; names it.
            PromptsError: the file of prompts cannot be used.
        """
        trial = _trial(_text(env, "TRIAL"))
        planned, plan = trial.arm, trial.plan
        try:
            arm = arm_drafting(planned.method, planned.k, planned.candidate, trial.drafts)
        except ValueError as error:
            raise InputError(f"{_WHERE}.arm", str(error), "an arm") from error
        settings = SweepSettings(
            loads=plan.loads,
            max_concurrency=trial.max_concurrency,
            point_seconds=plan.point_seconds,
            min_point_seconds=min(5, plan.point_seconds),
            warmup_seconds=plan.warmup_seconds,
            max_seconds=trial.max_seconds,
            halved=trial.halved,
        )
        auto = plan.load_choice == "Auto"
        question = Question((arm,), settings, plan.expected_rps, running=arm) if auto else None
        ca_file = env.get("BREAKEVEN_CA_FILE")
        spec = workload_spec(plan.workload)
        dataset = _dataset(trial.prompts, spec.prompts)
        workload = sent(spec, plan.prompt_tokens, plan.output_tokens, dataset, drafts=planned.k > 0)
        # The first start of an arm answers.
        answers = plan.answers_seconds is not None and not planned.second_start and not trial.judged
        return cls(
            namespace=_text(env, "NAMESPACE"),
            document=trial,
            sweep=Sweep((arm,), workload, settings, lengths=True, question=question),
            endpoint=Endpoint(
                url=_text(env, "URL"),
                model=plan.served_model_name,
                api_key=env.get("BREAKEVEN_API_KEY") or env.get(f"{ENGINE_VARIABLES}VLLM_API_KEY") or None,
                ca_file=Path(ca_file) if ca_file else None,
                # The engine is asked at its pod's address, which no certificate names.
                check_hostname=False,
            ),
            prompts=dataset,
            node=env.get("BREAKEVEN_NODE", ""),
            job_uid=_text(env, "JOB_UID") if answers else "",
            answers=Path(env.get("BREAKEVEN_ANSWERS") or MOUNT_PATH),
        )

    @property
    def arm_name(self) -> str:
        """The arm, or its second start."""
        return self.document.arm.arm

    @property
    def start(self) -> str | None:
        """Name of this start of the engine in its points, with its machine where others are measured beside; None for an only one."""
        if self.node:
            return f"{self.arm_name}{ON_MACHINE}{hashlib.sha256(self.node.encode()).hexdigest()[:8]}"
        return self.arm_name if self.document.arm.second_start else None

    @property
    def judged(self) -> tuple[str, ...]:
        """Jobs whose answers are judged, no speculation first; empty if this trial judges none."""
        return self.document.judged if self.document.plan.answers_seconds else ()

    @property
    def answers_s(self) -> float:
        """Time for the answers of one arm, and for their judgement."""
        return float(self.document.plan.answers_seconds or 0)

    @property
    def field_manager(self) -> str:
        """Owner of this arm's points."""
        return f"breakeven-trial-{arm_label(self.arm_name)}"


def _dataset(path: str | None, prompts: PromptSource | None) -> Dataset | None:
    if prompts is None or path is None:
        return None
    try:
        return read_dataset(Path(path), text_name(prompts), prompts.category)
    except InputError as error:
        raise PromptsError(f"workload.prompts: {error}") from None


def _trial(text: str) -> TrialPlan:
    try:
        return TrialPlan.read(json.loads(text), _WHERE)
    except ValueError as error:
        raise InputError(_WHERE, f"no JSON: {error}", "what the calibration Job sets") from None


def _text(env: Mapping[str, str], name: str) -> str:
    value = env.get(f"BREAKEVEN_{name}", "")
    if not value:
        raise InputError(f"BREAKEVEN_{name}", "not set", "what the calibration Job sets")
    return value


async def ask_and_keep(trial: TrialEnvironment, client: EngineClient, cluster: Cluster) -> None:
    """Ask the arm and keep its answers for the judge. A failure is logged and leaves the measured points as they are."""
    arm, document = trial.arm_name, trial.document
    owner = AnswerOwner(
        trial.namespace, document.service, document.run, job_name(document.run, arm), trial.job_uid
    )
    tokens = document.plan.answers_output_tokens or ANSWER_TOKENS
    try:
        given = await ask(client, arm, gate_prompts(trial.prompts), trial.answers_s, tokens)
        await cluster.create(SECRETS, secret_of(given, owner))
    except EngineError as error:
        _LOG.warning("%s: no answers to judge: %s", arm, error)
    except ClusterError as error:
        # A pod that replaces a preempted one finds the answers there.
        if error.status != 409:
            _LOG.warning("%s: its answers cannot be kept: %s", arm, error)
    else:
        _LOG.info("%s: %d answers, %d requests refused", arm, len(given.answers), given.refused)


async def judge_kept(
    trial: TrialEnvironment, client: EngineClient, keep: Callable[[GateFinding], Awaitable[None]]
) -> None:
    """Judge what the arms answered; hands over one finding per arm, no speculation excepted.

    Raises:
        EngineError: the engine serves no such model.
    """
    floor: JudgedSet | None = None
    for job in trial.judged:
        try:
            given = kept_answers(job, trial.answers)
        except InputError as error:
            _LOG.warning("%s", error)
            given = None
        if given is None:
            _LOG.warning("%s left no answers", job)
            if floor is None:
                return
            continue
        judged = await judge(client, given, trial.answers_s)
        _LOG.info("%s: %d of %d answers judged", given.arm, len(judged.judged), len(given.answers))
        if floor is None:
            floor = judged
            continue
        found = judge_arm(judged, floor)
        _LOG.info("%s: %s: %s", found.arm, found.word, found)
        await keep(found)


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


def sweep_of_start(
    trial: TrialEnvironment, run: CalibrationRun, store: PointStore
) -> tuple[Sweep, list[Point]]:
    """The sweep of this start by what the run has measured, and the points of the arm's first start if this is the second one.

    Raises:
        PromptsError: other arms were measured with other prompts.
    """
    name = trial.arm_name.removesuffix(AGAIN)
    first = measured_of(run.status.points_of(name)) if trial.document.arm.second_start else []
    others = measured_of(point for point in run.status.points if point.arm.removesuffix(AGAIN) != name)
    beside = _arms_beside(trial, run)
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
        others=tuple(of_the_sweep([point for point in others if point.arm not in beside])),
        before=tuple(of_the_sweep(first)),
    )
    if beside:
        before = [point for one in beside.values() if one.second_start for point in _points(run, one.first)]
        sweep = replace(
            sweep,
            arms=tuple(beside),
            before=tuple(of_the_sweep(before)),
            beside=Beside(trial.sweep.arms[0], partial(_beside_now, store, beside)),
        )
    return sweep, first


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
    sweep, first = sweep_of_start(trial, run, store)
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
        judges = len(trial.judged) > len(run.status.answers) + 1
        if judges and sweep.beside is None:
            # Before the load, and once: an engine that dies under it has judged. Beside others nobody is to wait for it.
            await judge_kept(trial, client, store.add_answers)
        measured, engines = [*first, *measured_of(store.points)], dict.fromkeys(trial.sweep.arms, client)
        finished = await run_sweep(engines, sweep, measured, on_point=keep, on_progress=show)
        if judges and sweep.beside is not None:
            await judge_kept(trial, client, store.add_answers)
        if trial.job_uid:
            # After the load: a cache that a drafter has spoilt is full by then.
            await ask_and_keep(trial, client, runs)
    if finished.out_of_time and not usable_points(store.points):
        raise OutOfTimeError(finished.reason)
    return finished


def _arms_beside(trial: TrialEnvironment, run: CalibrationRun) -> dict[Arm, PlannedArm]:
    """The arms that are measured at the same time, by their draft length and this one included; empty if it is measured alone.

    An arm that is over is none of them: its points are read as of any arm before.
    """
    plan, over = run.status.plan, {one.arm for one in run.status.arm_statuses if one.over}
    if trial.document.plan.pods_at_once is None or plan is None or trial.document.arm.scheduled:
        return {}
    return {
        arm_drafting(one.method, one.k, one.candidate, ADAPTIVE if one.adaptive else None): one
        for one in sorted(plan.beside(trial.document.arm), key=lambda one: one.k)
        if one.arm == trial.arm_name or one.arm not in over
    }


def _points(run: CalibrationRun, *arms: str) -> list[Point]:
    return [point for arm in arms for point in measured_of(run.status.points_of(arm))]


async def _beside_now(
    store: PointStore, beside: Mapping[Arm, PlannedArm]
) -> dict[Arm, Sequence[Point] | None]:
    """How far the arms beside this one are; None until an engine is up, and without an arm that is over or waits for its turn."""
    run = await store.read()
    phases = {one.arm: one.phase for one in run.status.arm_statuses}
    return {
        arm: _points(run, *dict.fromkeys((one.first, one.arm)))
        if phases.get(one.arm) is ArmPhase.MEASURING
        else None
        for arm, one in beside.items()
        if phases.get(one.arm) in {ArmPhase.STARTING, ArmPhase.MEASURING}
    }


GateTrial = Callable[[TrialEnvironment, PointStore], Awaitable[str]]
"""The trial of a pod of a gate; returns what was done."""


async def _main(trial: TrialEnvironment, gate: GateTrial) -> int:
    cluster = await KubernetesCluster.connect(os.environ.get("KUBECONFIG"))
    this = asyncio.current_task()
    if this is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    try:
        if trial.arm_name in {BEFORE, AFTER}:
            said = await gate(trial, PointStore(trial, cluster))
        else:
            said = (await run_trial(trial, cluster)).reason
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await cluster.close()
    _LOG.info("%s: %s", trial.arm_name, said)
    return OK


def main(gate: GateTrial) -> int:
    """Entry point; returns the exit code."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        return asyncio.run(_main(TrialEnvironment.read(os.environ), gate))
    except tuple(_CODES) as error:
        code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
        why = f"points cannot be stored: {error}" if code == NOT_STORED else str(error)
    except asyncio.CancelledError:
        code, why = TERMINATED, "stopped by SIGTERM; points measured so far are stored"
    _LOG.error("%s", why)
    return code
