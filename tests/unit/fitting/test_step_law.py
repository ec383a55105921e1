"""The one law of all arms: fitted to sweeps of its own making, it predicts loads, arms and lengths that were not measured."""

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.cli import root
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.fitting import fit_points
from breakeven.fitting.arms import carried
from breakeven.fitting.observations import observe
from breakeven.fitting.profiles import points_of
from breakeven.laws.step_law import CostsOfSteps, Demand, Tier
from breakeven.laws.step_queue import Together, closed_loop
from breakeven.points.point import LIVE_TRAFFIC, LoadMode, Origin, Point
from breakeven.points.table import cells, written
from breakeven.profile import Conditions, Profile
from breakeven.profile.document import HIDDEN_PROMPTS
from breakeven.profile.fits import Lengths
from breakeven.profile.step_fit import ENGINE, ArmLoads, Layout
from breakeven.profile.step_form import Whereabouts
from sweeps import closed, poisson, without_starts


def costs_of(beside_s=0.0):
    given_ = {
        "weights_s": 0.015,
        "position_s": 6e-5,
        "sharpness": 1.8,
        "untouched": 0.1,
        "touching": 20.0,
        "context_s": 1e-7,
        "prompt_s": 5e-5,
        "drafting_s": 1e-3,
        "draft_s": 7e-4,
        "each_draft_s": 2e-6,
        "request_s": 0.008,
        "hidden": 0.3,
        "beside_s": beside_s,
    }
    values = {name: np.asarray(value) for name, value in given_.items()}
    return CostsOfSteps(**values, departures=np.zeros(12))


COSTS = costs_of()
YIELDS = {0: 1.0, 2: 2.1, 3: 2.5, 5: 2.9, 7: 3.1}
SHARES = (0.03, 0.15, 0.3, 0.45, 0.6)


def demand(k, prompt=512.0, output=256.0, e=None, varied=1.0):
    tier = Tier(1, np.asarray(float(k)), np.asarray(e or YIELDS[k]))
    lengths = (np.asarray(value) for value in (prompt, output, prompt + output / 2, varied))
    return Demand((tier,), *lengths)


def truth(k, share, costs=COSTS, **lengths):
    """The rate at a share of saturation, and what requests take there."""
    together = Together.of(costs, demand(k, **lengths), 1024)
    rate = share * float(together.saturation_rps)
    found = together.along(np.asarray(rate)).served
    return rate, float(found.latency_s), float(found.ttft_s)


def point(k, share, factor=1.0, **lengths):
    rate, latency_s, ttft_s = truth(k, share, **lengths)
    return Point(
        method="eagle3" if k else "none",
        k=k,
        load_mode=LoadMode.POISSON,
        request_rate_rps=rate,
        achieved_rps=rate,
        mean_latency_s=latency_s * factor,
        mean_inflight=rate * latency_s * factor,
        ttft_mean_s=ttft_s * factor,
        prompt_tokens=lengths.get("prompt", 512.0),
        output_tokens=lengths.get("output", 256.0),
        tokens_per_step=lengths.get("e") or YIELDS[k],
        drafted_per_step=float(k),
        requests=2000,
    )


def sweep(noise=0.0, seed=3, **asked):
    rng = np.random.default_rng(seed)
    return [
        point(k, share, float(np.exp(noise * rng.normal())), **asked) for k in (0, 2, 7) for share in SHARES
    ]


@pytest.fixture(scope="module")
def profile():
    return fit_points(sweep(0.01))


@pytest.mark.parametrize("k", [0, 3, 5, 7])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.7])
def test_loads_and_draft_lengths_that_were_not_measured(profile, k, share):
    rate, latency_s, _ = truth(k, share)
    arm = Arm("eagle3", k) if k else NO_SPECULATION
    found = profile.predict(arm, rps=rate, conditions=Conditions(tokens_per_step=YIELDS[k] if k else None))
    assert found.latency_s == pytest.approx(latency_s, rel=0.04)
    assert found.latency_ci_s is not None
    low, high = found.latency_ci_s
    assert low < latency_s < high


