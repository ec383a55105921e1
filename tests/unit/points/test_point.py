"""The point: columns, digits and quality stand once, and everything else is made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from breakeven.errors import InputError
from breakeven.fitting.observations import observe
from breakeven.points.point import COLUMNS, SETTING, LoadMode, Origin, Point, significant
from breakeven.points.quality import reason_against
from breakeven.points.row import point
from breakeven.points.table import cells, decimal, document, read, written
from breakeven.reasons import Reason
from breakeven_operator.resources.calibrationrun import StoredPoint

BY_A_WINDOW = Point(
    method="eagle3",
    k=2,
    candidate="small",
    load_mode=LoadMode.CONSTANT,
    request_rate_rps=5.0,
    mean_latency_s=2.0,
    mean_inflight=9.1,
    achieved_rps=5.1,
    output_tokens=64.0,
    output_tokens_sq=64.0**2,
    requests=150,
    failed=0,
    window_s=30.0,
    little_residual=0.04,
    accept=(0.7, 0.5),
    sweep="p64-g64-s0",
)


def test_a_value_outside_its_range_makes_no_point():
    with pytest.raises(ValidationError, match="mean_latency_s"):
        replace(BY_A_WINDOW, mean_latency_s=90_000.0)
    unknown: dict[str, Any] = {"latency_s": 1.0}
    with pytest.raises(ValidationError, match="latency_s"):
        replace(BY_A_WINDOW, **unknown)


def test_a_point_written_and_read_is_the_same_point():
    (again,) = read(written([cells(BY_A_WINDOW)]), "p.csv")
    assert replace(again, origin=BY_A_WINDOW.origin) == BY_A_WINDOW


def test_the_table_has_the_columns_of_the_model_in_its_order():
    seldom = {"accept", "schedule", "text_source", "replicate", "max_num_seqs"}
    columns = [name for name in COLUMNS if name not in seldom]
    assert [name for name in cells(BY_A_WINDOW) if not name.startswith("accept_")] == columns


def test_json_has_counts_as_whole_numbers_and_nothing_where_nothing_was_measured():
    found = document(BY_A_WINDOW)
    assert (found["requests"], found["k"], found["accept_2"], found["ttft_mean_s"]) == (150, 2, 0.5, None)
    assert isinstance(found["requests"], int)


def test_the_crd_says_of_a_column_what_the_model_says():
    fields = StoredPoint.model_fields
    assert [name for name in fields if name in COLUMNS] == [name for name in COLUMNS if name not in SETTING]
    for name, column in COLUMNS.items():
        if name not in SETTING:
            assert (fields[name].description or "").rstrip(".").lower() == column.meaning.lower()


@given(st.floats(-1e12, 1e12, allow_nan=False))
def test_what_is_kept_of_a_figure_is_what_a_file_says(value: float):
    assert significant(value) == float(decimal(value))


def test_a_window_is_judged_by_who_cut_it_and_a_run_by_its_columns():
    # 9.1 in flight at 5.1 rps and 2 s: Little's law wants 10.2, twelve percent more.
    assert reason_against(BY_A_WINDOW) is None
    run = replace(BY_A_WINDOW, window_s=None, little_residual=None)
    assert reason_against(run) is Reason.NOT_STEADY
    assert reason_against(replace(BY_A_WINDOW, flag="NotSteady")) is Reason.NOT_STEADY


def test_who_wrote_a_row_does_not_matter_but_how_it_was_measured():
    # A closed loop of an older driver: no residual, in flight as met, answers as the time average has them.
    text = (
        "method,k,concurrency,mean_latency_s,mean_inflight,achieved_rps,window_s,little_residual,flag\n"
        "none,0,8,2.0,8.0,3.4,30,,\n"
    )
    (used,), excluded = observe(read(text, "old.csv"), 0.5)
    assert (used.others, excluded) == (7.0, [])
    without = [replace(one, window_s=None) for one in read(text, "old.csv")]
    assert [reason for _, reason in observe(without, 0.5)[1]] == [Reason.NOT_STEADY]


def test_the_place_of_a_value_is_named_by_row_and_column():
    assert Origin("p.csv", 2, 3).of("k") == "p.csv: row 2 (line 3), column k"


@pytest.mark.parametrize(
    "columns",
    [
        {"request_rate_rps": 5.0, "achieved_rps": 5.0, "mean_inflight": 4.1, "window_s": 60.0},
        {"request_rate_rps": 5.0, "mean_inflight": 4.0},
        {"concurrency": 4.0, "achieved_rps": 4.9, "window_s": 30.0},
        {"concurrency": 8.0, "achieved_rps": 9.5},
        {"concurrency": 8.0, "tokens_per_second": 950.0, "output_tokens": 100.0},
        {"concurrency": 1.0, "achieved_rps": 1.2, "mean_inflight": 1.0, "little_residual": 0.0},
    ],
)
def test_a_latency_in_milliseconds_is_refused_by_name_with_or_without_a_window(columns):
    row = {"method": "none", "k": 0.0, **columns}
    with pytest.raises(InputError) as refused:
        point(row | {"mean_latency_s": 820.0}, Origin("sweep.csv", 3))
    assert "sweep.csv: row 3, column mean_latency_s: 820 s" in str(refused.value)
    assert "it looks like milliseconds; expected seconds" in str(refused.value)
    assert point(row | {"mean_latency_s": 0.82}, Origin("sweep.csv", 3)).mean_latency_s == 0.82
    # A queue of ten times the requests in flight is a queue, and judged by the fit.
    point(row | {"mean_latency_s": 8.2}, Origin("sweep.csv", 3))


def test_a_latency_divided_by_a_thousand_twice_is_refused():
    row = {"method": "none", "k": 0.0, "request_rate_rps": 5.0, "mean_inflight": 4.1}
    with pytest.raises(InputError, match="it looks like seconds that were taken for milliseconds"):
        point(row | {"mean_latency_s": 0.00082}, Origin("sweep.csv", 3))
    # Clients that think for long are no requests in flight.
    idle = {"method": "none", "k": 0.0, "concurrency": 64.0, "achieved_rps": 0.1, "mean_latency_s": 0.82}
    assert point(idle, Origin("sweep.csv", 3)).mean_latency_s == 0.82


@pytest.mark.parametrize("percent", [50, 95, 99])
def test_a_quantile_of_the_latency_in_milliseconds_is_refused(percent):
    row = {"method": "none", "k": 0.0, "concurrency": 4.0, "mean_latency_s": 0.82}
    with pytest.raises(InputError, match=f"p{percent}_latency_s: 900 cannot belong to mean_latency_s"):
        point(row | {f"p{percent}_latency_s": 900.0}, Origin("sweep.csv", 3))
