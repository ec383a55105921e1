"""Targets that the operator must not touch: one distinct word each, the way out in the message, and no write."""

import pytest

from operatorcluster import manifests
from operatorcluster.stage import condition
from operatorcluster.waiting import until

PINNED = {"updatePolicy": {"pinnedArm": "eagle/3"}}


@pytest.mark.claim("README.md", "For `mode: RollingUpdate` the Deployment's manifest opts in once")
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


def behind_a_shell(*more: str) -> manifests.Manifest:
    """A target whose container starts vLLM as vLLM's own Kubernetes page does."""
    target = manifests.target()
    engine = manifests.engine(target)
    arguments = [word for word in engine["args"] if not word.startswith("--speculative-config")]
    engine |= {"command": ["/bin/sh", "-c"], "args": [" ".join(["exec vllm serve", *arguments, *more])]}
    return target


def test_a_shell_that_does_not_take_the_arm_is_looked_at_and_told_the_line(place):
    place.apply(behind_a_shell(), manifests.service(**PINNED))
    made = place.until_decided("NotOptedIn")
    assert 'write --speculative-config "$BREAKEVEN_SPECULATIVE_CONFIG"' in made["message"]
    assert place.writes() == []


def test_a_shell_that_hides_its_command_line_is_refused_by_name(place):
    target = behind_a_shell()
    manifests.engine(target)["args"][0] += '"$(cat /extra)"'
    place.apply(target, manifests.service(**PINNED))
    made = place.until_decided("EngineUnclear")
    assert "shell" in made["message"], made
    assert condition(place.get("specsvc", "chat"), "Ready")["reason"] == "EngineUnclear"
    assert place.writes() == []


def test_a_shell_that_takes_the_arm_is_rolled_to_it(place):
    place.apply(
        behind_a_shell('--speculative-config "$BREAKEVEN_SPECULATIVE_CONFIG"'), manifests.service(**PINNED)
    )
    place.until_settled("eagle/3")
    drafts = f'vllm:spec_decode_num_drafts_total{{namespace="{place.name}"}}'
    until(
        "the new pod counts drafts, so a real shell has handed the JSON on", lambda: place.stage.query(drafts)
    )


@pytest.mark.claim(
    "docs/gitops.md",
    "Two SpeculativeServices of one target do not fight: the younger one says whose it is and does nothing (`AlreadyManaged`).",
)
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
