"""Laws before the judge: a law that knows the truth has no error, and one that knows nothing answers nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.errors import NotIdentifiedError
from validation.judged_engines import ENGINES, TWO_WORKLOADS, Half
from validation.law_door import BoundedFigure, LawOfSteps, NoLaw
from validation.law_trials import DESIGNS, elsewhere, measured, trial
from validation.truths import LARGEST_ERROR, Truths, closed_loop, long_run, open_loop

ROOFLINE = next(one for one in ENGINES if one.kind == "roofline" and one.half is Half.CHOSEN)


class Oracle:
    """Knows the figures of an engine at the lengths and E at which they were made, times a factor."""

    name = "oracle"

    def __init__(self, truths, factor=1.0):
        self.truths, self.factor = truths, factor

    def fit(self, points):
        return self

    def latency(self, arm, load, conditions):
        asking = self.truths.engine.asking
        if conditions.dispersion > 1.0:
            return self._bounded(self.truths.at(arm.k, open_loop(load.rps), cv=3.0).latency_s)
        for one in elsewhere(asking):
            lengths = one.asking.prompt_tokens, one.asking.output_tokens
            if lengths == (conditions.prompt_tokens, conditions.output_tokens):
                found = self.truths.known.get(self._key(arm.k, load.rps, one.asking))
                if found is not None and (not arm.k or found.tokens_per_step == conditions.tokens_per_step):
                    return self._bounded(found.latency_s)
        if load.rps >= 0.95 * self.truths.saturation_rps(arm.k):
            return BoundedFigure(math.inf, None, None)
        return self._bounded(self.truths.at(arm.k, open_loop(load.rps)).latency_s)

    def _key(self, k, rate, asking):
        lengths = f"p={asking.prompt_tokens:g} g={asking.output_tokens:g} a={asking.acceptance:.4g}"
        return f"k={k} {rate:.5g} rps {lengths}"

    def _bounded(self, value):
        return BoundedFigure(self.factor * value, 0.99 * self.factor * value, 1.01 * self.factor * value)

    def scheduled_latency(self, method, schedule, load):
        return self._bounded(self.truths.at(schedule, open_loop(load.rps)).latency_s)

    def break_even_rps(self, arm):
        return self._bounded(self.truths.break_even_rps(arm.k))

    def saturation_rps(self, arm):
        return self.truths.saturation_rps(arm.k)


@pytest.fixture
def truths():
    return Truths.read(ROOFLINE)


def test_a_law_that_knows_the_truth_makes_no_error_and_regrets_nothing(truths):
    found = trial(Oracle(truths), truths, "mixed", 0.02, 1)
    assert max(abs(answer.error) for answer in found.answers) < 1e-9
    assert all(answer.held for answer in found.answers)
    assert found.regrets == (0.0, 0.0, 0.0)
    assert {answer.column for answer in found.answers} == {
        "unseen load", "unseen k", "prompts x4", "answers x2", "answers /2", "E x0.6", "E x1.3", "bursts", "schedule", "break-even"
    }  # fmt: skip


def test_a_law_that_is_a_tenth_too_high_errs_by_a_tenth_and_its_bounds_hold_nothing(truths):
    found = trial(Oracle(truths, 1.1), truths, "closed", 0.02, 1)
    assert [answer.error for answer in found.answers] == pytest.approx([0.1] * len(found.answers))
    assert not any(answer.held for answer in found.answers)


def test_a_law_that_knows_nothing_is_counted_as_no_answer(truths):
    found = trial(NoLaw(), truths, "open", 0.02, 1)
    assert all(answer.error is None and answer.held is None for answer in found.answers)
    assert found.regrets == (None, None, None)


@pytest.mark.parametrize("design", DESIGNS)
def test_a_calibration_has_six_loads_of_each_arm_and_the_noise_that_was_asked_for(truths, design):
    points = measured(truths, design, 0.05, 4)
    assert sorted({point.k for point in points}) == [0, 2, 7]
    assert len(points) == 18
    exact = measured(truths, design, 0.0, 4)
    errors = [
        math.log(one.mean_latency_s / other.mean_latency_s) for one, other in zip(points, exact, strict=True)
    ]
    assert 0.03 < np.std(errors) < 0.08
    # Little's law holds in every point, as in a run that starts and ends in a steady state.
    for point in points:
        assert point.mean_inflight == pytest.approx(point.achieved_rps * point.mean_latency_s)


def test_the_law_answers_through_the_door_as_the_commands_do(truths):
    fitted = LawOfSteps().fit(measured(truths, "mixed", 0.0, 1))
    found = fitted.latency(NO_SPECULATION, *_at(0.45 * truths.saturation_rps(0)))
    assert found.lower < found.value < found.upper
    assert math.isinf(fitted.latency(NO_SPECULATION, *_at(10.0 * truths.saturation_rps(0))).value)


def test_the_law_of_steps_knows_a_schedule_that_was_not_measured(truths):
    fitted = LawOfSteps().fit(measured(truths, "mixed", 0.0, 1))
    load = _at(0.25 * truths.saturation_rps(0))[0]
    found = fitted.scheduled_latency("eagle3", ROOFLINE.schedule, load)
    true = truths.at(ROOFLINE.schedule, open_loop(load.rps)).latency_s
    assert found.value == pytest.approx(true, rel=0.1)
    assert found.lower < found.value < found.upper
    with pytest.raises(NotIdentifiedError, match="is not in the profile"):
        fitted.scheduled_latency("ngram", ROOFLINE.schedule, load)


def _at(rate):
    from breakeven.profile import Conditions, LoadPoint

    return LoadPoint(rps=rate), Conditions()


def test_every_engine_has_its_figures_and_each_kind_a_half_that_is_kept_apart():
    assert len({(one.kind, one.half) for one in ENGINES}) == len(ENGINES) == 16
    for engine in (*ENGINES, *TWO_WORKLOADS):
        truths = Truths.read(engine)
        far = [run.error for run in truths.known.values() if run.error > LARGEST_ERROR + 1e-3]
        # Bursts are known less well, and so is what lies near saturation.
        assert len(far) < 0.15 * len(truths.known), (engine.kind, engine.half, far)


def test_a_kept_figure_is_what_a_long_run_gives(truths):
    for load in (closed_loop(1), open_loop(0.25 * truths.saturation_rps(0))):
        again = long_run(ROOFLINE, 0, load, ROOFLINE.asking)
        assert again.figures() == pytest.approx(truths.at(0, load).figures(), rel=1e-5)


def test_figures_of_an_engine_that_has_changed_are_refused_in_one_line(truths):
    from dataclasses import replace

    other = replace(ROOFLINE, asking=replace(ROOFLINE.asking, acceptance=0.5))
    with pytest.raises(
        SystemExit, match=r"roofline-chosen-on\.json: no figures of this engine; expected those that"
    ):
        Truths.read(other)
    with pytest.raises(SystemExit, match=r"no k=0 3\.3 rps .*; make it with `python -m validation"):
        truths.at(0, open_loop(3.3))
