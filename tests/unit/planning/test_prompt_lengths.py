"""For which prompts an arm's answer holds, by quarter of the requests: shares, means, and the sign that changes with the length."""

from __future__ import annotations

import json
import math
from itertools import accumulate, pairwise

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.cli import root
from breakeven.fitting import fit_points
from breakeven.planning.evaluation import LoadQuestion, evaluate
from breakeven.planning.prompt_lengths import (
    LOSS,
    PartSpeedup,
    PromptPart,
    by_prompt,
    counted_parts,
    given_parts,
    prompts_text,
)
from breakeven.profile import LoadPoint, Profile
from fakes.long_contexts import long_context_points, true_latency_s

EAGLE = Arm("eagle3", 3)
CLIENTS = 96
EDGES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, math.inf)


@pytest.fixture(scope="module")
def profile() -> Profile:
    return fit_points(long_context_points(EAGLE))


def histogram(numbers: tuple[int, ...]) -> dict[float, float]:
    return dict(zip(EDGES, map(float, accumulate(numbers)), strict=True))


@given(
    st.tuples(*(st.integers(0, 1000) for _ in EDGES)).filter(any),
    st.one_of(st.none(), st.floats(1.0, 20_000.0)),
)
def test_shares_are_exact_and_lengths_ascend_within_their_buckets(
    numbers: tuple[int, ...], mean: float | None
) -> None:
    parts = counted_parts(histogram(numbers), mean)
    assert 1 <= len(parts) <= 4
    assert sum(part.share for part in parts) == pytest.approx(1.0)
    for one, other in pairwise(parts):
        assert one.up_to_tokens is not None
        assert one.mean_tokens <= one.up_to_tokens <= other.mean_tokens * (1.0 + 1e-9)
    # A quarter is cut between buckets only: the requests of each part are those of whole buckets.
    total, counts = sum(numbers), {round(sum(numbers[:end])) for end in range(len(numbers) + 1)}
    for share in accumulate(part.share for part in parts):
        assert round(share * total) in counts


def test_a_bucket_that_holds_most_requests_is_one_part_and_the_measured_mean_is_kept() -> None:
    counts = {100.0: 10.0, 200.0: 10.0, 500.0: 90.0, 1000.0: 100.0, math.inf: 100.0}
    parts = counted_parts(counts, 330.0)
    assert [round(part.share, 2) for part in parts] == [0.1, 0.8, 0.1]
    assert sum(part.share * part.mean_tokens for part in parts) == pytest.approx(330.0, rel=0.1)
    assert counted_parts({}, 330.0) == counted_parts({math.inf: 0.0}, 330.0) == ()
    assert counted_parts({math.inf: math.nan}, 330.0) == ()


def test_an_arm_that_loses_at_short_prompts_and_gains_at_long_ones_says_so(profile: Profile) -> None:
    found = evaluate(profile, (NO_SPECULATION, EAGLE), LoadQuestion(LoadPoint(concurrency=CLIENTS)))
    speedups = by_prompt(found.of(EAGLE), found.none, given_parts((4000, 400, 1900, 900)))
    assert [one.speedup for one in speedups] == sorted(one.speedup or 0.0 for one in speedups)
    for one in speedups:
        plain, drafted = (
            true_latency_s(arm, CLIENTS, round(one.part.mean_tokens)) for arm in (NO_SPECULATION, EAGLE)
        )
        # Calibrated at one length alone, and at other loads.
        assert one.speedup == pytest.approx(plain / drafted, rel=0.15)
        assert (one.speedup > 1.0) is (plain > drafted) or abs(plain / drafted - 1.0) < LOSS
    assert speedups[0].loses
    assert (speedups[-1].speedup or 0.0) > 1.05
    said = prompts_text(speedups)
    assert said.startswith("LosesAtLengths: ")
    assert f"prompts of 400 tokens (25 %) {speedups[0].speedup:.3g}x" in said


def test_nothing_is_said_without_a_number_in_flight(profile: Profile) -> None:
    saturated = evaluate(profile, (NO_SPECULATION, EAGLE), LoadQuestion(LoadPoint(rps=1e5)))
    parts = given_parts((400, 4000))
    assert by_prompt(saturated.of(EAGLE), saturated.none, parts) == by_prompt(None, None, parts) == ()
    assert prompts_text(()) == ""


@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.2, 3.0)), min_size=1, max_size=4))
def test_the_share_that_loses_is_that_of_its_parts(drawn: list[tuple[float, float]]) -> None:
    found = [PartSpeedup(PromptPart(share, 100.0), speedup, extrapolated=False) for share, speedup in drawn]
    lost = sum(one.part.share for one in found if one.loses)
    assert lost == pytest.approx(sum(share for share, speedup in drawn if speedup < 1.0 - LOSS))
    assert ("LosesAtLengths" in prompts_text(found)) is (lost > 0.0)


def test_plan_and_report_name_the_speedup_at_each_length(profile: Profile, tmp_path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(profile.to_json())
    asked = ["--concurrency", str(CLIENTS), "--prompts", "400,900,1900,4000"]
    said = CliRunner().invoke(root, ["plan", str(file), *asked])
    assert "eagle3/3 by prompt: LosesAtLengths:" in said.output
    parts = json.loads(CliRunner().invoke(root, ["plan", str(file), *asked, "--json"]).output)["by_prompt"]
    assert [part["mean_tokens"] for part in parts] == [400, 900, 1900, 4000]
    assert sum(part["share"] for part in parts) == 1.0
    without = CliRunner().invoke(root, ["plan", str(file), *asked[:2], "--json"]).output
    assert "by_prompt" not in json.loads(without)
    page = tmp_path / "page.html"
    CliRunner().invoke(root, ["report", str(file), "-o", str(page), *asked[2:]])
    assert "By prompt: " in page.read_text()
    beyond = CliRunner().invoke(root, ["plan", str(file), "--rps", "900", *asked[2:]]).output
    assert "by prompt: saturated at this load" in beyond
    refused = CliRunner().invoke(root, ["plan", str(file), *asked[:2], "--prompts", "0,4"])
    assert "--prompts: 0; expected tokens above 0" in str(refused.exception)
