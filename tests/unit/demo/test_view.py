"""The demo where there is no screen: named columns, and a line for what decides, not for each second."""

from __future__ import annotations

import time
from dataclasses import replace

from rich.console import Console

from demo.record import Happening, Record, Sample, ServiceRecord
from demo.view import View

SAMPLE = Sample(
    100.0, 6.0, 0.46, "none", "eagle/3", "Yes", "1.46 [1.14,1.80] expected", "Dwelling", False, ""
)


def said(record: Record, samples: list[Sample]) -> list[str]:
    console = Console(width=160)
    with console.capture() as captured, View(record, console) as view:
        for sample in samples:
            record.services["chat"].samples.append(sample)
            view.refresh()
    return captured.get().splitlines()


def record() -> Record:
    return Record(time.time(), {"chat": ServiceRecord("chat", "A100", "RollingUpdate")})


def test_the_columns_are_named_once_and_stand_above_their_figures():
    heads, first, second = said(record(), [SAMPLE, replace(SAMPLE, arm="eagle/3")])
    for head, cell in (
        ("LOAD", "6.0"),
        ("RECOMMENDED", "eagle/3"),
        ("SPEEDUP", "1.46"),
        ("REASON", "Dwelling"),
    ):
        assert heads.index(head) == first.rindex(cell) == second.rindex(cell)


def test_the_points_of_a_calibration_are_no_lines_and_its_arms_are():
    at = ["none 1/28 points, 3m left", "none 2/28 points, 2m left", "eagle/3 3/28 points, 2m left"]
    samples = [
        replace(SAMPLE, calibration=f"calibrating {one}", reason=f"CalibrationRunning {one}") for one in at
    ]
    lines = said(record(), samples)
    assert [line.partition("calibrating ")[2].partition(" ")[0] for line in lines[1:]] == ["none", "eagle/3"]


def test_an_event_is_said_once_and_whole():
    told = record()
    told.events.append(Happening(told.started_s + 12.0, "chat", "Normal", "RollStarted", "why " * 60))
    (event, *_) = said(told, [SAMPLE, SAMPLE])
    assert event.startswith("   12 s  Normal  chat  RollStarted: why")
    assert event.count("why") == 60


def test_on_a_terminal_it_is_one_table_with_what_happens_beneath_it():
    console = Console(width=160, force_terminal=True, height=40)
    grown = record()
    grown.services["chat"].samples.append(SAMPLE)
    with console.capture() as captured, View(grown, console) as view:
        view.step("the load rises")
        for reason in ("CalibrationStarted", "RollStarted"):
            grown.events.append(Happening(time.time(), "chat", "Normal", reason, "words"))
            grown.services["chat"].samples.append(replace(SAMPLE, offered_rps=9.0))
            view.refresh()
    last = captured.get().rpartition("SERVICE")[2]
    assert last.index("RECOMMENDED") < last.index("9.0") < last.index("CalibrationStarted: words")
    assert last.index("CalibrationStarted: words") < last.index("RollStarted: words")
    assert last.count("9.0") == 1, "a service is one line, however often it was looked at"
