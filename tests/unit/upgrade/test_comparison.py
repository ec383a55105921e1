"""The word for an upgrade, from records of both engines."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakeven.answering.answer import JudgedSet
from breakeven.points.point import LoadMode, Point
from breakeven.upgrade.comparison import compare
from breakeven.upgrade.record import EngineRecord, UpgradeFinding, UpgradeReport, UpgradeWord
from fakes.gate_worlds import judged_world

PAIRS, ACCEPT = 8, (0.6, 0.4, 0.2)


def windows(
    slower: float = 1.0, e: float = 2.2, seed: int = 1, pairs: int = PAIRS, scatter: float = 0.01
) -> tuple[Point, ...]:
    """Windows at one and at eight clients; the host's state is the pair's."""
    host, own = np.random.default_rng(0).normal(0.0, 0.05, pairs), np.random.default_rng(seed)
    found = []
    for pair in range(pairs):
        for clients in (1, 8):
            factor = slower * math.exp(host[pair] + own.normal(0.0, scatter))
            found.append(
                Point(
                    method="eagle3",
                    k=3,
                    load_mode=LoadMode.CLOSED,
                    concurrency=float(clients),
                    mean_latency_s=factor,
                    ttft_mean_s=0.05 * factor,
                    tpot_mean_s=0.01 * clients * factor,
                    requests=100.0,
                    output_tokens=64.0,
                    tokens_per_step=e * math.exp(own.normal(0.0, scatter)),
                    drafts=1000.0,
                    accept=ACCEPT,
                    failed=0.0,
                    replicate=str(pair + 1),
                )
            )
    return tuple(found)


def record(**changes: object) -> EngineRecord:
    """An engine without a fault."""
    judged = judged_world(1, prompts=60)
    sound = EngineRecord(
        "0.31.0", windows(), (0.7, 0.69, 0.7, 0.71), judged, judged, ("tools", "seed"), (), 60.0, 400_000
    )
    return replace(sound, **changes)


def found(report: UpgradeReport, figure: str) -> UpgradeWord | None:
    return next(one.word for one in report.findings if one.figure == figure)


BEFORE = record()
AFTER = record(version="0.32.0", windows=windows(seed=2), answers=judged_world(2, prompts=60))


def test_two_sound_engines_are_the_same():
    report = compare(BEFORE, AFTER, "eagle3/3")
    assert (report.word, report.needs, report.word.status) == (UpgradeWord.SAME, None, 0)
    assert report.versions == {"before": "0.31.0", "after": "0.32.0"}
    shares = [one.after for one in report.findings if one.figure.startswith("accepted at position")]
    assert shares == pytest.approx(ACCEPT)
    assert {one.figure for one in report.findings if one.word is None} == {
        *(f"accepted at position {place}" for place in (1, 2, 3)),
        "start",
        "tokens of the KV cache",
    }


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"failure": "no answer for 30 s"}, UpgradeWord.DOES_NOT_START),
        ({"accepted": ("tools",), "refused": ("seed",)}, UpgradeWord.REFUSED),
        ({"answers": judged_world(2, prompts=60, broken_share=0.5)}, UpgradeWord.ANSWERS_DIFFER),
        ({"prefix_hits": (0.0,) * 4}, UpgradeWord.CACHE_LOST),
        ({"prefix_hits": (0.4,) * 4}, UpgradeWord.CACHE_LOST),
        ({"windows": windows(e=1.98, seed=2)}, UpgradeWord.ACCEPTANCE_LOST),
        ({"windows": tuple(replace(one, accept=(), drafts=None) for one in windows())}, UpgradeWord.ACCEPTANCE_LOST),
        ({"windows": windows(1.08, seed=2)}, UpgradeWord.SLOWER),
        ({"windows": tuple(replace(one, output_tokens=40.0) for one in windows(seed=2))}, UpgradeWord.REFUSED),
        ({"windows": windows(0.9, seed=2)}, UpgradeWord.FASTER),
        ({"windows": windows(1.04, seed=2, scatter=0.05)}, UpgradeWord.UNDECIDED),
        ({"windows": windows(seed=2, pairs=1)}, UpgradeWord.UNDECIDED),
        ({"windows": ()}, UpgradeWord.UNDECIDED),
    ],
)  # fmt: skip
def test_each_fault_has_its_word_and_status(changes, word):
    report = compare(BEFORE, replace(AFTER, **changes))
    assert report.word is word, [str(one) for one in report.findings]
    status = {UpgradeWord.FASTER: 0, UpgradeWord.UNDECIDED: 2}.get(word, 1)
    assert report.word.status == status
    assert (report.needs is None) == (word is not UpgradeWord.UNDECIDED)


def test_two_pairs_of_windows_show_answers_that_end_early():
    cut = tuple(replace(one, output_tokens=40.0) for one in windows(seed=2, pairs=2))
    report = compare(record(windows=windows(pairs=2)), replace(AFTER, windows=cut))
    assert found(report, "tokens per answer") is UpgradeWord.REFUSED


def test_the_gravest_word_is_the_reports():
    after = replace(AFTER, windows=windows(1.2, e=1.6), prefix_hits=(0.0,) * 4)
    report = compare(BEFORE, after)
    assert report.word is UpgradeWord.CACHE_LOST
    assert found(report, "tokens per step") is UpgradeWord.ACCEPTANCE_LOST
    assert found(report, "time per output token at 8 clients") is UpgradeWord.SLOWER


def test_a_field_that_neither_takes_is_no_loss():
    before, after = (
        record(accepted=("tools",), refused=("n",)),
        replace(AFTER, accepted=("tools",), refused=("n", "seed")),
    )
    assert found(compare(before, after), "fields") is UpgradeWord.SAME


def test_an_engine_whose_thinking_changed_is_found_by_its_judgement_of_the_old_answers():
    """Both judge the other's answers to be wrong, so that the counts of faults are alike; its own judge tells them apart."""
    wrong = judged_world(3, prompts=60, broken_share=0.5)
    report = compare(replace(BEFORE, answers=wrong), replace(AFTER, answers=wrong))
    assert found(report, "answers") is UpgradeWord.ANSWERS_DIFFER


