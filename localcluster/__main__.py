"""`python -m localcluster up | down | status | build`: a cluster that stays, for the person at the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from localcluster import nodes, optional_controllers
from localcluster.binaries import ensure
from localcluster.cluster import LocalCluster
from localcluster.descendants import resident_bytes
from localcluster.failure import LocalClusterError
from localcluster.progress import say
from localcluster.state import DEFAULT

_state_dir = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT,
    show_default=True,
    help="Folder that holds the cluster.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def root() -> None:
    """A real Kubernetes control plane on this machine, without root and without containers."""


@root.command()
@_state_dir
@click.option(
    "--node",
    "fleet",
    multiple=True,
    metavar="NAME=GPU_PRODUCT:COUNT",
    help=f"A node; give it as often as needed. [default: {' '.join(map(str, nodes.DEFAULT))}]",
)
@click.option(
    "--prometheus/--no-prometheus", default=True, help="Prometheus and Alertmanager.  [default: on]"
)
@click.option(
    "--scrape-interval",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    help="Seconds between scrapes and between evaluations of rules.",
)
@click.option(
    "--rules",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Rule file or PrometheusRule manifest to load.",
)
@click.option(
    "--controller",
    "controllers",
    multiple=True,
    type=click.Choice(optional_controllers.NAMES),
    help="Controller of kinds that not every cluster has; it is built at its first use.",
)
def up(
    state_dir: Path,
    fleet: Sequence[str],
    rules: Sequence[Path],
    controllers: Sequence[str],
    scrape_interval: float,
    *,
    prometheus: bool,
) -> None:
    """Start a cluster that outlives this command; prints its kubeconfig's path."""
    wanted = [nodes.GpuNode.parse(text) for text in fleet] or list(nodes.DEFAULT)
    if not prometheus and rules:
        raise click.UsageError("--rules needs Prometheus")
    cluster = LocalCluster(state_dir)
    cluster.start()
    try:
        cluster.start_nodes(wanted)
        if prometheus:
            cluster.start_prometheus(rules, scrape_interval_s=scrape_interval)
        for name in controllers:
            cluster.start_controller(name)
        cluster.detach()
    except BaseException:
        cluster.stop()
        raise
    say(f"nodes: {', '.join(f'{node.name} ({node.gpus} x {node.product})' for node in wanted)}")
    if prometheus:
        say(f"Prometheus {cluster.prometheus_url}  Alertmanager {cluster.alertmanager_url}")
    say(
        f"try: export KUBECONFIG={cluster.kubeconfig} PATH={cluster.state_dir / 'bin'}:$PATH; kubectl get nodes"
    )
    say("kubeconfig:")
    click.echo(cluster.kubeconfig)


@root.command()
@_state_dir
def down(state_dir: Path) -> None:
    """Stop it; no process and no file stays behind."""
    LocalCluster(state_dir).stop()


@root.command()
@_state_dir
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def status(state_dir: Path, *, as_json: bool) -> None:
    """Print the processes with their memory; exit 1 if no cluster runs or a part of it has died."""
    cluster = LocalCluster.attach(state_dir)
    processes = [(process, resident_bytes(process.pid)) for process in cluster.processes()]
    if as_json:
        facts = {
            "kubeconfig": str(cluster.kubeconfig),
            "api": cluster.api_url,
            "prometheus": cluster.prometheus_url or None,
            "alertmanager": cluster.alertmanager_url or None,
            "processes": [{**asdict(process), "resident_bytes": memory} for process, memory in processes],
        }
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo(f"kubeconfig    {cluster.kubeconfig}\nAPI server    {cluster.api_url}")
        click.echo(
            f"Prometheus    {cluster.prometheus_url or '-'}\nAlertmanager  {cluster.alertmanager_url or '-'}\n"
        )
        click.echo(f"{'PROCESS':<24}  {'PID':>7}  {'MEMORY MB':>9}  STATE")
        for process, memory in processes:
            words = "stopped" if process.stopped else f"ended with {process.returncode}"
            state = "running" if process.returncode is None else words
            click.echo(f"{process.name:<24}  {process.pid:>7}  {memory / 1e6:>9.0f}  {state}")
    if any(process.returncode is not None and not process.stopped for process, _ in processes):
        sys.exit(1)


@root.command()
def build() -> None:
    """Build every program of the cluster now, so that nothing has to be waited for later."""
    folders = sorted({str(path.parent) for path in ensure().values()})
    say(f"all programs are there: {', '.join(folders)}")


def main() -> None:
    """Exit 0, 1 with one line (refused or failed), 2 (usage) or 130 (interrupted)."""
    try:
        root.main(prog_name="python -m localcluster", standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("localcluster: interrupted; what was started is stopped, what was built is kept", err=True)
        sys.exit(130)
    except click.ClickException as usage:
        usage.show()
        sys.exit(usage.exit_code)
    except LocalClusterError as refusal:
        click.echo(f"localcluster: {refusal}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
