"""The run on the one-machine cluster: calibrate, decide, roll and roll back a real vLLM, with users all along."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import aiohttp
from kubernetes.aio.client.exceptions import ApiException

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.profile import Profile
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.packed import whole
from demo.director import failed_runs
from demo.installation import NAMESPACE, measure_again
from demo.sight import Object, Sight
from demo.traffic import Endpoints
from localcluster import LocalCluster, LocalClusterError
from real import deployments, likeness
from real.alternation import Probed
from real.engines import Engines, QuestionError
from real.findings import BrokenStage, ObservedRoll
from real.greedy_users import SteadyLoad, Users
from real.run_results import RunResults
from real.served_model import ServedModel
from real.tasks import MIXES, TASKS, MixSeen
from real.tried_loads import RunError, best_at, decision_rps, most_promising, unfitted

T = TypeVar("T")
U = TypeVar("U", bound=Users)
_ATTEMPTS = 3
# Many times the durations on a quiet machine: nothing is waited for any longer.
_START_S, _CALIBRATION_S, _ROLL_S = 900.0, 3600.0, 1200.0


# A stage that ends so is a row of the results; the stages that can do without it go on.
STAGE_FAILURES = (
    RunError, QuestionError, BreakevenError, LocalClusterError, ApiException, aiohttp.ClientError, OSError,
)  # fmt: skip


class RealRun:
    """One run, stage after stage; what it has seen is kept after each.

    Args:
        cluster: with everything stood up.
        sight: reads it.
        served: the model, and the run's times.
        engines: asks the engines.
        results: takes a line per step, and what was seen.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        sight: Sight,
        served: ServedModel,
        engines: Engines,
        results: RunResults,
    ) -> None:
        self._cluster = cluster
        self._sight = sight
        self._served = served
        self._engines = engines
        self._results = results
        self._pace = served.pace
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
        if not self._served.speaks:
            await self._stage("the simulated engine is compared with vLLM", self._compare_engines(url))
        if likeness_only:
            return
        profile = await self._stage("calibration", self._calibrate())
        if profile is None:
            return
        name = await self._stage("decision and roll", self._decided(profile))
        if name is None:
            return
        arm = await self._stage(f"probes of {name}", self._measured(profile, name))
        if arm is not None:
            await self._stage("blocks in alternation", self._alternate(profile, arm))
            if not self._served.speaks:
                await self._stage("metrics pages after drafts", self._compare_speculating(arm))
        if self._served.speaks:
            await self._stage("a mix of tasks that drifts", self._drift())
        if name != NO_SPECULATION.name or self._served.speaks:
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
        """Start the real engine, and simulated twins of one without weights; the address of the real one."""
        self._apply(deployments.target(self._served))
        if not self._served.speaks:
            self._apply(deployments.simulated("sim-none", self._served, "null"))
            spec = {"method": "ngram", "num_speculative_tokens": deployments.DRAFT_LENGTH}
            self._apply(deployments.simulated("sim-ngram", self._served, json.dumps(spec)))
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
        self._apply(deployments.service(self._served))
        schedule = ", and a schedule made of what they cost" if len(self._served.draft_lengths) > 1 else ""
        self._say(f"the operator calibrates: none, n-gram, a draft model{schedule}")
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
        status: Object = whole(service.get("status") or {})
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
                if _measuring(runs):
                    self._record.yardsticks_ms.append(await asyncio.to_thread(self._engines.yardstick_ms))
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

    async def _alternate(self, profile: Profile, arm: Arm) -> None:
        """Serve no speculation beside the arm that runs (beside none: the arm that promises most), and measure both in turn."""
        # Its node has no room for a roll meanwhile.
        self._policy({"pinnedArm": arm.name})
        other = NO_SPECULATION if arm != NO_SPECULATION else most_promising(profile, self._served)
        async with self._beside(other) as url:
            urls = {other: url, arm: await self._quiet(deployments.TARGET)}
            drafting = other if arm == NO_SPECULATION else arm
            turn = (NO_SPECULATION, drafting, drafting, NO_SPECULATION)
            for number, (what, load) in enumerate(unfitted(profile, self._served), start=1):
                blocks = [
                    (one, cycle, urls[one], 1000 * number + cycle)
                    for cycle in range(1, self._pace.cycles + 1)
                    for one in turn
                ]
                await self._stage(what, self._blocks(what, load, blocks))
            if self._served.speaks:
                await self._stage("tasks", self._tasks(urls))

    async def _tasks(self, urls: Mapping[Arm, str]) -> None:
        """Ask each engine each task, one after the other."""
        for task in TASKS:
            for arm, url in urls.items():
                self._record.tasks.append(await self._engines.task_answer(url, task, arm))
        self._say(f"{len(TASKS)} tasks were answered by {' and '.join(map(str, urls))}")

    @contextlib.asynccontextmanager
    async def _beside(self, arm: Arm) -> AsyncIterator[str]:
        """The address of an idle second engine, which is gone afterwards."""
        config = _planned_config(self._record.run, arm)
        self._apply(deployments.beside(self._served, config))
        self._say(f"{arm} is started beside the engine that serves")
        try:
            yield await self._quiet(deployments.BESIDE)
        finally:
            self._kubectl(
                "delete", "deployment", deployments.BESIDE, "--cascade=foreground", "--timeout=180s"
            )

    async def _blocks(self, what: str, load: SteadyLoad, blocks: Sequence[tuple[Arm, int, str, int]]) -> None:
        """Blocks of one load, each from an idle engine to an idle engine.

        Args:
            what: how the load differs from what was fitted.
            load: of each block.
            blocks: arm, round, address and seed of each. The same seed gives the same arrivals and prompts.

        Raises:
            RunError: a block is too short for its latencies.
        """
        for arm, cycle, url, seed in blocks:
            users = self._engines.users(load.shape, Endpoints.fixed({"pod": url}), seed=seed)
            offered = await users.offer(load)
            if not offered.counted:
                raise RunError(
                    f"{arm}: none of {offered.account.asked} requests in {load.seconds:.0f} s was sent after"
                    f" {load.warmup_s:.0f} s and a latency before the end; the machine is too slow for such blocks"
                )
            yardstick_ms = await asyncio.to_thread(self._engines.yardstick_ms)
            self._record.probes.append(Probed(what, cycle, arm, offered, yardstick_ms))
            self._say(
                f"{arm}: {what}, {offered.rps:.2f} rps: {offered.latency_s:.3f} s, the mean of {offered.counted} requests;"
                f" yardstick {yardstick_ms:.2f} ms"
            )

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
        rps = decision_rps(profile, self._served)
        best = best_at(profile, [fit.arm for fit in profile.arms if fit.points], rps)
        self._record.decision_rps, self._record.wanted = rps, best
        self._say(
            f"{rps:.2f} rps: the measured laws ask for {' or '.join(sorted(best))}; the operator may roll"
        )
        async with self._users(rps, self._engines.users) as users:
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

    async def _drift(self) -> None:
        """Let the users' tasks change under n-gram lookup, and keep what the operator sees and decides."""
        arm = f"{deployments.LOOKUP}/{self._served.draft_lengths[0]}"
        self._say(f"{arm} by a pin, then by the operator's choice, while the mix of tasks drifts")
        before = _running(await self._status())
        async with self._users(self._record.decision_rps, self._engines.task_users) as users:
            begun = time.monotonic()
            self._policy({"pinnedArm": arm})
            status = await self._settled({arm})
            seconds, to, reason = time.monotonic() - begun, _running(status), _reason(status)
            self._policy({"pinnedArm": None})
            for name, tasks in MIXES.items():
                users.mix = tasks
                await asyncio.sleep(self._pace.stay_s)
                status = await self._status()
                decision = status.get("decision") or {}
                live, message = str(decision.get("tokensPerStep", "")), str(decision.get("message", ""))
                self._record.mixes.append(MixSeen(name, _running(status), live, _reason(status), message))
                self._say(f"{name}: E {live or '-'}, {_running(status) or 'a roll'} ({_reason(status)})")
        self._note_roll(users, seconds, to if to != before else f"{to}, which ran before", reason)

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
        """Back to no speculation by a pin, under the same load; nothing is rolled if the operator went there by itself."""
        if _running(await self._status()) == NO_SPECULATION.name:
            self._policy({"pinnedArm": NO_SPECULATION.name})
            return
        self._say("back to none by a pin, users asking all along")
        async with self._users(self._record.decision_rps, self._engines.users) as users:
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
    async def _users(self, rps: float, made: Callable[..., U]) -> AsyncIterator[U]:
        """Users that follow the ready pods until the block ends and every request is answered or lost."""
        endpoints = Endpoints()
        users = made(self._served.shape, endpoints, seed=7)

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

    async def _quiet(self, app: str) -> str:
        """Return when one pod of a Deployment is left and it is idle; its address."""
        url = await self._one_pod(app, _ROLL_S)

        async def idle() -> bool:
            page = await self._engines.page(url)
            return all(
                line.endswith(" 0.0")
                for line in page.splitlines()
                if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))
            )

        await self._until("an idle engine", idle, _START_S)
        return url


