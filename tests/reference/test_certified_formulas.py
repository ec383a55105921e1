"""Formulas against certified numbers (certify.py), to the digits that doubles allow."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from breakeven.laws.acceptance_numbers import (
    acceptance_rate,
    alpha_from_tokens_per_step,
    tokens_per_step_from_survival,
    tokens_per_step_iid,
)
from breakeven.laws.fieller import ratio_interval
from breakeven.laws.goodput import StepCosts, best_draft_length, goodput
from breakeven.laws.latency import inflight_distribution
from breakeven.laws.law import Law, capacity_rps
from breakeven.laws.mixture import TwoPointMixture
from breakeven.laws.speculation import PooledLaw, design, latency_design
from breakeven.laws.speedup import break_even_others, break_even_rps, speedup_among, speedup_at_rps
from breakeven.planning.envelope import fastest_by_rps

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


def test_worked_check_of_three_arms():
    case = CERTIFIED["worked_check"]
    laws = {name: Law(float(c1), float(c2)) for name, (c1, c2) in case["laws"].items()}
    for (first, second), rps in case["crossings_rps"].items():
        digits(break_even_rps(laws[second], laws[first]), rps, rel=1e-12)
    digits(break_even_others(laws["D"], laws["A"]), case["others_at_AD"], rel=1e-12)
    digits(speedup_at_rps(laws["D"], laws["A"], 5.0), case["speedup_A_at_5"])
    digits(speedup_among(laws["D"], laws["A"], 10.0), case["speedup_A_at_concurrency_11"])
    digits(capacity_rps(laws["A"], 2.0), case["capacity_A_at_2s_rps"])
    c1, c2 = zip(*((float(law.c1), float(law.c2)) for law in laws.values()), strict=True)
    found = fastest_by_rps(c1, c2, 0.0, 14.0)
    assert [list(laws)[i] for i in found.arm] == ["A", "B", "D"]
    digits(found.start, [0.0, *(float(case["crossings_rps"][pair]) for pair in ("AB", "BD"))], rel=1e-12)


@pytest.mark.parametrize("case", CERTIFIED["independent_acceptance"], ids=lambda c: f"{c['alpha']}/{c['k']}")
def test_tokens_per_step_of_independent_acceptances(case):
    alpha, k = float(case["alpha"]), case["k"]
    digits(tokens_per_step_iid(alpha, k), case["tokens_per_step"], rel=1e-14)
    digits(alpha_from_tokens_per_step(float(case["tokens_per_step"]), k), alpha, rel=1e-9)


def test_a_published_profile():
    case = CERTIFIED["published_profile"]
    survival = [float(s) for s in case["survival"]]
    digits(acceptance_rate(survival), case["acceptance_rate"])
    digits(tokens_per_step_from_survival(survival), case["tokens_per_step"])
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
    found = inflight_distribution(float(case["c1_s"]), float(case["c2_s"]), float(case["rps"]))
    digits(found.mean, case["mean"], rel=1e-12)
    digits(found.variance, case["variance"], rel=1e-12)
    for j, certified in case["probability"].items():
        digits(found.probability(int(j)), certified, rel=1e-10)
    for j, certified in case["exceedance"].items():
        digits(found.exceedance(int(j)), certified, rel=1e-10)


@pytest.mark.parametrize("case", CERTIFIED["fieller"], ids=lambda c: f"{c['top']}/{c['bottom']}")
def test_fieller_intervals(case):
    arguments = {name: float(value) for name, value in case.items() if name != "ends"}
    found = ratio_interval(**arguments)
    digits([found.lower, found.upper], case["ends"], rel=1e-12)


@pytest.mark.parametrize("case", CERTIFIED["pooled"], ids=lambda c: str(c["k"]))
def test_the_pooled_form(case):
    law = PooledLaw(**{name: float(value) for name, value in case["coefficients"].items()})
    rows = design(float(case["tokens_per_step"]), case["k"], case["output_tokens"])
    digits(latency_design(rows, rows, float(case["others"])) @ law.vector, case["latency_s"])


def test_goodput_with_two_local_maxima():
    case = CERTIFIED["goodput"]
    steps = StepCosts(1.0, 0.0, draft_s=0.6, draft_position_s=0.02).step_s(1.0, np.arange(6))
    found = goodput(1.0, [float(e) for e in case["tokens_per_step"]], steps)
    digits(found, case["goodput"])
    assert best_draft_length(found) == 5
