"""Arms that leave the form together carry that to arms that were not measured; noise is not carried."""

from dataclasses import replace

import numpy as np
import pytest

from breakeven.arm import Arm
from breakeven.errors import InputError
from breakeven.fitting import fit_points
from breakeven.fitting.departures import departures
from breakeven.laws.speculation import PooledLaw, design
from breakeven.profile import Conditions, Profile
from sweeps import closed

TRUTH = PooledLaw(0.05, 0.006, 0.0004, 0.0005, 0.004, 0.0001, 0.00003, 0.00004)
STEPS = {0: 1.0, 1: 1.7, 3: 2.4, 5: 2.75, 7: 2.9}
CLIENTS = (1.0, 4.0, 16.0, 48.0, 128.0)


def latency_s(k: int, clients: float, bend: float) -> float:
    row = design(STEPS[k], k, 200.0)
    straight = float(TRUTH.c1_s(row)) + (clients - 1.0) * float(TRUTH.c2_s(row))
    return straight * (1.0 + bend * float(np.sin(np.pi * np.log(clients) / np.log(128.0))))


def profile_of(bend: float, noise: float = 0.0, seed: int = 1) -> Profile:
    rng = np.random.default_rng(seed)
    rows = []
    for k in (0, 1, 3, 7):
        sweep = closed("eagle3" if k else "none", k, 1.0, 0.1, clients=CLIENTS, first_row=2 + 10 * k,
                       output_tokens=200.0, **({"tokens_per_step": STEPS[k]} if k else {}))  # fmt: skip
        for row, clients in zip(sweep, CLIENTS, strict=True):
            error = 1.0 + noise * rng.standard_normal()
            rows.append(replace(row, mean_latency_s=latency_s(k, clients, bend) * error))
    return fit_points(rows)


def worst_error(profile: Profile, bend: float) -> float:
    curve = profile.curve(Arm("eagle3", 5), Conditions(tokens_per_step=STEPS[5]))
    return max(abs(curve.among(c - 1.0)[0] / latency_s(5, c, bend) - 1.0) for c in CLIENTS)


def test_a_bend_of_all_arms_is_carried_to_an_arm_that_was_not_measured() -> None:
    bent = profile_of(bend=0.08)
    straight = Profile(bent.confidence, bent.arms, tuple(replace(one, departures={}) for one in bent.pooled))
    assert worst_error(bent, 0.08) < 0.01
    assert worst_error(straight, 0.08) > 0.03


def test_noise_is_hardly_carried() -> None:
    worse = []
    for seed in range(6):
        noisy = profile_of(bend=0.0, noise=0.04, seed=seed)
        plain = Profile(noisy.confidence, noisy.arms, tuple(replace(f, departures={}) for f in noisy.pooled))
        worse.append(worst_error(noisy, 0.0) - worst_error(plain, 0.0))
    assert np.mean(worse) < 0.006


def test_arms_that_disagree_or_are_alone_carry_nothing() -> None:
    loads = [("closed", c) for c in CLIENTS]
    wave = [0.05, -0.05, 0.05, -0.05, 0.05]
    up = [(load, load[1] - 1.0, miss) for load, miss in zip(loads, wave, strict=True)]
    down = [(load, n, -miss) for load, n, miss in up]
    assert departures({0: up, 3: down}) == {}
    assert departures({3: up}) == {}
    both = departures({0: up, 3: up})
    assert both == {3: tuple((n, pytest.approx(miss)) for _, n, miss in up)}


@pytest.mark.parametrize(("miss", "carried"), [(0.0015, False), (0.0025, True)])
def test_a_bend_of_less_than_two_per_mille_bends_no_law(miss, carried) -> None:
    rows = [(("closed", c), c - 1.0, miss) for c in CLIENTS]
    assert bool(departures({0: rows, 3: rows})) is carried


def test_a_prediction_beside_the_law_is_still_called_pooled_and_has_bounds() -> None:
    profile = profile_of(bend=0.08)
    found = profile.predict(Arm("eagle3", 5), concurrency=16, tokens_per_step=STEPS[5])
    assert found.basis == "pooled"
    low, high = found.latency_ci_s
    assert low < latency_s(5, 16.0, 0.08) < high
    rate = 16.0 / latency_s(5, 16.0, 0.08)
    open_loop = profile.predict(Arm("eagle3", 5), rps=rate * 15 / 16, tokens_per_step=STEPS[5])
    assert open_loop.basis == "pooled"
    assert open_loop.latency_s == pytest.approx(latency_s(5, 16.0, 0.08), rel=0.02)


def test_departures_survive_the_document() -> None:
    profile = profile_of(bend=0.08)
    again = Profile.from_json(profile.to_json())
    assert again.pooled[0].departures == profile.pooled[0].departures != {}
    assert worst_error(again, 0.08) == worst_error(profile, 0.08)


def test_departures_out_of_order_are_refused() -> None:
    text = profile_of(bend=0.08).to_json()
    profile = Profile.from_json(text)
    broken = replace(
        profile.pooled[0], departures={k: tuple(reversed(v)) for k, v in profile.pooled[0].departures.items()}
    )
    document = Profile(profile.confidence, profile.arms, (broken,)).to_json()
    with pytest.raises(InputError, match=r"pooled\[0\]\.departures"):
        Profile.from_json(document)