@pytest.mark.parametrize("lengths", [{"prompt": 2048.0}, {"output": 512.0}, {"e": 1.7}])
def test_other_lengths_and_acceptance_lie_within_the_bounds(profile, lengths):
    rate, latency_s, _ = truth(7, 0.4, **lengths)
    found = profile.predict(
        Arm("eagle3", 7),
        rps=rate,
        conditions=Conditions(
            tokens_per_step=lengths.get("e"),
            prompt_tokens=lengths.get("prompt"),
            output_tokens=lengths.get("output"),
        ),
    )
    assert found.latency_s == pytest.approx(latency_s, rel=0.12)
    low, high = found.latency_ci_s
    assert low < latency_s < high


def test_what_waits_for_a_place_in_the_batch_is_no_step():
    """An engine that takes no more at a time than run at three fifths of its saturation, asked for more: the rest waits."""
    plain, waits = sweep(0.01), 0.5
    full = max((one for one in plain if not one.k), key=lambda one: one.mean_inflight)
    waiting_s = waits / (1.0 - waits) * full.mean_latency_s
    queued = replace(
        full,
        mean_latency_s=full.mean_latency_s + waiting_s,
        mean_inflight=full.mean_inflight / (1.0 - waits),
        ttft_mean_s=full.ttft_mean_s + waiting_s,
        queued_ratio=waits,
    )
    laws = [fit_points([queued if one is full else one for one in plain]), fit_points(plain)]
    for arm in (NO_SPECULATION, Arm("eagle3", 7)):
        for rps in (0.1 * full.request_rate_rps, 0.4 * full.request_rate_rps):
            longer = Conditions(output_tokens=512.0)
            told, taken = (law.predict(arm, rps=rps, conditions=longer).latency_s for law in laws)
            assert told == pytest.approx(taken, rel=0.03)


def test_a_dense_model_leaves_no_weights_unread(profile):
    """Its rows may look like experts of which few are touched: that saving goes on where nothing was measured."""

    def untouched(law):
        return next(one for one in law.step_costs if one.name == "untouched")

    rows = sweep(0.01)
    dense, mixed, unknown = (
        fit_points([replace(row, model=name) for row in rows])
        for name in ("meta-llama/Llama-3.1-8B-Instruct", "Qwen3-30B-A3B", "org/model")
    )
    assert untouched(dense).ci[1] < 1e-4
    assert untouched(dense).prior
    assert untouched(unknown) == untouched(mixed) == untouched(profile)
    assert untouched(profile).ci[1] > 0.01


def test_a_second_prompt_length_narrows_what_other_lengths_take():
    more = [point(0, share, prompt=2048.0) for share in (0.05, 0.5)]
    widths = []
    for points in (sweep(0.01), [*sweep(0.01), *more]):
        found = without_starts(fit_points(points)).predict(
            NO_SPECULATION, rps=1.0, conditions=Conditions(prompt_tokens=4096.0)
        )
        low, high = found.latency_ci_s
        widths.append(high - low)
    assert widths[1] < 0.7 * widths[0]


@pytest.mark.parametrize("beside_s", [0.0, 0.018])
def test_steps_that_take_longer_with_prompts_beside_decodes_are_told_from_longer_prompts(beside_s):
    costs = costs_of(beside_s)
    longer = [point(k, 0.03, costs=costs, prompt=2048.0) for k in (0, 2, 7)]
    profile = fit_points([*sweep(0.01, costs=costs), *longer])
    (found,) = (one for one in profile.step_costs if one.name == "beside_s")
    assert (found.prior, found.value) == (not beside_s, pytest.approx(beside_s, rel=0.3, abs=1e-6))
    rate, latency_s, _ = truth(3, 0.7, costs)
    low, high = profile.predict(Arm("eagle3", 3), rps=rate).latency_ci_s
    assert low < latency_s < high


def in_closed_loops(square):
    """Closed loops of an engine whose steps take 9 ms longer with prompts beside decodes, if clients do not fall into step."""
    costs = costs_of(0.009)
    rows = []
    for k, clients in itertools.product((0, 2), (1.0, 4.0, 16.0, 64.0)):
        asked = demand(k, varied=float(square > 1.0))
        found = closed_loop(costs, asked, np.asarray(clients)).served
        taken = {
            "load_mode": LoadMode.CLOSED,
            "request_rate_rps": None,
            "concurrency": clients,
            "mean_inflight": clients,
        }
        figures = {"mean_latency_s": float(found.latency_s), "achieved_rps": clients / float(found.latency_s)}
        rows.append(
            replace(point(k, 0.1), **taken, **figures, ttft_mean_s=None, output_tokens_sq=square * 256.0**2)
        )
    return rows


