"""The table that ships is what the published cells say, and a ratio is what a line through them gives."""

from __future__ import annotations

import csv
import io

import pytest

from breakeven.prior.public_table import TABLE_FILE
from validation.measured_ratios import rows, table, texts

FACTS = "https://example.org,vLLM,m,8,no,H100,bf16"
HEADER = "source,stack,model,parameters_b,experts,gpu,quantisation,workload,method,k,load,kind,value,tokens_per_step"


def derived(*cells: str) -> dict[tuple[str, str], tuple[str, str, str]]:
    """(lone ratio, slope ratio, tokens per step) by text and arm, of cells `text,method,k,load,kind,value,E`."""
    every = texts("\n".join([HEADER, *(f"{FACTS},{cell}" for cell in cells)]))
    return {
        (row["workload"], f"{row['method']}/{row['k']}"): (
            row["lone_ratio"],
            row["slope_ratio"],
            row["tokens_per_step"],
        )
        for text in every
        for row in rows(text, every)
    }


def throughputs(method: str, k: int, c1: float, c2: float, loads, text="a", steps="") -> list[str]:
    """Cells of an arm on the line C1 + n*C2 in a closed loop."""
    return [
        f"{text},{method},{k},{load},tok_s,{100 * load / (c1 + (load - 1) * c2)},{steps}" for load in loads
    ]


def quotients(method: str, k: int, c1: float, c2: float, bend: float, loads, text="b") -> list[str]:
    """Throughputs over those of no speculation with C1 = 1 and C2 = `bend`."""
    return [
        f"{text},{method},{k},{n},ratio,{(1 + (n - 1) * bend) / (c1 + (n - 1) * c2 * bend)}," for n in loads
    ]


def test_the_table_that_ships_is_derived_from_the_cells():
    assert table() == TABLE_FILE.read_text(encoding="utf-8"), "python -m validation.measured_ratios --write"


def test_nothing_of_a_cell_but_its_facts_is_taken_over():
    header = next(csv.reader(io.StringIO(table())))
    assert set(header) == {*HEADER.split(",")} - {"load", "kind", "value"} | {"lone_ratio", "slope_ratio"}


@pytest.mark.parametrize("loads", [(1, 8, 32), (2, 8, 32)])
def test_throughputs_on_two_lines_give_their_ratios(loads):
    cells = throughputs("none", 0, 2.0, 0.1, loads) + throughputs("mtp", 2, 1.2, 0.13, loads, steps="2.5")
    assert derived(*cells) == {("a", "mtp/2"): ("0.6", "1.3", "2.5")}


def test_a_line_is_not_drawn_back_from_eight_clients_to_one():
    cells = throughputs("none", 0, 2.0, 0.1, (8, 64)) + throughputs("mtp", 2, 1.2, 0.13, (8, 64))
    assert derived(*cells) == {("a", "mtp/2"): ("", "1.3", "")}


def test_a_slope_that_adds_little_is_not_told():
    cells = throughputs("none", 0, 2.0, 0.001, (1, 8)) + throughputs("mtp", 2, 1.2, 0.0013, (1, 8))
    assert derived(*cells) == {("a", "mtp/2"): ("0.6", "", "")}


def test_latencies_of_an_open_loop_meet_rate_times_latency():
    def latency(c1, c2, rate):
        return c1 / (1 - rate * c2)

    cells = [f"a,none,0,{rate},latency_s,{latency(3.0, 0.2, rate)}," for rate in (0.5, 1, 2)]
    cells += [f"a,eagle3,3,{rate},latency_s,{latency(1.8, 0.24, rate)}," for rate in (0.5, 1, 2)]
    assert derived(*cells) == {("a", "eagle3/3"): ("0.6", "1.2", "")}


def test_arms_with_ratios_at_six_loads_share_a_slope_of_none():
    loads = (1, 8, 32, 64, 128, 256)
    cells = quotients("mtp", 1, 0.8, 0.9, 0.03, loads) + quotients("mtp", 3, 0.5, 1.3, 0.03, loads)
    found = derived(*cells)
    assert [float(one) for one in found["b", "mtp/1"][:2]] == pytest.approx([0.8, 0.9], rel=0.02)
    assert [float(one) for one in found["b", "mtp/3"][:2]] == pytest.approx([0.5, 1.3], rel=0.02)


def test_ratios_at_few_loads_take_the_slope_of_the_same_source():
    cells = throughputs("none", 0, 1.0, 0.02, (1, 64)) + quotients("ngram", 3, 0.8, 1.1, 0.02, (1, 16, 64))
    assert derived(*cells) == {("b", "ngram/3"): ("0.8", "1.1", "")}


def test_acceptance_alone_is_a_row_without_ratios():
    assert derived("a,mtp,3,,steps,,2.9") == {("a", "mtp/3"): ("", "", "2.9")}
