"""Rows that a user may send: ratios and vLLM's words, and nothing of the profile's names."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from breakeven.cli import root
from breakeven.errors import NotIdentifiedError
from breakeven.fitting.profiles import fit_points
from breakeven.prior.public_table import RatioRow, ServiceFacts, read_ratios
from breakeven.prior.shared_rows import shared_rows
from breakeven.profile import Profile
from breakeven.readers.reading import read_file

NAMED = RatioRow(ServiceFacts(), "other", 1, source="shared")
SECRET = "s3cr3t-acme"


@pytest.fixture(scope="module")
def profile() -> Profile:
    return fit_points(read_file(Path(__file__).parents[3] / "examples/points.csv"))


def secretive(profile: Profile) -> Profile:
    """The profile with a secret in every text that a user's names end in."""
    arms = tuple(
        replace(
            fit,
            method=fit.method if not fit.k else SECRET if fit.k == 2 else fit.method,
            candidate=f"{SECRET}-drafter" if fit.k else None,
            measurements=tuple(replace(one, source=f"/srv/{SECRET}/points.csv") for one in fit.measurements),
            acceptance=fit.acceptance and replace(fit.acceptance, text=f"{SECRET} tickets"),
        )
        for fit in profile.arms
    )
    names = dict.fromkeys(
        ("files", "gpu", "model", "workload", "engine_version", "fingerprint", "namespace"), SECRET
    )
    return replace(profile, arms=arms, warnings=(f"{SECRET}: watch out",), provenance=names)


def test_ratios_are_those_of_the_lines(profile):
    none, eagle = profile.arms[0], profile.arms[1]
    rows = shared_rows(profile, NAMED).rows
    assert [(row.method, row.k) for row in rows] == [("eagle3", 2), ("eagle3", 5)]
    # At one set of lengths, which are a little other than the arms' own.
    compared = profile.compare(eagle.arm, rps=0.0)
    assert rows[0].lone_ratio == pytest.approx(compared.c1_ratio, rel=5e-3)
    assert rows[0].slope_ratio == pytest.approx(compared.c2_ratio, rel=5e-3)
    assert rows[0].lone_ratio == pytest.approx(eagle.c1_s / none.c1_s, rel=3e-2)
    assert rows[0].slope_ratio == pytest.approx(eagle.c2_s / none.c2_s, rel=3e-2)
    assert rows[0].tokens_per_step == pytest.approx(eagle.tokens_per_step, rel=5e-3)


def test_what_the_user_names_stands_in_every_row(profile):
    named = replace(NAMED, facts=ServiceFacts(8.0, gpu="H100"), model="Llama", source="me")
    assert {(row.facts, row.model, row.source) for row in shared_rows(profile, named).rows} == {
        (named.facts, "Llama", "me")
    }


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_no_name_of_the_profile_leaks(profile, form, tmp_path):
    file = tmp_path / "chat.json"
    file.write_text(secretive(profile).to_json(), encoding="utf-8")
    assert SECRET in file.read_text(encoding="utf-8")
    done = CliRunner().invoke(root, ["share", str(file), *form])
    assert done.exit_code == 0, done.output
    assert SECRET not in done.output
    assert "chat" not in done.output
    rows = json.loads(done.stdout)["rows"] if form else list(csv.DictReader(io.StringIO(done.stdout)))
    assert [(row["method"], str(row["k"])) for row in rows] == [("other", "2"), ("eagle3", "5")]
    # Nothing but ratios, a draft length, a word of vLLM's and the word for a source.
    filled = {name for row in rows for name, value in row.items() if value}
    assert filled == {"method", "k", "lone_ratio", "slope_ratio", "tokens_per_step", "source"}
    assert {row["source"] for row in rows} == {"shared"}


def test_figures_are_rounded_so_that_no_load_is_told_apart(profile, tmp_path):
    file = tmp_path / "chat.json"
    file.write_text(profile.to_json(), encoding="utf-8")
    for row in csv.DictReader(io.StringIO(CliRunner().invoke(root, ["share", str(file)]).stdout)):
        assert all(len(row[name].replace(".", "").lstrip("0")) <= 3 for name in ("lone_ratio", "slope_ratio"))


def test_the_printed_table_is_read_as_ratios_of_others(profile, tmp_path):
    file = tmp_path / "chat.json"
    file.write_text(profile.to_json(), encoding="utf-8")
    words = ["--model", 'a, "b"', "--parameters-b", "8", "--dense", "--gpu", "H100", "--source", "me"]
    done = CliRunner().invoke(root, ["share", str(file), *words])
    rows = read_ratios(done.stdout, "shared.csv")
    assert {row.facts for row in rows} == {ServiceFacts(8.0, experts=False, gpu="H100")}
    assert {(row.model, row.source) for row in rows} == {('a, "b"', "me")}


def test_a_schedule_and_an_arm_without_a_law_are_left_out_by_their_length(profile):
    none, two, five = profile.arms
    odd = replace(profile, arms=(none, replace(two, schedule="1-8:2,9-:0"), replace(five, believable=False)))
    with pytest.raises(NotIdentifiedError, match="no speculative arm with a law"):
        shared_rows(odd, NAMED)
    found = shared_rows(replace(odd, arms=(none, odd.arms[1], five)), NAMED)
    assert [row.k for row in found.rows] == [5]
    assert found.left_out == ("draft length 2: a schedule has no single draft length",)


def test_a_profile_without_no_speculation_has_no_ratio(profile):
    for arms in (profile.arms[1:], (replace(profile.arms[0], believable=False), *profile.arms[1:])):
        with pytest.raises(NotIdentifiedError, match="no law of arm none"):
            shared_rows(replace(profile, arms=arms), NAMED)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--gpu", "a\nb"], "--gpu: 'a\\nb'; expected at most 120 characters that print"),
        (["--source", "x" * 121], "--source: "),
    ],
)
def test_a_name_that_does_not_print_is_refused_in_one_line(profile, words, shown, tmp_path):
    file = tmp_path / "chat.json"
    file.write_text(profile.to_json(), encoding="utf-8")
    done = CliRunner().invoke(root, ["share", str(file), *words])
    assert done.exit_code == 1
    assert shown in str(done.exception)