def test_closed_loops_of_one_length_leave_rates_in_doubt_and_say_so():
    """They hide what prompts cost beside decodes: an engine with that cost is within the bounds all the same."""
    profile = fit_points(in_closed_loops(1.0))
    assert profile.warnings[-1] == HIDDEN_PROMPTS
    rate, latency_s, _ = truth(0, 0.5, costs_of(0.009))
    sure = replace(profile, steps=replace(profile.steps, covariance=without_beside(profile)))
    (low, high), (before, after) = (
        one.predict(NO_SPECULATION, rps=rate).latency_ci_s for one in (profile, sure)
    )
    assert low < latency_s < high
    assert high / low > 1.15 * after / before
    among = [one.predict(NO_SPECULATION, concurrency=16).latency_ci_s for one in (profile, sure)]
    assert among[0] == pytest.approx(among[1])
    assert not any("closed loops" in one for one in fit_points(sweep(0.01)).warnings)


def test_a_rate_is_never_printed_without_that_doubt(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(fit_points(in_closed_loops(1.0)).to_json())
    rate, clients, plan = (
        CliRunner().invoke(root, arguments).output.replace("\n  ", " ")
        for arguments in (
            ["predict", str(path), "--method", "none", "--k", "0", "--rps", "4"],
            ["predict", str(path), "--method", "none", "--k", "0", "--concurrency", "4"],
            ["plan", str(path), "--rps", "4"],
        )
    )
    assert HIDDEN_PROMPTS in rate
    assert HIDDEN_PROMPTS in plan
    assert HIDDEN_PROMPTS not in clients


def test_the_first_tokens_of_clients_in_step_are_of_a_queue_of_prompts():
    rows = in_closed_loops(1.0)
    queued = [
        replace(one, ttft_mean_s=0.03 * one.concurrency) if not one.k and one.concurrency > 1 else one
        for one in rows
    ]
    plain, with_queue = (fit_points(points).steps.figures for points in (rows, queued))
    assert with_queue == pytest.approx(plain)


def without_beside(profile):
    covariance = np.array(profile.steps.covariance)
    at = ENGINE.index("beside_s")
    covariance[at], covariance[:, at] = 0.0, 0.0
    covariance[at, at] = 1e-9
    return tuple(map(tuple, covariance.tolist()))


def test_what_two_arms_share_leaves_their_ratio_alone(profile):
    """Of two draft lengths that were not measured: their latencies rise together with every cost of the engine."""
    three, five = (profile.curve(Arm("eagle3", k)) for k in (3, 5))
    for others in (0.5, 4.0, 16.0):
        at = np.asarray(others)
        shared = [one.loadings_among(at) for one in (three, five)]
        assert np.linalg.norm(shared[0] - shared[1]) < 0.6 * np.hypot(
            np.linalg.norm(shared[0]), np.linalg.norm(shared[1])
        )
    found = profile.compare(Arm("eagle3", 7), rps=6.0)
    assert found.speedup_ci[0] < found.speedup < found.speedup_ci[1]


def bent(share):
    """A departure that no engine of this law has: a quarter slower around a load in the middle."""
    return 1.0 + 0.25 * np.exp(-(((share - 0.3) / 0.2) ** 2))


def test_an_arm_that_leaves_the_law_is_followed_where_it_was_measured_and_doubted_where_it_was_not():
    shares = (0.03, 0.12, 0.22, 0.3, 0.38, 0.5, 0.6)
    points = [point(k, share, bent(share) if k == 7 else 1.0) for k in (0, 2, 7) for share in shares]
    profile = without_starts(fit_points(points))
    straight = fit_points([point(k, share) for k in (0, 2, 7) for share in shares])
    assert profile.steps.form.sd > 1.4 * straight.steps.form.sd
    for share in (0.12, 0.3, 0.5):
        rate, latency_s, _ = truth(7, share)
        found = profile.predict(Arm("eagle3", 7), rps=rate)
        assert found.latency_s == pytest.approx(latency_s * bent(share), rel=0.035)
    rate = truth(3, 0.3)[0]
    widths = [
        np.log(high / low)
        for arm in (Arm("eagle3", 7), Arm("eagle3", 3))
        for low, high in [
            profile.predict(arm, rps=rate, conditions=Conditions(tokens_per_step=YIELDS[arm.k])).latency_ci_s
        ]
    ]
    assert widths[1] > 1.3 * widths[0], "an arm that was not measured may leave the law as far"


def on_lines(noise: float) -> Profile:
    """Arms whose latency is a line in the others, measured up to .8 of their saturation."""
    random = np.random.default_rng(5)
    return fit_points(
        [
            Point(
                method=arm.method,
                k=arm.k,
                load_mode=LoadMode.POISSON,
                request_rate_rps=share / c2_s,
                mean_latency_s=c1_s / (1.0 - share) * float(np.exp(random.normal(0.0, noise))),
                output_tokens=256.0,
                requests=400.0,
            )
            for arm, c1_s, c2_s in LINES
            for share in (0.05, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8)
        ],
        0.9,
    )


LINES = ((NO_SPECULATION, 3.0, 0.10), (Arm("eagle3", 3), 1.5, 0.104), (Arm("eagle3", 5), 1.3, 0.135))


def test_a_row_that_states_a_large_error_counts_for_less():
    """Of a stray row in the middle: one that says that it may stray moves the law less, and its arm is known less well."""
    rate, latency_s, _ = truth(7, 0.3)
    off, width = {}, {}
    rows = [
        replace(one, relative_error=0.005, text_source=LIVE_TRAFFIC)
        for one in sweep()
        if (one.k, one.request_rate_rps) != (7, rate)
    ]
    for stated in (0.005, 0.15):
        stray = replace(point(7, 0.3, 1.15), relative_error=stated, text_source=LIVE_TRAFFIC)
        found = fit_points([*rows, stray]).predict(Arm("eagle3", 7), rps=rate)
        off[stated] = abs(found.latency_s / latency_s - 1.0)
    assert off[0.15] < 0.3 * off[0.005]
    for one_error in (None, 0.03):
        rows = [
            replace(one, relative_error=one_error, text_source=LIVE_TRAFFIC) if one.k == 7 else one
            for one in sweep()
        ]
        low, high = without_starts(fit_points(rows)).compare(Arm("eagle3", 7), rps=rate).speedup_ci
        width[one_error] = high - low
    assert width[0.03] > 1.5 * width[None]


def test_a_row_that_states_no_error_is_no_surer_than_its_neighbours():
    """Too few answers tell no error: such a row must not pull the law to itself."""
    rate, latency_s, _ = truth(7, 0.3)
    rows = [replace(one, relative_error=0.15, text_source=LIVE_TRAFFIC) for one in sweep()]
    rows = [point(7, 0.3, 1.15) if (one.k, one.request_rate_rps) == (7, rate) else one for one in rows]
    found = fit_points(rows).predict(Arm("eagle3", 7), rps=rate)
    assert found.latency_s < 1.08 * latency_s


def test_an_error_that_a_load_driver_states_is_not_used():
    rows = sweep(0.01)
    stated = [replace(one, relative_error=0.04) for one in rows]
    assert fit_points(stated).steps == fit_points(rows).steps


def test_steps_that_rows_show_to_be_a_line_saturate_where_the_line_does():
    """A bend that looks like a line up to .8 of the saturation ended it 6 % earlier."""
    exact = on_lines(0.0)
    for arm, _, c2_s in LINES:
        assert exact.curve(arm).saturation_rps * c2_s == pytest.approx(1.0, abs=0.04)


def test_noisy_rows_are_no_evidence_of_a_line():
    """Engines bend where reading weights gives way to computing; one that does not has to show it."""
    sharpness = {one.name: one.value for one in on_lines(0.08).steps.costs_found(0.9)}["sharpness"]
    assert sharpness > 1.1


def test_the_document_is_the_law(profile):
    again = Profile.from_json(profile.to_json())
    assert again.document() == profile.document()
    assert again.predict(
        Arm("eagle3", 5), rps=5.0, conditions=Conditions(tokens_per_step=2.9)
    ) == profile.predict(Arm("eagle3", 5), rps=5.0, conditions=Conditions(tokens_per_step=2.9))
    without = replace(profile, steps=None)
    assert "steps" not in without.document()
    with pytest.raises(NotIdentifiedError, match="no usable row"):
        without.curve(NO_SPECULATION)


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (lambda steps: steps["figures"].pop(), "steps.figures"),
        (lambda steps: steps["figures"].__setitem__(0, 900.0), "steps.figures"),
        (lambda steps: steps["arms"].pop(), "steps.figures"),
        (lambda steps: steps["covariance"].pop(), "steps.covariance"),
        (lambda steps: steps["covariance"][0].__setitem__(0, -1.0), "steps.covariance"),
        (lambda steps: steps["covariance"][0].__setitem__(1, 5.0), "steps.covariance"),
        (lambda steps: steps.update(dof=0), "steps.covariance"),
        (lambda steps: steps["form"].update(sd=0.0), "steps.form"),
        (lambda steps: steps["gaps"]["gaps"].pop(), "steps.gaps"),
        (lambda steps: steps["gaps"]["places"].pop(), "steps.gaps"),
        (lambda steps: steps["gaps"]["slopes"][0].pop(), "steps.gaps"),
        (lambda steps: steps["gaps"]["noises"].pop(), "steps.gaps"),
        (lambda steps: steps["gaps"]["noises"].__setitem__(0, 0.0), "steps.gaps"),
        (lambda steps: steps["gaps"]["blocks"].pop(), "steps.gaps"),
        (lambda steps: steps["gaps"]["slopes"][0].__setitem__(0, "x"), "steps.gaps.slopes[0][0]"),
    ],
)
def test_a_law_that_no_fit_writes_is_refused_by_its_place(profile, edit, place):
    document = json.loads(profile.to_json())
    edit(document["steps"])
    with pytest.raises(InputError, match=re.escape(place)):
        Profile.from_json(json.dumps(document))


