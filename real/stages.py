"""The run on the one-machine cluster: calibrate, decide, roll and roll back a real vLLM, with users all along."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.profile import Profile
from breakeven_operator.cluster_reasons import ClusterReason
from demo.director import failed_runs
from demo.installation import NAMESPACE, measure_again
from demo.sight import Object, Sight
from demo.traffic import Endpoints, RequestShape
from localcluster import LocalCluster
from real import deployments, likeness
from real.findings import ObservedRoll, Probed
from real.greedy_users import SteadyLoad, Users
from real.run_results import RunResults

T = TypeVar("T")
# What a roll takes and which loads are to come decides between arms that are as close as this.
_TIE = 0.05
_ATTEMPTS = 3
# Many times what a quiet machine takes: what happens is not waited for any longer.
_START_S, _CALIBRATION_S, _ROLL_S = 900.0, 3600.0, 1200.0
_LOOK_S = 1.0
_PROBE_S, _PROBE_WARMUP_S = 45.0, 5.0
# Of the engine's saturation: where the operator is asked to decide, and where lengths that were not fitted are tried.
_DECISION_LOAD, _LENGTHS_LOAD = 0.30, 0.40
# Several windows of the operator: how long an arm that may stay is watched, and how long a change is waited for.
_STAY_S, _CHOICE_S = 90.0, 300.0
_SHAPE = RequestShape(deployments.PROMPT_TOKENS, deployments.OUTPUT_TOKENS)


class RunError(Exception):
    """Something that must happen did not; the text says what and how long was waited."""


class RealRun:
    """One run, stage after stage; what it has seen is kept after each.

    Args:
        cluster: with everything stood up.
        sight: reads it.
        models: folder with `target` and `drafter`.
        python: the one that has vLLM.
        results: takes a line per step, and what was seen.
    """

    def __init__(
        self, cluster: LocalCluster, sight: Sight, models: Path, python: Path, results: RunResults
    ) -> None:
        self._cluster = cluster
        self._sight = sight
        self._models = models
        self._python = python
        self._results = results
        self._record = results.record
        self._say = results.say

    async def run(self, *, likeness_only: bool = False) -> None:
        """All stages, in order.

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
        await self.compare_engines(url)
        self._results.keep()
        if likeness_only:
            return
        self._apply(deployments.service(self._models / "drafter"))
        self._say(
            "the operator calibrates: none, n-gram, a draft model, and a schedule made of what they cost"
        )
        profile = await self._calibrated()
        self._record.profile = profile
        self._results.keep()
        probes = unfitted(profile)
        await self._probe_all(NO_SPECULATION, probes)
        arm = await self._decided(profile)
        self._results.keep()
        if arm != NO_SPECULATION:
            await self._probe_all(arm, probes)
            await self._compare_speculating(arm)
            await self._back()
            self._results.keep()

    def _apply(self, *documents: Mapping[str, Any]) -> None:
        deployments.apply(self._cluster, *map(dict, documents))

    async def compare_engines(self, url: str) -> None:
        """Flags by vLLM's own parser; answers and the metrics page by the twin that was started with the same words."""
        root = deployments.ROOT
        fresh = self._models.parent / "flags.json"
        await asyncio.to_thread(_run, [self._python, root / "tests/realvllm/flags.py", fresh])
        stored = json.loads((root / "tuner/breakeven/serving/vllm_0_32_flags.json").read_text())
        self._record.likeness["flags"] = likeness.flag_differences(json.loads(fresh.read_text()), stored)
        twin = await self._one_pod("sim-none", _START_S)
        real, simulated = [await asyncio.to_thread(self.answers_of, one) for one in (url, twin)]
        self._record.likeness[f"answers to {len(real)} requests"] = likeness.answer_differences(
            real, simulated
        )
        self._record.likeness["metrics without speculation"] = likeness.page_differences(
            await _page(url), await _page(twin)
        )

    def answers_of(self, url: str) -> list[dict[str, Any]]:
        """What an engine answers to the questions of the table; blocks."""
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
        said = ""

        async def look() -> str | Object | None:
            nonlocal said
            runs = await self._sight.custom("calibrationruns")
            if (line := _progress(runs)) != said:
                said = line
                self._say(line)
                # The points that are measured already.
                self._record.run = _latest(runs)
                self._results.keep()
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
            measure_again(self._cluster, deployments.SERVICE, len(failed) + 1)
        profiles = {one["metadata"]["name"]: one for one in await self._sight.custom("speculationprofiles")}
        self._record.run = _latest(await self._sight.custom("calibrationruns"))
        return Profile.from_json(profiles[found]["spec"]["profile"], f"specprof/{found}")

    def _kubectl(self, *arguments: str) -> None:
        self._cluster.kubectl(*arguments, f"--namespace={NAMESPACE}")

    def _policy(self, change: Mapping[str, Any]) -> None:
        patch = json.dumps({"spec": {"updatePolicy": change}})
        self._kubectl("patch", "specsvc", deployments.SERVICE, "--type=merge", f"--patch={patch}")

    async def _probe_all(self, arm: Arm, probes: Sequence[tuple[str, SteadyLoad]]) -> None:
        """Loads and lengths that no fit has seen, on the pod that serves."""
        url = await self._one_pod(deployments.TARGET, _ROLL_S)
        for seed, (what, load) in enumerate(probes, start=1):
            self._say(f"{arm}: {what}, {load.rps:.2f} rps for {load.seconds:.0f} s")
            users = Users(deployments.MODEL, load.shape, Endpoints.fixed({"pod": url}), seed=1000 * seed)
            offered = await users.offer(load)
            self._record.probes.append(Probed(what, arm, offered))
            self._results.keep()
            self._say(
                f"{arm}: {offered.latency_s:.3f} s, the mean of {offered.counted} requests at {offered.rps:.2f} rps"
            )

    async def _decided(self, profile: Profile) -> Arm:
        """Let the operator decide and roll under a load; the arm that runs then, its engine idle."""
        rps = _DECISION_LOAD * saturation_rps(profile)
        best = best_at(profile, [fit.arm for fit in profile.arms if fit.believable], rps)
        self._record.decision_rps, self._record.wanted = rps, best
        self._say(
            f"{rps:.2f} rps: the measured laws ask for {' or '.join(sorted(best))}; the operator may roll"
        )
        async with self._users(rps) as users:
            begun = time.monotonic()
            self._policy({"mode": "RollingUpdate"})
            if NO_SPECULATION.name in best:
                await asyncio.sleep(_STAY_S)
            status = await self._settled(best)
            seconds = time.monotonic() - begun
        self._record.decided, self._record.reason = _running(status), _reason(status)
        self._say(f"{self._record.decided} runs: {self._record.reason}")
        if self._record.decided != NO_SPECULATION.name:
            self._note_roll(users, seconds, self._record.decided, self._record.reason)
        await self._quiet()
        return next(fit.arm for fit in profile.arms if fit.arm.name == self._record.decided)

    async def _compare_speculating(self, arm: Arm) -> None:
        """Both engines' metrics pages after drafts; a family has labels once something was counted."""
        if arm.method != "ngram":
            return
        self._say("comparing the metrics pages of both engines after drafts")
        pages = []
        for app in (deployments.TARGET, "sim-ngram"):
            url = await self._one_pod(app, _START_S)
            await asyncio.to_thread(self.answers_of, url)
            pages.append(await _page(url))
        self._record.likeness["metrics with speculation"] = likeness.page_differences(*pages)

    async def _back(self) -> None:
        """Back to no speculation by a pin, under the same load."""
        self._say("back to none by a pin, users asking all along")
        async with self._users(self._record.decision_rps) as users:
            begun = time.monotonic()
            self._policy({"pinnedArm": NO_SPECULATION.name})
            status = await self._settled({NO_SPECULATION.name})
            seconds = time.monotonic() - begun
        self._note_roll(users, seconds, _running(status), _reason(status))

    def _note_roll(self, users: Users, seconds: float, to: str, reason: str) -> None:
        failures = tuple(f"{o.error} ({o.pod})" for o in users.outcomes if o.error)
        self._record.rolls.append(ObservedRoll(to, reason, seconds, len(users.outcomes), failures))
        self._say(
            f"{to} runs ({reason}) after {seconds:.0f} s; {len(failures)} of {len(users.outcomes)} requests lost"
        )

    async def _settled(self, wanted: Collection[str]) -> Object:
        """The status, once every pod runs one arm and no roll is under way.

        Returns when that arm is a wanted one, or when the operator had time enough to choose another: which one runs is
        judged by whoever asks.

        Raises:
            RunError: a roll did not end.
        """
        patient_until = time.monotonic() + _CHOICE_S

        async def look() -> Object | None:
            status = await self._status()
            moving = (status.get("rollout") or {}).get("phase", "Confirming") != "Confirming"
            arm = _running(status)
            if moving or not arm:
                return None
            return status if arm in wanted or time.monotonic() > patient_until else None

        status: Object = await self._until("every pod on one arm", look, _ROLL_S)
        return status

    @contextlib.asynccontextmanager
    async def _users(self, rps: float) -> AsyncIterator[Users]:
        """Users that follow the ready pods until the block ends and every request is answered or lost."""
        endpoints = Endpoints()
        users = Users(deployments.MODEL, _SHAPE, endpoints, seed=7)

        async def follow() -> None:
            while True:
                endpoints.learn(await self._sight.ready_pods({"app": deployments.TARGET}, deployments.PORT))
                await asyncio.sleep(_LOOK_S)

        following = asyncio.create_task(follow())
        try:
            await self._until("an address to ask", lambda: _given(endpoints.urls), _START_S)
            users.set_rate(rps)
            sending = asyncio.create_task(users.run())
            try:
                yield users
            finally:
                sending.cancel()
                await asyncio.wait([sending])
        finally:
            following.cancel()

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
    rates = sorted({row.rps for row in profile.arm(NO_SPECULATION).measurements if row.mode != "closed"})
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
        found.append((what, _load(_LENGTHS_LOAD * saturation_rps(profile) / work, shape)))
    return found


