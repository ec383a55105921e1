"""Rows of measured ratios: the table that ships, rows that users send, and one line for what is refused."""

from __future__ import annotations

import pytest

from breakeven.errors import InputError
from breakeven.prior.public_table import (
    COLUMNS,
    RatioRow,
    ServiceFacts,
    public_ratios,
    read_ratios,
    written_ratios,
)

ROW = RatioRow(
    ServiceFacts(8.0, experts=False, gpu="H100", quantisation="bf16"),
    "eagle3",
    3,
    lone_ratio=0.6,
    slope_ratio=1.2,
    tokens_per_step=2.1,
    source="https://example.org/a",
)


def with_field(name: str, value: str) -> str:
    header, line = written_ratios([ROW]).splitlines()
    fields = line.split(",")
    fields[COLUMNS.index(name)] = value
    return f"{header}\n{','.join(fields)}\n"


def test_every_row_that_ships_is_of_vllm_and_has_an_address():
    rows = public_ratios()
    assert {row.source.startswith("https://") and row.stack.startswith("vLLM") for row in rows} == {True}
    of_figure = {
        name: {row.source for row in rows if getattr(row, name) is not None}
        for name in ("lone_ratio", "slope_ratio", "tokens_per_step")
    }
    assert {name: len(found) for name, found in of_figure.items()} == {
        "lone_ratio": 13,
        "slope_ratio": 6,
        "tokens_per_step": 12,
    }


def test_what_is_written_is_read_again():
    unknown = RatioRow(ServiceFacts(experts=True), "ngram", 5, source='a, "b"')
    assert read_ratios("\ufeff" + written_ratios([ROW, unknown]), "x.csv") == (ROW, unknown)


def test_other_columns_are_ignored():
    lines = written_ratios([ROW]).splitlines()
    assert read_ratios(f"{lines[0]},note\n{lines[1]},hello\n", "x.csv") == (ROW,)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("lone_ratio", "nan", "line 2, column lone_ratio: 'nan'; expected a number from 0.01 to 100"),
        ("lone_ratio", "0", "column lone_ratio: '0'"),
        ("slope_ratio", "inf", "column slope_ratio: 'inf'"),
        ("slope_ratio", "fast", "column slope_ratio: 'fast'"),
        ("tokens_per_step", "4.5", "expected a number from 1 to 4, or nothing"),
        ("parameters_b", "-8", "column parameters_b: '-8'"),
        ("k", "2.5", "column k: '2.5'"),
        ("k", "", "column k: ''"),
        ("experts", "some", "column experts: 'some'; expected yes, no or nothing"),
        ("method", "none", "column method: 'none'"),
        ("source", "", "column source: nothing"),
    ],
)
def test_a_field_that_says_what_it_may_not_is_refused_in_one_line(name, value, shown):
    with pytest.raises(InputError) as refused:
        read_ratios(with_field(name, value), "x.csv")
    assert shown in str(refused.value)
    assert str(refused.value).startswith("x.csv: line 2, column ")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "x.csv: no column stack"),
        ("stack,model\n", "x.csv: no column parameters_b"),
        (written_ratios([ROW]) + "a,b\n", "x.csv: line 3: not as many fields as the header"),
        (written_ratios([ROW]) + '"a\n', "not CSV"),
        ("\n" * 20_000, "20000 lines"),
    ],
)
def test_a_file_that_is_no_table_is_refused(text, shown):
    with pytest.raises(InputError, match=shown.replace("(", r"\(")):
        read_ratios(text, "x.csv")


@pytest.mark.parametrize("name", ["lone_ratio", "slope_ratio", "tokens_per_step", "parameters_b", "gpu"])
def test_an_empty_field_is_not_measured(name):
    (row,) = read_ratios(with_field(name, " "), "x.csv")
    assert getattr(row, name, None) is None
    assert getattr(row.facts, name, None) is None


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("Qwen3-30B-A3B-FP8", ServiceFacts(30.0, experts=True, quantisation="fp8")),
        ("Llama-3.1-8B-Instruct", ServiceFacts(8.0)),
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
