"""Strangers' words on their way into statuses, events and logs."""

from __future__ import annotations

import logging

import pytest

from breakeven.printable import one_line, printable
from breakeven_operator.ports import ClusterError
from breakeven_operator.resources.calibrationrun import CalibrationRunStatus
from breakeven_operator.resources.meta import Condition
from breakeven_operator.serve.logs import TextLines

HOSTILE = "a\x1b[31mb\u202ec\u2066d\u2069e\x07f\u200bg\x00h\x9bi"
PLAIN = "a[31mbcdefghi"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (HOSTILE, PLAIN),
        ("größer als 9 €, 速い", "größer als 9 €, 速い"),
        ("a\nb\tc\r\nd\u2028e", "a b c d e"),
    ],
)
def test_one_line_is_words_alone(text, shown):
    assert one_line(text) == shown
    assert printable(text).isprintable()


def test_no_sentence_of_a_status_moves_a_cursor():
    status = CalibrationRunStatus(
        message=HOSTILE,
        conditions=(
            Condition.read(
                {
                    "type": "Complete",
                    "status": "True",
                    "reason": "X",
                    "message": HOSTILE,
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                },
                "condition",
            ),
        ),
    )
    written = status.to_json_object()
    assert written["message"] == written["conditions"][0]["message"] == PLAIN


def test_errors_of_the_api_server_are_words_alone():
    assert str(ClusterError(f"GET /x: 500 {HOSTILE}")) == f"GET /x: 500 {PLAIN}"


def test_a_line_of_the_text_log_is_one_line_of_words():
    record = logging.LogRecord("x", logging.INFO, "", 0, "said %s", (f"{HOSTILE}\n2026 ERROR forged",), None)
    assert TextLines("%(levelname)s %(message)s").format(record) == f"INFO said {PLAIN} 2026 ERROR forged"


def test_a_traceback_keeps_its_lines():
    try:
        int(HOSTILE)
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.INFO, "", 0, "m", (), (type(error), error, error.__traceback__)
        )
    shown = TextLines("%(message)s").format(record)
    assert shown.splitlines()[-1].startswith("ValueError: ")
    assert all(line.isprintable() for line in shown.splitlines())
    assert len(shown.splitlines()) > 2
