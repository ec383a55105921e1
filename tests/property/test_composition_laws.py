"""Laws of requests that several classes of engines share."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from breakeven.laws.law import Law
from breakeven.profile.composition import CurvePart, composed_curve
from draws import draws
from fakes.straight_curve import straight_curve

SECONDS = st.floats(0.05, 5.0)
SLOPES = st.floats(0.005, 0.2)
SHARES = st.floats(0.05, 0.95)


def line(c1_s, c2_s):
    return straight_curve(Law(c1_s, c2_s, np.diag([1e-4, 1e-6])), 6, 0.02, others_range=(0.0, 20.0))


@draws(60)
@given(
    st.tuples(SECONDS, SLOPES), st.tuples(SECONDS, SLOPES), SHARES, st.floats(0.5, 1.5), st.floats(0.01, 0.9)
)
def test_the_mean_lies_between_its_classes_and_keeps_littles_law(one, other, pods, pace, load):
    paces = (pace, (1.0 - pods * pace) / (1.0 - pods) if pods * pace < 0.99 else pace)
    requests = (pods * paces[0], 1.0 - pods * paces[0]) if pods * pace < 0.99 else (pods, 1.0 - pods)
    parts = [
        CurvePart(line(*law), share, at) for law, share, at in zip((one, other), requests, paces, strict=True)
    ]
    found = composed_curve(parts)
    rps = load * found.saturation_rps
    latency_s = float(found.latencies_at_rps(np.asarray(rps)))
    of_classes = [float(part.curve.latencies_at_rps(np.asarray(part.pace * rps))) for part in parts]
    assert min(of_classes) * 0.99 <= latency_s <= max(of_classes) * 1.01
    # Knots are of an open loop: in flight is the rate times the latency.
    others, latencies_s = found.knots.T
    assert (np.diff(others) > 0.0).all()
    assert (np.diff(latencies_s) >= -1e-9 * latencies_s[1:]).all()
    assert float(found.met_latencies(np.asarray(rps * latency_s))) / latency_s - 1.0 < 1e-6


@draws(40)
@given(st.tuples(SECONDS, SLOPES), SHARES, st.floats(0.01, 0.9))
def test_engines_of_one_kind_are_one_class_however_they_are_divided(law, pods, load):
    alone = composed_curve([CurvePart(line(*law), 1.0, 1.0)])
    divided = composed_curve([CurvePart(line(*law), pods, 1.0), CurvePart(line(*law), 1.0 - pods, 1.0)])
    rps = np.asarray(load * alone.saturation_rps)
    np.testing.assert_allclose(divided.latencies_at_rps(rps), alone.latencies_at_rps(rps), rtol=1e-6)
    assert divided.saturation_rps == alone.saturation_rps
