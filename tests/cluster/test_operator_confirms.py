"""Measured request times decide on a real control plane: after a roll, and next to saturation.

The real Prometheus sees every pod of the target as an engine at a load that the test moves. Its latency follows the
law of the arm that the pod really runs.
"""

import json
import threading
import time

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.laws.latency import open_loop_latency
from operatorcluster import manifests
from operatorcluster.posing import PosedTraffic
from operatorcluster.target_engine import EAGLE, OUTPUT_TOKENS, PROMPT_TOKENS, law, tokens_per_step
from operatorcluster.waiting import until

LOW_RPS = 2.0
# The break-even lies near 11. Eagle is at 90 % of its saturation here, no speculation at 61 % of its own.
HIGH_RPS = 12.0
# Beyond eagle's saturation of 13, also if a busy machine counts a seventh less, and 80 % of that without speculation.
SATURATING_RPS = 16.0
_LOOK_S = 0.3


class Posed:
    """The pods of a place's target: what each has counted since it appeared.

    Attributes:
        rps: of every pod. slow: what requests without speculation take over what the law says.
    """

    def __init__(self, place):
        self.place, self.rps, self.slow = place, LOW_RPS, 1.0
        self.counted = {}
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._follow)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def _follow(self):
        while not self.ended.wait(_LOOK_S):
            for pod in self.place.all("pod"):
                meta = pod["metadata"]
                if meta["name"] not in self.counted:
                    value = json.loads((meta.get("annotations") or {}).get(manifests.ANNOTATION) or "null")
                    counted = Counted(self, EAGLE if value else NO_SPECULATION)
                    self.counted[meta["name"]] = counted
                    self.place.stage.posers.pose(
                        f"{self.place.name}-{meta['name']}",
                        counted.page,
                        namespace=self.place.name,
                        pod=meta["name"],
                    )


class Counted:
    """The counters of one pod; requests beyond its arm's saturation wait."""

    def __init__(self, posed, arm):
        self.posed, self.arm = posed, arm
        self.at, self.requests, self.spent_s, self.waiting = time.monotonic(), 1.0, 0.0, 0.0

    def page(self):
        now, (c1_s, c2_s) = time.monotonic(), law(self.arm)
        rps = min(self.posed.rps, 0.98 / c2_s)
        passed_s, self.at = now - self.at, now
        self.waiting = max(self.waiting + (self.posed.rps - rps) * passed_s, 0.0)
        slow = self.posed.slow if self.arm == NO_SPECULATION else 1.0
        latency_s = slow * float(open_loop_latency(c1_s, c2_s, rps)) + self.waiting / rps
        self.requests += rps * passed_s
        self.spent_s += rps * passed_s * latency_s
        steps = self.requests * (OUTPUT_TOKENS - 1) / tokens_per_step(self.arm)
        counters = {
            "request_success_total": self.requests,
            "time_to_first_token_seconds_count": self.requests,
            "time_to_first_token_seconds_sum": self.spent_s / OUTPUT_TOKENS,
            "e2e_request_latency_seconds_count": self.requests,
            "e2e_request_latency_seconds_sum": self.spent_s,
            "generation_tokens_total": self.requests * OUTPUT_TOKENS,
            "inter_token_latency_seconds_count": steps,
            "inter_token_latency_seconds_sum": self.spent_s * (1 - 1 / OUTPUT_TOKENS),
            "prompt_tokens_total": self.requests * PROMPT_TOKENS,
            "request_prompt_tokens_sum": self.requests * PROMPT_TOKENS,
            "request_generation_tokens_sum": self.requests * OUTPUT_TOKENS,
            "request_generation_tokens_count": self.requests,
        }
        running = rps * latency_s - self.waiting
        counters |= {"num_requests_running": running, "num_requests_waiting": self.waiting}
        return PosedTraffic(rps, latency_s, now).page(
            **{name: str(value) for name, value in counters.items()}
        )


