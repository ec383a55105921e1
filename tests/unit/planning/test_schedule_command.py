"""`breakeven schedule` and the step view behind it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from breakeven.arm import NO_SPECULATION
from breakeven.cli import root
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.fitting import fit_points
from breakeven.laws.mixture import TwoPointMixture
from breakeven.planning.draft_schedule import step_view
from breakeven.profile import Conditions
from breakeven.profile.fits import Lengths
from breakeven.readers.reading import read_text
from fakes.paper_form import PaperForm
from validation.judged_engines import ENGINES, Half
from validation.law_trials import measured
from validation.truths import Truths

LAW = PaperForm(0.0, 0.006, 0.0003, 0.0008, 0.0, 0.00006, 0.00004, 0.00002)
TEXT = TwoPointMixture((0.5, 0.9), (0.4, 0.6), 0.02)
OUTPUT = 200.0


@pytest.fixture(scope="session")
def points_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("schedule") / "points.csv"
    header = "method,k,request_rate_rps,mean_latency_s,mean_inflight,prompt_tokens,output_tokens,tokens_per_step,ttft_mean_s,tpot_mean_s"
    lines = [header + "".join(f",accept_{i}" for i in range(1, 8))]
    for k in (0, 2, 7):
        e = float(TEXT.tokens_per_step(k))
        c1, c2 = LAW.line(e, k, OUTPUT)
        survival = [*(f"{s:.9f}" for s in TEXT.survival(k))] if k else []
        for share in (0.05, 0.2, 0.35, 0.5, 0.65):
            latency = c1 / (1 - share)
            rps = share / c2
            step = LAW.step_s(1.0 + rps * latency, k)
            figures = [
                rps,
                latency,
                rps * latency,
                16,
                OUTPUT,
                e,
                1.5 * step,
                (latency - 1.5 * step) / (OUTPUT - 1),
            ]
            row = ["none" if k == 0 else "eagle3", str(k), *(f"{x:.12g}" for x in figures), *survival]
            lines.append(",".join(row + [""] * (7 - len(survival))))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def profile_file(points_file):
    path = points_file.with_suffix(".json")
    result = CliRunner().invoke(root, ["fit", str(points_file), "-o", str(path)])
    assert result.exit_code == 0, result.output
    return path


@pytest.fixture(scope="session")
def profile(profile_file):
    from breakeven.profile import Profile

    return Profile.from_json(profile_file.read_text(encoding="utf-8"))


def run(*arguments):
    return CliRunner().invoke(root, ["schedule", *map(str, arguments)], standalone_mode=False)


def test_steps_come_back_from_a_profile(profile):
    view = step_view(profile, "eagle3", 64)
    assert view.draft_lengths == tuple(range(8))
    np.testing.assert_allclose(view.tokens_per_step[[2, 7]], TEXT.tokens_per_step([2, 7]), rtol=1e-6)
    batches = np.arange(1, 65)
    for k in (0, 2, 7):
        np.testing.assert_allclose(view.step_s[:, k], LAW.step_s(batches, k), rtol=0.06)


@pytest.mark.parametrize(("kind", "worst"), [("dense", 0.13), ("cpu", 0.11), ("knee", 0.08)])
def test_steps_are_those_of_machines_that_no_law_was_written_from(kind, worst):
    """The second engine of docs/validation.md; prompts and waiting are in the latencies and not in a step."""
    engine = next(one for one in ENGINES if one.kind == kind and one.half is Half.CHOSEN)
    profile = fit_points(measured(Truths.read(engine), "mixed", 0.02, 1))
    view = step_view(profile, engine.method, 32)
    assert (view.warnings, view.draft_lengths) == ((), tuple(range(8)))
    context = engine.asking.prompt_tokens + engine.asking.output_tokens / 2
    truth = [
        [engine.machine.clock.step_s(n, k, n * context, 0) for k in view.draft_lengths] for n in range(1, 33)
    ]
    np.testing.assert_allclose(view.step_s, truth, rtol=worst)
    assert np.all(np.diff(view.step_s, axis=1) >= 0.0), "a longer draft makes no step shorter"


def test_the_schedule_is_the_one_of_the_engine(profile_file):
    result = run(profile_file, "--method", "eagle3", "--max-batch-size", 128, "--json")
    document = json.loads(result.output)
    batches = np.arange(1.0, 129.0)
    k = np.arange(8)
    e = TEXT.tokens_per_step(k)
    truth = LAW.step_s(batches[:, None], k)
    chosen = {
        b: length
        for low, high, length in document["num_speculative_tokens_per_batch_size"]
        for b in range(low, high + 1)
    }
    for batch in (1, 8, 32, 100, 128):
        output = e / truth[batch - 1]
        assert output[chosen[batch]] >= 0.94 * output.max()
    assert document["num_speculative_tokens"] == max(chosen.values())
    lengths = [chosen[b] for b in sorted(chosen)]
    assert lengths == sorted(lengths, reverse=True), "verification gets dearer with the batch"


def test_a_limit_on_time_per_token_shortens_drafts(profile_file):
    free = json.loads(run(profile_file, "--method", "eagle3", "--max-batch-size", 64, "--json").output)
    strict = json.loads(
        run(
            profile_file,
            "--method",
            "eagle3",
            "--max-batch-size",
            64,
            "--tpot-slo-s",
            0.0081,
            "--tpot-worst-case",
            "--json",
        ).output
    )
    assert strict["num_speculative_tokens"] < free["num_speculative_tokens"]
    assert any("the fastest is taken" in warning for warning in strict["warnings"])


def test_time_per_token_holds_the_prompts_of_other_requests():
    """A closed loop of as many clients measures it; steps alone were an eighth too short at 48 clients."""
    path = Path(__file__).parents[3] / "examples/points.csv"
    example = fit_points(read_text(path.read_text(encoding="utf-8"), str(path)))
    view = step_view(example, "eagle3", 64)
    for clients in (8, 16, 48):
        tpot_s = example.predict(NO_SPECULATION, concurrency=clients).tpot_s
        # A request that reads its prompt does not decode: a few of the clients are doing that.
        assert view.step_s[clients - 1, 0] + view.prompts_s[clients - 1, 0] == pytest.approx(tpot_s, rel=0.08)
    assert view.step_s[47, 0] < 0.9 * tpot_s


def test_without_acceptance_nothing_is_drafted_and_it_says_so(profile_file):
    document = json.loads(
        run(profile_file, "--method", "eagle3", "--max-batch-size", 16, "--alpha", 0, "--json").output
    )
    assert document["num_speculative_tokens_per_batch_size"] == [[1, 16, 0]]
    assert document["num_speculative_tokens"] == 1, "vLLM refuses 0"
    assert any("run without speculation" in warning for warning in document["warnings"])


def test_tax_on_not_drafting_favours_drafting(profile_file):
    plain, taxed = (
        json.loads(
            run(
                profile_file,
                "--method",
                "eagle3",
                "--max-batch-size",
                64,
                "--alpha",
                0.1,
                "--zero-draft-tax-percent",
                tax,
                "--json",
            ).output
        )
        for tax in (0, 90)
    )
    assert all(k == 0 for *_, k in plain["num_speculative_tokens_per_batch_size"])
    assert any(k > 0 for *_, k in taxed["num_speculative_tokens_per_batch_size"])


def test_the_table_ends_with_what_to_paste(profile_file):
    result = run(profile_file, "--method", "eagle3", "--max-batch-size", 64)
    lines = result.output.splitlines()
    pasted = lines[lines.index("add to --speculative-config:") + 1]
    assert set(json.loads(pasted)) == {
        "num_speculative_tokens",
        "num_speculative_tokens_per_batch_size",
    }


def test_given_acceptance_is_carried_to_the_other_draft_lengths(profile):
    measured = step_view(profile, "eagle3", 1).tokens_per_step
    half = step_view(
        profile, "eagle3", 1, conditions=Conditions(tokens_per_step=1 + (measured[7] - 1) / 2)
    ).tokens_per_step
    np.testing.assert_allclose(half - 1.0, (measured - 1.0) / 2)
    alpha = step_view(profile, "eagle3", 1, alpha=0.5).tokens_per_step
    np.testing.assert_allclose(alpha[:3], [1.0, 1.5, 1.75])


def test_longer_prompts_make_steps_dearer_most_of_all_among_many(profile):
    base = step_view(profile, "eagle3", 32)
    longer = step_view(profile, "eagle3", 32, conditions=Conditions(prompt_tokens=4000))
    more = longer.step_s / base.step_s
    assert np.all(more > 1.0)
    assert np.all(more[-1] > more[0])


def test_without_token_counts_no_step_is_known(profile):
    with pytest.raises(NotIdentifiedError, match="its points need output_tokens"):
        step_view(
            replace(profile, arms=tuple(replace(fit, lengths=Lengths()) for fit in profile.arms)),
            "eagle3",
            16,
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "medusa"], "medusa: not in the profile; measured methods: eagle3"),
        (
            ["--method", "eagle3", "--tokens-per-step", "9"],
            "--tokens-per-step: 9 at draft length 7; expected 1 to 8",
        ),
        (["--method", "eagle3", "--alpha", "1.5"], "--alpha: 1.5; expected a rate between 0 and 1"),
    ],
)
def test_refusals_are_one_line(profile_file, arguments, message):
    result = run(profile_file, "--max-batch-size", 8, *arguments)
    assert isinstance(result.exception, (InputError, NotIdentifiedError))
    assert str(result.exception) == message


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-batch-size", "8"],
        ["--method", "eagle3", "--max-batch-size", "0"],
        ["--method", "eagle3", "--max-batch-size", "8", "--draft-lengths", "0-3"],
        ["--method", "eagle3", "--max-batch-size", "8", "--draft-lengths", "x"],
        ["--method", "eagle3", "--max-batch-size", "8", "--alpha", ".5", "--tokens-per-step", "2"],
        ["--method", "eagle3", "--max-batch-size", "8", "--tpot-worst-case"],
    ],
)
def test_wrong_usage_exits_with_2(profile_file, arguments):
    assert CliRunner().invoke(root, ["schedule", str(profile_file), *arguments]).exit_code == 2