def failing(each: float, error: str = "HTTP 500", **changes: object) -> EngineRecord:
    """An engine some of whose requests fail in each window."""
    failed = tuple(replace(one, failed=each) for one in windows(seed=2))
    return record(windows=failed, errors={error: int(each) * len(failed)}, **changes)


def failed_requests(report: UpgradeReport) -> UpgradeFinding:
    return next(one for one in report.findings if one.figure == "failed requests")


def test_requests_that_fail_are_said():
    report = compare(BEFORE, failing(5.0))
    assert report.word is UpgradeWord.REFUSED
    assert failed_requests(report).sentence == (
        "80 requests of the load failed, 0 before; most often HTTP 500, 80 times"
    )
    for failed in (1, 50):
        once = (replace(AFTER.windows[0], failed=failed), *AFTER.windows[1:])
        report = compare(BEFORE, replace(AFTER, windows=once, errors={"HTTP 500": failed}))
        assert report.word is UpgradeWord.UNDECIDED, "a connection that broke takes all requests of a window"
        assert "windows in which no request fails" in str(report.needs)


def test_requests_that_are_turned_away_are_overload_that_the_other_engine_bore_or_not():
    turned_away = failing(5.0, "HTTP 429")
    found = failed_requests(compare(BEFORE, turned_away))
    assert found.word is UpgradeWord.SLOWER
    assert "most often HTTP 429, 80 times" in found.sentence
    both = compare(turned_away, turned_away)
    few = replace(AFTER, windows=(*turned_away.windows[:2], *AFTER.windows[2:]), errors={"HTTP 429": 10})
    for report in (both, compare(BEFORE, few)):
        assert failed_requests(report).word is UpgradeWord.UNDECIDED
        assert "no limit in front of the engine" in str(report.needs)


def test_an_engine_of_before_that_fails_requests_bears_less_load_and_is_not_taken_for_faster():
    refusing = tuple(replace(one, failed=50.0) for one in windows(0.5))
    report = compare(record(windows=refusing, errors={"HTTP 500": 800}), AFTER)
    assert report.word is UpgradeWord.UNDECIDED
    assert "in which no request fails" in str(report.needs)
    shown = failed_requests(report)
    assert (shown.before, shown.after, shown.word) == (800.0, 0.0, None)
    few = (*refusing[:2], *windows()[2:])
    assert compare(record(windows=few), AFTER).word is UpgradeWord.SAME, "the other windows are compared"


