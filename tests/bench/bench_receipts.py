"""Receipts against known truths, and the time of `breakeven savings` for two days of twenty services.

    python tests/bench/bench_receipts.py [pasts]

So many pasts of two days of each kind (60 if not given) go through the pure core; what is booked stands beside what was truly saved.
Then a real Prometheus holds those days, and the command is timed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from fakes.known_savings import KnownPast, as_openmetrics, known_past
from fakes.receipt_trials import lines, trials
from operatorcluster.made_up_prometheus import prometheus_of

DAY_S = 86_400
SERVICES, DAYS = 20, 2


def main() -> int:
    """Prints the table and the time; fails if fewer than 90 % lie within their bounds, or more than 5 % are booked too high."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    end_s = int(time.time()) // DAY_S * DAY_S
    found = trials(number, end_s)
    click.echo("\n".join(lines(found)))
    every = sum(one.pasts for one in found)
    # Five in a hundred by chance, because the truth's upper bound is one of 90 %.
    held = (
        sum(one.inside for one in found) >= 0.9 * every
        and sum(one.too_high for one in found) <= 0.05 * every
        and not any(one.gpus_too_high for one in found)
    )
    with tempfile.TemporaryDirectory() as folder:
        pasts = [known_past(KnownPast.ALL, seed, end_s, DAYS, f"chat-{seed}") for seed in range(SERVICES)]
        with prometheus_of(Path(folder), as_openmetrics(pasts)) as address:
            begun_s = time.monotonic()
            command = [
                sys.executable,
                "-m",
                "breakeven.cli",
                "savings",
                "--prometheus",
                address,
                "--since",
                f"{DAYS}d",
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            took_s = time.monotonic() - begun_s
    click.echo(
        f"{SERVICES} services, {DAYS} days, windows of 5 min: {took_s:.1f} s, {len(done.stdout.splitlines())} lines"
    )
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
