"""`breakeven-operator run | trial | request-run`: the operator, the load driver of its Jobs, its CronJobs' one request."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import click

from breakeven import __version__
from breakeven.errors import BreakevenError
from breakeven_operator.kinds import RUNS, SERVICE_LABEL, SERVICES, new_object, owner_reference
from breakeven_operator.ports import ClusterError
from breakeven_operator.resources.calibrationrun import Trigger


def requested_run(namespace: str, service: str, uid: str, trigger: Trigger) -> dict[str, Any]:
    """The CalibrationRun to create, with a name that the API server completes.

    Without a uid the run stays when the service goes.
    """
    owner = owner_reference(SERVICES, service, uid) if uid else None
    spec = {"serviceRef": {"name": service}, "trigger": str(trigger)}
    return new_object(RUNS, f"{service}-", namespace, {SERVICE_LABEL: service}, owner, spec=spec)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="breakeven-operator")
def root() -> None:
    """Decides for vLLM workloads of a cluster whether, how and until which load they speculate."""


@root.command()
@click.option(
    "--dry-run", is_flag=True, help="Decide and print what would be done; write nothing, take no Lease."
)
@click.option("--once", is_flag=True, help="One cycle, then exit (1 if the cluster could not be read).")
def run(*, dry_run: bool, once: bool) -> None:
    r"""Run the operator. Settings come from the environment (BREAKEVEN_...).

    \b
      KUBECONFIG=.local/kubeconfig breakeven-operator run --dry-run --once
    """
    from breakeven_operator import handlers
    from breakeven_operator.loop import assembly
    from breakeven_operator.serve import logs
    from breakeven_operator.settings import read_settings

    settings = read_settings(os.environ)
    logs.configure(settings.log_level, text=settings.log_format == "text")
    dry_run = dry_run or settings.dry_run == "true"
    if once:
        done = asyncio.run(assembly.one_cycle(settings, dry_run=dry_run))
        sys.exit(0 if done else 1)
    handlers.run(settings, dry_run=dry_run)


@root.command()
def trial() -> None:
    """Measure one arm: what the main container of a calibration Job runs (settings from its environment)."""
    from breakeven_operator.driver import main as measure
    from breakeven_operator.gate_driver import run_gate

    sys.exit(measure(run_gate))


@root.command("request-run")
@click.option("--service", required=True, envvar="BREAKEVEN_SERVICE", help="Name of the SpeculativeService.")
@click.option(
    "--service-uid", default="", envvar="BREAKEVEN_SERVICE_UID", help="Its uid: the run goes with it."
)
@click.option("--namespace", required=True, envvar="BREAKEVEN_NAMESPACE", help="Its namespace.")
@click.option(
    "--trigger",
    type=click.Choice(["Schedule", "Manual"]),
    default="Schedule",
    show_default=True,
    help="Why, as the run says.",
)
def request_run(service: str, service_uid: str, namespace: str, trigger: str) -> None:
    """Create one CalibrationRun; the operator admits it. What a service's CronJob runs."""
    from breakeven_operator.cluster.kubernetes import KubernetesCluster

    async def create() -> str:
        cluster = await KubernetesCluster.connect(os.environ.get("KUBECONFIG"))
        try:
            body = requested_run(namespace, service, service_uid, Trigger(trigger))
            return str((await cluster.create(RUNS, body))["metadata"]["name"])
        finally:
            await cluster.close()

    click.echo(asyncio.run(create()))


def main() -> None:
    """Entry point of the console script: exit 0, 1 (refused, one line) or 2 (usage)."""
    try:
        root.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as usage:
        usage.show()
        sys.exit(usage.exit_code)
    except (BreakevenError, ClusterError, RuntimeError) as refusal:
        click.echo(f"breakeven-operator: {refusal}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
