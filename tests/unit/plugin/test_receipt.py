"""The text of a pull request: each figure is the status' own, and what is not known is not there."""

from __future__ import annotations

from dataclasses import replace

from breakeven_operator.plugin.receipt import receipt
from breakeven_operator.plugin.service_view import ServiceView
from breakeven_operator.plugin.wanted_arm import exported, wanted_arm


def text_of(world, *, patch=False):
    service = ServiceView.of(world.service)
    wanted = wanted_arm(service, world.cluster.objects["deployments", "llm", "chat-vllm"], None)
    profile = world.cluster.objects["speculationprofiles", "llm", "chat-p1"]
    return receipt(service, wanted, profile, exported(wanted) if patch else None)


def test_it_says_what_was_measured_promised_and_is_at_stake_and_the_way_back(recommending):
    text = text_of(recommending)
    assert text.startswith("# Deployment/chat-vllm: no speculation -> eagle/3\n")
    heads = [line for line in text.splitlines() if line.startswith("## ")]
    assert heads == ["## Measured", "## Promised", "## At stake", "## To undo it"]
    for said in (
        "eagle/3 against no speculation: 1.79x (90 %: 1.69 to 1.89) at 3 rps per replica, expected by profile chat-p1.",
        "Points of eagle/3: 6, at 0.25 to 8.75 rps.",
        "Answers of eagle/3 were not compared with answers without speculation.",
        "eagle/3 saves 44 % of request time over the next 4 h (90 %: 38 to 49).",
        "eagle/3 pays until 9.08 rps per replica (8.41 or more).",
        "The roll costs 21 s of serving the present load.",
        "With eagle/3 a replica carries 12.6 rps (12 to 13.2), by Saturation.",
        "the annotation `breakeven.dev/speculative-config` is absent again",
    ):
        assert said in text, said


def test_figures_that_the_status_lacks_are_left_out(recommending):
    recommending.status["decision"] = {"arm": "eagle/3", "reason": "Pinned"}
    del recommending.status["workings"]["notes"], recommending.status["capacity"]
    text = text_of(recommending)
    assert not [word for word in ("None", "nan", "1.79x") if word in text]
    assert "## To undo it" in text


def test_the_word_about_answers_and_an_earlier_roll_are_in_it(settled):
    settled.status["calibration"]["answers"] = [{"arm": "eagle/3", "word": "AnswersAgree"}]
    text = text_of(settled)
    assert "Answers, AnswersAgree: " in text
    assert "A roll before, Confirmed: no speculation -> eagle/3: measured 1.79x" in text


def test_a_value_of_before_stays_within_its_code(recommending):
    service = ServiceView.of(recommending.service)
    wanted = wanted_arm(service, recommending.cluster.objects["deployments", "llm", "chat-vllm"], None)
    text = receipt(service, replace(wanted, running_value="{`\n# Merged\n}"), None, None)
    assert "# Merged" not in text.splitlines()
    assert "is `{ # Merged }` again" in text
