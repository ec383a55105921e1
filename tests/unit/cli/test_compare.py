"""`breakeven compare` and the front door of the library: what surely changed between two profiles, and nothing else."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import breakeven
from breakeven import cli, front_door
from breakeven.arm import Arm
from breakeven.cli import root
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.estimate import Estimate
from breakeven.points.table import cells
from breakeven.profile.changes import ratio_of
from breakeven.readers.reading import read_sweep

SWEEP = Path(__file__).parents[3] / "examples" / "points.csv"


@pytest.fixture(scope="module")
def points():
    return read_sweep([SWEEP]).points


@pytest.fixture(scope="module")
def before(points):
    return breakeven.fit(points)


def slowed(points, factor, **others):
    """The same points, with every arm that speculates slower."""
    return [
        replace(one, mean_latency_s=one.mean_latency_s * (factor if one.k else 1.0), **others)
        for one in points
    ]


@pytest.fixture
def compare(tmp_path, before):
    def run(after, *options):
        files = {"before.json": before, "after.json": after}
        for name, profile in files.items():
            (tmp_path / name).write_text(profile.to_json())
        return CliRunner().invoke(root, ["compare", *(str(tmp_path / name) for name in files), *options])

    return run


def test_a_slower_engine_is_worse_and_only_in_what_it_slowed(before, points):
    found = breakeven.fit(slowed(points, 1.15, engine_version="0.33.0")).changes_since(before, rps=4)
    assert {str(one.arm) for one in found.worse} == {"eagle3/2", "eagle3/5"}
    assert {one.figure for one in found.worse} == {
        "c1_s", "c2_s", "saturation_rps", "latency_s", "break_even_rps", "speedup",
    }  # fmt: skip
    assert found.better == ()
    assert found.identity["engine_version"][1] == "0.33.0"
    alone = next(one for one in found.worse if one.figure == "c1_s")
    assert alone.ratio.value == pytest.approx(1.15, rel=0.02)
    assert alone.ratio.lower < 1.15 < alone.ratio.upper


def test_a_faster_engine_is_better(before, points):
    found = breakeven.fit(slowed(points, 0.85)).changes_since(before)
    assert found.worse == ()
    assert {one.figure for one in found.better} >= {"c1_s", "c2_s", "saturation_rps"}


def test_nothing_is_shown_of_a_difference_within_the_bounds(before, points):
    found = breakeven.fit(slowed(points, 1.01)).changes_since(before, rps=4)
    assert (found.worse, found.better) == ((), ())


def test_an_arm_that_pays_nowhere_any_more_is_said(before, points, compare):
    lost = breakeven.fit(slowed(points, 2.0))
    found = lost.changes_since(before)
    assert found.verdicts[Arm("eagle3", 5)] == ("below", "never")
    assert "eagle3/5: it paid below its break-even, and now at no load" in compare(lost).stdout


def test_the_interval_of_a_ratio_holds_the_truth_as_often_as_it_says():
    """Of independent log-normal figures with known errors, against the truth of 1.2."""
    chance, z, kept = np.random.default_rng(7), 1.645, 0
    for _ in range(2000):
        was, became = (
            math.exp(math.log(true) + sd * chance.normal()) for true, sd in ((2.0, 0.03), (2.4, 0.05))
        )
        one, other = (
            Estimate(value, value * math.exp(-z * sd), value * math.exp(z * sd))
            for value, sd in ((was, 0.03), (became, 0.05))
        )
        ratio = ratio_of(one, other)
        kept += ratio.lower <= 1.2 <= ratio.upper
    assert 0.88 <= kept / 2000 <= 0.92


@pytest.mark.parametrize(
    ("before_", "after_", "expected"),
    [
        (Estimate(2.0, 1.0, None), Estimate(2.0, 1.9, 2.1), (True, False)),
        (Estimate(2.0, 1.9, 2.1), Estimate(2.0, None, 2.1), (True, False)),
        (Estimate(2.0, 0.0, 2.1), Estimate(2.0, 1.9, 2.1), (False, True)),
    ],
)
def test_an_open_bound_opens_the_ratio(before_, after_, expected):
    found = ratio_of(before_, after_)
    assert (found.lower is None, found.upper is None) == expected


@pytest.mark.parametrize("missing", [Estimate(), Estimate(0.0, 0.0, 0.0), Estimate(math.inf)])
def test_a_figure_that_does_not_exist_has_no_ratio(missing):
    assert ratio_of(missing, Estimate(1.0, 0.9, 1.1)) is None


def test_other_lengths_are_brought_to_those_of_before(before, points):
    longer = breakeven.fit(
        [replace(one, output_tokens=64.0, mean_latency_s=1.95 * one.mean_latency_s) for one in points]
    )
    found = longer.changes_since(before)
    assert found.output_tokens == before.lengths.output_tokens == 32
    ratio = next(one.ratio.value for one in found.changes if one.figure == "c1_s" and not one.arm.k)
    assert ratio == pytest.approx(1.0, abs=0.1), (
        "twice the tokens take twice the time, and are no slower engine"
    )


def test_profiles_without_a_common_arm_are_refused(before, points):
    other = breakeven.fit([replace(one, candidate="own") for one in points if one.k])
    with pytest.raises(NotIdentifiedError, match="no arm was measured in both profiles: none, eagle3/2"):
        other.changes_since(before)


def test_the_command_fails_in_ci_on_a_worse_figure_only(compare, before, points):
    worse = breakeven.fit(slowed(points, 1.15))
    done = compare(worse, "--check")
    assert done.exit_code == 1
    assert "8 figures surely worse than in" in str(done.exception)
    assert compare(worse).exit_code == 0
    assert compare(before, "--check", "--rps", "4").exit_code == 0
    assert "no difference shown at 4 rps per replica" in compare(before, "--rps", "4").stdout


def test_the_document_has_the_same_facts(compare, points):
    arms = [one for one in points if one.k != 5]
    document = json.loads(compare(breakeven.fit(arms), "--json", "--rps", "4").stdout)
    assert document["only_before"] == [{"method": "eagle3", "k": 5}]
    assert document["rps"] == 4
    assert {one["figure"] for one in document["changes"]} == {
        "c1_s", "c2_s", "saturation_rps", "latency_s", "break_even_rps", "speedup",
    }  # fmt: skip


def test_fit_takes_points_files_and_folders_alike(points, before, tmp_path, monkeypatch):
    (tmp_path / "points.csv").write_text(SWEEP.read_text())
    fitted = []
    # One fit takes as long as all readings.
    monkeypatch.setattr(front_door, "fit_points", lambda found, _: fitted.append(found) or before)
    for sources in ([SWEEP], [str(SWEEP)], [tmp_path], [tmp_path / "*.csv"], [iter(points)], [*points]):
        assert breakeven.fit(*sources).arms == before.arms
        assert list(map(cells, fitted.pop())) == list(map(cells, points))
    (tmp_path / "engine.log").write_text("INFO serving\n")
    with pytest.warns(UserWarning, match="passed over"):
        breakeven.fit(tmp_path)


def test_a_written_profile_is_read_again_with_its_methods(before, tmp_path):
    (tmp_path / "chat.json").write_text(before.to_json())
    read = breakeven.Profile.read(tmp_path / "chat.json")
    assert str(read.plan(rps=4)) == str(before.plan(rps=4))
    with pytest.raises(InputError, match="expected one of none, eagle3/2, eagle3/5"):
        read.compare("eagle3/9", rps=1)
    with pytest.raises(InputError, match="expected one of speedup, latency, map, fit"):
        read.figure("costs")


def test_the_plan_is_the_commands(before, tmp_path):
    (tmp_path / "chat.json").write_text(before.to_json())
    for rps in (4, 12, 40):
        done = CliRunner().invoke(root, ["plan", str(tmp_path / "chat.json"), "--rps", str(rps), "--json"])
        assert json.loads(done.stdout)["explanation"] == str(before.plan(rps=rps))


def test_a_frame_has_a_row_per_arm_where_pandas_is(before, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    rows = before.to_frame(rps=4)
    assert [row["arm"] for row in rows] == ["none", "eagle3/2", "eagle3/5"]
    assert rows[1]["c1_lower_s"] < rows[1]["c1_s"] < rows[1]["c1_upper_s"]
    assert rows[1]["speedup"] == before.compare("eagle3/2", rps=4).speedup
    assert rows[1]["break_even_lower_rps"] < rows[1]["break_even_rps"]
    assert rows[0]["break_even_rps"] is rows[0]["speedup"] is None
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="expected pip install pandas"):
        before.to_frame()


def test_a_strangers_profile_moves_no_cursor_and_may_be_empty(before, tmp_path, monkeypatch, capsys):
    name, given = "eagle\x1b[31m\u202e", json.loads(before.to_json())
    given["arms"][-1]["method"] = name
    files = [tmp_path / "before.json", tmp_path / f"{name}.json", tmp_path / "empty.json"]
    texts = (before.to_json(), json.dumps(given), json.dumps(given | {"arms": []}))
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    # As on a terminal: into a pipe click writes no escapes anyway.
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)

    def shown(*command):
        monkeypatch.setattr("sys.argv", ["breakeven", *map(str, command)])
        with contextlib.suppress(SystemExit):
            cli.main()
        return "".join(capsys.readouterr())

    for text in (shown("compare", *files[:2]), shown("fit", files[1], "-o", tmp_path / "out.json")):
        assert "eagle[31m" in text
        assert not {"\u202e"} & set(text)
        assert "\x1b[31m" not in text
    assert "a profile holds no arm" in shown("compare", files[0], files[2])