def test_tokens_per_step_are_compared_at_equal_loads():
    """An engine that drafts less for a larger batch, and whose windows at one client were left out."""
    e = (3.0, 1.5)
    loaded = [
        tuple(replace(one, tokens_per_step=e[one.concurrency == 8]) for one in windows(seed=seed))
        for seed in (1, 2)
    ]
    lagging = tuple(replace(one, flag="DriverLagging") if one.concurrency == 1 else one for one in loaded[1])
    report = compare(record(windows=loaded[0]), replace(AFTER, windows=lagging))
    assert found(report, "tokens per step") is UpgradeWord.SAME


def test_windows_in_which_the_driver_lagged_are_left_out():
    lagging = tuple(replace(one, flag="DriverLagging") for one in windows(3.0))
    after = replace(AFTER, windows=(*AFTER.windows[2:], *lagging[:2]))
    assert compare(BEFORE, after).word is UpgradeWord.SAME


@pytest.mark.parametrize("missing", ["prefix_hits", "answers", "accepted"])
def test_what_was_not_measured_is_said_and_has_no_word(missing):
    report = compare(BEFORE, replace(AFTER, **{missing: None if missing == "answers" else ()}))
    assert any(one.word is None and one.sentence.startswith("not compared") for one in report.findings)
    assert report.word is UpgradeWord.SAME


def test_an_engine_of_now_that_judges_no_answers_leaves_them_without_a_word():
    """It refuses prompt_logprobs, and more prompts would not help."""
    nothing = JudgedSet(BEFORE.answers.given, ())
    report = compare(replace(BEFORE, answers=nothing), AFTER)
    assert found(report, "answers") is None
    assert report.word is UpgradeWord.SAME


def test_an_engine_behind_a_gateway_without_metrics_has_lost_no_acceptance():
    silent = tuple(replace(one, accept=(), drafts=None, tokens_per_step=None) for one in windows(seed=2))
    report = compare(BEFORE, replace(AFTER, windows=silent))
    assert report.word is UpgradeWord.UNDECIDED
    assert report.needs == "tokens per step: counters of both engines (/metrics)"


def test_undecided_says_how_many_pairs_it_would_take():
    report = compare(BEFORE, replace(AFTER, windows=windows(1.04, seed=2, scatter=0.05)))
    assert report.needs is not None
    assert "pairs of windows in place of 8, " in report.needs


def severity(slower: float, scatter: float) -> int:
    """0 faster, 1 not slower, 2 slower."""
    report = compare(
        replace(BEFORE, answers=None), replace(AFTER, windows=windows(slower, seed=2, scatter=scatter))
    )
    word = found(report, "time per output token at 8 clients")
    return {UpgradeWord.FASTER: 0, UpgradeWord.SLOWER: 2}.get(word or UpgradeWord.SAME, 1)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.7, 1.5), st.floats(0.7, 1.5), st.sampled_from([0.005, 0.03]))
def test_a_slower_engine_is_never_judged_milder(one, other, scatter):
    less, more = sorted((one, other))
    assert severity(less, scatter) <= severity(more, scatter)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.floats(0.8, 1.2))
def test_the_other_way_round_each_ratio_is_the_inverse(seed, slower):
    old, new = replace(BEFORE, answers=None), replace(AFTER, answers=None, windows=windows(slower, seed=seed))
    there, back = (
        {one.figure: one for one in compare(*pair).findings if one.interval and "time" in one.figure}
        for pair in ((old, new), (new, old))
    )
    for figure, one in there.items():
        other = back[figure]
        assert one.ratio
        assert other.ratio
        assert one.interval
        assert other.interval
        assert one.ratio * other.ratio == pytest.approx(1.0)
        assert [
            end * far for end, far in zip(one.interval, other.interval[::-1], strict=True)
        ] == pytest.approx([1.0, 1.0])
