"""Crash back-off and probe thresholds count as the kubelet's do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.nodeagent.backoff import Backoff
from localcluster.nodeagent.thresholds import ProbeVerdict


def test_restarts_wait_0_10_20_40_up_to_300_seconds():
    backoff, now, waits = Backoff(), 1000.0, []
    for _ in range(8):
        restart = backoff.not_before(now)
        waits.append(restart - now)
        backoff = backoff.restarted(now, restart)
        now = restart + 1  # runs for a second, then crashes again
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


def test_a_long_run_is_forgiven():
    backoff = Backoff().restarted(0, 0).restarted(1, 11)
    assert backoff.not_before(11 + 600) == 11 + 600 + 20
    assert backoff.not_before(11 + 601) == 11 + 601
    assert backoff.restarted(11 + 601, 11 + 601).delay_s == 10


@given(st.lists(st.floats(0, 1000), max_size=20), st.floats(0.01, 10), st.floats(10, 300))
def test_a_wait_is_never_negative_nor_above_the_maximum(runs, base, longest):
    backoff, now = Backoff(base, longest), 0.0
    for run in runs:
        now += run
        restart = backoff.not_before(now)
        assert 0 <= restart - now <= longest + 1e-6
        backoff = backoff.restarted(now, restart)
        now = restart


@pytest.mark.parametrize(
    ("results", "verdicts"),
    [
        ("++", [None, True]),
        ("+-+", [None, None, None]),
        ("++--+", [None, True, True, True, True]),
        ("++---", [None, True, True, True, False]),
        ("---++", [None, None, False, False, True]),
    ],
)
def test_a_verdict_changes_only_after_its_run_of_results(results, verdicts):
    verdict, seen = ProbeVerdict(success_threshold=2, failure_threshold=3), []
    for result in results:
        verdict = verdict.observe(ok=result == "+")
        seen.append(verdict.passing)
    assert seen == verdicts
