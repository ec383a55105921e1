"""Success of the stories of a text that changes and of a profile that promises too much."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.points.table import read
from demo import changing_text, liar
from demo.__main__ import STORIES

EAGLE = Arm("eagle3", 3, "eagle")
DISPROVED = {
    "result": "Undone",
    "reason": "RollDisproved",
    "measuredSpeedup": "0.94",
    "predictedSpeedup": "1.8",
}
UNDONE = ["RollStarted", "Rolling", "RollUndone", "RolledBack"]


def failed(checks) -> list[str]:
    return [check.what for check in checks if not check.ok]


def test_a_lie_that_is_found_out_on_the_way_and_not_tried_again():
    checks = liar.judge(liar.RollsSeen([DISPROVED], "none"), UNDONE, ["patch", "patch"])
    assert failed(checks) == []
    assert "0.94x measured against 1.80x promised" in checks[0].detail


@pytest.mark.parametrize(
    ("seen", "words", "writes", "what"),
    [
        (
            liar.RollsSeen([DISPROVED | {"reason": "RollDeadlineExceeded"}], "none"),
            UNDONE,
            2,
            "was disproved",
        ),
        (
            liar.RollsSeen([DISPROVED], "none"),
            ["RollFinished", *UNDONE],
            2,
            "before it had reached every pod",
        ),
        (liar.RollsSeen([DISPROVED], "eagle/3"), UNDONE, 2, "no speculation runs again"),
        (liar.RollsSeen([DISPROVED, DISPROVED], "none"), UNDONE, 4, "no second roll"),
    ],
)
def test_what_a_lie_may_not_lead_to(seen, words, writes, what):
    (found,) = failed(liar.judge(seen, words, ["patch"] * writes))
    assert what in found


def test_the_imported_lie_is_that_every_latency_is_shorter():
    config_map, run, *_ = liar.manifests(STORIES["liar"][0])
    true, promised = (read(config_map["data"][name], name) for name in ("none.csv", "promised.csv"))
    assert [one.mean_latency_s / two.mean_latency_s for one, two in zip(true, promised, strict=True)] == [
        pytest.approx(liar.PROMISED, rel=1e-4)
    ] * len(true)
    assert {point.arm.name for point in promised} == {"eagle/3"}
    assert [source["arm"] for source in run["spec"]["importFrom"]] == ["none", "eagle/3"]


RIGHT = changing_text.TextChange(
    100.0, 160.0, 300.0, (64.0, 400.0), (EAGLE, NO_SPECULATION), ("eagle/3", "none")
)


def test_a_text_that_changes_and_an_operator_that_follows():
    assert failed(changing_text.judge(RIGHT, ["AcceptanceDrifted", "RollStarted"])) == []


@pytest.mark.parametrize(
    ("seen", "words", "what"),
    [
        (RIGHT, ["RollStarted"], "noticed"),
        (replace(RIGHT, left_s=310.0), ["LengthsDrifted"], "left on measured latency"),
        (
            replace(RIGHT, prompt_tokens=(64.0, 64.0)),
            ["LengthsDrifted"],
            "used the new lengths",
        ),
        (replace(RIGHT, running=("eagle/3", "eagle/3")), ["LengthsDrifted"], "right for the new text"),
    ],
)
def test_what_may_not_be_missing_when_a_text_changes(seen, words, what):
    (found,) = failed(changing_text.judge(seen, words))
    assert what in found
