"""The node agent's command line."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from localcluster.nodeagent import agent
from localcluster.nodeagent.api_access import KubeconfigError
from localcluster.nodeagent.api_client import FAILURES, describe
from localcluster.nodeagent.backoff import Backoff
from localcluster.nodeagent.images import ImageTableError
from localcluster.nodeagent.nodeobjects import NodeFlagError, NodeSpec

_DEFAULT_NODES = ("a100=NVIDIA-A100-SXM4-80GB:8", "h100=NVIDIA-H100-80GB-HBM3:8")


def settings(arguments: Sequence[str]) -> agent.AgentSettings:
    """Reads the command line; exits with 2 and one line when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m localcluster.nodeagent",
        description="Kubernetes nodes whose pods are local processes. Ends with SIGTERM, and every pod's processes with it.",
    )
    parser.add_argument(
        "--kubeconfig", type=Path, required=True, help="an identity that may do what nodes do, for all pods"
    )
    parser.add_argument(
        "--state-dir", type=Path, required=True, help="volumes and logs of pods; kept over a restart"
    )
    parser.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="NAME[=GPU_PRODUCT:COUNT]",
        help=f"a node to simulate, again for more (default: {' and '.join(_DEFAULT_NODES)})",
    )
    parser.add_argument(
        "--images", type=Path, action="append", default=[], help="image table to use before the built-in one"
    )
    parser.add_argument(
        "--tls-cert-file", type=Path, help="certificate to serve logs with; without it there are no logs"
    )
    parser.add_argument("--tls-private-key-file", type=Path)
    parser.add_argument(
        "--client-ca-file", type=Path, help="serve logs only to clients with a certificate of this authority"
    )
    parser.add_argument(
        "--crash-backoff", type=float, default=10.0, help="seconds after the second crash (default: 10)"
    )
    parser.add_argument(
        "--crash-backoff-max", type=float, default=300.0, help="longest back-off in seconds (default: 300)"
    )
    parser.add_argument(
        "--refresh", type=float, default=60.0, help="seconds between updates of mounted objects (default: 60)"
    )
    parser.add_argument(
        "--no-namespaces", action="store_true", help="behave as on a machine that forbids user namespaces"
    )
    parser.add_argument("--verbose", action="store_true", help="log every event")
    given = parser.parse_args(arguments)
    if bool(given.tls_cert_file) != bool(given.tls_private_key_file):
        parser.error("--tls-cert-file and --tls-private-key-file belong together")
    try:
        nodes = tuple(NodeSpec.parse(text) for text in given.node or _DEFAULT_NODES)
    except NodeFlagError as error:
        parser.error(str(error))
    logging.basicConfig(
        level=logging.INFO if given.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    return agent.AgentSettings(
        kubeconfig=given.kubeconfig.absolute(),
        state_dir=given.state_dir.absolute(),
        nodes=nodes,
        images=tuple(given.images),
        tls_certificate=given.tls_cert_file,
        tls_key=given.tls_private_key_file,
        client_authority=given.client_ca_file,
        backoff=Backoff(given.crash_backoff, given.crash_backoff_max),
        refresh_s=given.refresh,
        namespaces=not given.no_namespaces,
    )


def main() -> int:
    """Runs the agent; 0 when a signal stopped it, 1 with one line when it cannot work."""
    try:
        asyncio.run(agent.run(settings(sys.argv[1:])))
    except (KubeconfigError, ImageTableError, *FAILURES) as error:
        print(f"nodeagent: {describe(error)}", file=sys.stderr)  # noqa: T201
        return 1
    return 0
