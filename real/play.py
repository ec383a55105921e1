"""The run on the one-machine cluster: calibrate, decide, roll and roll back a real vLLM, with users all along."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.profile import Profile
from breakeven_operator.cluster_reasons import ClusterReason
from demo.director import failed_runs
from demo.sight import Object, Sight
from demo.traffic import Endpoints, RequestShape
from localcluster import LocalCluster
from real import deployments, likeness
from real.findings import Probed, RollSeen
from real.greedy_users import SteadyLoad, Users

T = TypeVar("T")
MIN_GAIN = 0.05
_ATTEMPTS = 3
# Many times what a quiet machine takes: what happens is not waited for any longer.
_START_S, _CALIBRATION_S, _ROLL_S = 900.0, 3600.0, 1200.0
_LOOK_S = 1.0
_PROBE_S, _PROBE_WARMUP_S = 45.0, 5.0
# Of the engine's saturation: where the operator is asked to decide, and where lengths that were not fitted are tried.
_DECISION_LOAD, _LENGTHS_LOAD = 0.30, 0.40
# What a decision that changes nothing is waited for: several windows of the operator.
_STAY_S = 90.0
_SHAPE = RequestShape(deployments.PROMPT_TOKENS, deployments.OUTPUT_TOKENS)


class RunError(Exception):
    """Something that must happen did not; the text says what and how long was waited."""


@dataclass(slots=True)
class Seen:
    """Everything that the run has seen."""

    profile: Profile | None = None
    run: Object = field(default_factory=dict)
    decision_rps: float = 0.0
    wanted: frozenset[str] = frozenset()
    decided: str = ""
    rolls: list[RollSeen] = field(default_factory=list)
    probes: list[Probed] = field(default_factory=list)
    likeness: dict[str, list[str]] = field(default_factory=dict)


class Play:
    """One run.

    Args:
        cluster: with everything stood up.
        sight: reads it.
        models: folder with `target` and `drafter`.
        python: the one that has vLLM.
        say: takes a line per step.
    """

    def __init__(
        self, cluster: LocalCluster, sight: Sight, models: Path, python: Path, say: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._sight = sight
        self._models = models
        self._python = python
        self._say = say
        self._endpoints = Endpoints()
        self.seen = Seen()

    async def run(self, *, likeness_only: bool = False) -> Seen:
        """All acts, in order.

        Args:
            likeness_only: stop when the simulated engine was compared with the real one.

        Raises:
            RunError: something that must happen did not.
        """
        target = self._models / "target"
        self._apply(deployments.target(target))
        self._apply(deployments.simulated("sim-none", target, "null"))
        spec = {"method": "ngram", "num_speculative_tokens": deployments.DRAFT_LENGTH}
        self._apply(deployments.simulated("sim-ngram", target, json.dumps(spec)))
        self._say("waiting for vLLM to start in its pod")
        url = await self._one_pod(deployments.TARGET, _START_S)
        self._say("comparing the simulated engine with it: flags, answers, metrics page")
        await self._compare(url)
        if likeness_only:
            return self.seen
        self._apply(deployments.service(self._models / "drafter"))
        self._say(
            "the operator calibrates: none, n-gram, a draft model, and a schedule made of what they cost"
        )
        self.seen.profile = await self._calibrated()
        await self._probe_all(NO_SPECULATION)
        await self._decided()
        await self._back()
        return self.seen

    def _apply(self, *documents: Mapping[str, Any]) -> None:
        deployments.apply(self._cluster, *map(dict, documents))

    async def _compare(self, url: str) -> None:
        """Flags by vLLM's own parser; answers and the metrics page by the twin that was started with the same words."""
        root = deployments.ROOT
        fresh = self._models.parent / "flags.json"
        await asyncio.to_thread(_run, [self._python, root / "tests/realvllm/flags.py", fresh])
        stored = json.loads((root / "tuner/breakeven/serving/vllm_0_32_flags.json").read_text())
        self.seen.likeness["flags"] = likeness.flag_differences(json.loads(fresh.read_text()), stored)
        twin = await self._one_pod("sim-none", _START_S)
        real, simulated = [await asyncio.to_thread(self._answers, one) for one in (url, twin)]
        self.seen.likeness[f"answers to {len(real)} requests"] = likeness.answer_differences(real, simulated)
        self.seen.likeness["metrics without speculation"] = likeness.page_differences(
            await _page(url), await _page(twin)
        )

    def _answers(self, url: str) -> list[dict[str, Any]]:
        root = deployments.ROOT
        table = json.loads((root / "tests/engine/vllm_0_32_answers.json").read_text())
        file = self._models.parent / "questions.json"
        file.write_text(json.dumps(likeness.asked_of(table, deployments.MODEL)))
        text = _run([sys.executable, root / "tests/realvllm/answers.py", file, url])
        answers: list[dict[str, Any]] = json.loads(text)["answers"]
        return answers

    async def _one_pod(self, app: str, timeout_s: float) -> str:
        """The address of the one ready pod of a Deployment."""

        async def look() -> str | None:
            pods = await self._sight.ready_pods({"app": app}, deployments.PORT)
            return next(iter(pods.values())) if len(pods) == 1 else None

        url: str = await self._until(f"one ready pod of {app}", look, timeout_s)
        return url

    async def _until(self, what: str, look: Callable[[], Any], timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (found := await look()):
            if time.monotonic() > deadline:
                raise RunError(f"{what}: not within {timeout_s:.0f} s")
            await asyncio.sleep(_LOOK_S)
        return found

    async def _status(self) -> Object:
        (service,) = await self._sight.custom("speculativeservices")
        status: Object = service.get("status") or {}
        return status

    async def _calibrated(self) -> Profile:
        """The profile in force; a fit that is refused (another process had the core) is measured again, as a person would."""
        failed: set[str] = set()
        told = ""

        async def look() -> str | Object | None:
            nonlocal told
            runs = await self._sight.custom("calibrationruns")
            if (line := _progress(runs)) != told:
                told = line
                self._say(line)
            for run in failed_runs(runs, deployments.SERVICE):
                if run["metadata"]["name"] not in failed:
                    return run
            name: str | None = ((await self._status()).get("calibration") or {}).get("profile")
            return name

        while True:
            found = await self._until("a profile in force", look, _CALIBRATION_S)
            if isinstance(found, str):
                break
            failed.add(found["metadata"]["name"])
            account = f"{found['status'].get('reason')}: {found['status'].get('message')}"
            if found["status"].get("reason") != ClusterReason.FIT_REJECTED or len(failed) >= _ATTEMPTS:
                raise RunError(account)
            self._say(f"{account}; measured again")
            self._kubectl(
                "annotate", "--overwrite", "specsvc", deployments.SERVICE,
                f"breakeven.dev/recalibrate=attempt-{len(failed) + 1}",
            )  # fmt: skip
        profiles = {one["metadata"]["name"]: one for one in await self._sight.custom("speculationprofiles")}
        self.seen.run = (await self._sight.custom("calibrationruns"))[-1]
        return Profile.from_json(profiles[found]["spec"]["profile"], f"specprof/{found}")

    def _kubectl(self, *arguments: str) -> None:
        self._cluster.kubectl(*arguments, f"--namespace={deployments.NAMESPACE}")

    def _policy(self, change: Mapping[str, Any]) -> None:
        patch = json.dumps({"spec": {"updatePolicy": change}})
        self._kubectl("patch", "specsvc", deployments.SERVICE, "--type=merge", f"--patch={patch}")

    async def _probe_all(self, arm: Arm) -> None:
        """The loads and lengths of `unfitted` on the pod that serves."""
        if self.seen.profile is None:
            raise RunError("nothing was measured")
        url = await self._one_pod(deployments.TARGET, _ROLL_S)
        for seed, (what, load) in enumerate(unfitted(self.seen.profile), start=1):
            self._say(f"{arm}: {what}, {load.rps:.2f} rps for {load.seconds:.0f} s")
            users = Users(deployments.MODEL, load.shape, Endpoints.fixed({"pod": url}), seed=1000 * seed)
            offered = await users.offer(load)
            self.seen.probes.append(Probed(what, arm, offered))

    async def _decided(self) -> None:
        """Let the operator decide and roll under a load, then measure what it has chosen."""
        profile = self.seen.profile
        if profile is None:
            raise RunError("nothing was measured")
        rps = _DECISION_LOAD * (profile.arm(NO_SPECULATION).saturation_rps or 0.0)
        arms = [fit.arm for fit in profile.arms if fit.believable]
        best = best_at(profile, arms, rps)
        self.seen.decision_rps, self.seen.wanted = rps, best
        self._say(
            f"{rps:.2f} rps: the measured laws ask for {' or '.join(sorted(best))}; the operator may roll"
        )
        async with self._users(rps) as users:
            begun = time.monotonic()
            self._policy({"mode": "RollingUpdate"})
            if best == {NO_SPECULATION.name}:
                await asyncio.sleep(_STAY_S)
            status = await self._settled(lambda arm: arm in best)
            self.seen.decided = _running(status)
            if self.seen.decided != NO_SPECULATION.name:
                self._note_roll(users, self.seen.decided, _reason(status), time.monotonic() - begun)
        arm = next(fit.arm for fit in profile.arms if fit.arm.name == self.seen.decided)
        await self._quiet()
        if arm.k:
            await self._probe_all(arm)
            # A family has labels once something was counted: both pages after the same requests.
            for app in (deployments.TARGET, "sim-ngram"):
                await asyncio.to_thread(self._answers, await self._one_pod(app, _START_S))
            pages = [
                await _page(await self._one_pod(app, _START_S)) for app in (deployments.TARGET, "sim-ngram")
            ]
            if arm.method == "ngram":
                self.seen.likeness["metrics with speculation"] = likeness.page_differences(*pages)

    async def _back(self) -> None:
        """Back to no speculation by a pin, under the same load."""
        if self.seen.decided == NO_SPECULATION.name:
            return
        self._say("back to none by a pin, users asking all along")
        async with self._users(self.seen.decision_rps) as users:
            begun = time.monotonic()
            self._policy({"pinnedArm": NO_SPECULATION.name})
            status = await self._settled(lambda arm: arm == NO_SPECULATION.name)
            self._note_roll(users, _running(status), _reason(status), time.monotonic() - begun)

    def _note_roll(self, users: Users, to: str, reason: str, seconds: float) -> None:
        self.seen.rolls.append(RollSeen(to, reason, seconds, len(users.outcomes), ()))

    async def _settled(self, wanted: Callable[[str], bool]) -> Object:
        """The status, once one pod of a wanted arm runs and no roll is under way."""

        async def look() -> Object | None:
            status = await self._status()
            moving = (status.get("rollout") or {}).get("phase", "Confirming") != "Confirming"
            return None if moving or not wanted(_running(status)) else status

        status: Object = await self._until("the arm that the measured laws ask for", look, _ROLL_S)
        return status

    @contextlib.asynccontextmanager
    async def _users(self, rps: float) -> AsyncIterator[Users]:
        """Users that follow the ready pods until the block ends; what failed of them is added to the last roll."""
        endpoints = Endpoints()
        users = Users(deployments.MODEL, _SHAPE, endpoints, seed=7)
        first = len(self.seen.rolls)

        async def follow() -> None:
            while True:
                endpoints.learn(await self._sight.ready_pods({"app": deployments.TARGET}, deployments.PORT))
                await asyncio.sleep(_LOOK_S)

        following = asyncio.create_task(follow())
        await self._until("an address to ask", lambda: _given(endpoints.urls), _START_S)
        users.set_rate(rps)
        sending = asyncio.create_task(users.run())
        try:
            yield users
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            following.cancel()
            failures = tuple(f"{o.error} ({o.pod})" for o in users.outcomes if o.error)
            self.seen.rolls[first:] = [
                RollSeen(roll.to, roll.reason, roll.seconds, len(users.outcomes), failures)
                for roll in self.seen.rolls[first:]
            ]

    async def _quiet(self) -> None:
        """Return when one pod is left and it is idle."""
        url = await self._one_pod(deployments.TARGET, _ROLL_S)

        async def idle() -> bool:
            page = await _page(url)
            return all(
                line.endswith(" 0.0")
                for line in page.splitlines()
                if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))
            )

        await self._until("an idle engine", idle, _START_S)


