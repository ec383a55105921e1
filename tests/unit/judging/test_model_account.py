"""The account of a profile's predictions, and what follows from it."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.planning.decision_memory import LiveAcceptance
from breakeven.profile import Profile
from breakeven.reasons import Reason
from breakeven.serving.counted_window import Load
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.judging.doubts import (
    Account,
    aspects,
    doubt_of,
    drift,
    latency_ratio,
    measured_speedup,
    survival,
)
from breakeven_operator.judging.gates import refuse_suspect
from breakeven_operator.resources.memorystatus import AccountWindow, LiveEvidence, MemoryStatus, ModelAccount
from breakeven_operator.rolls.barred_arms import suspected
from draws import draws
from fakes.lawful_profile import lawful_profile_json
from fakes.lawmodel import ArmLaw, law_model

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
RULES = Account(window_s=300.0, lasting_s=1800.0, confidence=0.9)
EAGLE = Arm("eagle3", 3, "eagle")


def windows(
    *ratios: float, error: float = 0.01, every_s: float = 300.0, **fields: object
) -> tuple[AccountWindow, ...]:
    """Windows of two seconds' prediction, the last of which ends now."""
    return tuple(
        AccountWindow(
            time=NOW - timedelta(seconds=every_s * (len(ratios) - 1 - place)),
            window_seconds=300.0,
            requests=900,
            observed_seconds=2.0 * ratio,
            latency_ratio=ratio,
            sampling_error=error,
            predicted_lower=0.95,
            predicted_upper=1.06,
            **fields,
        )
        for place, ratio in enumerate(ratios)
    )


def memory(*ratios: float, **fields: object) -> MemoryStatus:
    return MemoryStatus(
        account=ModelAccount(arm="eagle/3", profile="chat-p1", windows=windows(*ratios, **fields))
    )


# The account ------------------------------------------------------------------------------------------------


def test_one_backlog_among_windows_moves_the_median_little_and_a_mean_much():
    found = latency_ratio(windows(1.0, 1.01, 0.99, 8.0, 1.0, 1.02, 0.98), 0.9)
    assert found is not None
    assert found.value == pytest.approx(1.0, abs=0.01)
    assert found.upper < 1.1


def test_bounds_follow_from_how_windows_differ_and_never_below_the_requests_in_them():
    alike, scattered, few = (
        latency_ratio(one, 0.9)
        for one in (
            windows(1.0, 1.0, 1.0, 1.0, 1.0),
            windows(0.8, 1.0, 1.25, 0.9, 1.1),
            windows(1.0, 1.0, 1.0, 1.0, 1.0, error=0.3),
        )
    )
    assert alike.upper / alike.lower < 1.05
    assert scattered.upper / scattered.lower > 1.2
    assert few.upper / few.lower > 1.4


@draws(100)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=12), st.floats(0.0, 1e6))
def test_any_account_has_finite_ordered_bounds_that_a_status_holds(ratios, error):
    found = latency_ratio(windows(*ratios, error=error), 0.99)
    assert 0.0 < found.lower <= found.value * (1 + 1e-9)
    assert found.value <= found.upper * (1 + 1e-9)
    assert found.upper < 1e15