def test_the_law_is_not_asked_again_about_the_figures_that_it_was_asked_last(monkeypatch):
    asked, answers = [], Layout.answers

    def counted(layout, figures, family, arm, loads, most):
        asked.append((arm, figures.tobytes()))
        return answers(layout, figures, family, arm, loads, most)

    monkeypatch.setattr(Layout, "answers", counted)
    fit_points(sweep(0.01))
    of_one = [figures for arm, figures in asked if arm == "none"]
    assert len(of_one) > 20
    assert all(one != following for one, following in itertools.pairwise(of_one))


@pytest.mark.parametrize("share", [0.02, 0.2, 0.5, 0.9])
def test_numbers_that_are_never_together_change_no_answer(share):
    together = Together.of(COSTS, demand(7), 1024)
    rate = np.array([share * float(together.saturation_rps)])
    whole, part = together.along(rate), together.up_to(600).along(rate)
    assert part.served.latency_s == pytest.approx(whole.served.latency_s, rel=1e-12)
    assert part.of_first.sum() == pytest.approx(whole.of_first.sum(), rel=1e-12)
    assert part.of_decoding.sum() == pytest.approx(whole.of_decoding.sum(), rel=1e-9)


def test_every_knot_of_a_curve_is_that_of_all_numbers(profile):
    law, lengths = profile.steps, Lengths(512.0, 200.0)
    others, latency_s = profile.curve(NO_SPECULATION, Conditions(output_tokens=200.0)).knots.T
    where = Whereabouts.of(NO_SPECULATION, others, np.asarray(512.0), np.asarray(200.0))
    rates = others / latency_s * np.exp(law.departures(NO_SPECULATION, where).mean)
    tiers, prompt, output, *_ = demand(0, 512.0, 200.0)
    asked = Demand(tiers, prompt, output, np.asarray(lengths.context_tokens))
    found = Together.of(law.costs(NO_SPECULATION), asked, 1024).along(rates).served
    assert others[-1] > 100
    assert found.inflight == pytest.approx(others, rel=1e-9)


