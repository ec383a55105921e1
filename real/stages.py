"""The run on the one-machine cluster: calibrate, decide, roll and roll back a real vLLM, with users all along."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from kubernetes.aio.client.exceptions import ApiException

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.profile import Profile
from breakeven_operator.cluster_reasons import ClusterReason
from demo.director import failed_runs
from demo.installation import NAMESPACE, measure_again
from demo.sight import Object, Sight
from demo.traffic import Endpoints, RequestShape
from localcluster import LocalCluster, LocalClusterError
from real import deployments, likeness
from real.engines import Engines, QuestionError
from real.findings import BrokenStage, ObservedRoll, Probed
from real.greedy_users import SteadyLoad, Users
from real.run_results import RunResults

T = TypeVar("T")
# Costs of a roll and future loads decide between arms that are as close as this.
_TIE = 0.05
_ATTEMPTS = 3
# Many times the durations on a quiet machine: nothing is waited for any longer.
_START_S, _CALIBRATION_S, _ROLL_S = 900.0, 3600.0, 1200.0
# Of the engine's saturation: where the operator is asked to decide, and where lengths that were not fitted are tried.
_DECISION_LOAD, _LENGTHS_LOAD = 0.30, 0.40
_SHAPE = RequestShape(deployments.PROMPT_TOKENS, deployments.OUTPUT_TOKENS)


class RunError(Exception):
    """Something that must happen did not; the text says what and how long was waited."""


# A stage that ends so is a row of the results; the stages that can do without it go on.
STAGE_FAILURES = (
    RunError, QuestionError, BreakevenError, LocalClusterError, ApiException, aiohttp.ClientError, OSError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of a run (s).

    Attributes:
        look_s: between two looks at the cluster.
        probe_s, warmup_s: how long a probe sends, and how much of it is not in the mean.
        stay_s: how long an arm that may stay is watched: several windows of the operator.
        choice_s: how long a change of the arm is waited for.
    """

    look_s: float = 1.0
    probe_s: float = 45.0
    warmup_s: float = 5.0
    stay_s: float = 90.0
    choice_s: float = 300.0


class RealRun:
    """One run, stage after stage; what it has seen is kept after each.

    Args:
        cluster: with everything stood up.
        sight: reads it.
        models: folder with `target` and `drafter`.
        engines: asks the engines.
        results: takes a line per step, and what was seen.
        pace: its times.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        sight: Sight,
        models: Path,
        engines: Engines,
        results: RunResults,
        pace: Pace = Pace(),
    ) -> None:
        self._cluster = cluster
        self._sight = sight
        self._models = models
        self._engines = engines
        self._results = results
        self._pace = pace
        self._record = results.record
        self._say = results.say

    async def run(self, *, likeness_only: bool = False) -> None:
        """Take all stages, in order. One that breaks off is in the record; those that need it are left out.

        Args:
            likeness_only: stop when the simulated engine was compared with the real one.
        """
        url = await self._stage("the engine starts", self._start())
        if url is None:
            return
        await self._stage("the simulated engine is compared with vLLM", self._compare_engines(url))
        if likeness_only:
            return
        profile = await self._stage("calibration", self._calibrate())
        if profile is None:
            return
        probes = await self._stage("loads that were not fitted", self._unfitted(profile)) or ()
        await self._probe_all(NO_SPECULATION, probes)
        name = await self._stage("decision and roll", self._decided(profile))
        if name is None or name == NO_SPECULATION.name:
            return
        arm = await self._stage(f"probes of {name}", self._measured(profile, name))
        if arm is not None:
            await self._probe_all(arm, probes)
            await self._stage("metrics pages after drafts", self._compare_speculating(arm))
        await self._stage("back to none", self._back())

    async def _stage(self, what: str, taken: Awaitable[T]) -> T | None:
        """Await a stage and keep what it has seen; None if it broke off, which is then in the record."""
        try:
            return await taken
        except STAGE_FAILURES as problem:
            broken = BrokenStage(what, " ".join(str(problem).split()) or type(problem).__name__)
            self._record.broken.append(broken)
            self._say(f"broke off: {broken.what}: {broken.why}")
            return None
        finally:
            self._results.keep()

    def _apply(self, *documents: Mapping[str, Any]) -> None:
        deployments.apply(self._cluster, *map(dict, documents))

    async def _start(self) -> str:
        """Start the real engine and its simulated twins; the address of the real one."""
        target = self._models / "target"
        self._apply(deployments.target(target))
        self._apply(deployments.simulated("sim-none", target, "null"))
        spec = {"method": "ngram", "num_speculative_tokens": deployments.DRAFT_LENGTH}
        self._apply(deployments.simulated("sim-ngram", target, json.dumps(spec)))
        self._say("waiting for vLLM to start in its pod")
        return await self._one_pod(deployments.TARGET, _START_S)

    async def _compare_engines(self, url: str) -> None:
        """Flags by vLLM's own parser; answers and the metrics page by the twin that was started with the same words."""
        self._say("comparing the simulated engine with it: flags, answers, metrics page")
        stored = json.loads((deployments.ROOT / "tuner/breakeven/serving/vllm_0_32_flags.json").read_text())
        flags = await asyncio.to_thread(self._engines.flags)
        self._record.likeness["flags"] = likeness.flag_differences(flags, stored)
        twin = await self._one_pod("sim-none", _START_S)
        real, simulated = [await asyncio.to_thread(self._engines.answers, one) for one in (url, twin)]
        self._record.likeness[f"answers to {len(real)} requests"] = likeness.answer_differences(
            real, simulated
        )
        self._record.likeness["metrics without speculation"] = likeness.page_differences(
            await self._engines.page(url), await self._engines.page(twin)
        )

    async def _calibrate(self) -> Profile:
        """Put the service into the cluster and wait for its profile."""
        self._apply(deployments.service(self._models / "drafter"))
        self._say(
            "the operator calibrates: none, n-gram, a draft model, and a schedule made of what they cost"
        )
        profile = await self._calibrated()
        self._record.profile = profile
        return profile

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
            await asyncio.sleep(self._pace.look_s)
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
            self._record.run = found
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
        """Loads and lengths that no fit has seen, on the pod that serves; one that breaks off leaves the others."""
        url = await self._stage(f"an idle engine on {arm}", self._quiet())
        for seed, (what, load) in enumerate(probes if url else (), start=1):
            await self._stage(f"{arm}: {what}", self._probe(arm, what, load, str(url), 1000 * seed))

    async def _probe(self, arm: Arm, what: str, load: SteadyLoad, url: str, seed: int) -> None:
        self._say(f"{arm}: {what}, {load.rps:.2f} rps for {load.seconds:.0f} s")
        users = self._engines.users(load.shape, Endpoints.fixed({"pod": url}), seed=seed)
        offered = await users.offer(load)
        self._record.probes.append(Probed(what, arm, offered))
        self._say(
            f"{arm}: {offered.latency_s:.3f} s, the mean of {offered.counted} requests at {offered.rps:.2f} rps"
        )

    async def _unfitted(self, profile: Profile) -> list[tuple[str, SteadyLoad]]:
        return unfitted(profile, self._pace)

    async def _measured(self, profile: Profile, name: str) -> Arm:
        """The arm of a name.

        Raises:
            RunError: it was not measured.
        """
        for fit in profile.arms:
            if fit.arm.name == name:
                return fit.arm
        known = ", ".join(str(fit.arm) for fit in profile.arms)
        raise RunError(f"{name} runs and was not measured; measured arms: {known}")

    async def _decided(self, profile: Profile) -> str:
        """Let the operator decide and roll under a load; the name of the arm that runs then."""
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
                await asyncio.sleep(self._pace.stay_s)
            status = await self._settled(best)
            seconds = time.monotonic() - begun
        self._record.decided, self._record.reason = _running(status), _reason(status)
        self._say(f"{self._record.decided} runs: {self._record.reason}")
        if self._record.decided != NO_SPECULATION.name:
            self._note_roll(users, seconds, self._record.decided, self._record.reason)
        return self._record.decided

    async def _compare_speculating(self, arm: Arm) -> None:
        """Both engines' metrics pages after drafts; a family has labels once something was counted."""
        if arm.method != "ngram":
            return
        self._say("comparing the metrics pages of both engines after drafts")
        pages = []
        for app in (deployments.TARGET, "sim-ngram"):
            url = await self._one_pod(app, _START_S)
            await asyncio.to_thread(self._engines.answers, url)
            pages.append(await self._engines.page(url))
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
        patient_until = time.monotonic() + self._pace.choice_s

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
        users = self._engines.users(_SHAPE, endpoints, seed=7)

        async def follow() -> None:
            while True:
                endpoints.learn(await self._sight.ready_pods({"app": deployments.TARGET}, deployments.PORT))
                await asyncio.sleep(self._pace.look_s)

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

    async def _quiet(self) -> str:
        """Return when one pod is left and it is idle; its address."""
        url = await self._one_pod(deployments.TARGET, _ROLL_S)

        async def idle() -> bool:
            page = await self._engines.page(url)
            return all(
                line.endswith(" 0.0")
                for line in page.splitlines()
                if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))
            )

        await self._until("an idle engine", idle, _START_S)
        return url


