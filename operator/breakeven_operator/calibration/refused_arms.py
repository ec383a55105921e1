"""Arms of a plan that are not started: the service names them no longer, or the target's engine would refuse them.

Both are known before a pod of theirs holds a GPU.
"""

from __future__ import annotations

import json

from breakeven.methods import ADAPTIVE_KEY
from breakeven.serving.hindrances import arm_hindrances, unknown_words
from breakeven.serving.vllm_versions import version_of
from breakeven_operator.resources.calibrationrun import PlannedArm
from breakeven_operator.resources.candidates import Candidates, SpeculativeMethod, UnknownMethod
from breakeven_operator.workloads.served_engine import ServedEngine

_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


def is_asked_for(planned: PlannedArm, candidates: Candidates) -> bool:
    """Whether an arm is still a candidate: somebody may have taken it out since the plan was made, to spare its GPU time."""
    if planned.k == 0:
        return True
    method = _method_of(planned, candidates)
    if method is None or planned.scheduled:
        return method is not None
    return (planned.k, planned.adaptive) in method.lengths


def refusal_of(planned: PlannedArm, engine: ServedEngine, candidates: Candidates) -> str | None:
    """Reason why an engine does not start with an arm, by what is known of its version; None if none is known.

    A method with unknownMethod Allow is left to the engine.
    """
    config = json.loads(planned.speculative_config)
    method = _method_of(planned, candidates)
    if config is None or (method is not None and method.unknown_method is UnknownMethod.ALLOW):
        return None
    version = version_of(str(engine.container.get("image") or ""))
    found = [] if version is None else unknown_words((), config, version)
    found += arm_hindrances(engine.words, config)
    if config.get(ADAPTIVE_KEY) is True and _runs_v1(engine):
        found.append(f"{_RUNNER} 0: {ADAPTIVE_KEY} needs model runner V2; remove the variable")
    return found[0][:1024] if found else None


def _method_of(planned: PlannedArm, candidates: Candidates) -> SpeculativeMethod | None:
    """The method of an arm as the service names it now; None if it names it no longer."""
    family = planned.candidate or planned.method
    return next((one for one in candidates.methods if one.name == family), None)


def _runs_v1(engine: ServedEngine) -> bool:
    return any(
        one.get("name") == _RUNNER and str(one.get("value") or "").strip() in {"0", "false", "False"}
        for one in engine.container.get("env") or []
    )
