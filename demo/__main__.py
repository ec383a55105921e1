"""`make demo`: a real control plane, a simulated GPU fleet, the real operator, and a day of load in five minutes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as TerminalTable

from breakeven.errors import BreakevenError
from breakeven.profile import Profile
from breakeven.reporting.page import Picture, Table, render_page, render_png
from breakeven_sim.engine.costs import parse_costs
from demo import installation
from demo.director import Director, Player, StoryError
from demo.picture import draw
from demo.record import Record, ServiceRecord
from demo.sight import Sight
from demo.story import Story, tell
from demo.summary import PHASE_HEAD, Check, judge, operator_failures, phase_rows
from demo.traffic import Endpoints, RequestShape, Traffic
from demo.view import View
from localcluster import LocalCluster, LocalClusterError
from localcluster.binaries import ensure
from localcluster.catalog import CONTROL_PLANE, MONITORING
from localcluster.nodes import DEFAULT as NODES

STATE = installation.ROOT / ".local"
RESULTS = installation.ROOT / ".demo"
DEFAULT_COSTS = installation.EXAMPLES / "engine-costs" / "demo.json"
# While arms are measured, users already ask a little: the service has its figures when the profile is there.
_EARLY_RPS = 1.0
# Many times what a quiet machine takes: what happens is not waited for any longer.
_PODS_TIMEOUT_S = 300.0
_CALIBRATION_TIMEOUT_S = 1200.0
_PHASE_TIMEOUT_S = 240.0
_MEASURE_S = 10.0
MIN_GAIN = 0.05


def main() -> int:
    """Parse, run, tell; 0 only if everything happened that the measured laws said must happen."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument(
        "--costs", type=Path, default=DEFAULT_COSTS, help="engine cost document (docs/engine-costs.md)"
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster up and say what to try")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    status, outcome = _outcome(options.costs, console, keep=options.keep)
    # The last line, whatever came before: a reader of a long log looks there.
    words = " ".join(outcome.split())
    console.print(f"demo: exit status {status}: {words}", markup=False, highlight=False, soft_wrap=True)
    return status


def _outcome(costs: Path, console: Console, *, keep: bool) -> tuple[int, str]:
    """Run the demo; its exit status, and in words why that."""
    try:
        for node in NODES:
            parse_costs(costs.read_text(), node.product, str(costs))
        checks = play(costs.resolve(), console, keep=keep)
    except FileNotFoundError as problem:
        return 1, f"{problem.filename}: no such file"
    except (BreakevenError, LocalClusterError, StoryError, OSError) as problem:
        if notes := getattr(problem, "__notes__", ()):
            said = RESULTS / "cluster.txt"
            said.write_text("\n".join(notes))
            console.print(f"what the cluster had to say: {os.path.relpath(said)}", markup=False)
        return 1, str(problem)
    except KeyboardInterrupt:
        return 130, "interrupted; the cluster is gone"
    failed = [check.what for check in checks if not check.ok]
    if failed:
        return 1, f"{len(failed)} of {len(checks)} checks failed: {'; '.join(failed)}"
    return 0, f"all {len(checks)} checks hold"


def play(costs: Path, console: Console, *, keep: bool) -> list[Check]:
    """Play the story on a cluster of its own, and write what was seen; whether each promise was kept."""
    RESULTS.mkdir(exist_ok=True)
    # A first run builds for minutes; the demo, and the time axis of its picture, begin after that.
    ensure((*CONTROL_PLANE, *MONITORING, "helm"))
    started = time.time()
    with contextlib.ExitStack() as ending:
        cluster = ending.enter_context(LocalCluster(STATE))
        record = Record(
            started,
            {
                "chat": ServiceRecord("chat", "A100", "RollingUpdate"),
                "code": ServiceRecord("code", "H100", "Recommend"),
            },
            shortened=installation.shortened(),
        )
        with View(record, console) as view:
            view.step(f"control plane is up (kubectl --kubeconfig {os.path.relpath(cluster.kubeconfig)})")
            cluster.start_nodes(environment={"BREAKEVEN_SIM_COSTS": str(costs)})
            view.step("two nodes with 8 GPUs each: A100 and H100")
            cluster.start_prometheus(
                installation.alert_rules(cluster, RESULTS), scrape_interval_s=1.0, lookback_s=5.0
            )
            view.step("Prometheus and Alertmanager run")
            installation.install_operator(cluster)
            installation.apply_examples(cluster)
            view.step("operator installed by Helm; two Deployments and two SpeculativeServices applied")
            stories, profiles = asyncio.run(_play(cluster, record, view))
        failures = operator_failures(*installation.operator_log(cluster))
        checks = judge(record, stories, _writes(cluster), failures)
        _tell(console, record, profiles, stories, checks)
        console.print(f"took {time.time() - started:.0f} s")
        if keep:
            ending.pop_all()
            cluster.detach()
            _what_to_try(console, cluster)
    return checks


async def _play(
    cluster: LocalCluster, record: Record, view: View
) -> tuple[dict[str, Story], dict[str, Profile]]:
    players = {
        "chat": _player(record.services["chat"], replicas=2, seed=1),
        "code": _player(record.services["code"], replicas=1, seed=2),
    }
    async with Sight(cluster.kubeconfig, installation.NAMESPACE, cluster.alertmanager_url) as sight:
        director = Director(sight, record, players, view)
        try:
            async with asyncio.TaskGroup() as running:
                # A watch that dies ends the demo: nothing would ever be seen to happen again.
                tasks = [running.create_task(director.watch())]
                tasks += [running.create_task(player.traffic.run()) for player in players.values()]
                stories, profiles = await _acts(cluster, director, players, view)
                for task in tasks:
                    task.cancel()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        outcomes = [outcome for player in players.values() for outcome in player.traffic.outcomes]
        record.requests = len(outcomes)
        record.failures = [f"{o.error} ({o.pod})" for o in outcomes if o.error]
    return stories, profiles