@pytest.mark.parametrize("name", ["weights_s", "position_s", "context_s", "prompt_s", "request_s"])
def test_slopes_of_a_closed_loop_are_those_of_its_latencies(profile, name):
    law, arm, clients = profile.steps, Arm("eagle3", 7), np.array([1.0, 5.0, 5.5, 40.0])
    loads = ArmLoads(demand(7), np.ones(4, dtype=bool), clients, clients)
    at, step = ENGINE.index(name), 1e-5

    def answers(moved):
        figures = np.array(law.figures)
        figures[at] += moved
        return law.answers(figures, arm.family, arm.name, loads, 64)

    found = np.log(answers(step).latency_s / answers(-step).latency_s) / (2 * step)
    assert found == pytest.approx(answers(0.0).of_latency[:, at], rel=0.03, abs=1e-4)


def test_closed_and_open_loops_fit_together():
    mixed = sweep()
    for clients in (1, 8, 32):
        for k in (0, 7):
            served = closed_loop(COSTS, demand(k), np.asarray([float(clients)])).served
            mixed.append(
                replace(
                    point(k, 0.1),
                    load_mode=LoadMode.CLOSED,
                    concurrency=float(clients),
                    request_rate_rps=None,
                    achieved_rps=clients / float(served.latency_s[0]),
                    mean_inflight=float(clients),
                    mean_latency_s=float(served.latency_s[0]),
                    ttft_mean_s=None,
                )
            )
    law = fit_points(mixed).steps
    assert law.noise < 0.02