def test_bounds_hold_the_truth_as_often_as_they_say():
    """Windows that scatter by what their requests explain, and by nothing else."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        found = latency_ratio(windows(*np.exp(0.05 * rng.standard_normal(6)), error=0.05), 0.9)
        held += found.lower <= 1.0 <= found.upper
    assert 0.9 <= held / 400 < 0.98


def test_the_error_of_the_prediction_without_speculation_does_not_shrink_with_windows():
    few, many = (
        measured_speedup(windows(*[1.0] * count, speedup=1.4, speedup_error=0.1), 0.9) for count in (2, 12)
    )
    assert many.value == pytest.approx(1.4)
    assert math.log(many.upper / many.lower) > 2 * 1.64 * 0.1 * 0.99
    assert few.upper >= many.upper
    assert measured_speedup(windows(1.0, speedup=1.4), 0.9) is None, "an open bound stays open"


# Disagreement -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratios", "disagrees"),
    [
        ([1.4] * 6, True),
        ([0.7] * 6, True),
        ([1.4] * 5, False),  # 25 minutes
        ([1.1] * 6, False),  # within its own bounds and what two runs differ by
        ([0.92] * 6, False),
        ([1.0, 1.0, 1.0, 1.0, 1.4, 1.4], False),
        ([1.0, 2.0, 0.9, 1.8, 1.1, 2.2], False),  # above, and not significantly
    ],
)
def test_latency_disagrees_when_its_interval_lies_outside_of_the_predictions_for_long(ratios, disagrees):
    found = RULES.about(memory(*ratios), "chat-p1", NOW)
    assert (found.disagreement is not None) is disagrees


@pytest.mark.parametrize(("ratio", "end"), [(5.0, "predicted_upper"), (0.2, "predicted_lower")])
def test_nothing_lies_outside_of_an_open_bound(ratio, end):
    def disagreement(**fields):
        kept = tuple(one.model_copy(update=fields) for one in windows(*[ratio] * 6))
        account = ModelAccount(arm="eagle/3", profile="chat-p1", windows=kept)
        return RULES.about(MemoryStatus(account=account), "chat-p1", NOW).disagreement

    assert disagreement() is not None
    assert disagreement(**{end: None}) is None


def test_the_sentence_has_both_figures_and_what_stands_behind_them():
    found = RULES.about(memory(*[1.5] * 6), "chat-p1", NOW)
    assert found.disagreement is not None
    assert "requests take 3 s where chat-p1 predicts for eagle/3 2 s: 1.50 times" in found.disagreement
    assert "5400 requests in 6 windows within 30 min" in found.disagreement


def test_an_account_of_another_profile_or_of_yesterday_says_nothing():
    assert RULES.about(memory(*[1.5] * 6), "chat-p2", NOW).disagreement is None
    assert not RULES.about(memory(*[1.5] * 6), "chat-p1", NOW + timedelta(hours=25)).windows


def test_conditions_say_unknown_before_they_say_anything():
    for kept in (MemoryStatus(), memory(1.4, 1.4)):
        said = aspects(kept, "chat-p1", dict, RULES, NOW)
        assert said[0].holds is None
        assert said[0].reason == "ModelUntested"
    agrees = aspects(memory(*[1.02] * 6), "chat-p1", dict, RULES, NOW)
    assert [(one.holds, one.reason) for one in agrees] == [
        (True, "ModelAgrees"),
        (True, "ModelAgrees"),
        (True, "ModelAgrees"),
    ]


def test_a_suspicion_is_the_condition_whatever_raised_it():
    kept = suspected(MemoryStatus(), "chat-p1", ClusterReason.ROLL_DISPROVED, "0.8x measured", NOW)
    said = aspects(kept, "chat-p1", dict, RULES, NOW)[0]
    assert (said.holds, said.reason) == (False, "RollDisproved")
    assert "0.8x measured" in said.message
    assert "no speculation, and arms whose own latency" in said.message


# Drift ------------------------------------------------------------------------------------------------------


def test_drift_is_said_when_every_window_for_long_showed_it():
    word = ClusterReason.LENGTHS_DRIFTED
    steady = memory(*[1.0] * 7, drifted=("LengthsDrifted",))
    assert RULES.about(steady, "chat-p1", NOW).drifted(word) is True
    assert RULES.about(memory(*[1.0] * 3, drifted=("LengthsDrifted",)), "chat-p1", NOW).drifted(word) is None
    back = steady.account.model_copy(update={"windows": (*steady.account.windows[1:], *windows(1.0))})
    found = RULES.about(MemoryStatus(account=back), "chat-p1", NOW)
    assert found.lasting
    assert found.drifted(word) is False


def test_each_condition_says_what_of_the_text_is_another():
    kept = memory(*[1.0] * 6, drifted=("AcceptanceDrifted", "LengthsDrifted"))
    _, acceptance, lengths = aspects(
        kept,
        "chat-p1",
        lambda: {ClusterReason.ACCEPTANCE_DRIFTED: "fewer", ClusterReason.LENGTHS_DRIFTED: "longer"},
        RULES,
        NOW,
    )
    assert (acceptance.reason, lengths.reason) == ("AcceptanceDrifted", "LengthsDrifted")
    assert acceptance.message.startswith(
        "fewer, for 30 minutes; the text is another one, or the drafter was replaced in place; chat-p1 predicts"
    )
    assert lengths.message.startswith("longer, for 30 minutes; chat-p1 predicts")


@cache
def fitted() -> Profile:
    """A fit at requests of 200 and 100 tokens, whose eagle/3 made 2.8 tokens per step."""
    return Profile.from_json(
        lawful_profile_json(
            {NO_SPECULATION: (1.0, 0.05), EAGLE: (0.5, 0.08)},
            {NO_SPECULATION: 1.0, EAGLE: 2.8},
            prompt_tokens=200.0,
            output_tokens=100.0,
            gpu="A100",
        )
    )


def measured(text: str | None = "users' prompts", accepted: tuple[float, ...] = (0.9, 0.6, 0.3)) -> Profile:
    """A profile whose eagle/3 accepted that of that text, and whose prompts and context cost nothing."""
    profile = fitted()
    return replace(
        profile,
        arms=tuple(
            replace(
                fit, acceptance=replace(fit.acceptance, survival=accepted, text=text, drafted_per_step=3.0)
            )
            if fit.arm == EAGLE
            else fit
            for fit in profile.arms
        ),
    )


def load(**fields: float) -> Load:
    return Load(
        **{
            "rps": 3.0,
            "window_s": 300.0,
            "requests": 900.0,
            "prompt_tokens": 200.0,
            "output_tokens": 100.0,
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("e", "accepted", "said"),
    [
        (2.8, (0.9, 0.6, 0.3), ""),
        (2.6, (0.85, 0.52, 0.23), ""),
        (2.0, (0.6, 0.3, 0.1), "2.00 tokens per step where 2.80 were calibrated"),
        (3.4, (0.95, 0.85, 0.6), "3.40 tokens per step where 2.80 were calibrated"),
        (2.8, (0.9, 0.75, 0.15), "position 2 survives in 75% of drafts where 60% were calibrated"),
        (2.75, (0.57, 0.57, 0.57), "position 1 survives in 57% of drafts where 90% were calibrated"),
        (2.8, (), ""),
    ],
)
def test_acceptance_has_drifted_where_e_or_a_position_is_surely_another(e, accepted, said):
    seen = (LiveAcceptance(EAGLE, e, accepted),)
    assert drift(measured(), EAGLE, seen, load()).get(ClusterReason.ACCEPTANCE_DRIFTED, "") == said


def test_scatter_between_windows_is_no_drift():
    unsteady = (LiveAcceptance(EAGLE, 2.3, (), variance=1.0),)
    assert drift(measured(), EAGLE, unsteady, load()).get(ClusterReason.ACCEPTANCE_DRIFTED, "") == ""


def of_law(arm: Arm, live: LiveAcceptance, schedule: str | None = None) -> str:
    """Drift of the live acceptance if 1.3 tokens per step were calibrated: 40, 10 and 3 % by position."""
    model = law_model({arm: ArmLaw(0.5, 0.08, 1.3)})
    (fit,) = model.arms
    fit = replace(fit, acceptance=replace(fit.acceptance, survival=(0.4, 0.1, 0.03)), schedule=schedule)
    return drift(replace(model, arms=(fit,)), arm, (live,), load()).get(ClusterReason.ACCEPTANCE_DRIFTED, "")


def test_a_few_accepted_tokens_scatter_more_than_tokens_per_step_do():
    """Of 1.3 tokens per step 0.3 are accepted: 5 % of the one are a fifth of the other."""
    steady, unsteady = (
        LiveAcceptance(EAGLE, 1.3, (0.27, 0.1, 0.03), variance=variance) for variance in (0.0, 0.01)
    )
    assert of_law(EAGLE, steady) == "position 1 survives in 27% of drafts where 40% were calibrated"
    assert of_law(EAGLE, unsteady) == ""


def test_what_a_schedule_accepts_follows_the_load_and_is_no_drift():
    scheduled = replace(EAGLE, scheduled=True)
    for fixed in (EAGLE, replace(EAGLE, k=1)):
        assert of_law(fixed, LiveAcceptance(fixed, 1.9)) == "1.90 tokens per step where 1.30 were calibrated"
    assert of_law(scheduled, LiveAcceptance(scheduled, 1.9), "1:3,16:1") == ""


def test_lengths_have_drifted_where_the_conversion_is_an_extrapolation():
    assert drift(measured(), EAGLE, (), load()).get(ClusterReason.LENGTHS_DRIFTED, "") == ""
    assert (
        drift(measured(), EAGLE, (), load(prompt_tokens=230.0)).get(ClusterReason.LENGTHS_DRIFTED, "") == ""
    )
    assert drift(measured(), EAGLE, (), load(prompt_tokens=9000.0)).get(
        ClusterReason.LENGTHS_DRIFTED, ""
    ) == ("prompts of 9000 tokens where 200 were calibrated")


def test_survival_stands_beside_the_calibrated_one_by_position():
    seen = (LiveAcceptance(EAGLE, 2.0, (0.5, 0.3, 0.2)),)
    assert survival(measured(), EAGLE, seen) == ((1, 0.5, 0.9), (2, 0.3, 0.6), (3, 0.2, 0.3))
    beyond = (LiveAcceptance(EAGLE, 2.0, (0.5, 0.3, 0.2, 0.1)),)
    assert survival(measured(), EAGLE, beyond) == survival(measured(), EAGLE, seen), "of what it can draft"
    assert survival(measured(), EAGLE, ()) == ((1, None, 0.9), (2, None, 0.6), (3, None, 0.3))
    assert survival(measured(), NO_SPECULATION, seen) == ()
    shortest = Arm("eagle3", 1, "eagle")
    assert survival(measured(), shortest, (LiveAcceptance(shortest, 1.5, (0.5,)),)) == ((1, 0.5, None),)


def asked(kept: MemoryStatus, text: str | None = "users' prompts") -> tuple[object, bool]:
    entry = SimpleNamespace(name="chat-p1", profile=measured(text))
    return doubt_of(kept, entry, RULES, NOW)


def test_what_live_traffic_says_against_a_profile_is_why_it_is_measured_anew():
    assert asked(memory(*[1.0] * 6)) == (None, True)
    assert asked(memory(*[1.0] * 3)) == (None, False)
    assert (
        asked(memory(*[1.0] * 6, drifted=("AcceptanceDrifted", "LengthsDrifted")))[0] == "AcceptanceDrifted"
    )
    suspect = suspected(MemoryStatus(), "chat-p1", ClusterReason.MODEL_DISAGREES, "1.5 times", NOW)
    assert asked(suspect)[0] == "ModelDisagrees"


def test_another_sample_of_made_up_text_is_not_asked_for():
    """It would be accepted as the last one was; users' prompts must be given."""
    kept = memory(*[1.0] * 6, drifted=("AcceptanceDrifted",))
    assert asked(kept, "synthetic text")[0] is None
    assert asked(kept)[0] == "AcceptanceDrifted"


