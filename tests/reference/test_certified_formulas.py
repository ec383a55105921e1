"""Formulas against certified numbers (certify.py), to the digits that doubles allow."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from breakeven.laws.acceptance_numbers import alpha_from_tokens_per_step, tokens_per_step_iid
from breakeven.laws.latency import InflightDistribution, open_loop_latency
from breakeven.laws.mixture import TwoPointMixture
from breakeven.planning.draft_schedule import goodput, schedule

HERE = Path(__file__).parent
CERTIFIED = json.loads((HERE / "certified.json").read_text(encoding="utf-8"))


def digits(value, certified, rel=1e-13, absolute=0.0):
    assert np.asarray(value, dtype=float) == pytest.approx(
        np.asarray(certified, dtype=float), rel=rel, abs=absolute
    )


def test_the_certified_numbers_are_what_their_derivation_gives():
    spec = importlib.util.spec_from_file_location("certify", HERE / "certify.py")
    certify = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(certify)
    assert certify.compute() == CERTIFIED


@pytest.mark.parametrize("case", CERTIFIED["independent_acceptance"], ids=lambda c: f"{c['alpha']}/{c['k']}")
def test_tokens_per_step_of_independent_acceptances(case):
    alpha, k = float(case["alpha"]), case["k"]
    digits(tokens_per_step_iid(alpha, k), case["tokens_per_step"], rel=1e-14)
    digits(alpha_from_tokens_per_step(float(case["tokens_per_step"]), k), alpha, rel=1e-9)


def test_a_published_profile():
    case = CERTIFIED["published_profile"]
    digits(alpha_from_tokens_per_step(float(case["tokens_per_step"]), 5), case["alpha"])


@pytest.mark.parametrize("case", CERTIFIED["mixtures"], ids=lambda c: f"{c['rates']}/{c['decay']}/{c['k']}")
def test_mixtures_of_stretches(case):
    rates, shares = (tuple(float(x) for x in case[name]) for name in ("rates", "token_shares"))
    mixture = TwoPointMixture(rates, shares, float(case["decay"]))
    digits(mixture.tokens_per_step(case["k"]), case["tokens_per_step"])
    digits(mixture.survival(case["k"]), case["survival"])
    if case["k"] >= 3:
        fitted = TwoPointMixture.fit([float(s) for s in case["survival"]], float(case["decay"]))
        digits(fitted.tokens_per_step(case["k"]), case["tokens_per_step"], rel=1e-6)
        digits(fitted.rates, rates, rel=1e-3, absolute=1e-6)


@pytest.mark.parametrize("case", CERTIFIED["in_flight"], ids=lambda c: f"{c['c1_s']}/{c['c2_s']}/{c['rps']}")
def test_in_flight_distributions(case):
    c1_s, c2_s, rps = (float(case[name]) for name in ("c1_s", "c2_s", "rps"))
    found = InflightDistribution(rps * float(open_loop_latency(c1_s, c2_s, rps)), rps * c2_s)
    digits(found.mean, case["mean"], rel=1e-12)
    for j, certified in case["exceedance"].items():
        digits(found.exceedance(int(j)), certified, rel=1e-10)


def test_goodput_with_two_local_maxima():
    case = CERTIFIED["goodput"]
    drafts = np.arange(6)
    steps = 1.0 + 0.6 * (drafts > 0) + 0.02 * drafts
    found = goodput(1.0, [float(e) for e in case["tokens_per_step"]], steps)
    digits(found, case["goodput"])
    best = schedule(steps[None, :], [float(e) for e in case["tokens_per_step"]], drafts.tolist())
    assert best.tiers == ((1, 5),)
