"""On how many draws a law is tried: some in `make check`, all in `make test`, many more where one looks for new ones.

    @draws(60)
    @given(...)
    def test_a_law(...): ...

`HYPOTHESIS_PROFILE` chooses: `quick`, `repeatable` (the default) or `explore`. The first two draw the same on every
machine, so that a commit fails neither by the draws nor by the speed of another machine.
"""

from __future__ import annotations

import functools
import os
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

SHARES: Final = {"quick": 0.1, "repeatable": 1.0, "explore": 5.0}
"""Of the draws that a law asks for, and of the 100 of one that does not ask."""
_FEWEST: Final = 3
_PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "repeatable")


@functools.cache
def choose_profile() -> None:
    """Settings of all tests; called before any law is made."""
    if _PROFILE not in SHARES:
        raise SystemExit(f"HYPOTHESIS_PROFILE={_PROFILE}: expected {', '.join(SHARES)}")
    repeatable = _PROFILE != "explore"
    settings.register_profile(
        _PROFILE,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=repeatable,
        max_examples=round(100 * SHARES[_PROFILE]),
    )
    settings.load_profile(_PROFILE)
    if repeatable:
        # Hypothesis draws, among others, the constants of all modules imported so far: another selection of tests, or
        # one number changed anywhere in the product, would be other draws for every law.
        providers._get_local_constants = Constants


def draws(count: int) -> settings:
    """Try a law on so many draws, or on the profile's share of them."""
    return settings(max_examples=max(_FEWEST, round(count * SHARES[_PROFILE])))


def seeds_of_law(count: int) -> range:
    """Seeds of a law about how often something holds: so many, or the profile's share of them."""
    return range(max(_FEWEST, round(count * SHARES[_PROFILE])))
