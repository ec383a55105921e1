"""Points files as people save them, and the one line they get when something is wrong."""

import pytest

from breakeven.arm import Arm
from breakeven.errors import InputError
from breakeven.points.point import LoadMode
from breakeven.points.table import decimal, read

HEADER = "method,k,concurrency,request_rate_rps,mean_latency_s"


def rows(*lines: str, header: str = HEADER) -> str:
    return "\n".join([header, *lines]) + "\n"


def test_each_row_becomes_a_point_with_its_types_and_the_mode_its_load_implies() -> None:
    closed, open_loop = read(rows("none,0,8,,1.69", "eagle3,3,,4,0.9"), "p.csv")
    assert (closed.arm, closed.load_mode, closed.concurrency) == (Arm("none", 0), LoadMode.CLOSED, 8.0)
    assert (open_loop.arm, open_loop.load_mode, open_loop.request_rate_rps) == (
        Arm("eagle3", 3),
        LoadMode.POISSON,
        4.0,
    )
    assert (open_loop.origin.row, open_loop.origin.line) == (2, 3)


def test_byte_order_mark_semicolons_decimal_commas_and_blank_lines_are_taken() -> None:
    text = '\ufeffMethod ; k;concurrency;mean_latency_s;note\r\n\r\nnone;0;8;1,69;b\r\n\r\nnone;0;32;3,37;"c; d"\r\n'
    first, second = read(text, "p.csv")
    assert (first.mean_latency_s, first.origin.row, first.origin.line) == (1.69, 1, 3)
    assert (second.mean_latency_s, second.origin.line, second.extra["note"]) == (3.37, 5, "c; d")


def test_spreadsheet_spellings_of_nothing_are_nothing() -> None:
    header = HEADER + ",requests,ttft_mean_s,gpu"
    (point,) = read(rows("none,0,8,,1.69,NaN,n/a,-", header=header), "p.csv")
    assert (point.requests, point.ttft_mean_s, point.gpu) == (None, None, None)


def test_candidate_is_part_of_the_arm_and_unknown_columns_are_kept() -> None:
    (point,) = read(rows("draft_model,3,8,,1.69,small,x", header=HEADER + ",candidate,colour"), "p.csv")
    assert point.arm == Arm("draft_model", 3, "small")
    assert point.text("colour") == "x"


def test_survival_columns_are_collected_in_order() -> None:
    (point,) = read(rows("eagle3,2,8,,1.69,0.4,0.7", header=HEADER + ",accept_2,accept_1"), "p.csv")
    assert point.accept == (0.7, 0.4)


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ("", "p.csv", "CSV with header"),
        (HEADER + "\n", "p.csv", "one row per measured"),
        (rows("none,0,8,,fast"), "row 1 (line 2), column mean_latency_s", "seconds"),
        (rows("none,0,8,,1.69", "none,0,8,,"), "row 2 (line 3), column mean_latency_s", "nothing there"),
        (rows("none,0,8,,inf"), "row 1 (line 2), column mean_latency_s", "not a number"),
        (rows("none,0,8,,-1"), "row 1 (line 2), column mean_latency_s", "out of range"),
        (rows("none,0,8,,900000"), "row 1 (line 2), column mean_latency_s", "in seconds"),
        (rows("none,0,8,4,1.69"), "columns concurrency and request_rate_rps", "exactly one"),
        (rows("none,0,,,1.69"), "columns concurrency and request_rate_rps", "exactly one"),
        (rows("none,3,8,,1.69"), "row 1 (line 2), column k", "without speculation nothing is drafted"),
        (rows("eagle3,0,8,,1.69"), "row 1 (line 2), column k", "at least 1"),
        (rows("eagle3,2.5,8,,1.69"), "row 1 (line 2), column k", "whole number"),
        (rows(",3,8,,1.69"), "row 1 (line 2), column method", "vLLM's name"),
        (rows("none,0,8,,1.69,9"), "row 1 (line 2)", "6 fields"),
        (rows("none,0,8"), "row 1 (line 2)", "none in column request_rate_rps"),
        (rows("none,0,8,,1.69,poisson", header=HEADER + ",load_mode"), "column load_mode", "closed"),
        (rows("eagle3,2,8,,1.69,3.5", header=HEADER + ",tokens_per_step"), "column tokens_per_step", "k + 1"),
        (
            rows("eagle3,2,8,,1.69,0.4,0.7", header=HEADER + ",accept_1,accept_2"),
            "column accept_2",
            "never rises",
        ),
        (rows("eagle3,2,8,,1.69,0.7", header=HEADER + ",accept_3"), "column accept_3", "beyond k = 2"),
        (rows("none,0,8,,1.69,850", header=HEADER + ",ttft_mean_s"), "column ttft_mean_s", "in seconds"),
        (
            rows("none,0,8,,1.7,12,200", header=HEADER + ",tpot_mean_s,output_tokens"),
            "column tpot_mean_s",
            "seconds",
        ),
        (
            rows("none,0,8,,1.7,2,1", header=HEADER + ",p50_latency_s,p95_latency_s"),
            "p95_latency_s",
            "rising order",
        ),
        (
            rows("none,0,8,,1.7,0.2,0.1", header=HEADER + ",tpot_p50_s,tpot_p99_s"),
            "tpot_p99_s",
            "rising order",
        ),
        (
            rows("none,0,8,,1.7,0.2,310", header=HEADER + ",ttft_mean_s,ttft_p95_s"),
            "ttft_p95_s",
            "in seconds",
        ),
        (
            rows("none,0,8,,1.7,9,9", header=HEADER + ",output_tokens,output_tokens_sq"),
            "output_tokens_sq",
            "squares",
        ),
        ("method,k,mean_latency_s\nnone,0,1\n", "columns concurrency and request_rate_rps", "was imposed"),
        ("method,concurrency,mean_latency_s\nnone,1,1\n", "line 1, column k", "no such column"),
        (rows("none,0,8,,1", header=HEADER.replace("request_rate_rps", "k")), "line 1", "twice"),
        (rows('none,0,8,,"1.69'), "line", "CSV"),
        ("\0\0", "p.csv", "points file"),
    ],
)
def test_a_wrong_file_gets_one_line_that_names_place_and_expectation(
    text: str, where: str, expected: str
) -> None:
    with pytest.raises(InputError) as refused:
        read(text, "p.csv")
    line = str(refused.value)
    assert line.startswith("p.csv")
    assert where in line
    assert expected in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (float("inf"), ""),
        (float("nan"), ""),
        (0, "0"),
        (1.5, "1.5"),
        (1234567.8, "1234568"),
        (0.000012345678, "1.235e-05"),
    ],
)
def test_numbers_are_plain(value, text):
    assert decimal(value) == text
