"""Arms are compared at one set of lengths: whichever lengths each was measured at, the bounds of the speedup hold the engine's."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.planning.evaluation import LoadQuestion, evaluate
from breakeven.planning.what_it_takes import what_it_takes
from breakeven.points.point import LoadMode, Point
from breakeven.profile import Conditions, LoadPoint, Profile
from breakeven.profile.operating_conditions import compared_text
from breakeven.reporting.lines import arm_curves
from draws import draws

EAGLE = Arm("eagle3", 3)
CLIENTS = (1, 4, 8, 16, 32)
PROMPT = 256.0


class Engine(NamedTuple):
    """Tokens that take longer among others, `speedup` times as fast with speculation, after a first one."""

    speedup: float
    first_s: float = 0.08
    token_s: float = 0.010
    among_s: float = 0.0004

    def latency_s(self, arm: Arm, tokens: float, clients: float) -> float:
        """Mean latency of a request in a closed loop."""
        each_s = self.token_s + self.among_s * (clients - 1.0)
        return self.first_s + (tokens - 1.0) * each_s / (self.speedup if arm.k else 1.0)

    def sweep(self, arm: Arm, tokens: float, *, first: bool = True) -> list[Point]:
        """Rows of one arm at one length of answers; without the time to the first token if asked."""
        return [
            Point(
                method=arm.method,
                k=arm.k,
                load_mode=LoadMode.CLOSED,
                concurrency=float(clients),
                mean_latency_s=(latency_s := self.latency_s(arm, tokens, clients)),
                achieved_rps=clients / latency_s,
                prompt_tokens=PROMPT,
                output_tokens=tokens,
                tokens_per_step=2.6 if arm.k else None,
                ttft_mean_s=self.first_s if first else None,
                requests=400.0 * clients,
            )
            for clients in CLIENTS
        ]

    def fitted(self, plain: float, drafted: float, *, first: bool = True) -> Profile:
        """A profile of no speculation and of an arm, each measured with answers of its own length."""
        return fit_points(
            [
                *self.sweep(NO_SPECULATION, plain, first=first),
                *self.sweep(EAGLE, drafted, first=first),
            ]
        )

    def truth(self, tokens: float, clients: float) -> float:
        """Speedup at equal concurrency where both arms answer with so many tokens."""
        return self.latency_s(NO_SPECULATION, tokens, clients) / self.latency_s(EAGLE, tokens, clients)


@draws(20)
@given(
    speedup=st.floats(0.6, 2.2),
    plain=st.floats(60.0, 1000.0),
    drafted=st.floats(60.0, 1000.0),
    clients=st.sampled_from(CLIENTS),
    asked=st.sampled_from([None, 100.0, 240.0, 700.0]),
    first=st.booleans(),
)
def test_a_speedup_at_one_set_of_lengths_holds_the_engine_s(speedup, plain, drafted, clients, asked, first):
    engine = Engine(speedup)
    found = engine.fitted(plain, drafted, first=first).compare(
        EAGLE, concurrency=clients, conditions=Conditions(output_tokens=asked)
    )
    low, high = found.speedup_ci
    assert low <= engine.truth(asked or plain, clients) <= high


@pytest.mark.parametrize(
    ("plain", "drafted"),
    [(200.0, 240.0), (200.0, 800.0), (800.0, 200.0), (100.0, 1000.0), (500.0, 60.0), (300.0, 310.0)],
)
def test_each_place_of_comparison_takes_the_lengths_of_no_speculation(plain, drafted):
    engine = Engine(2.0)
    profile = engine.fitted(plain, drafted)
    asked = Conditions(output_tokens=plain)
    assert profile.lengths.output_tokens == plain
    for concurrency in (1, 16):
        by_default = profile.predict(EAGLE, concurrency=concurrency)
        assert by_default == profile.predict(EAGLE, concurrency=concurrency, conditions=asked)
        compared = profile.compare(EAGLE, concurrency=concurrency)
        assert compared == profile.compare(EAGLE, concurrency=concurrency, conditions=asked)
    question = LoadQuestion(LoadPoint(rps=1.0), derived=True)
    for one in evaluate(profile, [NO_SPECULATION, EAGLE], question).arms:
        assert one.tokens_per_second == pytest.approx(plain)
    none, eagle = profile.arms
    # The truth is 0.5 and something for the first token; each arm at its own lengths: far from it.
    assert eagle.c1_s / none.c1_s == pytest.approx(1.0 / engine.truth(plain, 1), rel=0.1)
    own_points = {curve.arm: len(curve.measured_latency_s) for curve in arm_curves(profile)}
    assert own_points[NO_SPECULATION] == len(CLIENTS)
    assert own_points[EAGLE] == 0, "a point measured at other lengths is no point of the curve"
    slow = Engine(0.8).fitted(plain, drafted)
    assert what_it_takes(slow, EAGLE, 0.5, Conditions())["answers"].now == plain


@pytest.mark.parametrize(
    ("plain", "drafted", "asked", "text"),
    [
        (200.0, 240.0, None, "256/200 tokens, those of no speculation (eagle3/3 was measured at 256/240)"),
        (200.0, 240.0, 200.0, "256/200 tokens, as asked (eagle3/3 was measured at 256/240)"),
        (
            200.0,
            800.0,
            400.0,
            "256/400 tokens, as asked (no speculation was measured at 256/200; eagle3/3 was measured at 256/800)",
        ),
        (
            200.0,
            200.0,
            400.0,
            "256/400 tokens, as asked (no speculation and eagle3/3 were measured at 256/200)",
        ),
        (200.0, 200.0, None, ""),
        (200.0, 203.0, None, ""),
    ],
)
def test_lengths_are_said_where_an_arm_was_measured_at_others(plain, drafted, asked, text):
    profile = Engine(2.0).fitted(plain, drafted)
    assert compared_text(profile.arms, Conditions(output_tokens=asked)) == text


def test_without_no_speculation_the_first_arm_s_lengths_are_taken():
    engine = Engine(2.0)
    profile = fit_points([*engine.sweep(EAGLE, 300.0), *engine.sweep(Arm("mtp", 2), 100.0)])
    assert profile.lengths.output_tokens == 300.0
    assert compared_text(profile.arms, Conditions()) == (
        "256/300 tokens, those of eagle3/3 (mtp/2 was measured at 256/100)"
    )


def test_arms_of_one_length_are_predicted_as_before_by_their_own_rows():
    profile = Engine(2.0).fitted(200.0, 200.0)
    (none, eagle) = profile.arms
    assert eagle.lengths == none.lengths
    for fit in profile.arms:
        for row in fit.measurements:
            assert profile.predict(fit.arm, concurrency=row.concurrency).latency_s == pytest.approx(
                row.latency_s, rel=0.03
            )
