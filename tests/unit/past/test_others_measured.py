"""Arms that did not run in a past, beside what others measured."""

from __future__ import annotations

import numpy as np
import pytest

from breakeven.arm import Arm
from breakeven.past.others_measured import USUAL_ARMS, facts_of_past, others_measured
from breakeven.past.past_reading import AskedPast, KnownPast, known_past
from breakeven.past.pod_facts import PodFacts, kind_of
from breakeven.past.steady import cut
from breakeven.prior.public_table import ServiceFacts
from fakes.past_courses import C2_S, grid_of, lawful

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


def test_facts_that_were_given_outrank_what_name_and_pods_say():
    past = past_of(pod("aaaaa"), gpu="NVIDIA-H100-80GB-HBM3", model="org-70B/Qwen3-30B-A3B-FP8")
    said = ServiceFacts(30.0, experts=True, gpu="NVIDIA-H100-80GB-HBM3", quantisation="fp8")
    given = ServiceFacts(32.0, experts=False, gpu="A100", quantisation="awq")
    assert facts_of_past(past, ServiceFacts()) == said
    assert facts_of_past(past, given) == given


def test_the_folder_of_a_model_says_nothing():
    assert facts_of_past(past_of(pod("aaaaa"), model="org-70B/chat"), ServiceFacts()) == ServiceFacts()


def test_the_usual_arms_are_looked_up_but_for_those_that_ran():
    alone = past_of(pod("aaaaa"))
    both = past_of(pod("aaaaa", last=HALF), pod("zzzzz", k=3, c1_s=1.5, c2_s=0.12, first=HALF))
    assert {one.arm for one in others_measured(alone, (), ServiceFacts())} == set(USUAL_ARMS)
    assert {one.arm for one in others_measured(both, (), ServiceFacts())} == set(USUAL_ARMS) - {EAGLE}
    assert others_measured(both, [EAGLE], ServiceFacts()) == ()


def test_an_arm_pays_until_both_lines_cross():
    (found,) = others_measured(past_of(pod("aaaaa")), [Arm("draft_model", 3)], ServiceFacts())
    lone, slope = found.row.lone_ratio, found.row.slope_ratio
    assert lone is not None
    if slope is not None and lone < 1.0 < slope:
        assert found.pays_until_rps == pytest.approx((1.0 - lone) / (slope - lone) / C2_S, rel=0.1)
    assert "FromPrior: draft_model/3: draft_model/3 of" in found.sentence


def test_a_past_of_speculation_alone_has_no_rate():
    (found,) = others_measured(past_of(pod("aaaaa", k=3)), [Arm("ngram", 3)], ServiceFacts())
    assert found.pays_until_rps is None