@pytest.mark.parametrize(
    "bare", [{"output_tokens": None, "prompt_tokens": None}, {"tokens_per_step": None, "accept": ()}]
)
def test_what_rows_do_not_say_decides_nothing_where_they_were_measured(profile, bare):
    unknown = fit_points([replace(one, **bare) for one in sweep()])
    for arm in (NO_SPECULATION, Arm("eagle3", 7)):
        found, known = (one.predict(arm, rps=4.0) for one in (unknown, profile))
        assert found.basis == "arm"
        assert found.latency_s == pytest.approx(known.latency_s, rel=0.03)


def test_the_command_prints_what_a_step_costs(tmp_path):
    points = tmp_path / "points.csv"
    points.write_text(written([cells(one) for one in sweep(0.01)]))
    out = tmp_path / "profile.json"
    words = ["fit", str(points), "-o", str(out)]
    shown = CliRunner().invoke(root, words)
    assert shown.exit_code == 0, shown.output
    assert "each draft ms" not in shown.output
    shown = CliRunner().invoke(root, [*words, "--verbose"])
    assert "each draft ms" in shown.output
    found = json.loads(CliRunner().invoke(root, [*words, "--json"]).output)
    costs = {one["name"]: one for one in found["step_costs"]}
    assert costs["weights_s"]["ci"][0] < 0.015 < costs["weights_s"]["ci"][1]
    assert costs["prompt_s"]["ci"][0] < 5e-5 < costs["prompt_s"]["ci"][1]
    # Draft lengths of 2 and 7 say what a draft costs; a sweep of one prompt length says nothing of how prompts hide.
    assert not costs["weights_s"]["prior"]
    assert any(one["prior"] for one in costs.values())
    asked = ["predict", str(out), "--method", "eagle3", "--k", "5", "--rps", "4", "--tokens-per-step", "2.9"]
    assert "from the law and the rows of other arms" in CliRunner().invoke(root, asked).output


@pytest.mark.parametrize("output_tokens", [1.0, 1.5])
def test_answers_of_one_token_are_fitted_like_longer_ones(output_tokens):
    """A classifier's prompts are read and nothing decodes."""
    rows = [
        *closed("none", 0, 0.09, 0.03, output_tokens=output_tokens, prompt_tokens=400.0),
        *closed("eagle3", 3, 0.10, 0.031, output_tokens=output_tokens, prompt_tokens=400.0),
        *poisson("none", 0, 0.09, 0.03, [3.0, 9.0], output_tokens=output_tokens, prompt_tokens=400.0),
    ]
    found = Profile.from_json(fit_points(rows).to_json())
    assert found.predict(NO_SPECULATION, concurrency=8).latency_s == pytest.approx(0.3, rel=0.05)
    assert found.predict(NO_SPECULATION, rps=9).latency_s == pytest.approx(0.09 / (1 - 0.27), rel=0.1)


