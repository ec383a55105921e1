"""`kubectl breakeven status` and `explain`: texts made of statuses that the operator wrote."""

from __future__ import annotations

from datetime import timedelta

import pytest

from breakeven.reasons import Reason
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.plugin.explanation import explanation, reason_word
from breakeven_operator.plugin.service_table import document, frame, rows
from breakeven_operator.plugin.service_view import LeaseView, ServiceView, short_age


def view(world):
    return ServiceView.of(world.service)


def cells(world):
    header, line = rows([view(world)], world.clock.now())
    return dict(zip(header, line, strict=True))


def explained(world, leases=()):
    """The text with its lines joined, so that a break does not matter."""
    return " ".join(explanation(view(world), leases, world.clock.now()).split())


def lease(world, age_s):
    return LeaseView("breakeven/breakeven", world.clock.now() - timedelta(seconds=age_s), 30.0)


def test_the_table_has_the_columns_of_kubectl_and_the_roll_that_was_measured(settled):
    settled.clock.advance(300.0)
    found = cells(settled)
    shown = settled.status["workings"]["display"]
    columns = {
        "ARM": "arm", "PAYS": "pays", "SPEEDUP": "speedup", "BREAK-EVEN": "breakEven", "LOAD": "load",
        "RECOMMENDED": "recommended", "REASON": "reason", "MODE": "mode",
    }  # fmt: skip
    assert {name: found[name] for name in columns} == {name: shown[key] for name, key in columns.items()}
    assert found["DECIDED"] == "5m"
    roll = settled.whole["history"][0]
    assert found["LAST ROLL"] == (
        f"Confirmed {float(roll['measuredSpeedup']):.2f}x (promised {float(roll['predictedSpeedup']):.2f}x)"
    )
    assert found["CALIBRATION"].startswith("chat-p1 ")


def test_a_calibration_under_way_is_shown_with_its_points(fresh):
    assert cells(fresh)["CALIBRATION"].endswith(" begins")
    fresh.status["calibration"] |= {"pointsDone": 7, "pointsPlanned": 14}
    assert cells(fresh)["CALIBRATION"].endswith(" 7/14 points")
    fresh.status["calibration"] |= {
        "lastRun": fresh.status["calibration"]["run"],
        "lastReason": "FitRejected",
    }
    assert cells(fresh)["CALIBRATION"] == "FitRejected"


def test_a_roll_under_way_stands_in_place_of_the_last_one(settled):
    settled.status["rollout"] = {"phase": "Rolling", "fromArm": "eagle/3", "toArm": "none"}
    assert cells(settled)["LAST ROLL"] == "Rolling to no speculation"


def test_a_service_without_a_status_is_a_row_all_the_same(fresh):
    del fresh.service["status"]
    text = frame([view(fresh)], (), fresh.clock.now())
    assert "chat   -     -" in text
    assert text.splitlines()[1].split()[-4] == "RollingUpdate"
    assert "! chat: has no status yet" in text


def test_columns_are_aligned_and_all_namespaces_have_one_of_their_own(settled, fresh):
    table = frame([view(settled), view(fresh)], (), settled.clock.now(), everywhere=True).splitlines()
    assert table[0].startswith("NAMESPACE   NAME   ARM ")
    assert [line.index("RollingUpdate") for line in table[1:3]] == [table[0].index("MODE")] * 2


@pytest.mark.parametrize(("age_s", "said"), [(29.0, False), (89.0, False), (600.0, True)])
def test_an_operator_that_renews_no_lease_is_said(settled, age_s, said):
    text = frame([view(settled)], [lease(settled, age_s), lease(settled, 7000.0)], settled.clock.now())
    assert ("! no operator runs: the Lease breakeven/breakeven was last renewed 10m ago" in text) is said


def test_an_old_status_is_said_only_once_an_operator_would_have_renewed_it(settled):
    settled.clock.advance(3600.0)
    assert "!" not in frame([view(settled)], (), settled.clock.now())
    settled.clock.advance(3600.0)
    assert "! chat: its status is 120m old" in frame([view(settled)], (), settled.clock.now())


def test_a_change_that_the_operator_has_not_seen_is_said(settled):
    settled.service["metadata"]["generation"] = 5
    assert "! chat: its spec is of generation 5, the status of 1" in frame(
        [view(settled)], (), settled.clock.now()
    )


