"""A past's question about a calibration: its loads, its facts, and the arms that ran in it."""

from __future__ import annotations

import numpy as np
import pytest

from breakeven.arm import Arm
from breakeven.past.past_reading import AskedPast, KnownPast, known_past
from breakeven.past.past_worth import expected_of_past, facts_of_past, loads_of_past, worth_of_past
from breakeven.past.pod_facts import PodFacts, kind_of
from breakeven.past.steady import cut
from breakeven.prior.calibration_worth import DEFAULT_ARMS, WorthWord
from breakeven.prior.expected_ratios import AskedArm
from breakeven.prior.public_table import ServiceFacts, public_ratios
from fakes.past_courses import STEP_S, grid_of, lawful

RATES = np.linspace(0.3, 4.0, 48)
HALF = RATES.size // 2
EAGLE = Arm("eagle3", 3)


def past_of(*pods, gpu=None, model="m") -> KnownPast:
    facts = PodFacts(image="vllm:1", gpu=gpu)
    kinds = {
        one.name: kind_of(model, one.values("drafts") is not None, one.longest_draft, facts, "eagle3")
        for one in pods
    }
    grid = grid_of(RATES.size)
    found = cut(grid, pods, lambda one: kinds[one.name])
    names = [(one.name.namespace, one.name.replica) for one in pods]
    return known_past(AskedPast((), None, grid, "eagle3"), found, names, list(kinds.values()))


def pod(name: str, **given):
    return lawful(RATES, f"chat-7d9f8b6c5d-{name}", **given)


def asked_worth(past, asked, **given):
    expected = expected_of_past(past, asked, ServiceFacts(), public_ratios())
    return worth_of_past(past, expected, **given)


def test_loads_are_a_pods_and_count_by_pod_seconds():
    one, two = loads_of_past(past_of(pod("aaaaa"))), loads_of_past(past_of(pod("aaaaa"), pod("bbbbb")))
    assert sorted(one.rates_rps) == pytest.approx(list(RATES), rel=2e-3)
    assert sorted(two.rates_rps) == pytest.approx(list(RATES), rel=1e-2)
    assert sum(one.lasted) == RATES.size * STEP_S
    assert sum(two.lasted) == 2 * RATES.size * STEP_S


def test_facts_that_were_given_outrank_what_name_and_pods_say():
    past = past_of(pod("aaaaa"), gpu="NVIDIA-H100-80GB-HBM3", model="org-70B/Qwen3-30B-A3B-FP8")
    said = ServiceFacts(30.0, experts=True, gpu="NVIDIA-H100-80GB-HBM3", quantisation="fp8")
    given = ServiceFacts(32.0, experts=False, gpu="A100", quantisation="awq")
    assert facts_of_past(past, ServiceFacts()) == said
    assert facts_of_past(past, given) == given


def test_the_folder_of_a_model_says_nothing():
    assert facts_of_past(past_of(pod("aaaaa"), model="org-70B/chat"), ServiceFacts()) == ServiceFacts()


def test_the_usual_arms_are_asked_about_but_for_those_that_ran():
    alone = past_of(pod("aaaaa"))
    both = past_of(pod("aaaaa", last=HALF), pod("zzzzz", k=3, c1_s=1.5, c2_s=0.12, first=HALF))
    assert {one.arm for one in asked_worth(alone, ()).arms} == {one.arm for one in DEFAULT_ARMS}
    left = asked_worth(both, ())
    assert {one.arm for one in left.arms} == {one.arm for one in DEFAULT_ARMS} - {EAGLE}
    only = asked_worth(both, [AskedArm(EAGLE)])
    assert only.word is WorthWord.ALL_ARMS_RAN


def test_a_past_of_speculation_alone_has_no_law_of_none():
    past = past_of(pod("aaaaa", k=3))
    found = asked_worth(past, [AskedArm(Arm("ngram", 3))])
    assert found.word is WorthWord.NO_LAW_OF_NONE


def test_limits_and_level_are_handed_on():
    past = past_of(pod("aaaaa"))
    strict = asked_worth(past, (), least_gain=0.99, confidence=0.5)
    assert strict.word is WorthWord.CALIBRATION_PAYS_NOTHING
    assert strict.confidence == 0.5