@pytest.fixture
def posed(place):
    """A target that has been rolled to speculation at a low load, and that roll confirmed."""
    place.apply(
        manifests.profile(place.stage.fingerprint), manifests.target(scraped=False), manifests.service()
    )
    with Posed(place) as posed:
        place.until_settled("eagle/3")
        place.until_service("the first roll is confirmed", lambda status: results(status) == ["Confirmed"])
        yield posed


def results(status):
    return [entry["result"] for entry in status.get("history") or ()]


def policy(place, **changes):
    place.patch("specsvc", "chat", {"spec": {"updatePolicy": changes}})


def test_an_arm_left_at_a_high_load_is_not_put_back_when_the_load_has_fallen(place, posed):
    """It is as slow as was promised for this load; that the other would be faster by now is no reason to call the roll wrong."""
    posed.rps = HIGH_RPS
    until("the arm is left", lambda: place.annotation() == "null")
    # Only the confirmation may speak.
    policy(place, cooldownSeconds=3600)
    posed.rps = LOW_RPS
    found = place.until_service("that roll is judged", lambda status: len(results(status)) == 2)
    change = found["status"]["history"][0]
    assert (change["fromArm"], change["toArm"], change["reason"]) == ("eagle/3", "none", "BeyondBreakEven")
    # A loss that was promised for this load is no gain, and no disproof.
    assert (change["result"], float(change["measuredSpeedup"]) < 0.9) == ("Unmeasured", True), change
    place.until_decided("CoolingDown")
    assert place.annotation() == "null"
    assert {"RollUndone", "RolledBack"}.isdisjoint(place.reasons())
    # The ordinary decision brings the other arm back, with no back-off before it.
    policy(place, cooldownSeconds=0)
    place.until_settled("eagle/3")
    assert place.get("specsvc", "chat")["status"]["history"][0]["fromArm"] == "eagle/3"


def test_a_roll_that_was_disproved_is_undone_and_said_to_be(place, posed):
    posed.rps = HIGH_RPS
    until("the arm is left", lambda: place.annotation() == "null")
    policy(place, cooldownSeconds=3600)
    posed.rps, posed.slow = LOW_RPS, 6.0
    found = place.until_service("that roll is undone", lambda status: len(results(status)) == 2)
    change = found["status"]["history"][0]
    assert (change["result"], change["reason"]) == ("Undone", "RollDisproved")
    assert change["message"].startswith("eagle/3 runs again; eagle/3 -> none was undone (RollDisproved): ")
    assert float(change["measuredSpeedupUpper"]) < 1.0
    assert " against promised " in place.until_event("RollUndone")
    assert found["status"]["workings"]["memory"]["suspicion"]["reason"] == "RollDisproved"


def test_an_arm_that_loses_is_left_for_no_speculation_whatever_the_dwell_and_the_cool_down(place, posed):
    policy(place, stabilizationWindowSeconds=3600, cooldownSeconds=3600)
    posed.rps = HIGH_RPS
    place.until_settled("none")
    found = place.get("specsvc", "chat")
    assert found["status"]["rollout"]["reason"] == "BeyondBreakEven"
    assert "none saves " in place.until_event("BeyondBreakEven")
    # Back to it only after both.
    posed.rps = LOW_RPS
    place.until_decided("CoolingDown")


def test_an_arm_that_cannot_carry_the_load_is_left_and_nothing_fails_meanwhile(place, posed, stage):
    """Its predicted latency has no end and the ratio to it no figure: the change is written without one."""
    posed.rps = SATURATING_RPS
    place.until_settled("none")
    assert "predictedSpeedup" not in place.get("specsvc", "chat")["status"]["rollout"]
    found = place.until_service("that roll is judged", lambda status: len(results(status)) == 2)
    change = found["status"]["history"][0]
    assert (change["fromArm"], change["toArm"], change["result"]) == ("eagle/3", "none", "Unmeasured"), change
    assert "InternalError" not in place.reasons()
    lines = [line for line in stage.log() if place.name in json.dumps(line)]
    assert [line for line in lines if line["level"] == "error"] == []
