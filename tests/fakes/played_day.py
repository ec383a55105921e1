"""A day of the demo in which everything happened as the laws of two arms say."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.profile import Profile
from demo.record import EndedRoll, PhaseResult, Record, Sample, ServiceRecord, Speedup
from demo.story import tell
from fakes.lawful_profile import lawful_profile_json

EAGLE = Arm("eagle3", 3, "eagle")
STARTED_S, FIRST_LOOK_S = 1000.0, 40.0
PAYS_UNTIL_A_LOAD = {NO_SPECULATION: (0.46, 0.032), EAGLE: (0.27, 0.056)}


def profile_of(laws: dict[Arm, tuple[float, float]]) -> Profile:
    tokens = {arm: 1.0 + 0.6 * arm.k for arm in laws}
    return Profile.from_json(
        lawful_profile_json(laws, tokens, prompt_tokens=64.0, output_tokens=16.0, gpu="A100"), "laws"
    )


def played_day(laws: dict[Arm, tuple[float, float]]) -> tuple[Record, Profile]:
    """The record of two services, and the profile of both."""
    profile = profile_of(laws)
    service = ServiceRecord("chat", "A100", "RollingUpdate")
    edges = STARTED_S + FIRST_LOOK_S + 50.0 * np.arange(4)
    for phase, (start, end) in zip(tell(profile, 0.05).phases, pairwise(edges), strict=True):
        arm = phase.best.name
        service.samples += [
            Sample(float(at), phase.rps, 0.5, arm, arm, "Yes", "", "Any", phase.name == "high", "")
            for at in np.arange(start, end)
        ]
        service.phases.append(
            PhaseResult(phase, float(start), float(end), float(start), 0.5, 9, 1.0, arm, arm, "Any", False)
        )
    service.rolls += [
        EndedRoll(0.0, "none", "eagle/3", "Confirmed", Speedup(1.7, 1.6, 1.8), Speedup(1.8, 1.4, 2.4), 900),
        EndedRoll(1.0, "eagle/3", "none", "Unmeasured", Speedup(1.2), None, 0),
    ]
    return Record(STARTED_S, {"chat": service, "code": replace(service, name="code")}), profile
