"""`breakeven watch` over a Prometheus' API: the present on the curves of the past, what never ran, and what goes wrong meanwhile."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from click.testing import CliRunner

from breakeven.cli import root
from breakeven.cli.past_options import PastQuestion
from breakeven.cli.watch_view import spark
from breakeven.errors import BreakevenError, InputError
from breakeven.serving.model_watch import ModelWatch
from fakes.answering_prometheus import answering
from fakes.held_series import SeriesStore
from fakes.past_courses import STEP_S, grid_of, lawful, stored

WINDOWS = 24
RATES = np.linspace(4.0, 0.3, WINDOWS)
GRID = grid_of(WINDOWS)
NOISE = np.random.default_rng(1).normal(0.0, 0.01, WINDOWS)
# Gains alone, loses in company: the lines cross at 2 rps.
DRAFTS = {"k": 3, "c1_s": 1.5, "c2_s": 0.2}


HALF = WINDOWS // 2


def two_arms():
    """No speculation in the first half, drafts in the second; both at all loads."""
    rates = np.concatenate([RATES[::2], RATES[::2]])
    return stored(
        [lawful(rates, noise=NOISE, last=HALF), lawful(rates, "chat-64bd5fcf9-zzzzz", first=HALF, **DRAFTS)],
        GRID,
    )


def both_at_once():
    return stored([lawful(RATES, noise=NOISE), lawful(RATES, "chat-64bd5fcf9-zzzzz", **DRAFTS)], GRID)


def watched(store: SeriesStore, *words: str):
    with answering(store) as address:
        asked = ["--deployment", "llm/chat", "--since", f"{WINDOWS * STEP_S // 60}m", "--method", "eagle3"]
        return CliRunner().invoke(root, ["watch", "--prometheus", address, *asked, *words])


@pytest.fixture(autouse=True)
def now(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: float(GRID.last_s))


def test_the_present_load_lies_on_the_curves_of_what_ran():
    done = watched(two_arms(), "--once")
    assert done.exit_code == 0, done.output
    assert "0.461 rps per pod" in done.output
    assert "of the break-even" in done.output
    assert "█" in done.output
    assert "eagle3/3" in done.output
    assert "the past's law says" in done.output
    assert "curves: 110 min of no speculation, 110 min of eagle3/3 at steady loads" in " ".join(
        done.output.split()
    )


def test_the_document_says_the_same():
    done = watched(two_arms(), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["running"], found["pods"]) == (["eagle3/3"], 1)
    assert found["rps"] == pytest.approx(0.461, abs=1e-3)
    assert found["predicted_latency_s"] == pytest.approx(found["latency_s"], rel=0.03)
    (arm,) = found["arms"]
    low, high = arm["break_even_ci_rps"]
    assert low < arm["break_even_rps"] < high
    assert {one["basis"] for one in found["calibration"]["arms"]} == {"FromPrior"}


def test_pods_of_two_arms_have_figures_of_neither():
    done = watched(both_at_once(), "--once")
    assert done.exit_code == 0, done.output
    assert "none and eagle3/3" in done.output
    assert "the past's law says" not in done.output
    assert "of the break-even" in done.output


def test_what_never_ran_is_told_apart_by_the_mark_of_its_source():
    done = watched(stored([lawful(RATES, noise=NOISE)], GRID), "--once")
    assert done.exit_code == 0, done.output
    assert "Never ran here (FromPrior)" in done.output
    assert "OtherArmNeverRan" in done.output
    assert "At this load, by the past" not in done.output


def test_a_workload_whose_past_does_not_count_has_a_present(monkeypatch):
    def none_counts(_question):
        raise InputError("--since", "none of 24 windows is steady (Saturated 24)", "a longer past")

    monkeypatch.setattr(PastQuestion, "read", none_counts)
    done = watched(two_arms(), "--once")
    assert done.exit_code == 0, done.output
    assert "no curve: its past says nothing (none of 24 windows is steady (Saturated 24))" in " ".join(
        done.output.split()
    )
    assert "0.461 rps per pod" in done.output


def test_a_server_that_goes_away_is_a_frame_and_the_next_look_may_find_it(monkeypatch):
    looks, found = [], ModelWatch.of

    def of(*asked):
        looks.append(asked)
        if len(looks) == 2:
            raise BreakevenError("http://p: no answer (timed out); expected Prometheus")
        return found(*asked)

    def sleep(_seconds):
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(ModelWatch, "of", of)
    monkeypatch.setattr("breakeven.cli.watch.time.sleep", sleep)
    done = watched(two_arms())
    assert done.exit_code == 0, done.output
    assert len(looks) == 3
    assert "0.461 rps per pod" in done.output


def test_nothing_there_is_one_line():
    done = watched(stored([lawful(RATES, "other-7d9f8b6c5d-bbbbb")], GRID), "--once")
    assert done.exit_code == 1
    assert str(done.exception).startswith("--match: no vllm:num_requests_running")


@pytest.mark.parametrize(
    ("loads", "shown"), [([], "-"), ([0.0], "-"), ([1.0, 2.0, 4.0], "▃▅█"), ([1.0] * 99, "█" * 60)]
)
def test_loads_are_a_line_of_blocks(loads, shown):
    assert spark(loads) == shown
