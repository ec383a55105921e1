"""A schedule is one more arm of `fit`, `predict`, `plan` and `report`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from breakeven.points.table import cells, written
from breakeven.tiers import Schedule
from fakes.scheduled_points import STEEP, all_points
from golden.documents import breakeven

TO_NONE = Schedule(((1, 3), (21, 0)))


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A fitted profile with a schedule in it."""
    measured, found = tmp_path / "points.csv", tmp_path / "p.json"
    measured.write_text(written([cells(point) for point in all_points(STEEP, TO_NONE, tax=0.1)]))
    done = breakeven("fit", str(measured), "-o", str(found))
    assert done.returncode == 0, done.stderr
    assert "eagle3/schedule" in done.stdout
    return found


def test_fit_writes_the_schedule_as_an_arm(profile: Path) -> None:
    *static, scheduled = json.loads(profile.read_text())["arms"]
    assert (scheduled["method"], scheduled["k"], scheduled["schedule"]) == ("eagle3", 3, "1-20:3,21-:0")
    assert not any("schedule" in arm for arm in static)


def test_predict_and_plan_take_it_like_any_arm(profile: Path) -> None:
    done = breakeven(
        "predict", str(profile), "--method", "eagle3", "--k", "schedule", "--concurrency", "16", "--json"
    )
    assert json.loads(done.stdout)["latency_s"] == pytest.approx(1.1 + 15 * 0.075, rel=0.05)
    ranking = json.loads(breakeven("plan", str(profile), "--rps", "15", "--json").stdout)
    assert [(arm["method"], arm["k"], arm.get("scheduled", False)) for arm in ranking["arms"]] == [
        ("none", 0, False),
        ("eagle3", 3, False),
        ("eagle3", 3, True),
    ]
    low = json.loads(breakeven("plan", str(profile), "--rps", "4", "--json").stdout)
    assert low["best"]["k"] == 3
    assert "eagle3/schedule" in breakeven("plan", str(profile), "--rps", "15").stdout


def test_another_acceptance_is_refused_for_it_and_leaves_it_out_of_a_plan(profile: Path) -> None:
    asked = ("--method", "eagle3", "--k", "schedule", "--rps", "4", "--tokens-per-step", "2")
    done = breakeven("predict", str(profile), *asked)
    assert done.returncode == 1
    assert "its draft length changes with the load" in done.stderr
    plan = json.loads(breakeven("plan", str(profile), "--rps", "4", "--alpha", "0.6", "--json").stdout)
    assert not any(arm.get("scheduled") for arm in plan["arms"])
    assert any("eagle3/schedule" in warning for warning in plan["warnings"])


def test_report_draws_it(profile: Path, tmp_path: Path) -> None:
    done = breakeven("report", str(profile), "-o", str(tmp_path / "r.html"))
    assert done.returncode == 0, done.stderr
    assert "eagle3/schedule" in (tmp_path / "r.html").read_text()


def test_a_result_that_names_no_arm_is_given_its_table(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    asked = ("fit", "guidellm_0.8.1_poisson_6.json", "--method", "eagle3", "-o", str(out), "--k")
    done = breakeven(*asked, "1-20:3,21-:0")
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["arms"][0]["schedule"] == "1-20:3,21-:0"
    wrong = breakeven(*asked, "2-20:3")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1)
    assert "its first range at 1" in wrong.stderr
    assert breakeven(*asked, "three").returncode == 2


@pytest.mark.parametrize(
    ("word", "missing"), [("schedule", "no schedule"), ("adaptive", "no adaptive verification")]
)
def test_predict_says_where_none_was_measured(word: str, missing: str) -> None:
    done = breakeven("predict", "points.csv", "--method", "eagle3", "--k", word, "--rps", "4")
    assert done.returncode == 1
    assert f"{missing} of eagle3 was measured" in done.stderr
