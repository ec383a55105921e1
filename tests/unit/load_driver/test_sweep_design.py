"""Which load comes next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven.errors import InputError
from breakeven.load_driver.design import (
    EXTRA_ATTEMPTS,
    Finished,
    SweepSettings,
    SweepStep,
    closing_step,
    line_through,
    next_step,
    planned_rates,
    seconds_left,
)
from breakeven.points.point import ImposedLoad, LoadMode, Point, first_half
from breakeven.reasons import Reason
from sweeps import seen

C1_S, C2_S = 1.1, 0.0293
SETTINGS = SweepSettings(loads=7, max_concurrency=32)


def closed(clients: int, *flags: Reason) -> Point:
    latency_s = C1_S + (clients - 1) * C2_S
    return seen(ImposedLoad(LoadMode.CLOSED, clients), latency_s, clients, clients / latency_s, 30.0, *flags)


def poisson(rps: float, *flags: Reason) -> Point:
    latency_s = C1_S / (1 - rps * C2_S)
    return seen(ImposedLoad(LoadMode.POISSON, rps), latency_s, rps * latency_s, rps, 30.0, *flags)


def run(settings: SweepSettings, measured: list[Point], answer=None) -> tuple[list[Point], Finished]:
    for _ in range(50):
        step = next_step(settings, measured)
        if isinstance(step, Finished):
            return measured, step
        point = closed(step.load.clients) if step.load.clients else (answer or poisson)(step.load.rps)
        measured = [*measured, point]
    raise AssertionError("the sweep does not end")


def test_the_sweep_starts_with_one_client_then_the_ceiling():
    first = next_step(SETTINGS, [])
    assert isinstance(first, SweepStep)
    assert first.load == ImposedLoad(LoadMode.CLOSED, 1)
    second = next_step(SETTINGS, [closed(1)])
    assert isinstance(second, SweepStep)
    assert second.load == ImposedLoad(LoadMode.CLOSED, 32)
    assert second.warmup_s >= C1_S


def test_rates_are_even_in_utilisation_between_the_two_ends():
    rates = planned_rates(SETTINGS, [closed(1), closed(32)])
    assert [rate * C2_S for rate in rates] == pytest.approx([0.15, 0.3125, 0.475, 0.6375, 0.8])


def test_a_full_sweep_measures_the_wanted_number_of_loads_middle_first():
    measured, finished = run(SETTINGS, [])
    assert finished == Finished(complete=True, reason="all 7 loads measured")
    assert len(measured) == 7
    assert measured[2].load.rps * C2_S == pytest.approx(0.475)
    assert sorted(point.load.rps * C2_S for point in measured[2:]) == pytest.approx(
        [0.15, 0.3125, 0.475, 0.6375, 0.8]
    )


def test_expectations_follow_the_law():
    step = next_step(SETTINGS, [closed(1), closed(32)])
    assert isinstance(step, SweepStep)
    assert step.latency_s == pytest.approx(C1_S / (1 - 0.475))
    assert step.inflight == pytest.approx(step.load.rps * step.latency_s)
    assert step.warmup_s == max(SETTINGS.warmup_seconds, step.latency_s)


def test_what_is_there_is_not_measured_again():
    full, _ = run(SETTINGS, [])
    without_one = full[:4] + full[5:]
    step = next_step(SETTINGS, without_one)
    assert isinstance(step, SweepStep)
    assert step.load == full[4].load


def test_saturation_bounds_the_rates_and_the_gap_below_is_filled():
    limit_rps = 0.55 / C2_S

    def answer(rps: float) -> Point:
        return poisson(rps, Reason.SATURATED_POINT) if rps > limit_rps else poisson(rps)

    measured, finished = run(SETTINGS, [], answer)
    asked = [point.load.rps for point in measured[2:]]
    first_failure = next(index for index, rps in enumerate(asked) if rps > limit_rps)
    assert all(rps < asked[first_failure] for rps in asked[first_failure + 1 :])
    assert finished.complete
    assert sum(point.usable for point in measured) == 7


def test_a_point_spoilt_by_the_driver_is_replaced_not_taken_for_saturation():
    spoilt = {True}

    def answer(rps: float) -> Point:
        return poisson(rps, Reason.DRIVER_LAGGING) if spoilt and spoilt.pop() else poisson(rps)

    measured, finished = run(SETTINGS, [], answer)
    assert finished.complete
    assert max(point.load.rps for point in measured if point.load.rps) * C2_S == pytest.approx(0.8)


def test_attempts_are_bounded():
    measured, finished = run(SETTINGS, [], lambda rps: poisson(rps, Reason.NOT_STEADY))
    assert not finished.complete
    assert len(measured) <= SETTINGS.loads + EXTRA_ATTEMPTS


def test_a_queueing_ceiling_still_counts_and_still_gives_rates():
    measured = [closed(1), closed(32, Reason.SATURATED_POINT)]
    step = next_step(SETTINGS, measured)
    assert isinstance(step, SweepStep)
    assert step.load.rps * C2_S == pytest.approx(0.475)


def test_rates_of_another_arm_are_taken_over_when_near():
    reference = (4.9, 11.0, 16.5, 21.0, 30.0)
    rates = planned_rates(replace(SETTINGS, reference_rps=reference), [closed(1), closed(32)])
    assert set(rates[:4]) == set(reference[:4])
    # 30 rps is beyond the highest utilisation of this arm: its own top rate stays.
    assert rates[4] * C2_S == pytest.approx(0.8)


def test_time_shortens_the_window_and_then_ends_the_sweep():
    settings = replace(SETTINGS, max_seconds=100.0)
    step = next_step(settings, [closed(1), closed(32)], spent_s=60.0)
    assert isinstance(step, SweepStep)
    assert step.window_s < settings.point_seconds
    assert step.expected_s <= 40.0 + 1e-9
    finished = next_step(settings, [closed(1), closed(32)], spent_s=93.0)
    assert isinstance(finished, Finished)
    assert not finished.complete
    assert "time is up" in finished.reason


def test_a_window_may_be_lengthened_within_the_time_that_is_left():
    unhurried = next_step(SETTINGS, [closed(1)])
    assert isinstance(unhurried, SweepStep)
    assert unhurried.longest_s == 10 * SETTINGS.point_seconds
    hurried = next_step(replace(SETTINGS, max_seconds=200.0), [closed(1)], spent_s=30.0)
    assert isinstance(hurried, SweepStep)
    assert hurried.window_s == SETTINGS.point_seconds
    assert 30.0 + hurried.warmup_s + hurried.longest_s + hurried.latency_s <= 200.0


def test_latency_that_does_not_grow_gives_no_rate_to_aim_at():
    flat = [closed(1), replace(closed(32), mean_latency_s=C1_S * 0.9)]
    finished = next_step(SETTINGS, flat)
    assert isinstance(finished, Finished)
    assert "does not grow" in finished.reason


def test_the_line_is_the_law_when_the_points_are():
    line = line_through([closed(1), closed(32), poisson(12.0)])
    assert line.c1_s == pytest.approx(C1_S)
    assert line.c2_s == pytest.approx(C2_S)


def test_the_estimate_of_time_left_falls_to_zero():
    measured, _ = run(SETTINGS, [])
    estimates = [seconds_left(SETTINGS, measured[:count]) for count in range(2, 8)]
    assert estimates == sorted(estimates, reverse=True)
    assert estimates[-1] == 0.0


def test_the_estimate_of_time_left_takes_windows_of_rates_as_soon_as_there_are_any():
    lone, ceiling = (replace(closed(clients), window_s=90.0) for clients in (1, 32))
    rate = replace(poisson(0.5 / C2_S), window_s=40.0)
    # Besides its window a rate takes a warm-up of one latency, and its last answer another one.
    around_s = 2.0 * C1_S / (1 - 0.5)
    settings = replace(SETTINGS, warmup_seconds=0.0)
    assert seconds_left(settings, [lone, ceiling]) == pytest.approx(5 * (90.0 + around_s))
    assert seconds_left(settings, [lone, ceiling, rate]) == pytest.approx(4 * (40.0 + around_s))


@pytest.mark.parametrize(
    "wrong",
    [
        {"loads": 2},
        {"max_concurrency": 1},
        {"point_seconds": 1.0},
        {"arrivals": LoadMode.CLOSED},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(InputError):
        replace(SETTINGS, **wrong)


def test_the_first_load_comes_once_more_at_the_end_and_only_once():
    measured, _ = run(SETTINGS, [])
    step = closing_step(SETTINGS, measured)
    assert step is not None
    assert (step.load, step.number) == (measured[0].load, len(measured) + 1)
    assert closing_step(SETTINGS, [*measured, closed(1)]) is None
    out_of_time = replace(SETTINGS, max_seconds=600.0)
    assert closing_step(out_of_time, measured, spent_s=599.0) is None
    flagged = [closed(1, Reason.NOT_STEADY), *measured[1:]]
    assert closing_step(SETTINGS, flagged) is None


def test_a_second_start_repeats_the_load_in_the_middle_of_the_first_one_with_its_arrivals():
    measured, _ = run(SETTINGS, [])
    first = measured[:4]
    step = closing_step(SETTINGS, measured, before=first)
    assert step is not None
    others = sorted(point.mean_inflight or 0.0 for point in first)
    assert step.load == first[step.number - 1].load
    assert first[step.number - 1].mean_inflight == others[2]
    assert closing_step(SETTINGS, [*measured, poisson(step.load.value)], before=first) is None
    flagged = [closed(1), closed(32, Reason.SATURATED_POINT)]
    alone = closing_step(SETTINGS, flagged, before=flagged)
    assert alone is not None
    assert alone.load == flagged[0].load
    assert closing_step(SETTINGS, flagged[1:], before=flagged[1:]) is None


@pytest.mark.parametrize(("loads", "first"), [(3, 3), (4, 3), (5, 3), (6, 3), (7, 4), (8, 4), (20, 10)])
def test_the_first_of_two_starts_measures_about_half_of_the_loads_and_enough_for_a_law(loads, first):
    assert first_half(loads) == first
