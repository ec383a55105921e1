"""`breakeven rank`: what it refuses, and whose figures it goes by."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from breakeven.cli import root

EXAMPLES = Path(__file__).parents[3] / "examples"
ANSWERS = str(EXAMPLES / "answers.jsonl")


def rank(*arguments: str) -> Any:
    done = CliRunner().invoke(root, ["rank", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """The example's measurements as if they were of n-grams."""
    path = tmp_path / "points.csv"
    path.write_text(
        (EXAMPLES / "points.csv").read_text(encoding="utf-8").replace("eagle3", "ngram"), encoding="utf-8"
    )
    return str(path)


@pytest.mark.parametrize(
    "wrong",
    [("--by", "prompt"), ("--by", "response.choices"), ("--rps", "1"), ("--anonymise", ANSWERS)],
    ids=" ".join,
)
def test_what_would_print_or_replace_somebodys_words_is_wrong_usage(wrong: tuple[str, str]) -> None:
    before = Path(ANSWERS).read_bytes()
    assert CliRunner().invoke(root, ["rank", ANSWERS, *wrong]).exit_code == 2
    assert Path(ANSWERS).read_bytes() == before


def test_a_profile_that_knows_the_method_chooses_the_length_and_drops_what_loses(profile: str) -> None:
    free, bound = rank(ANSWERS), rank(ANSWERS, "--profile", profile, "--rps", "1")
    assert "ngram" in {one["method"] for one in free["candidates"]}
    found = [one for one in bound["drafters"] if one["method"] == "ngram"]
    assert {one["by"] for one in found} == {"profile"}
    assert all(one["speedup_ci"][1] < 1.0 for one in found)
    assert {one["best_k"] for one in found} == {1}
    assert "ngram" not in {one["method"] for one in bound["candidates"]}
    others = next(one for one in bound["drafters"] if one["by"] == "others")
    assert (others["speedup"], others["speedup_ci"], others["break_even_ci_rps"]) == (None, None, None)
    assert "the profile has no suffix: of these nothing is known at 1 rps" in bound["warnings"]


def test_parameters_in_a_name_are_explained_by_vllm_s_words() -> None:
    shown = " ".join(CliRunner().invoke(root, ["rank", ANSWERS]).output.split())
    assert re.search(r"; ngram \d+-\d+: prompt_lookup_min, prompt_lookup_max ", shown)
    assert re.search(
        r" suffix \d+ x\d+: suffix_decoding_max_tree_depth, suffix_decoding_max_spec_factor", shown
    )


def test_nothing_is_written_if_a_drafter_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "ids.jsonl"
    words = ["rank", ANSWERS, "--anonymise", str(target), "--draft-model", str(tmp_path)]
    assert CliRunner().invoke(root, words).exit_code == 1
    assert not target.exists()
    rank(ANSWERS, "--anonymise", str(target))
    assert rank(str(target))["drafters"] == rank(ANSWERS)["drafters"]