@pytest.mark.parametrize(
    ("plain", "speculating"),
    [
        ({"prompt_tokens": 100.0, "output_tokens": 50.0}, {"output_tokens": 50.0}),
        ({"output_tokens": 50.0}, {"prompt_tokens": 100.0, "output_tokens": 50.0}),
        ({"prompt_tokens": 100.0, "output_tokens": 1.0}, {"prompt_tokens": 100.0, "output_tokens": 1.0}),
        ({"prompt_tokens": 0.0, "output_tokens": 50.0}, {"prompt_tokens": 0.0, "output_tokens": 50.0}),
    ],
    ids=["prompts of one arm", "prompts of the other", "answers of one token", "no prompt"],
)
def test_lengths_that_only_some_rows_say_are_no_reason_to_refuse_all(plain, speculating):
    rows = [
        *closed("none", 0, 1.2, 0.07, **plain),
        *closed("eagle3", 3, 0.8, 0.09, tokens_per_step=2.2, **speculating),
    ]
    found = Profile.from_json(fit_points(rows).to_json())
    assert found.drafters
    assert found.predict(Arm("eagle3", 3), concurrency=4).latency_s == pytest.approx(1.07, rel=0.05)


@pytest.mark.parametrize(("tokens", "share"), [(10, 0.8), (10, 0.9), (2, 0.97), (50, 0.1)])
def test_time_per_token_is_what_the_first_token_leaves_of_the_latency(tokens, share):
    """Most of a short answer's latency is its prompt."""
    rows = [
        row
        for method, k, c1_s, c2_s in (("none", 0, 1.2, 0.07), ("eagle3", 3, 0.6, 0.06))
        for clients in (1, 2, 4, 8, 16, 32)
        for latency_s in [c1_s + c2_s * (clients - 1)]
        for row in closed(
            method,
            k,
            latency_s,
            0.0,
            clients=[clients],
            output_tokens=float(tokens),
            prompt_tokens=100.0,
            ttft_mean_s=share * latency_s,
            tpot_mean_s=(1.0 - share) * latency_s / (tokens - 1),
            tokens_per_step=2.2 if k else 1.0,
        )
    ]
    found = fit_points(rows).predict(Arm("eagle3", 3), concurrency=4)
    assert found.ttft_s == pytest.approx(share * 0.78, rel=0.01)
    assert found.tpot_s == pytest.approx((1.0 - share) * 0.78 / (tokens - 1), rel=0.02)


@pytest.mark.parametrize("seed", [14, 28, 40, 57])
def test_rows_that_contradict_each_other_give_a_profile_that_can_be_read(seed):
    """A machine that stands still between measurements gives such rows; of some of these arms none can be used."""
    rng = np.random.default_rng(seed)
    rows = []
    for method, k, c1_s, c2_s in (("none", 0, 0.4, 0.05), ("eagle3", 3, 0.2, 0.08)):
        for clients in (1.0, 1.0, 3.0, 7.0):
            tokens = float(rng.integers(2, 40))
            latency_s = (c1_s + c2_s * (clients - 1.0)) * np.exp(rng.normal(0.0, 0.3)) * tokens / 30.0
            e = rng.uniform(1.0, 3.0) if k else 1.0
            rows.append(measured(method, k, clients, clients / latency_s, latency_s, tokens, e))
        for rps in (3.0, 6.0, 9.0):
            latency_s = c1_s / (1.0 - rps * c2_s) * np.exp(rng.normal(0.0, 0.3))
            rows.append(measured(method, k, None, rps, latency_s, 30.0, None))
    found = fit_points(rows)
    assert Profile.from_json(found.to_json()).arms == found.arms
    if found.steps is not None:
        covariance = np.array(found.steps.covariance)
        assert (covariance == covariance.T).all()


