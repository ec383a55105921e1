"""`make test`, `make test-thorough` and `make times-baseline`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from timekeeping import landings, real_parts
from timekeeping.stages import REPORTS, Stage, exit_status, landing_stages, run, thorough_stages
from timekeeping.tiers import PROCESSES, TIERS

# They wait more than they compute; each process has clusters of its own (tests/README.md).
_SIDE_BY_SIDE = (f"--numprocesses={PROCESSES}", "--dist=loadfile", "--no-loadscope-reorder")


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command; return its exit status."""
    parser = argparse.ArgumentParser(prog="timekeeping", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    landing = commands.add_parser("test", help="run the stages of a landing")
    landing.add_argument("--tier", choices=TIERS, default="always", help="tests on real parts")
    commands.add_parser("thorough", help="run everything")
    commands.add_parser("store", help="take the last whole run as the one to compare with")
    parts = commands.add_parser("real-parts", help="run tests on real parts, and what fails once more")
    parts.add_argument("tier", choices=TIERS)
    given = parser.parse_args(arguments)
    match given.command:
        case "test":
            return _run(landing_stages(given.tier))
        case "thorough":
            return _run(thorough_stages())
        case "store":
            return _store()
        case _:
            command = (
                *_SIDE_BY_SIDE,
                "tests/cluster",
                "tests/faults",
                "-m",
                "not table",
                f"--tier={given.tier}",
            )
            return real_parts.run(command, REPORTS / "real-parts.xml")


def _run(stages: Sequence[Stage]) -> int:
    began_s = time.monotonic()
    for report in REPORTS.glob("*.xml"):
        report.unlink()
    outcomes, before = run(stages), landings.read(landings.STORED)
    now = landings.landing(outcomes, time.monotonic() - began_s, REPORTS.glob("*.xml"), before)
    failed = [outcome.stage.name for outcome in outcomes if outcome.status != 0]
    print()
    print(*landings.comparison(now, before, failed), sep="\n", flush=True)
    if not failed:
        landings.write(landings.LAST, now)
    return exit_status(outcomes)


def _store() -> int:
    if not landings.LAST.exists():
        print("no whole run of `make test` has passed here; run it first", file=sys.stderr)
        return 1
    landings.write(landings.STORED, landings.read(landings.LAST))
    return 0


if __name__ == "__main__":
    sys.exit(main())
