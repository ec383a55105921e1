"""One run of the demo on a cluster of its own: what is set up before the acts, and what is read after them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from rich.console import Console

from breakeven.profile import Profile
from breakeven_operator.resources.updatepolicy import PRODUCTION, Timing
from demo import installation
from demo.director import Director, Player
from demo.earlier_hours import WINDOW_S, past_of
from demo.photographs import photograph
from demo.record import Record, ServiceRecord
from demo.sight import Sight
from demo.summary import operator_failures
from demo.traffic import Endpoints, RequestShape, Traffic
from demo.view import View
from localcluster import LocalCluster
from localcluster.binaries import ensure
from localcluster.catalog import CONTROL_PLANE, MONITORING

STATE = installation.ROOT / ".local"
RESULTS = installation.ROOT / ".demo"
# Many times what a quiet machine takes: what happens is not waited for any longer.
PODS_TIMEOUT_S = 300.0
CALIBRATION_TIMEOUT_S = 1200.0
# While arms are measured, users already ask a little: the service has its figures when the profile is there.
_EARLY_RPS = 1.0
_PAST_ENDED_S = 1800

Told = TypeVar("Told")


@dataclass(frozen=True, slots=True)
class Casting:
    """A service of the demo.

    Attributes:
        name: of the SpeculativeService; its target is `<name>-vllm`.
        gpu: as the picture calls it.
        mode: of its update policy.
        replicas: of the target.
        seed: of its users.
        product: GPU class of the nodes, if Prometheus holds a past of the service; empty: it is new.
        resource: of the target, as the API server's paths have it.
        controller: the optional program that the target needs; empty: none.
    """

    name: str
    gpu: str
    mode: str
    replicas: int
    seed: int = 1
    product: str = ""
    resource: str = "deployments"
    controller: str = ""

    def past(self, costs: Path) -> str:
        """Samples of its past until half an hour ago; empty if it has none."""
        if not self.product:
            return ""
        end_s = int(time.time() - _PAST_ENDED_S) // WINDOW_S * WINDOW_S
        return past_of(costs, self.product, f"{self.name}-vllm", self.name, end_s)

    def player(self, record: ServiceRecord) -> Player:
        """The service with its users, who ask nothing yet."""
        shape = RequestShape(installation.PROMPT_TOKENS, installation.OUTPUT_TOKENS)
        traffic = Traffic(self.name, shape, Endpoints(), seed=self.seed)
        return Player(record, traffic, {"app": f"{self.name}-vllm"}, 8000, self.replicas, {})


@dataclass(frozen=True, slots=True)
class Scene:
    """The stage of the acts."""

    cluster: LocalCluster
    director: Director
    players: Mapping[str, Player]
    view: View
    record: Record

    async def measured(self, how: str) -> dict[str, Profile]:
        """Let users ask a little, and wait for a profile in force for every player.

        Args:
            how: the calibration, as the view names it.
        """
        for player in self.players.values():
            player.traffic.set_rate(_EARLY_RPS * player.replicas)
        self.view.step(f"calibrating every arm {how}")

        async def again(service: str, attempt: int) -> None:
            await asyncio.to_thread(installation.measure_again, self.cluster, service, attempt)

        return await self.director.calibrated(CALIBRATION_TIMEOUT_S, again)

    async def photographed(self, *names: str) -> None:
        """Photograph the board as it is now, while users go on asking.

        Args:
            names: `board`, the page of all services, and `service`, the page of the first one.
        """
        paths = {"board": "", "service": f"services/{installation.NAMESPACE}/{next(iter(self.players))}"}
        address = await asyncio.to_thread(installation.board_address, self.cluster)
        pages = {name: paths[name] for name in names}
        self.view.step(await asyncio.to_thread(photograph, address, pages, RESULTS))


@dataclass(frozen=True, slots=True)
class Performance(Generic[Told]):
    """A run that came to its end.

    Attributes:
        record: samples, phases and events of the run.
        told: what the acts returned.
        writes: of the operator's account to each target, by service, from the API server's own audit log.
        failures: of the operator itself, one line each.
        cluster: that it ran on; still up if it was to be kept.
    """

    record: Record
    told: Told
    writes: Mapping[str, list[str]]
    failures: list[str]
    cluster: LocalCluster


def perform(
    costs: Path,
    console: Console,
    cast: tuple[Casting, ...],
    installed: Callable[[LocalCluster], str],
    acts: Callable[[Scene], Awaitable[Told]],
    *,
    keep: bool,
    timing: Timing = PRODUCTION,
) -> Performance[Told]:
    """Stand everything up, play the acts, and take everything down.

    Args:
        costs: of the simulated engine.
        console: to tell it on.
        cast: the services.
        installed: applies them; says in words what it did.
        acts: from the first Ready pod to the end.
        keep: leave the cluster up.
        timing: times of the installation.
    """
    RESULTS.mkdir(exist_ok=True)
    # A first run builds for minutes; the demo, and the time axis of its picture, begin after that.
    controllers = sorted({one.controller for one in cast} - {""})
    ensure((*CONTROL_PLANE, *MONITORING, "helm", *controllers))
    services = {one.name: ServiceRecord(one.name, one.gpu, one.mode) for one in cast}
    record = Record(time.time(), services, shortened=installation.shortened(timing))
    with contextlib.ExitStack() as ending:
        cluster = ending.enter_context(LocalCluster(STATE))
        with View(record, console) as view:
            view.step(f"control plane is up (kubectl --kubeconfig {os.path.relpath(cluster.kubeconfig)})")
            cluster.start_nodes(environment={"BREAKEVEN_SIM_COSTS": str(costs)})
            view.step("two nodes with 8 GPUs each: A100 and H100")
            for controller in controllers:
                cluster.start_controller(controller)
                view.step(f"{controller} runs")
            cluster.start_prometheus(
                installation.alert_rules(cluster, RESULTS),
                scrape_interval_s=1.0,
                lookback_s=5.0,
                past="".join(one.past(costs) for one in cast),
            )
            view.step(
                "Prometheus and Alertmanager run; Prometheus holds two hours of chat's past"
                if any(one.product for one in cast)
                else "Prometheus and Alertmanager run"
            )
            installation.install_operator(cluster, timing)
            view.step(f"operator installed by Helm; {installed(cluster)}")
            view.step(f"look at {installation.board_address(cluster)} while it runs: a page of all services")
            told = asyncio.run(_play(cluster, record, view, cast, acts))
        failures = operator_failures(*installation.operator_log(cluster))
        performance = Performance(record, told, _writes(cluster, cast), failures, cluster)
        if keep:
            ending.pop_all()
            cluster.detach()
    return performance


async def _play(
    cluster: LocalCluster,
    record: Record,
    view: View,
    cast: tuple[Casting, ...],
    acts: Callable[[Scene], Awaitable[Told]],
) -> Told:
    players = {one.name: one.player(record.services[one.name]) for one in cast}
    async with Sight(cluster.kubeconfig, installation.NAMESPACE, cluster.alertmanager_url) as sight:
        director = Director(sight, record, players, view)
        try:
            async with asyncio.TaskGroup() as running:
                # A watch that dies ends the demo: nothing would ever be seen to happen again.
                tasks = [running.create_task(director.watch())]
                tasks += [running.create_task(player.traffic.run()) for player in players.values()]
                await director.until(
                    "vLLM pods ready",
                    lambda: all(player.traffic.endpoints.urls for player in players.values()),
                    PODS_TIMEOUT_S,
                )
                told = await acts(Scene(cluster, director, players, view, record))
                for task in tasks:
                    task.cancel()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        outcomes = [outcome for player in players.values() for outcome in player.traffic.outcomes]
        record.requests = len(outcomes)
        record.failures = [f"{o.error} ({o.pod})" for o in outcomes if o.error]
    return told


def _writes(cluster: LocalCluster, cast: tuple[Casting, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {one.name: [] for one in cast}
    resources = {one.resource for one in cast}
    for event in cluster.audit_events():
        is_operator = event.user.startswith(f"system:serviceaccount:{installation.OPERATOR_NAMESPACE}:")
        if (
            is_operator
            and event.wrote
            and event.resource in resources
            and event.namespace == installation.NAMESPACE
        ):
            found.setdefault(event.name.removesuffix("-vllm"), []).append(f"{event.verb} {event.name}")
    return found


def what_to_try(console: Console, cluster: LocalCluster) -> None:
    """Say what can be done with a cluster that was left up."""
    console.print(
        f"""The cluster stays up, without users: PAYS is ? until there is load again. Try, in another terminal:
  make load SERVICE=chat RPS=4        # users for two minutes; more than the break-even: RPS=16
and here:
  export KUBECONFIG={cluster.kubeconfig} PATH={cluster.state_dir / "bin"}:{Path(sys.executable).parent}:$PATH
  kubectl get specsvc,calrun,specprof -n {installation.NAMESPACE} -o wide
  kubectl describe specsvc chat -n {installation.NAMESPACE}
  kubectl explain specsvc.spec.updatePolicy
  kubectl patch specsvc chat -n {installation.NAMESPACE} --type merge -p '{{"spec":{{"updatePolicy":{{"pinnedArm":"none"}}}}}}'
  kubectl patch specsvc chat -n {installation.NAMESPACE} --type merge -p '{{"spec":{{"updatePolicy":{{"pinnedArm":null}}}}}}'
  kubectl annotate specsvc chat -n {installation.NAMESPACE} --overwrite breakeven.dev/recalibrate="$(date +%s)"
  kubectl get specprof -n {installation.NAMESPACE} -o jsonpath='{{.items[0].spec.profile}}' > profile.json
  breakeven plan profile.json --rps 12
  the board {installation.board_address(cluster)}   Prometheus {cluster.prometheus_url}   Alertmanager {cluster.alertmanager_url}
End it with: make cluster-down""",
        markup=False,
        highlight=False,
    )
