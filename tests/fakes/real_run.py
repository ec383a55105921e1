"""The cluster of `make real` without one: an operator that picks the fastest arm by its profile, and lawful engines.

It has no sockets and needs a loop in virtual time (`fakes.virtual_time`).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import yaml

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.profile import Profile
from demo.traffic import Endpoints, RequestOutcome, RequestShape
from localcluster import LocalClusterError
from real import deployments, likeness
from real.engines import Engines
from real.greedy_users import Account, Offered, SteadyLoad, TaskUsers, Users
from real.run_results import RunResults
from real.tasks import TASK_TOKENS, TaskAnswer

_ROLL_S = 30.0
_IDLE_PAGE = 'vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 0.0\n'


@dataclass
class RolledService:
    """One service in one namespace: `cluster` and `sight` of a run at once.

    Its pods are one per ready arm, at the address `http://ARM`.

    Attributes:
        profile: the measured laws; its engines obey them.
        live_tokens_per_step: E that the engines count, by arm.
        stuck: whether a roll never ends.
        missing: Deployments that never get a pod.
        failed_runs: status of calibrations that failed; without a profile then.
        unreadable: what of an engine breaks off: "load" or "answers".
        too_slow: whether every latency is longer than a block.
        refuses: whether the API server refuses a change of the policy.
        foreign_arm: an arm that the operator prefers without having measured it.
        rps: of the users now.
        beside: name of the arm of the engine that is measured in turn with the target's; empty: none is up.
        policies: changes of the update policy, in order.
    """

    profile: Profile
    live_tokens_per_step: Mapping[Arm, float]
    stuck: bool = False
    missing: frozenset[str] = frozenset()
    failed_runs: Sequence[Mapping[str, Any]] = ()
    unreadable: frozenset[str] = frozenset()
    too_slow: bool = False
    refuses: bool = False
    foreign_arm: str = ""
    rps: float = 0.0
    beside: str = ""
    policies: list[dict[str, Any]] = field(default_factory=list)
    _arm: str = NO_SPECULATION.name
    _to: str = ""
    _due_s: float = 0.0

    # The methods of `LocalCluster`.
    def kubectl(self, *words: str, stdin: str | None = None) -> None:
        """Take patches of the update policy, and the engine beside the target's; it is found by its arguments."""
        for document in yaml.safe_load_all(stdin or ""):
            if document["metadata"]["name"] == deployments.BESIDE:
                *_, config = document["spec"]["template"]["spec"]["containers"][0]["args"]
                self.beside = json.loads(config.removeprefix("--speculative-config="))
        if words[:3] == ("delete", "deployment", deployments.BESIDE):
            self.beside = ""
        if words[0] != "patch":
            return
        if self.refuses:
            raise LocalClusterError("kubectl patch: the server is currently unable to handle the request")
        self.policies.append(json.loads(words[-2].removeprefix("--patch="))["spec"]["updatePolicy"])

    def _planned(self) -> list[dict[str, str]]:
        """The arms as they are measured; the configuration of each is as good as its name."""
        return [
            {"arm": fit.arm.name, "speculativeConfig": json.dumps(fit.arm.name)} for fit in self.profile.arms
        ]

    # The methods of `Sight`.
    async def ready_pods(self, selector: Mapping[str, str], _port: int) -> dict[str, str]:
        """The pods of a Deployment: during a roll that of both arms."""
        app = selector["app"]
        if app in self.missing:
            return {}
        if app == deployments.BESIDE:
            return {app: f"http://{self.beside}"} if self.beside else {}
        if app != deployments.TARGET:
            return {app: f"http://{app}"}
        self._operate()
        return {arm: f"http://{arm}" for arm in (self._arm, self._to) if arm}

    async def custom(self, plural: str) -> list[Mapping[str, Any]]:
        """The service, its calibrations, its profile."""
        self._operate()
        if plural == "speculationprofiles":
            return [{"metadata": {"name": "chat-1"}, "spec": {"profile": self.profile.to_json()}}]
        if plural == "calibrationruns":
            done = [{"arm": fit.arm.name, "phase": "Done"} for fit in self.profile.arms]
            statuses = self.failed_runs or [{"phase": "Succeeded", "armStatuses": done}]
            return [self._run(number, status) for number, status in enumerate(statuses)]
        pods = [{"arm": arm, "pods": 1} for arm in (self._arm, self._to) if arm]
        status = {
            "calibration": {} if self.failed_runs else {"profile": "chat-1"},
            "current": {"podsByArm": pods},
            "rollout": {"phase": "Rolling"} if self._to else {},
            "decision": {"reason": "Pinned" if self._pin() else "Switch"},
        }
        return [{"status": status}]

    def _run(self, number: int, status: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            "metadata": {"name": f"chat-{number}", "creationTimestamp": f"2026-01-01T00:00:0{number}Z"},
            "spec": {"serviceRef": {"name": deployments.SERVICE}},
            "status": {"points": [], "plan": {"arms": self._planned()}, **status},
        }

    def _pin(self) -> str:
        return next((policy["pinnedArm"] for policy in reversed(self.policies) if "pinnedArm" in policy), "")

    def _operate(self) -> None:
        """Roll to the pin, or to the fastest arm at the load of the users, as soon as rolls are allowed."""
        if self._to:
            if time.monotonic() >= self._due_s and not self.stuck:
                self._arm, self._to = self._to, ""
            return
        if not self.policies or not self.rps:
            return
        best = self._pin() or self.foreign_arm or min(self.profile.arms, key=self._expected_s).arm.name
        if best != self._arm:
            self._to, self._due_s = best, time.monotonic() + _ROLL_S

    def _expected_s(self, fit: Any) -> float:
        return self.latency_s(fit.arm, self.rps)

    def latency_s(self, arm: Arm, rps: float) -> float:
        """Of the engine that runs the arm."""
        found = self.profile.predict(arm, rps=rps).latency_s
        return float("inf") if found is None else found

    def arm_at(self, url: str) -> Arm:
        """The arm of the pod with this address."""
        name = url.removeprefix("http://")
        return next(fit.arm for fit in self.profile.arms if fit.arm.name == name)


