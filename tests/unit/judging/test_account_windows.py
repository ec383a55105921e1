"""One window's addition to the account of a profile, and the account's effect on the memory."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import NormalDist
from types import SimpleNamespace

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.planning.evaluation import LoadQuestion, evaluate
from breakeven.profile import LoadPoint
from breakeven.serving.counted_window import Load
from breakeven_operator.case import Live
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.judging.doubts import (
    Account,
    of_arm,
    present_drift,
    recent,
    span_s,
    take_account,
    with_window,
)
from breakeven_operator.resources import SpeculativeServiceSpec
from breakeven_operator.resources.memorystatus import MOST_WINDOWS, MemoryStatus, ModelAccount, SeenAcceptance
from breakeven_operator.resources.targetstatus import Rollout, RolloutPhase
from breakeven_operator.rolls.barred_arms import suspected
from fakes.cases import a_case
from fakes.fleet_world import SERVICE
from fakes.lawmodel import ArmLaw, law_model

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
RULES = Account(window_s=300.0, lasting_s=1800.0, confidence=0.9)
EAGLE, LONGER = Arm("eagle3", 3, "eagle"), Arm("eagle3", 5, "eagle")
# At 4 rps requests take 1/(1 - 4 * 0.03) s without speculation and 0.6/(1 - 4 * 0.05) s with it.
NONE_S, EAGLE_S = 1.0 / 0.88, 0.75
PROFILE = law_model(
    {
        NO_SPECULATION: ArmLaw(1.0, 0.03, noise=0.02),
        EAGLE: ArmLaw(0.6, 0.05, 2.8, noise=0.02),
        LONGER: ArmLaw(0.6, 0.05, 3.0, noise=0.02),
    }
)
EVALUATIONS = evaluate(PROFILE, [NO_SPECULATION, EAGLE, LONGER], LoadQuestion(LoadPoint(rps=4.0)))
FIGURES = Load(
    rps=4.0,
    total_rps=4.0,
    requests=1200.0,
    window_s=300.0,
    inflight=3.0,
    latency_s=EAGLE_S,
    ttft_s=0.1 * EAGLE_S,
    tpot_s=0.01 * EAGLE_S,
    tokens_per_step=2.8,
    prompt_tokens=200.0,
    output_tokens=100.0,
    replicas=1,
    age_s=1.0,
)
SPEC = SpeculativeServiceSpec.model_validate(SERVICE["spec"])


def added(account=None, *, arm=EAGLE, rules=RULES, now=NOW, drifted=(), **figures):
    """An account after one more look."""
    return with_window(
        account or ModelAccount(arm=arm.name, profile="chat-p1"),
        EVALUATIONS,
        replace(FIGURES, **figures),
        lambda: drifted,
        rules,
        now,
    )


def test_a_window_says_how_much_longer_requests_took_than_was_predicted():
    account = added(
        latency_s=1.2 * EAGLE_S, ttft_s=2.0 * 0.1 * EAGLE_S, tpot_s=0.5 * 0.01 * EAGLE_S, drifted=("Drifted",)
    )
    (window,) = account.windows
    assert (account.arm, account.profile, window.time, window.requests) == ("eagle/3", "chat-p1", NOW, 1200)
    assert window.latency_ratio == pytest.approx(1.2)
    assert (window.ttft_ratio, window.tpot_ratio) == pytest.approx((2.0, 0.5))
    assert window.observed_seconds == 1.2 * EAGLE_S
    assert window.speedup == pytest.approx(NONE_S / (1.2 * EAGLE_S))
    assert window.drifted == ("Drifted",)


def test_the_bounds_in_a_window_are_those_of_the_two_predictions():
    (window,) = added(latency_s=1.5 * EAGLE_S).windows
    lower_s, upper_s = EVALUATIONS.of(EAGLE).prediction.latency_ci_s
    assert (window.predicted_lower, window.predicted_upper) == pytest.approx(
        (lower_s / EAGLE_S, upper_s / EAGLE_S)
    )
    lower_s, upper_s = EVALUATIONS.none.prediction.latency_ci_s
    z = NormalDist().inv_cdf(0.95)
    assert math.exp(2.0 * z * window.speedup_error) == pytest.approx(upper_s / lower_s)


def test_no_speculation_is_compared_with_no_speculation_by_nobody():
    (window,) = added(arm=NO_SPECULATION, latency_s=NONE_S).windows
    assert window.latency_ratio == pytest.approx(1.0)
    assert (window.speedup, window.speedup_error) == (None, None)


@pytest.mark.parametrize(("watched_s", "lasted_s"), [(120.0, 120.0), (900.0, 300.0)])
def test_a_window_is_no_longer_than_it_was_watched_nor_than_windows_are(watched_s, lasted_s):
    assert added(window_s=watched_s).windows[0].window_seconds == lasted_s


@pytest.mark.parametrize(
    "figures", [{"latency_s": None}, {"latency_s": 0.0}, {"requests": 0.0}, {"latency_s": 1e7}]
)
def test_a_window_in_which_nothing_was_measured_is_none(figures):
    before = added(now=NOW - timedelta(seconds=400.0))
    assert added(before, **figures) is before
    assert not added(**figures).windows


def looked_at_all_the_time(rules, until_s, account=None, *, from_s=0, **figures):
    """An account after looks every 15 s."""
    for at_s in range(from_s, until_s, 15):
        now = NOW + timedelta(seconds=at_s)
        account = added(account, rules=rules, now=now, window_s=rules.window_s, **figures)
    return account


def distances_s(account):
    """Of the ends of its windows."""
    ends = [one.time for one in account.windows]
    return [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(ends)]


SEVERAL_RULES = pytest.mark.parametrize(
    ("window_s", "lasting_s"), [(300.0, 1800.0), (300.0, 900.0), (60.0, 7200.0), (7200.0, 60.0)]
)


@SEVERAL_RULES
@pytest.mark.parametrize("factor", [1.0, 1.6, 0.6])
def test_windows_share_no_request_are_few_and_last_long_enough_to_count(window_s, lasting_s, factor):
    rules = Account(window_s, lasting_s, 0.9)
    until_s = 4 * round(MOST_WINDOWS * rules.spacing_s)
    account = looked_at_all_the_time(rules, until_s, latency_s=factor * EAGLE_S)
    assert min(distances_s(account)) >= window_s
    assert len(account.windows) <= MOST_WINDOWS
    now = NOW + timedelta(seconds=until_s - 15)
    wait_s = rules.spacing_s if factor != 1.0 else rules.rest_s
    assert (now - account.windows[-1].time).total_seconds() < wait_s
    assert span_s(account.windows) >= lasting_s


@SEVERAL_RULES
def test_an_account_that_agrees_rests_once_it_has_lasted_and_never_longer_than_half_an_hour(
    window_s, lasting_s
):
    rules = Account(window_s, lasting_s, 0.9)
    assert rules.rest_s == max(window_s, lasting_s / 8, 1800.0)
    account = looked_at_all_the_time(rules, round(lasting_s + window_s + 3.5 * rules.rest_s))
    begun = [one for one in distances_s(account) if one == rules.spacing_s]
    assert set(distances_s(account)) <= {rules.spacing_s, rules.rest_s}
    assert distances_s(account)[-2:] == [rules.rest_s] * 2
    assert len(begun) * rules.spacing_s + window_s >= lasting_s or rules.spacing_s == rules.rest_s


@pytest.mark.parametrize(
    "strange",
    [
        {"latency_s": 1.3 * EAGLE_S},
        {"latency_s": 0.7 * EAGLE_S},
        # Within the prediction's bounds, but from so many requests elsewhere than all the windows before.
        {"latency_s": 1.08 * EAGLE_S, "requests": 1e6},
        {"latency_s": 0.93 * EAGLE_S, "requests": 1e6},
        {"drifted": ("AcceptanceDrifted",)},
    ],
)
def test_a_window_that_deviates_is_taken_at_once_and_all_of_them_for_as_long_as_makes_an_account(strange):
    quiet = looked_at_all_the_time(RULES, 7200)
    begun_s = round((quiet.windows[-1].time - NOW).total_seconds())
    assert distances_s(quiet)[-1] == RULES.rest_s
    odd = looked_at_all_the_time(RULES, begun_s + 330, quiet, from_s=begun_s, **strange)
    assert distances_s(odd)[-1] == RULES.spacing_s
    after = looked_at_all_the_time(RULES, begun_s + 330 + 4 * 1800, odd, from_s=begun_s + 330)
    # The odd one and five more, which last for half an hour, and then rest.
    assert distances_s(after)[-9:] == [300.0] * 6 + [1800.0] * 3
    assert after.windows[-9] == odd.windows[-1]


def test_few_requests_deviate_by_chance_and_make_no_account_restless():
    quiet = looked_at_all_the_time(RULES, 7200)
    begun_s = round((quiet.windows[-1].time - NOW).total_seconds())
    few = looked_at_all_the_time(
        RULES, begun_s + 1500, quiet, from_s=begun_s, latency_s=1.3 * EAGLE_S, requests=5.0
    )
    assert few is quiet


def test_windows_before_a_gap_say_nothing_of_today():
    account = looked_at_all_the_time(RULES, 7200)
    end = account.windows[-1].time
    assert recent(account, end + timedelta(hours=23.9)) == account.windows
    assert recent(account, end + timedelta(hours=24)) == ()
    broken = ModelAccount(
        arm=account.arm,
        profile=account.profile,
        windows=(
            *account.windows,
            account.windows[-1].model_copy(update={"time": end + timedelta(hours=24)}),
            account.windows[-1].model_copy(update={"time": end + timedelta(hours=24, seconds=300)}),
        ),
    )
    assert recent(broken, end + timedelta(hours=24, seconds=310)) == broken.windows[-2:]
    # A clock that was set back: what is to come does not count, and hides nothing.
    assert recent(broken, end + timedelta(seconds=10)) == account.windows


def test_windows_of_before_they_were_made_longer_give_way_to_the_newest():
    account = None
    for minute in range(MOST_WINDOWS):
        account = added(
            account,
            rules=Account(60.0, 300.0, 0.9),
            now=NOW + timedelta(minutes=minute),
            window_s=60.0,
            latency_s=1.6 * EAGLE_S,
        )
    assert len(account.windows) == MOST_WINDOWS
    longer = added(account, now=NOW + timedelta(minutes=30))
    assert longer.windows[:-1] == account.windows[1:]
    assert longer.windows[-1].time == NOW + timedelta(minutes=30)


def test_an_account_is_of_one_arm_under_one_profile():
    account = added()
    assert of_arm(account, "chat-p1", EAGLE) is account
    assert of_arm(account, "chat-p1", LONGER) is None
    assert of_arm(account, "chat-p2", EAGLE) is None
    assert of_arm(account, "chat-p1", None) is None


# The memory -------------------------------------------------------------------------------------------------


def taken(memory, *, now=NOW, settled=True, arm=EAGLE, **figures):
    """The memory after one more look."""
    decision = SimpleNamespace(of=EVALUATIONS.of, evaluations=EVALUATIONS)
    case = a_case(SPEC, PROFILE, replace(FIGURES, **figures), now, running=arm)
    rollout = None if settled else Rollout(id="r", phase=RolloutPhase.ROLLING)
    case = replace(case, context=replace(case.context, memory=memory, rollout=rollout))
    return take_account(case, decision)


def test_windows_count_for_the_arm_in_place_and_while_nothing_is_rolled():
    one = taken(MemoryStatus(), now=NOW - timedelta(seconds=600.0))
    two = taken(one, now=NOW - timedelta(seconds=300.0))
    assert [len(kept.account.windows) for kept in (one, two)] == [1, 2]
    assert taken(two, settled=False).account is None
    assert len(taken(two, arm=LONGER).account.windows) == 1
    # An account without a window would be one more field to write.
    assert taken(MemoryStatus(), requests=0.0).account is None


def test_windows_that_disagree_for_long_make_the_profile_suspect_and_those_of_a_while_do_not():
    memory = MemoryStatus()
    for at_s in range(0, 1501, 300):
        assert memory.suspicion is None
        memory = taken(memory, now=NOW + timedelta(seconds=at_s), latency_s=1.6 * EAGLE_S)
    assert (memory.suspicion.profile, memory.suspicion.reason) == ("chat-p1", "ModelDisagrees")
    assert "1.60 times as long" in memory.suspicion.message


def test_a_suspicion_lasts_as_long_as_its_profile():
    suspect = suspected(MemoryStatus(), "chat-p1", ClusterReason.ROLL_DISPROVED, "0.8x measured", NOW)
    assert taken(suspect).suspicion == suspect.suspicion
    of_another = suspected(MemoryStatus(), "chat-p0", ClusterReason.ROLL_DISPROVED, "0.8x measured", NOW)
    assert taken(of_another).suspicion is None


def drifted(arm, reason=ClusterReason.METRICS_AVAILABLE):
    memory = MemoryStatus(seen=(SeenAcceptance(arm=arm.name, tokens_per_step=1.5),))
    return present_drift(memory, SPEC, PROFILE, arm, Live(reason, "", FIGURES))


def test_drift_is_told_of_usable_figures_and_of_an_arm_that_is_no_candidate_too():
    assert (
        drifted(EAGLE)[ClusterReason.ACCEPTANCE_DRIFTED] == "1.50 tokens per step where 2.80 were calibrated"
    )
    assert (
        drifted(LONGER)[ClusterReason.ACCEPTANCE_DRIFTED] == "1.50 tokens per step where 3.00 were calibrated"
    )
    assert drifted(EAGLE, ClusterReason.TOO_FEW_REQUESTS) == {}