async def _acts(
    cluster: LocalCluster, director: Director, players: Mapping[str, Player], view: View
) -> tuple[dict[str, Story], dict[str, Profile]]:
    """Calibration, then the three loads."""
    await director.until(
        "vLLM pods ready", lambda: all(p.traffic.endpoints.urls for p in players.values()), _PODS_TIMEOUT_S
    )
    for player in players.values():
        player.traffic.set_rate(_EARLY_RPS * player.replicas)
    view.step("calibrating every arm on pods of their own, users already asking a little")

    async def again(service: str, attempt: int) -> None:
        await asyncio.to_thread(installation.measure_again, cluster, service, attempt)

    profiles = await director.calibrated(_CALIBRATION_TIMEOUT_S, again)
    stories = {name: tell(profile, MIN_GAIN) for name, profile in profiles.items()}
    for name, story in stories.items():
        view.step(f"measured: {name}: {story.sentence}")
    for number in range(3):
        phases = {name: story.phases[number] for name, story in stories.items()}
        loads = ", ".join(f"{name} {phase.rps:.1f} rps" for name, phase in phases.items())
        view.step(f"{phases['chat'].name} load: {loads} per replica")
        await director.play(
            phases,
            timeout_s=_PHASE_TIMEOUT_S,
            measure_s=_MEASURE_S,
        )
    return stories, profiles


def _player(service: ServiceRecord, *, replicas: int, seed: int) -> Player:
    traffic = Traffic(
        service.name,
        RequestShape(installation.PROMPT_TOKENS, installation.OUTPUT_TOKENS),
        Endpoints(),
        seed=seed,
    )
    return Player(service, traffic, {"app": f"{service.name}-vllm"}, 8000, replicas, {})


def _writes(cluster: LocalCluster) -> dict[str, list[str]]:
    """Writes of the operator's account to each Deployment, from the API server's own audit log."""
    found: dict[str, list[str]] = {"chat": [], "code": []}
    for event in cluster.audit_events():
        is_operator = event.user.startswith(f"system:serviceaccount:{installation.OPERATOR_NAMESPACE}:")
        if (
            is_operator
            and event.wrote
            and event.resource == "deployments"
            and event.namespace == installation.NAMESPACE
        ):
            found.setdefault(event.name.removesuffix("-vllm"), []).append(f"{event.verb} {event.name}")
    return found


def _tell(
    console: Console,
    record: Record,
    profiles: Mapping[str, Profile],
    stories: Mapping[str, Story],
    checks: Sequence[Check],
) -> None:
    rows = phase_rows(record)
    summary = TerminalTable(title="What happened", title_justify="left")
    for head in PHASE_HEAD:
        summary.add_column(head)
    for row in rows:
        summary.add_row(*row)
    console.print(summary)
    short = TerminalTable(title="Shortened for the demo", title_justify="left")
    for head in ("setting", "production", "here"):
        short.add_column(head)
    for row in record.shortened:
        short.add_row(*row)
    console.print(short)
    for check in checks:
        console.print(
            f"{'ok  ' if check.ok else 'FAIL'}  {check.what}: {check.detail}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    png, page, data = RESULTS / "demo.png", RESULTS / "demo.html", RESULTS / "checks.json"
    png.write_bytes(render_png(lambda theme: draw(record, profiles, theme), dots_per_inch=120))
    page.write_text(_page(record, profiles, stories, checks))
    data.write_text(json.dumps([{"what": c.what, "ok": c.ok, "detail": c.detail} for c in checks], indent=2))
    console.print(f"picture: {os.path.relpath(png)}   page: {os.path.relpath(page)}", markup=False)


def _page(
    record: Record, profiles: Mapping[str, Profile], stories: Mapping[str, Story], checks: Sequence[Check]
) -> str:
    failed = [f"{check.what}: {check.detail}" for check in checks if not check.ok]
    return render_page(
        title="Breakeven demo: a simulated GPU fleet through a day of load",
        facts=[f"{service.name}: {service.gpu}, {service.mode}" for service in record.services.values()],
        verdict="; ".join(f"{name}: {story.sentence}" for name, story in stories.items()),
        pictures=[
            Picture(
                lambda theme: draw(record, profiles, theme),
                "Above: what calibration measured (points), the fitted law with its bounds, and the break-even; the dashed "
                "lines are the loads of this run. Below: the run.",
                first=True,
            )
        ],
        warnings=failed,
        tables=[
            Table("What happened", PHASE_HEAD, phase_rows(record)),
            Table(
                "Checks",
                ("check", "", "detail"),
                [(c.what, "ok" if c.ok else "FAILED", c.detail) for c in checks],
            ),
            Table("Shortened for the demo", ("setting", "production", "here"), record.shortened),
            Table(
                "Events",
                ("seconds", "object", "reason", "message"),
                [(f"{e.at_s - record.started_s:.0f}", e.service, e.reason, e.message) for e in record.events],
            ),
        ],
        footer="The engine is simulated; control plane, operator, Prometheus and Helm are real. Loads and expectations come from the measured profiles.",
    )


def _what_to_try(console: Console, cluster: LocalCluster) -> None:
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
  Prometheus {cluster.prometheus_url}   Alertmanager {cluster.alertmanager_url}
End it with: make cluster-down""",
        markup=False,
        highlight=False,
    )


if __name__ == "__main__":
    sys.exit(main())
