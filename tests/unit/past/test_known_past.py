"""Known pasts: rows with errors, clustered by time, and a word for each thing it cannot say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from breakeven.errors import InputError
from breakeven.past.courses import PodCourse, TimeGrid
from breakeven.past.past_reading import AskedPast, KnownPast, PastWord, doubts_about, known_past
from breakeven.past.pod_facts import PodFacts, kind_of
from breakeven.past.steady import MEANINGS, CutPast, WindowWord, cut
from fakes.past_courses import C1_S, C2_S, OUTPUT, STEP_S, day_rates, grid_of, lawful

DAYS, HOUR_S = 4, 3600
RATES = day_rates(DAYS)
DAY = RATES.size // DAYS
FACTS = PodFacts(image="vllm:1", gpu="H100")


def past_of(*pods: PodCourse, facts=None, method="eagle3", grid=None) -> KnownPast:
    grid = grid or grid_of(RATES.size)
    known = facts or {}
    kinds = {
        one.name: kind_of(
            one.name.model,
            one.values("drafts") is not None,
            one.longest_draft,
            known.get(one.name.replica, FACTS),
            method,
        )
        for one in pods
    }
    found = cut(grid, pods, lambda one: kinds[one.name])
    names = [(one.name.namespace, one.name.replica) for one in pods]
    newest = [
        kinds[one.name]
        for one in pods
        if one.values("running") is not None and not np.isnan(one.stats["running"][-1])
    ]
    return known_past(AskedPast((), None, grid, method), found, names, newest)


def two_arms(**given) -> tuple[PodCourse, PodCourse]:
    """No speculation in the first half, drafts of three after it."""
    half = RATES.size // 2
    own = {"c1_s": 0.7 * C1_S, "c2_s": 1.3 * C2_S} | given
    return lawful(RATES, noise=noise(1), last=half), lawful(
        RATES, "chat-64bd5fcf9-zzzzz", k=3, noise=noise(2), first=half, **own
    )


def noise(seed: int, size: float = 0.01):
    return np.random.default_rng(seed).normal(0.0, size, RATES.size)


def words(past: KnownPast) -> set[PastWord]:
    return {one.word for one in past.doubts}


def test_two_arms_give_the_break_even_of_their_laws():
    past = past_of(*two_arms(c2_s=2.0 * C2_S))
    assert words(past) == set()
    assert [one.points[0].arm.name for one in past.arms] == ["none", "eagle3/3"]
    assert [one.points[0].accept for one in past.arms] == [(), pytest.approx((0.6, 0.36, 0.216), rel=1e-3)]
    found = past.against_none(past.arms[1].points[0].arm, 0.9)
    # L = C1/(1 - C2*r): equal where both arms take C1/(1 - C2*r) and 0.7*C1/(1 - 2*C2*r).
    true_rps = (1.0 - 0.7) / (2.0 * C2_S - 0.7 * C2_S)
    assert found.break_even_rps == pytest.approx(true_rps, rel=0.02)
    assert None not in found.break_even_ci_rps
    plain = past.profile.arm(past.arms[0].points[0].arm)
    assert plain.c1_s == pytest.approx(C1_S, rel=0.03)
    assert plain.c2_s == pytest.approx(C2_S, rel=0.1)


def test_arms_are_compared_at_shared_lengths_where_lengths_differ():
    past = past_of(*two_arms(output=1.3 * OUTPUT))
    assert past.lengths().output_tokens == pytest.approx(1.15 * OUTPUT, rel=0.01)
    assert past.against_none(past.arms[0].points[0].arm, 0.9) is None


@pytest.mark.parametrize("windows", [1, 4, 5, 6, 7])
def test_chunks_of_a_time_hold_each_window_once(windows):
    whole = grid_of(6)
    chunks = list(whole.chunks(windows))
    assert [one.first_s for one in chunks[1:]] == [one.last_s for one in chunks[:-1]]
    assert (chunks[0].first_s, chunks[-1].last_s) == (whole.first_s, whole.last_s)
    assert all(one.times - 1 <= windows for one in chunks)


@pytest.mark.parametrize("rates", [RATES, day_rates(DAYS, 0.1, 9.0)])
def test_rows_are_few_carry_errors_and_lose_no_request(rates):
    past = past_of(lawful(rates, noise=noise(1)))
    (one,) = past.arms
    assert 6 <= len(one.points) <= 24
    assert sum(point.requests for point in one.points) == pytest.approx(one.seen.requests, rel=0.05)
    for point in one.points:
        assert 0.0 < point.relative_error < 0.02
        assert point.workload == "llm/chat"
        assert (point.gpu, point.model, point.engine_version) == ("H100", "m", "vllm:1")
        assert point.extra["from"] < point.extra["to"]
        assert point.mean_inflight == pytest.approx(point.achieved_rps * point.mean_latency_s, rel=0.02)


def test_days_that_differ_leave_a_row_a_block_and_an_error_that_holds_them():
    slow = np.repeat([0.0, 0.08, -0.06, 0.05], DAY)
    past = past_of(lawful(RATES, noise=noise(1) + slow))
    (one,) = past.arms
    assert PastWord.DAYS_DIFFER in words(past)
    assert one.scatter.days == pytest.approx(np.std([0.0, 0.08, -0.06, 0.05], ddof=1), rel=0.35)
    ends = [(point.extra["from"], point.extra["to"]) for point in one.points]
    assert len({begin for begin, _ in ends}) == len(ends)
    assert all(point.relative_error > 0.03 for point in one.points)


@pytest.mark.parametrize(
    ("word", "pods"),
    [
        (PastWord.OTHER_ARM_NEVER_RAN, lambda: [lawful(RATES)]),
        (PastWord.OTHER_ARM_NEVER_RAN, lambda: [lawful(RATES, k=3)]),
        (PastWord.ONLY_LONE_LATENCY, lambda: [lawful(0.01 * RATES + 0.05, noise=noise(1))]),
        (PastWord.LENGTHS_MOVE_WITH_LOAD, lambda: [lawful(RATES, output=OUTPUT * (0.8 + 0.15 * RATES))]),
        (PastWord.ACCEPTANCE_MOVES_WITH_LOAD, lambda: [lawful(RATES, k=3, accept=0.8 - 0.15 * RATES)]),
        (
            PastWord.LENGTHS_DRIFT,
            lambda: [lawful(RATES, output=OUTPUT * np.repeat([1.0, 1.1, 1.2, 1.3], DAY))],
        ),
        (
            PastWord.ACCEPTANCE_DRIFTS,
            lambda: [lawful(RATES, k=3, accept=np.repeat([0.8, 0.7, 0.6, 0.5], DAY))],
        ),
        (PastWord.ARMS_MET_OTHER_LENGTHS, lambda: two_arms(output=1.3 * OUTPUT)),
        (PastWord.METHOD_UNKNOWN, lambda: [lawful(RATES, k=3)]),
    ],
)
def test_what_the_past_cannot_say_has_a_word(word, pods):
    past = past_of(*pods(), method=None if word is PastWord.METHOD_UNKNOWN else "eagle3")
    assert word in words(past), [one.sentence for one in past.doubts]
    assert all(one.sentence.startswith(MEANINGS[one.word]) for one in past.doubts)


@pytest.mark.parametrize("first_hour", [0, 4, 12])
@pytest.mark.parametrize(
    ("figure", "word"), [("accept", PastWord.ACCEPTANCE_DRIFTS), ("output", PastWord.LENGTHS_DRIFT)]
)
def test_what_moves_within_a_day_is_said_wherever_midnight_parts_it(figure, word, first_hour):
    first = first_hour * HOUR_S // STEP_S
    moved = np.interp(np.arange(RATES.size), [first, first + DAY], [1.0, 0.6])
    size = {"accept": 0.8, "output": OUTPUT}[figure]
    past = past_of(lawful(RATES, k=3, first=first, last=first + DAY, **{figure: size * moved}))
    assert word in words(past), [one.sentence for one in past.doubts]


def test_a_law_of_which_one_end_is_open_has_its_own_word():
    past = past_of(lawful(RATES, noise=noise(1)))
    (fit,) = past.profile.arms
    for c1_s, c2_s, word in (
        ((0.1, 4.0), fit.c2_ci_s, PastWord.ONLY_SLOPE),
        (fit.c1_ci_s, (0.0, 1.0), PastWord.ONLY_LONE_LATENCY),
        ((0.1, 4.0), (0.0, 1.0), PastWord.LOAD_RANGE_TOO_SMALL),
        (None, None, PastWord.LOAD_RANGE_TOO_SMALL),
    ):
        profile = replace(past.profile, arms=(replace(fit, c1_ci_s=c1_s, c2_ci_s=c2_s),))
        assert word in {one.word for one in doubts_about(past.arms, profile)}


def test_loads_that_do_not_overlap_and_drafts_that_vary_have_words():
    half = RATES.size // 2
    low, high = lawful(0.3 * RATES, last=half), lawful(2.0 + RATES, "chat-64bd5fcf9-zzzzz", k=3, first=half)
    stats = dict(high.stats)
    stats["drafted"] = 0.5 * stats["drafted"]
    found = words(past_of(low, replace(high, stats=stats)))
    assert {PastWord.ARMS_MET_OTHER_LOADS, PastWord.DRAFT_LENGTH_VARIES} <= found


def test_another_image_cuts_the_past():
    old, new = two_arms()
    past = past_of(old, new, facts={old.name.replica: PodFacts(image="vllm:0", gpu="H100")})
    assert {PastWord.OTHER_ARM_NEVER_RAN, PastWord.EARLIER_DIFFERS} <= words(past)
    assert [one.kind.k for one in past.arms] == [3]
    (earlier,) = past.earlier
    assert (earlier.differs, earlier.fingerprint.image, earlier.arms) == (("image",), "vllm:0", (0,))
    assert earlier.hours == pytest.approx(RATES.size / 2 * STEP_S / 3600, rel=0.05)


def test_without_facts_a_change_is_not_seen_and_that_is_said():
    assert PastWord.CHANGES_UNKNOWN in words(
        past_of(lawful(RATES), facts={"chat-7d9f8b6c5d-bbbbb": PodFacts()})
    )


def test_no_steady_window_is_refused_with_the_reasons():
    grid = TimeGrid(0, STEP_S, 3)
    nothing = CutPast(missing=frozenset({"e2e_s"}))
    nothing.dropped[WindowWord.SERIES_MISSING] += 2
    with pytest.raises(
        InputError, match="none of 2 windows is steady \\(SeriesMissing 2\\); expected stored series of e2e_s"
    ):
        known_past(AskedPast((), None, grid), nothing, [], [])