async def _given(value: T) -> T:
    return value


def _running(status: Object) -> str:
    """The arm that every pod runs; empty while they differ."""
    pods = (status.get("current") or {}).get("podsByArm") or []
    return str(pods[0]["arm"]) if len(pods) == 1 else ""


def _reason(status: Object) -> str:
    return str((status.get("decision") or {}).get("reason", ""))


def _planned_config(run: Object, arm: Arm) -> str:
    """The value of --speculative-config with which an arm was measured; its schedule, if it has one, is not in it."""
    arms = ((run.get("status") or {}).get("plan") or {}).get("arms") or []
    return next((str(one["speculativeConfig"]) for one in arms if one["arm"] == arm.name), "null")


def _latest(runs: Sequence[Object]) -> Object:
    """The run that was begun last; nothing without any."""
    return max(runs, key=lambda run: str(run["metadata"]["creationTimestamp"]), default={})


def _measuring(runs: Sequence[Object]) -> Object | None:
    """The status of the run that is under way."""
    statuses = (run.get("status") or {} for run in runs)
    return next((one for one in statuses if one.get("phase") not in {None, "Succeeded", "Failed"}), None)


def _progress(runs: Sequence[Object]) -> str:
    status = _measuring(runs)
    if status is None:
        return "calibration: nothing under way"
    display = status.get("display") or {}
    return f"calibrating {display.get('arm', '')}: {display.get('points', '-')} points"
