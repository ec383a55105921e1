"""First answer about a service: what its past says before any of its arms was measured. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from breakeven.past.past_reading import KnownPast
from breakeven.past.unknowns import named
from breakeven.planning.wording import duration_text
from breakeven.profile import Profile

_NAMED_DOUBTS = 4


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    """Answer of a service's past. It is shown, and no roll rests on it.

    Attributes:
        profile: laws of the arms that ran; None: the past determines none, or was not read yet.
        sentence: which past that is and what it cannot say, or why there is none.
    """

    profile: Profile | None
    sentence: str


AWAITED = FirstAnswer(None, "its past is being read")


def first_answer(past: KnownPast, queries: int, samples: int) -> FirstAnswer:
    """Answer of a past that was read.

    Args:
        past: the windows that count, and their fit.
        queries: that its Prometheus was asked.
        samples: that these gave.
    """
    span_s = past.grid.last_s - past.grid.first_s
    ran = ", ".join(f"{named(one)} {one.hours:.3g} h" for one in past.arms)
    words = list(dict.fromkeys(str(one.word) for one in past.doubts))
    unknown = f"; it cannot say everything ({', '.join(words[:_NAMED_DOUBTS])})" if words else ""
    cost = f"{queries} queries, {samples} samples"
    return FirstAnswer(
        past.profile, f"its past of {duration_text(span_s)} holds steady hours of {ran} ({cost}){unknown}"
    )


def no_answer(problem: str) -> FirstAnswer:
    """Answer of a past that could not be read, or holds nothing that counts."""
    return FirstAnswer(None, f"its past says nothing: {problem}")
