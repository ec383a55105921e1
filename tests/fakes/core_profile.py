"""A profile of an engine on one core: lookup is faster than no speculation, a drafter is slower."""

from __future__ import annotations

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.profile import Profile
from fakes.lawful_profile import lawful_profile_json

LOOKUP, DRAFTER = Arm("ngram", 3, "lookup"), Arm("draft_model", 3, "drafter")


def core_profile() -> Profile:
    """The profile that a calibration of such an engine writes."""
    text = lawful_profile_json(
        {NO_SPECULATION: (0.8, 0.08), LOOKUP: (0.4, 0.08), DRAFTER: (1.6, 0.2)},
        {NO_SPECULATION: 1.0, LOOKUP: 3.0, DRAFTER: 1.01},
        prompt_tokens=48.0,
        output_tokens=48.0,
        gpu="core",
    )
    return Profile.from_json(text)
