"""`plan` and the operator's guard name the same arm for the same load, or one of them names why not."""

from hypothesis import assume, given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.planning.best_arm import best_arm
from breakeven.planning.evaluation import evaluate
from breakeven.planning.guard import DecisionMemory, Load, Policy, decide
from breakeven.planning.objective import Slo
from breakeven.profile import Conditions, LoadPoint
from breakeven.reasons import Reason
from draws import draws
from sweeps import closed

NOW = 1_000_000.0
SHORT, LONG = Arm("eagle3", 2), Arm("eagle3", 7)


@st.composite
def profiles(draw):
    """Fits of scattered sweeps that end anywhere between light load and saturation."""
    noise, most = draw(st.sampled_from([0.0, 0.003, 0.02])), draw(st.sampled_from([8, 32, 256]))
    clients = [c for c in (1, 2, 4, 8, 16, 32, 64, 128, 256) if c <= most]
    rows = closed("none", 0, 1.0, 0.05, clients=clients, noise=noise)
    for arm, e in ((SHORT, 2.0), (LONG, 3.0)):
        if draw(st.booleans()):
            c1_s, c2_s = draw(st.floats(0.35, 1.2)), draw(st.floats(0.03, 0.09))
            rows += closed(
                arm.method, arm.k, c1_s, c2_s, clients=clients, noise=noise, tokens_per_step=e, first_row=100 * arm.k
            )  # fmt: skip
    profile = fit_points(rows)
    assume(all(fit.believable for fit in profile.arms))
    return profile


@st.composite
def policies(draw):
    limit_s = draw(st.one_of(st.none(), st.floats(0.4, 8.0)))
    return Policy(
        min_gain=draw(st.sampled_from([0.0, 0.05, 0.3])),
        dwell_s=draw(st.sampled_from([0.0, 900.0])),
        roll_seconds=draw(st.sampled_from([0.0, 300.0])),
        slo=Slo(e2e_s=limit_s),
    )


@draws(80)
@given(profiles(), policies(), st.floats(0.1, 30.0))
def test_plan_and_guard_name_the_same_arm_or_the_reason(profile, policy, rps):
    arms = [fit.arm for fit in profile.arms]
    seen = evaluate(profile, arms, LoadPoint(rps=rps), lambda _: Conditions(), policy.slo, doubtful=True)
    best, none = best_arm(seen, policy.slo, policy.min_gain), seen.none
    # Requests take what the law says, and ever longer beyond saturation.
    load = Load(rps, 300, 1000, latency_s=none.prediction.latency_s or 1e4)
    decision = decide(profile, load, DecisionMemory(NO_SPECULATION), policy, NOW, arms)
    # What it waits for is what it wants; the guard has a memory, and plan has none.
    wanted = decision.memory.candidate or decision.arm
    named = best.kept or best.arm
    assert wanted in {named, NO_SPECULATION}, "the guard enters nothing that plan does not name"
    differs = {
        "a roll costs more than the gain brings": decision.reason is Reason.ROLL_NOT_WORTH_IT,
        "without it the load is not carried": none.prediction.saturated
        and best.reason in {Reason.SATURATED, Reason.EXTRAPOLATED},
        "plan goes by the expected latency": not policy.min_gain and best.reason is Reason.WIDE_BOUNDS,
        "plan keeps an objective without a gain": none.meets_slo is False
        and best.reason in {Reason.SLO_VIOLATED, Reason.WIDE_BOUNDS},
    }
    assert named == wanted or any(differs.values()), (named, best.reason, decision.reason)


@draws(50)
@given(profiles(), st.floats(0.1, 30.0), st.booleans())
def test_plan_names_no_arm_on_an_extrapolation_without_saying_so(profile, rps, at_rate):
    load = LoadPoint(rps=rps) if at_rate else LoadPoint(concurrency=1.0 + 20.0 * rps)
    arms = [fit.arm for fit in profile.arms]
    seen = evaluate(profile, arms, load, lambda _: Conditions(), Slo(), doubtful=True)
    best = best_arm(seen, Slo())
    if best.arm.k and best.chosen.extrapolated:
        assert best.reason in {Reason.EXTRAPOLATED, Reason.SATURATED}
    if best.kept is not None:
        kept = seen.of(best.kept)
        assert best.chosen.extrapolated
        assert not (kept.arm.k and kept.extrapolated), "the operator enters nothing on an extrapolation"
        assert best.reason is Reason.EXTRAPOLATED
