"""The demo's story follows the measured profile, whatever it says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.phrases import column, spoken
from breakeven.readers.reading import read_file
from breakeven.reporting.lines import arm_curves
from demo.record import PhaseResult, Record, Sample, ServiceRecord
from demo.story import HIGHEST_UTILISATION, tell
from demo.summary import answer_checks, answer_rows, judge, operator_failures, phase_rows

EAGLE = Arm("eagle3", 3)
PAYS_BELOW = {NO_SPECULATION: (0.9, 0.04), EAGLE: (0.5, 0.07)}
NEVER_PAYS = {NO_SPECULATION: (0.5, 0.04), EAGLE: (0.9, 0.07)}
ALWAYS_PAYS = {NO_SPECULATION: (0.9, 0.07), EAGLE: (0.5, 0.04)}
PAYS_ABOVE = {NO_SPECULATION: (0.5, 0.07), EAGLE: (0.6, 0.03)}


@pytest.fixture
def profile_of(tmp_path):
    def make(laws):
        rows = ["method,k,request_rate_rps,mean_latency_s"]
        for arm, (c1_s, c2_s) in laws.items():
            for share in (0.05, 0.2, 0.35, 0.5, 0.65, 0.72):
                rps = share / c2_s
                rows.append(f"{arm.method},{arm.k},{rps},{c1_s / (1 - rps * c2_s)}")
        path = tmp_path / "points.csv"
        path.write_text("\n".join(rows) + "\n")
        return fit_points(read_file(path), confidence=0.9)

    return make


@pytest.mark.parametrize(
    ("laws", "low", "high"),
    [
        (PAYS_BELOW, EAGLE, NO_SPECULATION),
        (NEVER_PAYS, NO_SPECULATION, NO_SPECULATION),
        (ALWAYS_PAYS, EAGLE, EAGLE),
        (PAYS_ABOVE, NO_SPECULATION, EAGLE),
    ],
)
def test_the_expected_arms_are_those_of_the_measured_laws(profile_of, laws, low, high):
    story = tell(profile_of(laws), min_gain=0.05)
    assert [phase.best for phase in story.phases] == [low, high, low]
    assert story.switches == (low != high)


@pytest.mark.parametrize(
    ("laws", "words"),
    [
        (PAYS_BELOW, "{break_even}; eagle3/3 should run at low load, no speculation at high load"),
        (NEVER_PAYS, "pays at no load; no speculation should run at every load"),
        (ALWAYS_PAYS, "pays at every load; eagle3/3 should run at every load"),
        (PAYS_ABOVE, "{break_even}; no speculation should run at low load, eagle3/3 at high load"),
    ],
)
def test_the_sentence_has_the_figure_of_table_picture_and_status(profile_of, laws, words):
    """The break-even, and not the lower load from which the minimum gain is no longer reached."""
    profile = profile_of(laws)
    compared = profile.compare(EAGLE, NO_SPECULATION, rps=0.0)
    sentence = tell(profile, min_gain=0.05).sentence
    assert sentence == f"eagle3/3 {words.format(break_even=compared.pays)}"
    (drawn,) = [curve.break_even_rps for curve in arm_curves(profile) if curve.arm == EAGLE]
    assert drawn == compared.break_even_rps
    if drawn is not None:
        assert f"{column(drawn, 'rps')} (" in sentence
    assert tell(profile, min_gain=0.2).sentence == sentence


@pytest.mark.parametrize("laws", [PAYS_BELOW, NEVER_PAYS, ALWAYS_PAYS, PAYS_ABOVE])
def test_no_load_of_the_story_rests_on_extrapolation(profile_of, laws):
    story = tell(profile_of(laws), min_gain=0.05)
    for phase in story.phases:
        assert phase.rps * laws[phase.best][1] <= HIGHEST_UTILISATION + 1e-6
        assert phase.best_latency_s is not None
        assert phase.best.name in phase.acceptable
        assert phase.other.name not in phase.acceptable


def _record(
    story,
    arms,
    alerts,
    failures=(),
    mode="Recommend",
    settled=True,
    first=None,
    recommended=None,
    carried=1.0,
):
    service = ServiceRecord("code", "H100", mode)
    first = first or arms[0]
    service.samples += [
        Sample(at_s, 1.0, 0.5, arm, arm, "Yes", "", "Any", False, "") for at_s, arm in ((0, "?"), (1, first))
    ]
    for start, phase, arm, alert in zip((2.0, 40.0, 80.0), story.phases, arms, alerts, strict=True):
        seen = recommended or phase.best.name
        service.samples += [Sample(start + 8.0, 1.0, 0.5, arm, seen, "Yes", "", "Any", False, "")]
        service.phases.append(
            PhaseResult(
                phase,
                start,
                start + 30.0,
                start + 9.0 if settled else None,
                0.5,
                99,
                phase.rps * carried,
                arm,
                seen,
                "Any",
                alert,
            )
        )
    return Record(0.0, {"code": service}, requests=300, failures=list(failures))


def test_a_running_arm_that_loses_must_alert_and_one_that_pays_must_not(profile_of):
    story = tell(profile_of(PAYS_BELOW), min_gain=0.05)
    speculating = ["eagle3/3"] * 3
    right = judge(_record(story, speculating, [False, True, False]), {"code": story}, {})
    assert all(check.ok for check in right)
    silent = judge(_record(story, speculating, [False, False, False]), {"code": story}, {})
    assert [check.what for check in silent if not check.ok] == [
        f"code: alert fires at {story.phases[1].rps:.1f} rps (high)"
    ]


def test_a_load_that_the_machine_could_not_send_is_said_beside_the_missed_arm(profile_of):
    story = tell(profile_of(PAYS_BELOW), min_gain=0.05)
    for carried, said in ((0.5, True), (0.9, False)):
        record = _record(story, ["none"] * 3, [False] * 3, settled=False, carried=carried)
        missed = [check.detail for check in judge(record, {"code": story}, {}) if not check.ok]
        assert any("too busy for the load" in detail for detail in missed) == said


@pytest.mark.parametrize(
    ("change", "writes", "words"),
    [
        ({"failures": ["HTTP 500 (pod)"]}, {}, "no request failed"),
        ({}, {"code": ["patch code-vllm"]}, "nothing was changed"),
        ({"settled": False}, {}, "is recommended"),
    ],
)
def test_whatever_did_not_happen_fails_its_own_check(profile_of, change, writes, words):
    story = tell(profile_of(PAYS_BELOW), min_gain=0.05)
    checks = judge(_record(story, ["eagle3/3"] * 3, [False, True, False], **change), {"code": story}, writes)
    failed = [check.what for check in checks if not check.ok]
    assert failed
    assert all(words in what for what in failed)


def test_a_check_prints_the_arm_that_was_seen(profile_of):
    """An arm that is as good as the best one is what was recommended, and is what is said to be."""
    told = tell(profile_of(PAYS_BELOW), min_gain=0.05)
    close = tuple(replace(one, acceptable=one.acceptable | {"eagle3/schedule"}) for one in told.phases)
    story = replace(told, phases=close)
    record = _record(story, ["eagle3/3"] * 3, [False, True, False], recommended="eagle3/schedule")
    low = judge(record, {"code": story}, {})[0]
    assert (low.what, low.ok) == (
        f"code: eagle3/schedule is recommended at {close[0].rps:.1f} rps (low)",
        True,
    )
    assert low.detail == "after 9 s; eagle3/3 is faster by less than a roll is made for"


@pytest.mark.parametrize("recommended", ["none", "eagle3/9", "-", "?"])
@pytest.mark.parametrize("settled", [True, False])
def test_a_failed_check_says_what_was_there_instead(profile_of, recommended, settled):
    story = tell(profile_of(PAYS_BELOW), min_gain=0.05)
    record = _record(story, ["eagle3/3"] * 3, [False, True, False], recommended=recommended, settled=settled)
    low = judge(record, {"code": story}, {})[0]
    assert (low.what, low.ok) == (
        f"code: eagle3/3 is recommended at {story.phases[0].rps:.1f} rps (low)",
        False,
    )
    assert low.detail == f"{spoken(recommended)} instead (Any), after 30 s"


def test_the_table_says_what_the_other_arm_would_have_given(profile_of):
    story = tell(profile_of(PAYS_BELOW), min_gain=0.05)
    rows = phase_rows(_record(story, ["eagle3/3"] * 3, [False, True, False]))
    assert rows[0][7].startswith("none ")
    assert rows[1][3] == "eagle3/3 (recommended none)"


@pytest.mark.parametrize(
    ("laws", "first", "right", "what"),
    [
        (PAYS_BELOW, "none", 3, "rolled at least 3 times, each with a reason"),
        (PAYS_BELOW, "eagle3/3", 2, "rolled at least 2 times, each with a reason"),
        (ALWAYS_PAYS, "none", 1, "rolled to eagle3/3 once and never again"),
        (ALWAYS_PAYS, "eagle3/3", 0, "never rolled"),
        (NEVER_PAYS, "none", 0, "never rolled"),
    ],
)
def test_rolls_are_counted_against_the_arms_that_should_run(profile_of, laws, first, right, what):
    story = tell(profile_of(laws), min_gain=0.05)
    arms = [phase.best.name for phase in story.phases]
    record = _record(story, arms, [False] * 3, mode="RollingUpdate", first=first)

    def rolled(times):
        checks = judge(record, {"code": story}, {"code": ["apply code-vllm"] * times})
        return next(check.ok for check in checks if check.what == f"code: {what}")

    assert rolled(right)
    assert rolled(right + 1) == story.switches
    assert right == 0 or not rolled(right - 1)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"level": "info", "reason": "AlreadyBest", "message": "no ERROR here"}, None),
        ({"level": "warning", "logger": "asyncio", "message": "slow"}, None),
        ({"level": "error", "logger": "asyncio", "message": "Task failed"}, "Task failed"),
        ({"level": "info", "specsvc": "llm/chat", "reason": "InternalError"}, "InternalError"),
        (
            {"level": "error", "message": "deciding about llm/chat failed", "traceback": "Traceback\nValueError: inf\n"},
            "deciding about llm/chat failed: ValueError: inf",
        ),
        ({"level": "warning", "message": "odd", "traceback": "Traceback\nKeyError: 1"}, "odd: KeyError: 1"),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("listening", None),
        ("5", None),
    ],
)  # fmt: skip
def test_a_failure_of_the_operator_itself_fails_a_check_of_its_own(profile_of, line, told):
    text = line if isinstance(line, str) else json.dumps(line)
    found = operator_failures(f"{text}\n\n", restarts=0)
    assert found == ([told] if told else [])
    story = tell(profile_of(PAYS_BELOW), min_gain=0.05)
    checks = judge(_record(story, ["eagle3/3"] * 3, [False, True, False]), {"code": story}, {}, found)
    failed = [(check.what, check.detail) for check in checks if not check.ok]
    assert failed == (
        [("the operator met no error of its own", f"1 lines of its log; first: {told}")] if told else []
    )


def test_a_restart_that_took_the_log_away_is_a_failure_too():
    assert operator_failures("", restarts=2) == ["the operator was restarted 2 times"]


def test_the_demo_shows_the_word_about_each_arms_answers_and_misses_one_that_is_not_there(profile_of):
    silent = profile_of(PAYS_BELOW)
    judged = replace(silent, arms=tuple(replace(fit, answers="AnswersAgree") for fit in silent.arms))
    profiles = {"chat": judged, "code": silent}
    assert answer_rows(profiles) == [
        ("chat", "eagle3/3", "AnswersAgree"),
        ("code", "eagle3/3", "not compared"),
    ]
    assert [check.ok for check in answer_checks(profiles)] == [True, False]