class LawfulUsers(Users):
    """Users whose requests take as long as the laws say; nothing is sent."""

    service: RolledService

    def set_rate(self, rate_rps: float) -> None:
        super().set_rate(rate_rps)
        self.service.rps = rate_rps

    async def run(self) -> None:
        """Ask at the rate until cancelled; what was asked meanwhile is counted at the end."""
        begun_s, rps = time.monotonic(), self.rate_rps
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            number = round(rps * (time.monotonic() - begun_s))
            self.outcomes += [RequestOutcome(begun_s, "pod", 0.5, 0.1, 48, None)] * number
            self.service.rps = 0.0

    async def offer(self, load: SteadyLoad) -> Offered:
        """The load's time passes; users and engine count the same."""
        (url,) = self.endpoints.urls.values()
        if "load" in self.service.unreadable:
            raise aiohttp.ClientConnectionError(f"{url}: refused")
        arm = self.service.arm_at(url)
        await asyncio.sleep(load.seconds)
        latency_s = self.service.latency_s(arm, load.rps)
        number = 0 if self.service.too_slow else int(load.rps * load.seconds)
        tokens = number * load.shape.output_tokens
        e = self.service.live_tokens_per_step.get(arm)
        account = Account(number, number, latency_s, latency_s, tokens, float(tokens), float(number), e)
        return Offered(load, load.rps, latency_s, number, account)


class LawfulTaskUsers(LawfulUsers, TaskUsers):
    """Such users with a mix of tasks."""


class LawfulEngines(Engines):
    """Engines of a `RolledService`: whatever is compared with vLLM is the same.

    Args:
        service: whose pods they are.
    """

    def __init__(self, service: RolledService) -> None:
        self._service = service

    def users(self, shape: RequestShape, endpoints: Endpoints, *, seed: int) -> LawfulUsers:
        """Users of the service."""
        users = LawfulUsers(deployments.MODEL, shape, endpoints, seed=seed)
        users.service = self._service
        return users

    def task_users(self, shape: RequestShape, endpoints: Endpoints, *, seed: int) -> LawfulTaskUsers:
        """Users of the service who ask for tasks."""
        users = LawfulTaskUsers(deployments.MODEL, shape, endpoints, seed=seed)
        users.service = self._service
        return users

    def yardstick_ms(self) -> float:
        """Of a core that is always as fast."""
        return 1.0

    async def page(self, url: str) -> str:
        """An idle engine's page."""
        return _IDLE_PAGE

    async def task_answer(self, url: str, task: str, arm: Arm) -> TaskAnswer:
        """The same text from every arm, of full length, with the tokens per step that the arm has."""
        e = self._service.live_tokens_per_step.get(arm)
        return TaskAnswer(task, arm, f"an answer to {task}", TASK_TOKENS, e, TASK_TOKENS / (e or 1.0))

    def flags(self) -> Mapping[str, Any]:
        """Those that are stored."""
        found: Mapping[str, Any] = json.loads(
            (deployments.ROOT / "tuner/breakeven/serving/vllm_0_32_flags.json").read_text()
        )
        return found

    def answers(self, url: str) -> list[dict[str, Any]]:
        """Those that are stored, unless they cannot be read."""
        if "answers" in self._service.unreadable:
            raise OSError(f"{url}: refused")
        table = json.loads((deployments.ROOT / "tests/engine/vllm_0_32_answers.json").read_text())
        assert likeness.asked_of(table, deployments.MODEL)["answers"]
        answers: list[dict[str, Any]] = table["answers"]
        return answers


class LastResults(RunResults):
    """Results that are written when they are judged and not after every step, which takes a tenth of a second."""

    def keep(self) -> None:
        """Keep what is in the record."""

    def conclude(self, operator_failures: Sequence[str] | None) -> tuple[int, str]:
        """Write everything, then judge it."""
        super().keep()
        return super().conclude(operator_failures)
