"""Latencies of a schedule, whatever its points look like: finite and never falling with load."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from breakeven.arm import Arm
from breakeven.fitting import fit_points
from breakeven.tiers import Schedule
from draws import draws
from fakes.scheduled_points import STEEP, points

SCHEDULE = Arm("eagle3", 3, scheduled=True)
noises = st.lists(st.floats(-0.1, 0.1), min_size=1, max_size=9)


@st.composite
def profiles(draw: st.DrawFn):
    """Profiles of an engine with any schedule, any tax and noisy points."""
    border, last = draw(st.integers(2, 80)), draw(st.sampled_from([0, 3]))
    table = Schedule(((1, 3 - last), (border, last)))
    clients = sorted(draw(st.sets(st.integers(1, 90), min_size=3, max_size=9)))
    static = [point for arm in STEEP for point in points(STEEP, arm)]
    scheduled = points(
        STEEP, Arm("eagle3", 3), table, clients, tax=draw(st.floats(0.0, 0.3)), noise=draw(noises)
    )
    return fit_points([*static, *scheduled])


@draws(30)
@given(profiles())
def test_latency_never_falls_with_load_and_is_finite_up_to_saturation(profile):
    curve = profile.curve(SCHEDULE)
    among = np.array([curve.loop_latency_s(others, closed=True) for others in np.linspace(0.0, 400.0, 120)])
    assert np.isfinite(among).all()
    assert (among > 0.0).all()
    assert (np.diff(among) >= -1e-9 * among[:-1]).all()
    rates = np.linspace(0.0, 0.999 * curve.saturation_rps, 120)
    at_rates = curve.latencies_at_rps(rates)
    assert np.isfinite(at_rates).all()
    assert (np.diff(at_rates) >= -1e-9 * at_rates[:-1]).all()


@draws(15)
@given(profiles(), st.floats(0.05, 0.95))
def test_a_schedule_is_compared_like_any_arm(profile, share):
    rps = share * profile.curve(SCHEDULE).saturation_rps
    found = profile.compare(SCHEDULE, rps=rps)
    prediction = profile.predict(SCHEDULE, rps=rps)
    assert found.speedup is not None
    assert found.speedup >= 0.0
    assert prediction.latency_s is not None
    bounds = prediction.latency_ci_s or (None, None)
    assert bounds[0] is None or bounds[0] <= prediction.latency_s
    assert bounds[1] is None or bounds[1] >= prediction.latency_s
