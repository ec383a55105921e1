"""The environment of a trial: the variables of a calibration Job's pod, read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from breakeven.answering.prompt_set import ANSWER_TOKENS
from breakeven.arm import arm_drafting
from breakeven.errors import InputError
from breakeven.load_driver.client import Endpoint
from breakeven.load_driver.dataset import Dataset, read_dataset
from breakeven.load_driver.design import SweepSettings
from breakeven.load_driver.question import Question
from breakeven.load_driver.sweep import Sweep
from breakeven_operator.answer_trial import AnswerTrial
from breakeven_operator.calibration.answer_secrets import MOUNT_PATH, AnswerOwner
from breakeven_operator.calibration.jobs import ENGINE_VARIABLES, TrialPlan, arm_label, job_name
from breakeven_operator.calibration.sending import sent, text_name, workload_spec
from breakeven_operator.resources.base import AGAIN
from breakeven_operator.resources.calibrationspec import LoadChoice
from breakeven_operator.resources.workloadspec import PromptSource

_WHERE = "BREAKEVEN_TRIAL"


class PromptsError(Exception):
    """The file of prompts is not there, or is none; one line that shows no prompt."""


@dataclass(frozen=True, slots=True)
class TrialEnvironment:
    """Settings from the Job's pod template, read from environment variables.

    Attributes:
        schedule: the draft length per batch size that the engine runs, or the word for adaptive verification; None if it drafts
            by one length.
        answers: how its answers are kept, or all arms' answers judged; None if answers are not compared.
    """

    namespace: str
    run: str
    arm_name: str
    sweep: Sweep
    endpoint: Endpoint
    schedule: str | None = None
    answers: AnswerTrial | None = None

    @classmethod
    def read(cls, env: Mapping[str, str]) -> TrialEnvironment:
        """Parse and check the variables that `calibration.jobs` sets.

        Raises:
            InputError: a variable is missing, or a field of its document is not what it should be; names it.
            PromptsError: the file of prompts cannot be used.
        """
        trial = _trial(_text(env, "TRIAL"))
        planned, plan, schedule = trial.arm, trial.plan, trial.drafts
        try:
            arm = arm_drafting(planned.method, planned.k, planned.candidate, schedule)
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
        auto = plan.load_choice is LoadChoice.AUTO
        question = Question((arm,), settings, plan.expected_rps, running=arm) if auto else None
        ca_file = env.get("BREAKEVEN_CA_FILE")
        spec = workload_spec(plan.workload)
        dataset = _dataset(trial.prompts, spec.prompts)
        workload = sent(spec, plan.prompt_tokens, plan.output_tokens, dataset, drafts=planned.k > 0)
        return cls(
            namespace=_text(env, "NAMESPACE"),
            run=trial.run,
            arm_name=planned.arm,
            sweep=Sweep((arm,), workload, settings, lengths=True, question=question),
            endpoint=Endpoint(
                url=_text(env, "URL"),
                model=plan.served_model_name,
                api_key=env.get("BREAKEVEN_API_KEY") or env.get(f"{ENGINE_VARIABLES}VLLM_API_KEY") or None,
                ca_file=Path(ca_file) if ca_file else None,
                # The engine is asked at its pod's address, which no certificate names.
                check_hostname=False,
            ),
            schedule=schedule,
            answers=_answers(trial, env, dataset),
        )

    @property
    def second_start(self) -> bool:
        """Whether an arm of the run is measured on a second start of its engine."""
        return self.arm_name.endswith(AGAIN)

    @property
    def field_manager(self) -> str:
        """Owner of this arm's points."""
        return f"breakeven-trial-{arm_label(self.arm_name)}"


def _answers(trial: TrialPlan, env: Mapping[str, str], dataset: Dataset | None) -> AnswerTrial | None:
    # The first start of an arm answers.
    if trial.plan.answers_seconds is None or (trial.arm.second_start and not trial.judged):
        return None
    return AnswerTrial(
        owner=AnswerOwner(
            _text(env, "NAMESPACE"),
            trial.service,
            trial.run,
            job_name(trial.run, trial.arm.arm),
            "" if trial.judged else _text(env, "JOB_UID"),
        ),
        arm=trial.arm.arm,
        longest_s=float(trial.plan.answers_seconds),
        tokens=trial.plan.answers_output_tokens or ANSWER_TOKENS,
        judged=trial.judged,
        own=dataset,
        folder=Path(env.get("BREAKEVEN_ANSWERS") or MOUNT_PATH),
    )


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
