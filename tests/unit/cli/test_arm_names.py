"""Which arm `--method` and `--k` mean, where a profile has drafters with names of their own beside vLLM's methods."""

from __future__ import annotations

from types import SimpleNamespace

import click
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.cli.profile_options import arm_in
from breakeven.errors import InputError

PLAIN, NAMED, OTHER = Arm("eagle3", 3), Arm("eagle3", 3, "eagle"), Arm("eagle3", 3, "large")
SAME = Arm("ngram", 4, "ngram")


def profile(*arms):
    fits = [SimpleNamespace(arm=arm, k=arm.k, method=arm.method) for arm in (NO_SPECULATION, *arms)]
    return SimpleNamespace(arms=fits, measured=lambda arm: any(fit.arm == arm for fit in fits))


@pytest.mark.parametrize(
    ("arms", "method", "k", "meant"),
    [
        ([PLAIN], "eagle3", 3, PLAIN),
        ([NAMED], "eagle3", 3, NAMED),
        ([NAMED], "eagle", 3, NAMED),
        ([NAMED], "eagle3", 5, Arm("eagle3", 5, "eagle")),
        ([SAME], "ngram", 4, SAME),
        ([NAMED, OTHER], "large", 3, OTHER),
        ([NAMED], "mtp", 3, Arm("mtp", 3)),
        ([NAMED], "none", None, NO_SPECULATION),
    ],
)
def test_a_method_or_a_drafters_name_finds_the_measured_arm(arms, method, k, meant):
    assert arm_in(profile(*arms), method, k) == meant


def test_two_drafters_of_one_method_must_be_told_apart():
    with pytest.raises(
        InputError, match=r"several drafters \(eagle, large\); expected the name of one of them"
    ):
        arm_in(profile(NAMED, OTHER), "eagle3", 3)
    assert arm_in(profile(NAMED, OTHER), "eagle3", 3, "large") == OTHER
    assert arm_in(profile(NAMED), "eagle3", 3, "unknown") == Arm("eagle3", 3, "unknown")


def test_a_draft_length_that_fits_no_method_is_wrong_usage():
    with pytest.raises(click.UsageError, match="--method, --k"):
        arm_in(profile(NAMED), "none", 3)