# A suspicion's prohibitions ---------------------------------------------------------------------------------


def held(kept: MemoryStatus, wanted: Arm, reason: Reason | None = Reason.GAIN_ABOVE_THRESHOLD) -> bool:
    decision = SimpleNamespace(reason=reason) if reason is not None else None
    refusal = refuse_suspect(kept, "chat-p1", decision, wanted)
    assert refusal is None or refusal.reason is ClusterReason.PROFILE_SUSPECT
    return refusal is not None


def test_a_suspect_profile_takes_a_fleet_only_where_it_has_been():
    suspect = suspected(
        MemoryStatus(profile="chat-p1"), "chat-p1", ClusterReason.MODEL_DISAGREES, "1.5 times", NOW
    )
    been = suspect.model_copy(
        update={
            "evidence": (
                LiveEvidence(
                    arm="eagle/3",
                    time=NOW,
                    precision_alone=1.0,
                    precision_both=0.0,
                    precision_company=1.0,
                    pull_alone=0.0,
                    pull_company=0.0,
                ),
            )
        }
    )
    assert held(suspect, EAGLE)
    assert not held(suspect, NO_SPECULATION)
    assert not held(been, EAGLE)
    assert held(been, Arm("eagle3", 5, "eagle"))
    assert held(been.model_copy(update={"profile": "chat-p0"}), EAGLE), (
        "seen under another profile's conversions"
    )
    assert not held(MemoryStatus(), EAGLE)
    # A measurement, or a person, asks for it.
    assert not held(suspect, EAGLE, Reason.ENTERED_SATURATION)
    assert not held(suspect, EAGLE, Reason.SLO_VIOLATED)
    assert not held(suspect, EAGLE, None)
