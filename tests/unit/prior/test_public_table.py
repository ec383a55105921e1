"""The table of measured ratios, and the row in it that is most like an arm."""

from __future__ import annotations

import math

import pytest

from breakeven.arm import Arm
from breakeven.prior import public_table
from breakeven.prior.public_table import ServiceFacts, costs_error, nearest_row, public_ratios
from breakeven.profile.student_t import t_quantile


def test_every_row_that_ships_is_of_vllm_and_has_an_address():
    rows = public_ratios()
    assert {row.source.startswith("https://") and row.stack.startswith("vLLM") for row in rows} == {True}
    of_figure = {
        name: {row.source for row in rows if getattr(row, name) is not None}
        for name in ("lone_ratio", "slope_ratio", "tokens_per_step")
    }
    assert {name: len(found) for name, found in of_figure.items()} == {
        "lone_ratio": 14,
        "slope_ratio": 7,
        "tokens_per_step": 13,
    }


@pytest.mark.parametrize(
    ("facts", "arm", "expected"),
    [
        (ServiceFacts(8.0, experts=False, gpu="NVIDIA-GH200-480GB"), Arm("eagle3", 3), ("Apertus-8B", 3)),
        (ServiceFacts(8.0, experts=False, gpu="NVIDIA-GH200-480GB"), Arm("eagle3", 7), ("Apertus-8B", 7)),
        (ServiceFacts(8.0, experts=False), Arm("eagle3", 60), ("Apertus-8B", 7)),
    ],
)
def test_the_nearest_row_is_of_the_method_and_most_alike(facts, arm, expected):
    row = nearest_row(facts, arm)
    assert row is not None
    assert (row.model, row.k) == expected
    assert row.method == arm.method


def test_a_method_that_nobody_measured_has_no_row_and_mtp_has_many_names():
    assert nearest_row(ServiceFacts(), Arm("medusa-like", 3)) is None
    assert nearest_row(ServiceFacts(), Arm("deepseek_mtp", 2)) == nearest_row(ServiceFacts(), Arm("mtp", 2))


def test_adaptive_verification_has_rows_of_its_own():
    facts = ServiceFacts(gpu="MI355X")
    fixed, adaptive = (
        nearest_row(facts, Arm("dspark", 7, scheduled=one, adaptive=one)) for one in (False, True)
    )
    assert (fixed.adaptive, adaptive.adaptive) == (False, True)
    assert adaptive.k == 7
    assert adaptive.lone_ratio > fixed.lone_ratio
    assert adaptive.slope_ratio < 1.0 < fixed.slope_ratio
    assert adaptive.tokens_per_step is None
    assert nearest_row(facts, Arm("eagle3", 7, scheduled=True, adaptive=True)) is None


def test_each_row_is_found_by_its_own_facts():
    for row in public_ratios():
        found = nearest_row(row.facts, Arm(row.method, row.k, scheduled=row.adaptive, adaptive=row.adaptive))
        if row.lone_ratio is None or found is None:
            continue
        known = [name for name in ("parameters_b", "experts") if getattr(row.facts, name) is not None]
        assert found.k == row.k
        assert all(getattr(found.facts, name) in {None, getattr(row.facts, name)} for name in known)


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("Qwen3-30B-A3B-FP8", ServiceFacts(30.0, experts=True, quantisation="fp8")),
        ("meta-llama/Llama-3.1-8B-Instruct", ServiceFacts(8.0, experts=False)),
        ("Kimi-K3", ServiceFacts(experts=True)),
        ("Qwen2.5-0.5B-AWQ", ServiceFacts(0.5, quantisation="awq")),
        ("chat", ServiceFacts()),
        ("a3b", ServiceFacts(experts=True)),
        ("phi-3.5b7", ServiceFacts()),
        ("model-0B", ServiceFacts()),
    ],
)
def test_a_models_name_says_what_it_says_and_no_more(name, facts):
    assert ServiceFacts.of_name(name) == facts
    assert ServiceFacts.of_name(name, "H100").gpu == "H100"


def test_bounds_of_a_steps_cost_hold_for_sources_that_nothing_was_learned_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each source kept apart in turn: by its own E and the others' cost of a step, and by the others' ratio alone."""
    rows = [row for row in public_ratios() if row.lone_ratio and row.tokens_per_step and not row.adaptive]
    held, costs_off, ratios_off = 0, [], []
    for apart in {row.source for row in rows}:
        others = tuple(row for row in public_ratios() if row.source != apart)
        monkeypatch.setattr(public_table, "public_ratios", lambda others=others: others)
        error = costs_error.__wrapped__()
        for row in (row for row in rows if row.source == apart):
            near = nearest_row(row.facts, Arm(row.method, row.k), with_tokens=True)
            if near is not None:
                ratios_off.append(math.log(row.lone_ratio / near.lone_ratio))
                costs_off.append(ratios_off[-1] + math.log(row.tokens_per_step / near.tokens_per_step))
                held += abs(costs_off[-1]) <= t_quantile(0.9, 30) * error
    assert (held, len(costs_off)) == (34, 37)
    assert math.hypot(*costs_off) < 2.0 / 3.0 * math.hypot(*ratios_off)
