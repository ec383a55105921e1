"""Pods of a target whose request times follow the law of the arm that each really runs, at a load that a test moves."""

from __future__ import annotations

import json
import threading
import time
from typing import Self

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.laws.latency import open_loop_latency
from operatorcluster import manifests
from operatorcluster.posing import PosedTraffic
from operatorcluster.stage import Place
from operatorcluster.target_engine import EAGLE, OUTPUT_TOKENS, PROMPT_TOKENS, law, tokens_per_step

LOW_RPS = 2.0
_LOOK_S = 0.3


class PosedPods:
    """The pods of a place's target while the block lasts: what each has counted since it appeared.

    Attributes:
        rps: of every pod. slow: what requests of an arm take over what its law says.
    """

    def __init__(self, place: Place) -> None:
        self.place, self.rps = place, LOW_RPS
        self.slow: dict[Arm, float] = {}
        self.counted: set[str] = set()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _follow(self) -> None:
        while not self.ended.wait(_LOOK_S):
            for pod in self.place.all("pod"):
                meta = pod["metadata"]
                # A StatefulSet's pod leaves its name to the next one, whose counters begin again.
                if meta["uid"] not in self.counted:
                    value = json.loads((meta.get("annotations") or {}).get(manifests.ANNOTATION) or "null")
                    counted = CountedPod(self, EAGLE if value else NO_SPECULATION)
                    self.counted.add(meta["uid"])
                    self.place.stage.posers.pose(
                        f"{self.place.name}-{meta['name']}",
                        counted.page,
                        namespace=self.place.name,
                        pod=meta["name"],
                    )


class CountedPod:
    """The counters of one pod; requests beyond its arm's saturation wait."""

    def __init__(self, posed: PosedPods, arm: Arm) -> None:
        self.posed, self.arm = posed, arm
        self.at, self.requests, self.spent_s, self.waiting = time.monotonic(), 1.0, 0.0, 0.0

    def page(self) -> str:
        """Its metrics page of now."""
        now, (c1_s, c2_s) = time.monotonic(), law(self.arm)
        rps = min(self.posed.rps, 0.98 / c2_s)
        passed_s, self.at = now - self.at, now
        self.waiting = max(self.waiting + (self.posed.rps - rps) * passed_s, 0.0)
        slow = self.posed.slow.get(self.arm, 1.0)
        latency_s = slow * float(open_loop_latency(c1_s, c2_s, rps)) + (self.waiting / rps if rps else 0.0)
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
