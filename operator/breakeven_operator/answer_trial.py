"""The answers of an arm, and their judgement, in the pod of a calibration Job: the part of the driver that measures no load.

Nothing of a request or an answer is logged. Answers go into a Secret, findings into the run's status.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from breakeven.answering.gate import GateFinding, judge_arm
from breakeven.answering.judgement import JudgedSet
from breakeven.errors import InputError
from breakeven.load_driver.asking import ask, gate_prompts, judge
from breakeven.load_driver.client import EngineClient, EngineError
from breakeven.load_driver.dataset import Dataset
from breakeven_operator.calibration.answer_secrets import MOUNT_PATH, AnswerOwner, kept_answers, secret_of
from breakeven_operator.kinds import SECRETS
from breakeven_operator.ports import ClusterError, Creator

_LOG = logging.getLogger("trial")


@dataclass(frozen=True, slots=True)
class AnswerTrial:
    """Settings of the answers' part of a trial.

    Attributes:
        longest_s: time for the answers of one arm, and for their judgement.
        judged: Jobs whose answers are judged, no speculation first; empty: the arm is asked.
        own: the user's own prompts; None for the shipped ones.
    """

    owner: AnswerOwner
    arm: str
    longest_s: float
    tokens: int
    judged: tuple[str, ...] = ()
    own: Dataset | None = None
    folder: Path = Path(MOUNT_PATH)


async def ask_and_keep(trial: AnswerTrial, client: EngineClient, cluster: Creator) -> None:
    """Ask the arm and keep its answers for the judge. A failure is logged and leaves the measured points as they are."""
    try:
        given = await ask(client, trial.arm, gate_prompts(trial.own), trial.longest_s, trial.tokens)
        await cluster.create(SECRETS, secret_of(given, trial.owner))
    except EngineError as error:
        _LOG.warning("%s: no answers to judge: %s", trial.arm, error)
    except ClusterError as error:
        # A pod that replaces a preempted one finds the answers there.
        if error.status != 409:
            _LOG.warning("%s: its answers cannot be kept: %s", trial.arm, error)
    else:
        _LOG.info("%s: %d answers, %d requests refused", trial.arm, len(given.answers), given.refused)


async def judge_kept(
    trial: AnswerTrial, client: EngineClient, keep: Callable[[GateFinding], Awaitable[None]]
) -> None:
    """Judge what the arms answered; hands over one finding per arm, no speculation excepted.

    Raises:
        EngineError: the engine serves no such model.
    """
    floor: JudgedSet | None = None
    for job in trial.judged:
        try:
            given = kept_answers(job, trial.folder)
        except InputError as error:
            _LOG.warning("%s", error)
            given = None
        if given is None:
            _LOG.warning("%s left no answers", job)
            if floor is None:
                return
            continue
        judged = await judge(client, given, trial.longest_s)
        _LOG.info("%s: %d of %d answers judged", given.arm, len(judged.judged), len(given.answers))
        if floor is None:
            floor = judged
            continue
        found = judge_arm(judged, floor)
        _LOG.info("%s: %s: %s", found.arm, found.word, found)
        await keep(found)