@settings(deadline=None, max_examples=15)
@given(
    share=st.floats(0.9, 1.0),
    e=st.floats(1.0, 4.0),
    token_s=st.floats(1e-9, 1e-3),
)
def test_short_answers_in_one_piece_are_rows_like_others(share, e, token_s):
    """Their tokens come together behind a first one that waited: the law's share of decoding is more than they show."""
    rows = []
    for method, k, c1_s, c2_s in (("none", 0, 0.4, 0.05), ("eagle3", 3, 0.2, 0.08)):
        for clients in (1.0, 3.0, 7.0):
            latency_s = c1_s + c2_s * (clients - 1.0)
            rows.append(
                measured(method, k, clients, clients / latency_s, latency_s, 30.0, 2.8 if k else None)
            )
        short = measured(method, k, 1.0, 1.0 / 0.07, 0.07, 3.0, e if k else None)
        rows.append(
            replace(short, ttft_mean_s=share * 0.07, tpot_mean_s=token_s, tpot_p50_s=token_s, requests=7.0)
        )
    found = fit_points(rows)
    assert Profile.from_json(found.to_json()).arms == found.arms


@pytest.mark.parametrize("factor", [0.05, 0.6, 1.0, 1.7, 20.0])
def test_a_row_that_is_moved_to_another_acceptance_changes_in_its_decoding(factor):
    row = replace(
        measured("eagle3", 3, 1.0, 1.0, 1.0, 11.0, 2.0),
        ttft_mean_s=0.9,
        tpot_mean_s=0.01,
        tpot_p50_s=1e-9,
        p95_latency_s=2.0,
    )
    (seen,), _ = observe([row], 0.5)
    moved = carried(seen, factor).point
    decoding_s = moved.mean_latency_s - 0.9
    assert decoding_s == pytest.approx(min(max(factor - 0.9, 0.1 / 4.0), 0.1 * 4.0)), (
        "of 1 to k + 1 tokens a step"
    )
    assert moved.tpot_mean_s == pytest.approx(decoding_s / 10.0)
    assert moved.p95_latency_s == pytest.approx(2.0 * moved.mean_latency_s)
    assert (moved.ttft_mean_s, moved.tpot_p50_s) == (0.9, pytest.approx(max(1e-9 * decoding_s / 0.1, 1e-9)))


@pytest.mark.parametrize(
    ("lone", "others", "load"),
    [
        # Case: a lone client whose few requests happened to accept more.
        (3.1, 2.6, "clients"),
        (3.9, 2.6, "clients"),
        (1.5, 2.6, "clients"),
        (3.9, 1.4, "rates"),
        (1.3, 3.2, "rates"),
        (3.9, 1.4, "windows"),
        (3.9, 1.4, "tokens"),
    ],
)
def test_a_row_is_not_thrown_out_for_what_moving_its_acceptance_did(lone, others, load):
    """Its latency is moved to the arm's acceptance, and so is its rate: measured, rate times latency was in flight."""
    rows = []
    for number, clients in enumerate((1.0, 2.0, 4.0, 8.0, 16.0)):
        e = lone if number == 0 else others
        latency_s = 0.1 + (1.6 + 0.08 * clients) / e
        rps = clients / latency_s
        row = measured("eagle3", 3, clients if load != "rates" else None, rps, latency_s, 100.0, e)
        if load == "windows":
            row = replace(row, window_s=60.0)
        if load == "tokens":
            row = replace(row, mean_inflight=None, achieved_rps=None, tokens_per_second=100.0 * rps)
        rows.append(replace(row, ttft_mean_s=0.1, requests=400.0, origin=Origin("sweep.csv", number + 1)))
    found = fit_points(rows)
    assert len(found.steps.gaps.gaps) == 5, "the law uses it too"
    (fit,) = found.arms
    assert (fit.points, fit.excluded) == (5, ())
    for one in fit.measurements:
        assert one.rps * one.latency_s == pytest.approx(one.inflight, rel=1e-6)
    # Nor when the profile is fitted again to the rows that it holds.
    assert fit_points(points_of(found)).arms[0].points == 5


def measured(method, k, clients, rps, latency_s, tokens, e) -> Point:
    return Point(
        method=method,
        k=k,
        load_mode=LoadMode.CLOSED if clients else LoadMode.POISSON,
        concurrency=clients,
        request_rate_rps=None if clients else rps,
        mean_latency_s=float(latency_s),
        mean_inflight=float(rps * latency_s),
        achieved_rps=float(rps),
        prompt_tokens=10.0,
        output_tokens=tokens,
        tokens_per_step=e,
        ttft_mean_s=0.1 * float(latency_s),
    )
