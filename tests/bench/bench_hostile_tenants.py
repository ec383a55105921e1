"""The operator's memory and cycles while tenants attack it in three ways at once (`hostile_tenants.py`).

API server, etcd and operator are real; controller manager and scheduler are stopped, and pods are objects alone. It fails if the
operator's resident memory passes 400 MiB.

    .venv/bin/python tests/bench/bench_hostile_tenants.py                  # two minutes
    .venv/bin/python tests/bench/bench_hostile_tenants.py --seconds 30
    .venv/bin/python tests/bench/bench_hostile_tenants.py --python ../old/.venv/bin/python  # another checkout's operator
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.hostile_tenants import MOST_MIB, attacked


def main() -> int:
    """Attack, print, and fail beyond the bound."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="how long (default: 120)")
    parser.add_argument("--cycle", type=float, default=1.0, help="seconds between cycles (default: 1)")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter of the operator (default: this one)"
    )
    parser.add_argument("--log", type=Path, help="file for the operator's log (default: none is kept)")
    options = parser.parse_args()
    with (options.log or Path(os.devnull)).open("wb") as log:
        seen = asyncio.run(attacked(options.python, options.seconds, log.fileno(), options.cycle))
    lines = (
        f"operator under attack for {options.seconds:g} s, cycles every {options.cycle:g} s",
        f"resident memory, MiB: {seen.base_mib:.0f} before, {seen.peak_mib:.0f} at most (promised: {MOST_MIB})",
        f"with its children, MiB: {seen.family_mib:.0f} at most",
        f"cycles: {seen.cycles}, {seen.mean_s:.2f} s on average, {seen.longest_s:.2f} s the longest",
        f"CPU, % of a core: {seen.cpu_percent:.0f}",
        *(f"runs that ended: {count:4d}  {reason}" for reason, count in sorted(seen.runs.items())),
        *(f"queries answered: {count:4d}  {answer}" for answer, count in sorted(seen.asked.items())),
    )
    print("\n".join(lines))  # noqa: T201
    return int(seen.peak_mib > MOST_MIB or seen.family_mib > MOST_MIB)


if __name__ == "__main__":
    sys.exit(main())