def unfitted(profile: Profile) -> list[tuple[str, SteadyLoad]]:
    """Loads between those that were fitted, and lengths that were not; the same for every arm."""
    none = profile.arm(NO_SPECULATION)
    rates = sorted({row.rps for row in none.measurements if row.mode != "closed"})
    between = [(a + b) / 2 for a, b in pairwise(rates)][:2]
    found = [
        (f"between the loads that were fitted, {number}", _load(rps, _SHAPE))
        for number, rps in enumerate(between, start=1)
    ]
    prompt, answer = _SHAPE.prompt_tokens, _SHAPE.output_tokens
    for what, shape in (
        ("prompts three times as long", RequestShape(3 * prompt, answer)),
        ("answers twice as long", RequestShape(prompt, 2 * answer)),
    ):
        # As many tokens per second as at the share of saturation that is meant.
        work = (shape.prompt_tokens / 4 + shape.output_tokens) / (prompt / 4 + answer)
        found.append((what, _load(_LENGTHS_LOAD * (none.saturation_rps or 0.0) / work, shape)))
    return found


def best_at(profile: Profile, arms: Sequence[Arm], rps: float) -> frozenset[str]:
    """Names of the arms that may run at a load by the measured laws: the fastest, and those the operator cannot tell from it."""
    latencies = {
        arm: latency for arm in arms if (latency := profile.predict(arm, rps=rps).latency_s) is not None
    }
    fastest = min(latencies.values())
    return frozenset(arm.name for arm, latency in latencies.items() if latency <= fastest * (1 + MIN_GAIN))


def _load(rps: float, shape: RequestShape) -> SteadyLoad:
    return SteadyLoad(rps, shape, _PROBE_S, _PROBE_WARMUP_S)


async def _given(value: T) -> T:
    return value


async def _page(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        answer.raise_for_status()
        return await answer.text()


def _running(status: Object) -> str:
    """The arm that every pod runs; empty while they differ."""
    pods = (status.get("current") or {}).get("podsByArm") or []
    return str(pods[0]["arm"]) if len(pods) == 1 else ""


def _reason(status: Object) -> str:
    return str((status.get("decision") or {}).get("reason", ""))


def _progress(runs: Sequence[Object]) -> str:
    for run in runs:
        status = run.get("status") or {}
        display = status.get("display") or {}
        if status.get("phase") not in {None, "Succeeded", "Failed"}:
            return f"calibrating {display.get('arm', '')}: {display.get('points', '-')} points"
    return "calibration: nothing under way"


def _run(command: Sequence[str | Path]) -> str:
    """Standard output of a program.

    Raises:
        RunError: it failed; the text is its last line.
    """
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no word").rpartition("\n")[2]
        raise RunError(f"{Path(command[1]).name}: {last}")
    return done.stdout
