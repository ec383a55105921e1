"""Expected ratios: what facts, tokens per step and rows of others do to them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.prior.expected_ratios import AskedArm, expected_ratios
from breakeven.prior.public_table import RatioRow, ServiceFacts, public_ratios
from breakeven.prior.row_likeness import covariances, generation

EAGLE, NGRAM = Arm("eagle3", 3), Arm("ngram", 3)
FACTS = ServiceFacts(8.0, experts=False, gpu="NVIDIA-H100-80GB-HBM3", quantisation="BF16")
ROWS = public_ratios()


def width(estimate) -> float:
    return math.log(estimate.upper / estimate.lower)


def ratios(arm=EAGLE, facts=FACTS, steps=None, rows=ROWS):
    return expected_ratios(facts, [AskedArm(arm, steps)], rows).ratios(0, 0.9)


def rows_of(lone: float, slope: float, sources: int = 12, **given) -> list[RatioRow]:
    """Rows of many sources that all measured the same."""
    row = RatioRow(FACTS, "eagle3", 3, lone_ratio=lone, slope_ratio=slope, tokens_per_step=2.2)
    return [replace(row, source=f"s{place}", **given) for place in range(sources)]


def test_each_known_fact_narrows_the_bounds():
    known = [
        ServiceFacts(),
        ServiceFacts(gpu=FACTS.gpu),
        ServiceFacts(gpu=FACTS.gpu, quantisation="bf16"),
        ServiceFacts(8.0, gpu=FACTS.gpu, quantisation="bf16"),
        FACTS,
    ]
    widths = [width(ratios(facts=facts)[0]) for facts in known]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] / widths[-1] > 1.3


def test_a_fact_that_no_row_shares_tells_nothing():
    alien = replace(FACTS, gpu="Abacus 3")
    unknown = replace(FACTS, gpu=None)
    assert width(ratios(facts=alien)[0]) == pytest.approx(width(ratios(facts=unknown)[0]), rel=1e-6)


def test_a_label_of_a_node_is_read_as_the_product_and_words_in_any_case():
    assert ratios(facts=FACTS) == ratios(facts=replace(FACTS, gpu="H200", quantisation="bf16"))
    assert ratios(facts=FACTS) != ratios(facts=replace(FACTS, gpu="A100"))


def test_what_is_unknown_stays_open():
    known = RatioRow(FACTS, "mtp", 2, source="a")
    for row in (known, replace(known, facts=ServiceFacts())):
        for figure, alone in zip(covariances([known, known]), covariances([row]), strict=True):
            assert alone[0, 0] == pytest.approx(figure[0, 0])


def test_more_tokens_per_step_are_a_faster_lone_request_and_a_flatter_slope():
    few, many = ratios(steps=1.3), ratios(steps=3.5)
    assert many[0].value < 0.6 * few[0].value
    assert many[1].value < few[1].value


def test_known_tokens_per_step_narrow_the_lone_ratio():
    assert width(ratios(steps=2.2)[0]) < 0.85 * width(ratios()[0])


def test_copied_drafts_gain_less_than_those_of_a_drafter():
    assert ratios(NGRAM)[0].value > ratios(EAGLE)[0].value


def test_sources_that_agree_pull_the_answer_to_what_they_measured():
    for lone, slope in ((0.5, 0.8), (0.9, 1.5)):
        found = ratios(rows=rows_of(lone, slope))
        assert [one.value for one in found] == pytest.approx([lone, slope], rel=0.03)
        assert all(
            one.lower < measured < one.upper for one, measured in zip(found, (lone, slope), strict=True)
        )


def test_many_rows_of_one_source_weigh_less_than_many_sources():
    one = [replace(row, source="s0") for row in rows_of(0.5, 0.8)] + rows_of(0.8, 1.2, 3)
    many = rows_of(0.5, 0.8) + [replace(row, source=f"t{row.source}") for row in rows_of(0.8, 1.2, 3)]
    assert ratios(rows=one)[0].value > ratios(rows=many)[0].value


def test_fewer_sources_give_wider_bounds():
    assert width(ratios(rows=rows_of(0.5, 0.8, 3))[0]) > 1.5 * width(ratios(rows=rows_of(0.5, 0.8, 12))[0])


def test_a_spelling_of_mtp_is_mtp():
    assert ratios(Arm("deepseek_mtp", 2)) == ratios(Arm("mtp", 2))


def test_draws_have_the_bounds_that_are_said():
    found = expected_ratios(FACTS, [AskedArm(EAGLE), AskedArm(NGRAM)], ROWS)
    drawn = found.draws(40_000)
    for place in range(2):
        for figure, estimate in enumerate(found.ratios(place, 0.9)):
            inside = (drawn[:, place, figure] >= estimate.lower) & (drawn[:, place, figure] <= estimate.upper)
            assert inside.mean() == pytest.approx(0.9, abs=0.01)
            assert np.median(drawn[:, place, figure]) == pytest.approx(estimate.value, rel=0.02)


def test_draft_lengths_of_one_method_go_together_more_than_two_methods():
    asked = [AskedArm(EAGLE), AskedArm(Arm("eagle3", 4)), AskedArm(NGRAM)]
    logs = np.log(expected_ratios(FACTS, asked, ROWS).draws(20_000)[:, :, 0])
    together = np.corrcoef(logs.T)
    assert together[0, 1] > together[0, 2] > 0.5


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (AskedArm(NO_SPECULATION), "arm none: no single draft length"),
        (AskedArm(Arm("eagle3", 5, scheduled=True)), "arm eagle3/schedule: no single draft length"),
        (AskedArm(EAGLE, 4.5), "arm eagle3/3: 4.5 tokens per step; expected 1 to 4"),
        (AskedArm(EAGLE, math.nan), "arm eagle3/3: nan tokens per step"),
    ],
)
def test_an_arm_that_has_no_ratio_is_refused(asked, shown):
    with pytest.raises(InputError, match=shown):
        expected_ratios(FACTS, [asked], ROWS)


def test_two_sources_are_too_few_for_bounds():
    with pytest.raises(InputError, match="2 sources of lone_ratio; expected three or more"):
        ratios(rows=rows_of(0.5, 0.8, 2))


@pytest.mark.parametrize(
    ("product", "same"),
    [
        ("NVIDIA-H100-80GB-HBM3", "H200"),
        ("NVIDIA GH200 480GB", "h100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA-L40S", "NVIDIA L4"),
        ("Abacus_3", "ABACUS 3"),
    ],
)
def test_products_of_one_generation_are_known_by_their_labels(product, same):
    assert generation(product) == generation(same)


def test_products_of_other_generations_differ():
    names = ["H100", "A100", "L4", "B200", "MI300X", "MI355X", "RTX 4090D", "M5 Pro"]
    assert len({generation(name) for name in names}) == len(names)
    assert generation(None) is None
