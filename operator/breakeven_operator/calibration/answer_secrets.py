"""The way of answers from the pod of each arm to the pod that judges them: a Secret per arm, which goes with the arm's Job.

The driver of an arm may create Secrets and read none; the judge's pod mounts them. The Jobs stay until the run ends, and with
them the Secrets: when the operator deletes the Jobs, or their time is over, Kubernetes deletes the Secrets too.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from breakeven.answering.answer import AnswerSet
from breakeven_operator.kinds import JOBS, RUN_LABEL, SECRETS, SERVICE_LABEL, new_object
from breakeven_operator.resources.calibrationrun import ArmAnswers

if TYPE_CHECKING:
    # The test itself needs scipy, which the operator's process does without.
    from breakeven.answering.answer_gate import GateFinding

VOLUME = "breakeven-answers"
MOUNT_PATH = "/var/run/breakeven/answers"
MOUNT = {"name": VOLUME, "mountPath": MOUNT_PATH, "readOnly": True}
TYPE = "breakeven.dev/answers"
JOB_UID_LABEL = "batch.kubernetes.io/controller-uid"
"""Label by which a pod knows its Job's uid; Kubernetes sets it."""
_KEY = "answers.json.gz"


@dataclass(frozen=True, slots=True)
class AnswerOwner:
    """The calibration that answers belong to, and the Job that asked for them, with which they go."""

    namespace: str
    service: str
    run: str
    job: str
    job_uid: str


def secret_of(given: AnswerSet, owner: AnswerOwner) -> dict[str, Any]:
    """The Secret that holds an arm's answers until the arm's Job is deleted."""
    return new_object(
        SECRETS,
        owner.job,
        owner.namespace,
        {SERVICE_LABEL: owner.service, RUN_LABEL: owner.run},
        {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "name": owner.job, "uid": owner.job_uid},
        type=TYPE,
        immutable=True,
        data={_KEY: base64.b64encode(given.packed()).decode("ascii")},
    )


def answers_volume(jobs: Sequence[str]) -> dict[str, Any]:
    """The volume of the judge's pod with the answers of these Jobs; a Job that left none has no file in it."""
    sources = [
        {"secret": {"name": job, "optional": True, "items": [{"key": _KEY, "path": job}]}} for job in jobs
    ]
    return {"name": VOLUME, "projected": {"sources": sources}}


def kept_answers(job: str, folder: Path = Path(MOUNT_PATH)) -> AnswerSet | None:
    """The answers that a Job left; None if it left none.

    Raises:
        InputError: the file is none of answers.
    """
    file = folder / job
    return AnswerSet.unpacked(file.read_bytes(), f"answers of {job}") if file.is_file() else None


def answers_status(found: GateFinding) -> ArmAnswers:
    """A finding as the run's status holds it."""
    return ArmAnswers(
        arm=found.arm,
        word=str(found.word),
        message=str(found)[:1024],
        answers=found.answers,
        tokens=found.tokens,
        near_ties=found.near_ties,
        differing=found.differing,
        flawed=found.flawed,
        places=tuple(str(place) for place in found.places),
        equal=found.equal,
        compared=found.compared,
        first_difference=found.first_difference,
        widest_gap_nats=found.widest_gap,
        p_value=found.p_value,
        share_upper_percent=100 * found.share_upper,
    )
