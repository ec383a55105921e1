"""Success of the stories of a text that changes, of a profile that promises too much and of three kinds of targets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from click.testing import CliRunner

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.cli import root
from breakeven.points.table import read
from demo import changing_text, liar, stacks
from demo.__main__ import STORIES
from demo.record import PhaseResult, Sample, ServiceRecord
from demo.story import Phase, Story

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


LOW = Phase("low", 2.0, EAGLE, frozenset({"eagle/3"}), NO_SPECULATION, 1.0, 1.4)
NAMES = ("chat", "code", "page")


def kinds(arms=("none", "eagle/3"), settled_s=20.0):
    """The record of three services that ran these arms one after the other, and the stories of their profiles."""
    samples = [Sample(0.0, 2.0, 1.0, arm, "eagle/3", "Yes", "1.4", "", False, "") for arm in ("", *arms)]
    phase = PhaseResult(LOW, 10.0, 90.0, settled_s, 1.0, 30, 2.0, arms[-1], "eagle/3", "", False)
    records = {
        name: ServiceRecord(name, "A100", "RollingUpdate", samples=samples, phases=[phase]) for name in NAMES
    }
    return records, {name: Story("", (LOW, LOW, LOW), switches=False) for name in NAMES}


def judged(seen, writes):
    records, stories = seen
    return stacks.judge(records, stories, writes)


def test_three_kinds_that_came_to_the_arm_of_their_profiles():
    checks = judged(kinds(), {name: [f"patch {name}-vllm"] for name in NAMES})
    assert failed(checks) == []
    assert len(checks) == 6
    assert failed(judged(kinds(arms=("eagle/3",)), {})) == [], "which ran it already"


@pytest.mark.parametrize(
    ("seen", "writes", "what"),
    [
        (kinds(settled_s=None), 1, "eagle/3 runs at 2.0 rps"),
        (kinds(arms=("none", "eagle/3", "none")), 1, "eagle/3 runs at 2.0 rps"),
        (kinds(), 0, "rolled by a write to itself"),
        (kinds(arms=("eagle/3",)), 1, "never rolled"),
    ],
)
def test_what_may_not_be_missing_of_any_kind(seen, writes, what):
    found = failed(judged(seen, {name: ["patch"] * writes for name in NAMES}))
    assert len(found) == 3
    assert all(what in one for one in found)


def test_the_three_targets_take_the_arm_and_drain_and_one_of_them_by_its_shell(tmp_path):
    made = [
        one for one in stacks.manifests() if one["kind"] in {"StatefulSet", "LeaderWorkerSet", "Deployment"}
    ]
    assert [one["kind"] for one in made] == ["StatefulSet", "LeaderWorkerSet", "Deployment"]
    (container,) = made[-1]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["/bin/sh", "-c"]
    assert container["args"][0].startswith("exec vllm serve ")
    for one in made:
        file = tmp_path / f"{one['kind']}.yaml"
        file.write_text(yaml.safe_dump(one))
        said = CliRunner().invoke(root, ["lint", str(file)]).output
        assert [line.split() for line in said.splitlines() if "complete" in line] == [
            ["opt-in", "complete"],
            ["draining", "complete"],
        ], said