def saturation_rps(profile: Profile) -> float:
    """The load at which no speculation saturates.

    Raises:
        RunError: no law was found for it.
    """
    found = profile.arm(NO_SPECULATION).saturation_rps
    if not found:
        raise RunError("no speculation: nothing fitted says at which load it saturates")
    return found


def best_at(profile: Profile, arms: Sequence[Arm], rps: float) -> frozenset[str]:
    """Names of the arms that may run at a load by the measured laws.

    The fastest, those within `_TIE` of it, and no speculation where the fastest is not surely faster.

    Args:
        profile: the measured laws.
        arms: of which one is chosen, no speculation among them.
        rps: a load that some of them carry.
    """
    latencies = {
        arm: latency for arm in arms if (latency := profile.predict(arm, rps=rps).latency_s) is not None
    }
    fastest = min(latencies, key=latencies.__getitem__)
    best = {arm.name for arm, latency in latencies.items() if latency <= latencies[fastest] * (1 + _TIE)}
    if fastest != NO_SPECULATION:
        low, _ = profile.compare(fastest, NO_SPECULATION, rps=rps).speedup_ci or (None, None)
        if low is None or low <= 1.0:
            best.add(NO_SPECULATION.name)
    return frozenset(best)


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


def _latest(runs: Sequence[Object]) -> Object:
    """The run that was begun last; nothing without any."""
    return max(runs, key=lambda run: str(run["metadata"]["creationTimestamp"]), default={})


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