def unfitted(profile: Profile, pace: Pace = Pace()) -> list[tuple[str, SteadyLoad]]:
    """Loads between those that were fitted, and lengths that were not; the same for every arm."""
    rates = sorted({row.rps for row in profile.arm(NO_SPECULATION).measurements if row.mode != "closed"})
    between = [(a + b) / 2 for a, b in pairwise(rates)][:2]
    found = [
        (f"between the loads that were fitted, {number}", _load(rps, _SHAPE, pace))
        for number, rps in enumerate(between, start=1)
    ]
    prompt, answer = _SHAPE.prompt_tokens, _SHAPE.output_tokens
    for what, shape in (
        ("prompts three times as long", RequestShape(3 * prompt, answer)),
        ("answers twice as long", RequestShape(prompt, 2 * answer)),
    ):
        # The load with as many tokens per second as the intended share of saturation.
        work = (shape.prompt_tokens / 4 + shape.output_tokens) / (prompt / 4 + answer)
        found.append((what, _load(_LENGTHS_LOAD * saturation_rps(profile) / work, shape, pace)))
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

    The fastest, those within `_TIE` of it, and no speculation if the fastest is not significantly faster.

    Args:
        profile: the measured laws.
        arms: of which one is chosen, no speculation among them.
        rps: a load that some of them can serve.

    Raises:
        RunError: none of them can.
    """
    latencies = {
        arm: latency for arm in arms if (latency := profile.predict(arm, rps=rps).latency_s) is not None
    }
    if not latencies:
        raise RunError(f"{rps:.2f} rps: every arm with a law is saturated")
    fastest = min(latencies, key=latencies.__getitem__)
    best = {arm.name for arm, latency in latencies.items() if latency <= latencies[fastest] * (1 + _TIE)}
    if fastest != NO_SPECULATION:
        low, _ = profile.compare(fastest, NO_SPECULATION, rps=rps).speedup_ci or (None, None)
        if low is None or low <= 1.0:
            best.add(NO_SPECULATION.name)
    return frozenset(best)


def _load(rps: float, shape: RequestShape, pace: Pace) -> SteadyLoad:
    return SteadyLoad(rps, shape, pace.probe_s, pace.warmup_s)


async def _given(value: T) -> T:
    return value


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
