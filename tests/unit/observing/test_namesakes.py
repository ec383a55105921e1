"""Samples of pods that had one name after another: which of them are of the old arm, and which of the new one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
import pytest

from breakeven_operator.observing.fleet_query import SAMPLED
from breakeven_operator.observing.roll_metrics import RolledPods

NAN = math.nan
# Ten samples a minute apart; the roll begins between the fourth and the fifth.
TIMES_S = tuple(60.0 * index for index in range(10))
STARTED_S = 200.0


def shared(
    counter: Sequence[float], newest: tuple[str, float] | None, *, sampled: Sequence[float] = TIMES_S
) -> str:
    """For each sample: o of the old arm, n of the new one, - of neither."""
    pods: Mapping[str, tuple[str, float]] = {"chat-0": newest} if newest is not None else {}
    rolled = RolledPods("llm", "chat", "old", "new", datetime.fromtimestamp(STARTED_S, UTC), pods)
    stats = {"generated": np.array(counter), SAMPLED: np.array(sampled)}
    old, new = rolled.parts("chat-0", TIMES_S, stats)
    assert not (old & new).any()
    return "".join("o" if one else "n" if other else "-" for one, other in zip(old, new, strict=True))


@pytest.mark.parametrize(
    ("counter", "newest", "expected"),
    [
        # Replaced once.
        ((10, 20, 30, 40, 50, NAN, 5, 10, 15, 20), ("new", 320.0), "ooooo-nnnn"),
        # Replaced by another pod of the new arm, which was evicted: nobody knows any more when the first one came.
        ((10, 20, 30, 40, 50, 5, 10, NAN, 5, 10), ("new", 430.0), "ooooo---nn"),
        # The old arm's own pod was evicted and came back, and was not replaced since.
        ((10, 20, 30, 40, 50, NAN, 5, 10, 15, 20), ("old", 320.0), "ooooo-oooo"),
        # Not replaced yet; the pod before it in the window may have been of any arm.
        ((70, 80, 10, 20, 30, 40, 50, 60, 70, 80), ("old", 100.0), "--oooooooo"),
        # A container that began again before the roll: what served when the roll began counts.
        ((70, 80, 10, 20, 30, NAN, 5, 10, 15, 20), ("new", 320.0), "--ooo-nnnn"),
        # Gone, and not made again yet.
        ((10, 20, 30, 40, 50, NAN, NAN, NAN, NAN, NAN), None, "----------"),
        # It served nobody before the roll.
        ((NAN, NAN, NAN, NAN, NAN, NAN, 5, 10, 15, 20), ("new", 320.0), "------nnnn"),
        # A pod of a third template.
        ((10, 20, 30, 40, 50, NAN, 5, 10, 15, 20), ("third", 320.0), "ooooo-----"),
    ],
)
def test_a_sample_is_of_the_arm_whose_pod_had_the_name_then(
    counter: Sequence[float], newest: tuple[str, float] | None, expected: str
) -> None:
    assert shared(counter, newest) == expected


def test_a_sample_that_is_shown_again_after_the_pod_is_gone_is_still_its_own() -> None:
    """Without a marker of its end Prometheus shows the last sample of a series for five minutes."""
    counter = (10, 20, 30, 40, 50, 50, 50, 5, 10, 15)
    sampled = (*TIMES_S[:5], TIMES_S[4], TIMES_S[4], *TIMES_S[7:])
    assert shared(counter, ("new", 250.0), sampled=sampled) == "ooooooonnn"


def test_names_alone_tell_pods_apart_that_have_names_of_their_own() -> None:
    rolled = RolledPods("llm", "chat", "chat-a", "chat-b", datetime.fromtimestamp(STARTED_S, UTC))
    for pod, expected in (
        ("chat-a-x2b4c", "oooooooooo"),
        ("chat-b-x2b4c", "---nnnnnnn"),
        ("chat-c-x2b4c", "-" * 10),
    ):
        old, new = rolled.parts(pod, TIMES_S, {})
        assert "".join("o" if o else "n" if n else "-" for o, n in zip(old, new, strict=True)) == expected
