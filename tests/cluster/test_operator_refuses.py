"""Targets that the operator must not touch: one distinct word each, the way out in the message, and no write."""

from operatorcluster import manifests
from operatorcluster.stage import condition

PINNED = {"updatePolicy": {"pinnedArm": "eagle/3"}}


def test_a_target_without_opt_in_is_not_rolled_and_told_the_lines(place):
    target = manifests.target()
    engine = manifests.engine(target)
    del engine["env"]
    engine["args"].pop()
    place.apply(manifests.profile(place.stage.fingerprint), target, manifests.service(**PINNED))
    made = place.until_decided("NotOptedIn")
    assert made["arm"] == "eagle/3"
    ready = condition(place.get("specsvc", "chat"), "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NotOptedIn")
    assert "--speculative-config=$(BREAKEVEN_SPECULATIVE_CONFIG)" in ready["message"]
    assert "metadata.annotations['breakeven.dev/speculative-config']" in ready["message"]
    assert place.writes() == []


def test_a_target_behind_a_shell_is_neither_measured_nor_rolled(place):
    target = manifests.target()
    engine = manifests.engine(target)
    engine["command"] = ["sh", "-c"]
    engine["args"] = [" ".join(["vllm", "serve", *engine["args"]])]
    place.apply(target, manifests.service(**PINNED))
    place.until_decided("ShellWrapper")
    assert condition(place.get("specsvc", "chat"), "Ready")["reason"] == "ShellWrapper"
    assert place.all("calrun") == []
    assert place.writes() == []


def test_the_second_service_on_a_target_is_refused_and_names_the_first(place):
    place.managed(updatePolicy={"mode": "Recommend"})
    place.until_service("it watches", lambda status: (status.get("target") or {}).get("readyReplicas"))
    place.apply(manifests.service("late", **PINNED))
    made = place.until_decided("AlreadyManaged", name="late")
    assert "SpeculativeService chat" in made["message"]
    assert condition(place.get("specsvc", "chat"), "Ready")["status"] == "True"
    assert place.writes() == []


def test_a_target_that_would_cut_off_requests_is_rolled_only_when_that_is_accepted(place):
    target = manifests.target()
    engine = manifests.engine(target)
    del engine["lifecycle"]
    engine["args"].remove("--shutdown-timeout=10")
    place.apply(manifests.profile(place.stage.fingerprint), target, manifests.service(**PINNED))
    made = place.until_decided("DrainNotConfigured")
    assert "--shutdown-timeout" in made["message"]
    assert "preStop" in made["message"]
    assert place.writes() == []
    place.patch("specsvc", "chat", {"spec": {"updatePolicy": {"drain": "AcceptLoss"}}})
    place.until_settled("eagle/3")
    assert len(place.writes()) == 1
