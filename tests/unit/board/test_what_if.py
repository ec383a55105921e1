"""The what-if form: the library's own answer, and one clear line about a field that is wrong."""

from __future__ import annotations

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.errors import InputError
from breakeven_operator.board.board_service import laws_of
from breakeven_operator.board.what_if import Supposition, present, read_supposition, supposed
from fakes.fleet_world import BREAK_EVEN_RPS, EAGLE
from fakes.published_board import CHAT


@pytest.fixture
def chat(settled):
    return settled.services[CHAT]


@pytest.fixture
def profile(settled):
    return laws_of(settled, CHAT)[1]


def fastest(answer):
    return next(one.arm for one in answer.arms if one.best)


def test_empty_fields_stand_for_the_present(chat):
    asked = read_supposition({"acceptance": "70"}, chat)
    assert (asked.rps, asked.replicas) == (pytest.approx(6.0), 2.0)
    assert present(chat) == {"rps": pytest.approx(6.0), "replicas": 2.0}


def test_beyond_the_break_even_no_speculation_is_faster(chat, profile):
    below = supposed(profile, chat, Supposition(0.8 * BREAK_EVEN_RPS, 1))
    above = supposed(profile, chat, Supposition(1.2 * BREAK_EVEN_RPS, 1))
    assert (fastest(below), fastest(above)) == ("eagle/3", "none")


def test_more_replicas_share_the_load(chat, profile):
    one = supposed(profile, chat, Supposition(1.2 * BREAK_EVEN_RPS, 1))
    two = supposed(profile, chat, Supposition(1.2 * BREAK_EVEN_RPS, 2))
    assert (fastest(one), fastest(two)) == ("none", "eagle/3")
    assert [arm.replicas for arm in one.arms] == [arm.replicas for arm in two.arms]


def test_the_answer_is_that_of_the_library(chat, profile):
    (found,) = (arm for arm in supposed(profile, chat, Supposition(6.0, 2)).arms if arm.arm == "eagle/3")
    comparison = profile.compare(EAGLE, NO_SPECULATION, rps=3.0)
    assert found.speedup.startswith(f"{comparison.speedup:.2f} [")
    assert found.speedup.endswith(f"] {comparison.how_known}")


def test_fewer_accepted_drafts_gain_less(chat, profile):
    def speedup(acceptance):
        answer = supposed(profile, chat, Supposition(6.0, 2, acceptance=acceptance))
        return next(float(arm.speedup.split()[0]) for arm in answer.arms if arm.arm == "eagle/3")

    assert speedup(20.0) < speedup(50.0) < speedup(80.0)


def test_beyond_saturation_there_is_no_latency(chat, profile):
    answer = supposed(profile, chat, Supposition(1000.0, 1))
    assert {(arm.latency, arm.remark.partition(";")[0]) for arm in answer.arms} == {
        ("-", "saturated: requests queue")
    }
    assert not any(arm.best for arm in answer.arms)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("rps", "nan"), ("rps", "inf"), ("rps", "-1"), ("rps", "1e300"), ("rps", "3 rps"), ("rps", "9" * 400),
        ("replicas", "0"), ("replicas", "1e9"), ("acceptance", "101"), ("prompt", "0"), ("output", "<b>"),
    ],
)  # fmt: skip
def test_a_field_that_is_wrong_is_refused_by_its_name(chat, field, text):
    with pytest.raises(InputError, match=rf"^{field}: is .*; expected .* from "):
        read_supposition({field: text}, chat)


def test_without_a_present_load_it_must_be_given(chat):
    silent = chat.with_status(chat.status.model_copy(update={"capacity": None, "decision": None}))
    with pytest.raises(InputError, match=r"^rps: is empty, and the present figure is not known"):
        read_supposition({"replicas": "2"}, silent)
