"""Rows of any figures that a points file may hold give a profile that can be read and asked, or one line why there is none."""

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from breakeven.errors import BreakevenError, InputError
from breakeven.fitting import fit_points
from breakeven.profile import Conditions, Profile
from draws import draws
from sweeps import wild_sweep


@contextmanager
def refusing() -> Iterator[None]:
    """Allow a refusal in one line."""
    try:
        yield
    except BreakevenError as error:
        if "\n" in str(error):
            raise AssertionError(f"more than a line: {error}") from error


def survives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings(), refusing():
        warnings.simplefilter("error", RuntimeWarning)
        found = fit_points(wild_sweep(rng))
        try:
            read = Profile.from_json(found.to_json())
        except BreakevenError as error:
            raise AssertionError(f"a fit wrote what cannot be read: {error}") from error
        assert read.arms == found.arms
        loads = ({"rps": 10.0 ** rng.uniform(-3.0, 3.0)}, {"concurrency": float(rng.integers(1, 300))})
        lengths = Conditions(
            prompt_tokens=float(rng.choice([1.0, 1e5])), output_tokens=float(rng.choice([1.0, 5e3]))
        )
        for fit, load in itertools.product(found.arms, loads):
            for asked in (load, load | {"conditions": lengths}):
                with refusing():
                    found.compare(fit.arm, **asked)
                    latency_s = found.predict(fit.arm, **asked).latency_s
                    assert latency_s is None or latency_s > 0.0


@draws(10)
@given(st.integers(0, 1 << 32))
@example(0)
def test_a_fit_of_anything_is_a_profile_or_one_line(seed):
    survives(seed)


def test_a_row_that_no_law_of_the_others_gives_is_named():
    with pytest.raises(
        InputError, match=r"^wild\.csv: row \d+, column mean_latency_s: .* times (above|below) the law"
    ):
        fit_points(wild_sweep(np.random.default_rng(4)))


@pytest.mark.parametrize("seed", [4, 75, 119, 260, 289])
def test_what_once_broke_a_fit(seed):
    survives(seed)
