"""`make real`: a real vLLM, calibrated, decided on and rolled by the operator on the one-machine cluster; or on one GPU."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import yaml
from rich.console import Console
from rich.table import Table

from breakeven.errors import BreakevenError
from breakeven.profile import Profile
from demo.sight import Sight
from demo.summary import operator_failures
from localcluster import LocalCluster, LocalClusterError
from localcluster.binaries import ensure
from localcluster.catalog import CONTROL_PLANE
from localcluster.progress import duration
from real import cores, deployments, findings, gpu, model, vllm_environment
from real.play import Play, RunError, Seen

STATE = deployments.ROOT / ".local"
RESULTS = deployments.ROOT / ".real"
_PROGRAMS = (*CONTROL_PLANE, "prometheus", "promtool", "helm")


def main() -> int:
    """Parse, run, tell; 0 only if every check holds."""
    parser = argparse.ArgumentParser(prog="real", description=__doc__)
    parser.add_argument(
        "--engine", choices=("cpu", "gpu"), default="cpu", help="what vLLM runs on (default cpu)"
    )
    parser.add_argument("--dry-run", action="store_true", help="of gpu: print the commands and run none")
    parser.add_argument("--install-only", action="store_true", help="of cpu: install vLLM and stop")
    parser.add_argument(
        "--likeness", action="store_true", help="of cpu: stop when the simulated engine was compared with it"
    )
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        if options.engine == "gpu":
            status, words = gpu.run(RESULTS, console, dry_run=options.dry_run)
        elif options.install_only:
            status, words = 0, f"vLLM is in {vllm_environment.install().parents[1]}"
        else:
            status, words = _play(console, likeness_only=options.likeness)
    except (BreakevenError, LocalClusterError, RunError, aiohttp.ClientError, OSError) as problem:
        status, words = 1, str(problem)
        if notes := getattr(problem, "__notes__", ()):
            RESULTS.mkdir(exist_ok=True)
            said = RESULTS / "cluster.txt"
            said.write_text("\n".join(notes))
            console.print(f"what the cluster had to say: {os.path.relpath(said)}", markup=False)
    except KeyboardInterrupt:
        status, words = 130, "interrupted; the cluster is gone"
    # The last line, whatever came before: a reader of a long log looks there.
    console.print(
        f"real: exit status {status}: {' '.join(words.split())}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return status


def _play(console: Console, *, likeness_only: bool) -> tuple[int, str]:
    """Install, stand up, run, tell; exit status and last line."""
    python = vllm_environment.install()
    ensure(_PROGRAMS)
    RESULTS.mkdir(exist_ok=True)
    models = RESULTS / "models"
    for name, shape in (("target", model.TARGET), ("drafter", model.DRAFTER)):
        model.write(models / name, shape, model.prose_words())
    division = cores.split(os.sched_getaffinity(0))
    # Before anything is started: all of it inherits where it may run.
    cores.take(division)
    started = time.monotonic()

    def say(line: str) -> None:
        console.print(
            f"{time.monotonic() - started:5.0f} s  {line}", markup=False, highlight=False, soft_wrap=True
        )

    say(division.sentence())
    table = RESULTS / "images.yaml"
    table.write_text(yaml.safe_dump(deployments.images(python, division)))
    with LocalCluster(STATE) as cluster:
        say(f"control plane is up (kubectl --kubeconfig {os.path.relpath(cluster.kubeconfig)})")
        deployments.stand_up(cluster, table)
        say(
            "a node with one core for vLLM, one for its simulated twin, Prometheus, and the operator from its chart"
        )
        seen = asyncio.run(_watched(cluster, models, python, say, likeness_only=likeness_only))
        failures = operator_failures(*_operator_log(cluster))
    told = findings.judge_likeness(seen.likeness) if likeness_only else judged(seen, failures)
    if not likeness_only:
        _tell(console, seen)
    _write(console, seen, told)
    say(
        f"took {duration(time.monotonic() - started)}; profile, points and findings: {os.path.relpath(RESULTS)}"
    )
    return findings.last_line(told)


async def _watched(
    cluster: LocalCluster, models: Path, python: Path, say: findings.Say, *, likeness_only: bool
) -> Seen:
    async with Sight(cluster.kubeconfig, deployments.NAMESPACE, alertmanager_url="") as sight:
        return await Play(cluster, sight, models, python, say).run(likeness_only=likeness_only)


def _operator_log(cluster: LocalCluster) -> tuple[str, int]:
    where = f"--namespace={deployments.OPERATOR_NAMESPACE}"
    text = cluster.kubectl("logs", where, "deployment/breakeven").stdout
    restarts = cluster.kubectl(
        "get", "pods", where, "--selector=app.kubernetes.io/name=breakeven",
        "--output=jsonpath={.items[*].status.containerStatuses[*].restartCount}",
    ).stdout  # fmt: skip
    return text, sum(map(int, restarts.split()))


def judged(seen: Seen, failures: Sequence[str]) -> list[findings.Judged]:
    """Every check and goal of a run on CPU."""
    profile = _profile(seen)
    found = [findings.predicted(profile, probed) for probed in seen.probes]
    return [
        *findings.judge_likeness(seen.likeness),
        *findings.judge_arms(seen.run, deployments.LOOKUP),
        *findings.judge_fits(profile),
        findings.Judged(
            f"the operator runs what the measured laws ask for at {seen.decision_rps:.2f} rps",
            seen.decided in seen.wanted,
            f"{seen.decided or 'nothing'} runs; asked for: {', '.join(sorted(seen.wanted))}",
        ),
        *findings.judge_predictions(found),
        *findings.judge_speedups(findings.speedups(found)),
        *findings.judge_accounts(seen.probes),
        *findings.judge_rolls(seen.rolls),
        findings.Judged(
            "the operator met no error of its own",
            not failures,
            f"{len(failures)} lines of its log; first: {failures[0]}" if failures else "none in its log",
        ),
    ]


def _profile(seen: Seen) -> Profile:
    if seen.profile is None:
        raise RunError("nothing was measured")
    return seen.profile


def _tables(seen: Seen) -> list[tuple[str, Sequence[str], list[findings.Row]]]:
    """Title, head and rows of each table."""
    profile = _profile(seen)
    found = [findings.predicted(profile, probed) for probed in seen.probes]
    loads_rps = (seen.decision_rps, 2 * seen.decision_rps)
    return [
        ("What calibration found", findings.FIT_HEAD, findings.fit_rows(profile)),
        ("Does it pay?", findings.PAYS_HEAD, findings.pays_rows(profile, loads_rps)),
        ("Latency not fitted", findings.PREDICTION_HEAD, findings.prediction_rows(found)),
        ("Speedup there", findings.SPEEDUP_HEAD, findings.speedup_rows(findings.speedups(found))),
        ("Users and engine on the same requests", findings.ACCOUNT_HEAD, findings.account_rows(seen.probes)),
        ("Rolls under load", findings.ROLL_HEAD, findings.roll_rows(seen.rolls)),
    ]


def _tell(console: Console, seen: Seen) -> None:
    """Print the tables, and write them with profile and points."""
    tables = _tables(seen)
    for title, head, rows in tables:
        shown = Table(title=title, title_justify="left")
        for word in head:
            shown.add_column(word)
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
    (RESULTS / "profile.json").write_text(_profile(seen).to_json())
    (RESULTS / "points.json").write_text(
        json.dumps((seen.run.get("status") or {}).get("points", []), indent=1)
    )
    (RESULTS / "tables.json").write_text(
        json.dumps({title: [list(head), *map(list, rows)] for title, head, rows in tables}, indent=1)
    )


def _write(console: Console, seen: Seen, told: Sequence[findings.Judged]) -> None:
    """Print checks and goals, and write them with every difference between the engines."""
    for one in told:
        line = f"{one.word}  {one.what}: {one.detail}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    document = {
        "findings": [{"what": o.what, "ok": o.ok, "detail": o.detail, "goal": o.goal} for o in told],
        "differences": seen.likeness,
    }
    (RESULTS / "findings.json").write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    sys.exit(main())
