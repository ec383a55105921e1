"""Documents of --json: filled by name, ASCII, null where there is no figure; a key is left out only if its name says so."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from breakeven.arm import Arm
from breakeven.cli import predict
from breakeven.cli.output import ARM, document, echo_result
from breakeven.cli.parameters import read_draft_lengths, read_survival
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
    text = printed(
        document(predict.FIELDS, found, confidence=0.9, quantile=None, extrapolated=False, would_pay={})
    )
    assert text.isascii()
    read = json.loads(text)
    assert (read["latency_s"], read["latency_ci_s"], "would_pay" in read) == (None, [None, None], False)
    assert read["means"] == ["TTFT \u2260 p95"]


def test_an_arm_without_a_name_of_its_own_has_no_key_for_it():
    assert document({"": ARM}, Arm("eagle3", 3)) == {"method": "eagle3", "k": 3}
    assert document({"": ARM}, Arm("eagle3", 3, "mine"))["candidate"] == "mine"


def test_fields_come_from_what_is_given_then_from_the_first_part_that_has_them():
    first, second = (
        SimpleNamespace(from_rps=1.0, method="first"),
        SimpleNamespace(to_rps=2.0, method="second", k=1),
    )
    found = document({"": "k from_rps to_rps method"}, first, None, second, k=4)
    assert [*found.items()] == [("k", 4), ("from_rps", 1.0), ("to_rps", 2.0), ("method", "first")]


def test_results_within_a_field_have_the_fields_of_their_place():
    fields = {"": "best arms", "best.": "k", "arms[].": "method"}
    arms = [Arm("eagle3", 3), Arm("ngram", 2)]
    found = document(fields, SimpleNamespace(best=arms[0], arms=arms))
    assert found == {"best": {"k": 3}, "arms": [{"method": "eagle3"}, {"method": "ngram"}]}
    assert document(fields, SimpleNamespace(best=None, arms=()))["best"] is None


def test_a_field_that_nobody_fills_is_a_fault_not_a_null():
    with pytest.raises(AttributeError, match="to_rps"):
        document({"": "to_rps"}, SimpleNamespace(from_rps=1.0))


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