def test_the_document_has_the_same_facts_as_numbers(settled):
    (one,) = document([view(settled)], [lease(settled, 600.0)], settled.clock.now())["services"]
    assert (one["arm"], one["recommended"], one["reason"]) == ("eagle/3", "eagle/3", "BelowBreakEven")
    assert one["speedup"] == pytest.approx(1.79, abs=0.01)
    assert document([], [lease(settled, 600.0)], settled.clock.now())["operator"].startswith(
        "no operator runs"
    )


def test_explain_has_the_decisions_own_sentence_and_the_words_of_the_table(settled):
    text = explained(settled)
    assert settled.decision["message"] in text
    assert f"BelowBreakEven: {Reason.BELOW_BREAK_EVEN.meaning}" in text
    assert "eagle/3 pays until 9.08 rps per replica (8.41 or more); it is 3 rps now." in text
    assert "over them no speculation takes 78 % more of request time" in text
    assert "What it waits for" not in text


def test_explain_says_what_a_recommendation_waits_for(recommending):
    text = explained(recommending)
    assert (
        "the mode is Recommend, so the target is not rolled to eagle/3. `kubectl breakeven export chat` prints the change"
        in text
    )
    assert "over them eagle/3 saves 44 % of request time" in text


def test_explain_names_each_thing_that_holds_a_change_back(settled):
    later = settled.clock.now() + timedelta(seconds=300)
    settled.service["spec"] |= {"paused": True}
    settled.service["spec"]["updatePolicy"]["pinnedArm"] = "none"
    settled.status["decision"] |= {"reason": "Paused", "heldUntil": later.isoformat()}
    settled.memory |= {"backoffUntilTime": later.isoformat()}
    settled.status["rollout"] = {
        "phase": "Rolling", "fromArm": "eagle/3", "toArm": "none", "deadlineTime": later.isoformat(),
        "reason": "RollStarted",
    }  # fmt: skip
    text = explained(settled)
    for said in (
        "updatePolicy.pinnedArm asks for no speculation",
        "`kubectl breakeven unpin chat`",
        "spec.paused is true. `kubectl breakeven resume chat` ends it.",
        "a change is held back until",
        "(in 5m)",
        "`kubectl breakeven resume chat --retry` ends the wait",
        "A roll: eagle/3 to no speculation is Rolling, undone at",
        f"Paused: {ClusterReason.PAUSED.meaning} What to do: {ClusterReason.PAUSED.remedy}",
        f"RollStarted: {ClusterReason.ROLL_STARTED.meaning}",
    ):
        assert said in text


def test_explain_says_conditions_that_are_faults_with_their_remedies(fresh):
    fresh.status["conditions"][0] |= {
        "status": "False",
        "reason": "EngineUnclear",
        "message": "no container starts vLLM",
    }
    text = explained(fresh)
    assert "Ready is False, EngineUnclear: no container starts vLLM." in text
    assert (
        f"EngineUnclear: {ClusterReason.ENGINE_UNCLEAR.meaning} What to do: {ClusterReason.ENGINE_UNCLEAR.remedy}"
        in text
    )


def test_a_word_of_a_newer_operator_is_no_fault(settled):
    settled.status["decision"]["reason"] = "WordOfTomorrow"
    assert "Stay, WordOfTomorrow" in explained(settled)
    assert reason_word("WordOfTomorrow") is None


def test_every_word_of_both_tables_is_found():
    assert all(reason_word(str(word)) is word for table in (Reason, ClusterReason) for word in table)


def test_ages_are_written_as_kubectl_writes_them(settled):
    now = settled.clock.now()
    ages = [short_age(now - timedelta(seconds=s), now) for s in (5, 119, 120, 7200, 86400, 86400 * 3)]
    assert ages == ["5s", "119s", "2m", "120m", "24h", "3d"]
    assert short_age(None, now) == "-"


def test_nothing_that_stands_in_a_status_moves_a_terminals_cursor(settled):
    settled.status["workings"]["display"]["load"] = "3\x1b[2J rps\n"
    settled.status["decision"] |= {"message": "a\x1b[2J message", "reason": "Word\x1b[2J"}
    text = frame([view(settled)], (), settled.clock.now()) + explanation(
        view(settled), (), settled.clock.now()
    )
    assert all(line.isprintable() for line in text.splitlines())
