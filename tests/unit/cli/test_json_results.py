"""Documents of --json: filled by name, ASCII, null where there is no figure; a key is left out only where the model says so."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from breakeven.arm import Arm
from breakeven.cli.output import echo_result
from breakeven.cli.parameters import read_draft_lengths, read_survival
from breakeven.cli.results import ArmKey, EnvelopeStretch, PredictResult
from breakeven.errors import InputError


def printed(result):
    @click.command()
    def command():
        echo_result(result)

    return CliRunner().invoke(command).output


def test_a_figure_that_does_not_exist_is_null_and_text_is_ascii():
    found = SimpleNamespace(
        latency_s=math.inf,
        latency_ci_s=(math.nan, None),
        ttft_s=None,
        ttft_ci_s=None,
        tpot_s=0.01,
        tpot_ci_s=(0.009, math.inf),
        means=("TTFT \u2260 p95",),
        inflight=1,
        utilisation=2.0,
        saturated=True,
        basis="arm",
    )
    text = printed(PredictResult.of(found, confidence=0.9, quantile=None, extrapolated=False))
    assert text.isascii()
    document = json.loads(text)
    assert (document["latency_s"], document["latency_ci_s"]) == (None, [None, None])
    assert document["means"] == ["TTFT \u2260 p95"]


def test_an_arm_without_a_name_of_its_own_has_no_key_for_it():
    assert json.loads(printed(ArmKey.model_validate(Arm("eagle3", 3)))) == {"method": "eagle3", "k": 3}
    assert json.loads(printed(ArmKey.model_validate(Arm("eagle3", 3, "mine"))))["candidate"] == "mine"


def test_fields_come_from_what_is_given_then_from_the_first_part_that_has_them():
    first, second = (
        SimpleNamespace(from_rps=1.0, method="first"),
        SimpleNamespace(to_rps=2.0, method="second", k=1),
    )
    found = EnvelopeStretch.of(first, None, second, k=4)
    assert (found.from_rps, found.to_rps, found.method, found.k) == (1.0, 2.0, "first", 4)


def test_a_field_that_nobody_fills_is_a_fault_not_a_null():
    with pytest.raises(ValueError, match="to_rps"):
        EnvelopeStretch.of(SimpleNamespace(from_rps=1.0, method="none", k=0))


@pytest.mark.parametrize(
    ("text", "lengths"),
    [("1-3", (1, 2, 3)), ("7,1,3", (1, 3, 7)), (" 2 - 3 ,2", (2, 3)), ("1000", (1000,))],
)
def test_draft_lengths_are_ranges_and_lists(text, lengths):
    assert read_draft_lengths(None, None, text) == lengths


@pytest.mark.parametrize("text", ["", "0-3", "3-1", "1001", "a-b", "1-", "-1", "1-2-3", "\u00b2", "1e3"])
def test_what_is_no_list_of_draft_lengths_is_wrong_usage(text):
    with pytest.raises(click.BadParameter, match="1 to 1000"):
        read_draft_lengths(None, None, text)


@pytest.mark.parametrize(
    ("text", "place"),
    [(".5,.6", "position 2"), ("1.2", "position 1"), (".5,nan", "position 2"), ("-1", "position 1")],
)
def test_a_share_that_no_drafts_can_have_is_refused_by_its_position(text, place):
    with pytest.raises(InputError, match=place):
        read_survival(None, None, text)
