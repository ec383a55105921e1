"""Arms that the target's engine would refuse: known before a pod of theirs holds a GPU."""

from __future__ import annotations

import json

from breakeven.methods import ADAPTIVE_KEY
from breakeven.serving.hindrances import adaptive_hindrances, unknown_words
from breakeven.serving.vllm_versions import version_of
from breakeven_operator.resources.calibrationrun import PlannedArm
from breakeven_operator.resources.candidates import Candidates, UnknownMethod
from breakeven_operator.workloads.served_engine import ServedEngine

_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


def refusal_of(planned: PlannedArm, engine: ServedEngine, candidates: Candidates) -> str | None:
    """Reason why an engine does not start with an arm, by what is known of its version; None if none is known.

    A method with unknownMethod Allow is left to the engine.
    """
    config = json.loads(planned.speculative_config)
    family = planned.candidate or planned.method
    method = next((one for one in candidates.methods if one.name == family), None)
    if config is None or (method is not None and method.unknown_method is UnknownMethod.ALLOW):
        return None
    version = version_of(str(engine.container.get("image") or ""))
    found = [] if version is None else unknown_words((), config, version)
    found += adaptive_hindrances(engine.words, config)
    if config.get(ADAPTIVE_KEY) is True and _runs_v1(engine):
        found.append(f"{_RUNNER} 0: {ADAPTIVE_KEY} needs model runner V2; remove the variable")
    return found[0][:1024] if found else None


def _runs_v1(engine: ServedEngine) -> bool:
    return any(
        one.get("name") == _RUNNER and str(one.get("value") or "").strip() in {"0", "false", "False"}
        for one in engine.container.get("env") or []
    )
