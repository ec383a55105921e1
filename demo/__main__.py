"""`make demo`: a real control plane, a simulated GPU fleet, the real operator, and a story in minutes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from breakeven.errors import BreakevenError
from breakeven_sim.engine.costs import parse_costs
from demo import changing_text, day, liar, stacks
from demo.director import StoryError
from demo.installation import EXAMPLES
from demo.performance import RESULTS
from demo.summary import Check
from localcluster import LocalClusterError
from localcluster.nodes import DEFAULT as NODES

COSTS = EXAMPLES / "engine-costs"
STORIES: dict[str, tuple[Path, Callable[..., list[Check]]]] = {
    "day": (COSTS / "demo.json", day.play),
    "drift": (COSTS / "short-context.json", changing_text.play),
    "liar": (COSTS / "hardly-accepts.json", liar.play),
    "stacks": (COSTS / "demo.json", stacks.play),
}
"""The engine and the play of each story."""


def main() -> int:
    """Parse, run, tell; 0 only if everything happened that the story says must happen."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument(
        "--story",
        choices=sorted(STORIES),
        default="day",
        help="a day of load (default); a text that changes; a profile that promises too much; three kinds of targets",
    )
    parser.add_argument("--costs", type=Path, help="engine cost document (docs/engine-costs.md)")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up and say what to try")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    costs, _ = STORIES[options.story]
    status, outcome = _outcome(options.story, options.costs or costs, console, keep=options.keep)
    # The last line, whatever came before: a reader of a long log looks there.
    words = " ".join(outcome.split())
    console.print(f"demo: exit status {status}: {words}", markup=False, highlight=False, soft_wrap=True)
    return status


def play(story: str, costs: Path, console: Console, *, keep: bool) -> list[Check]:
    """Play a story on an engine; whether each thing happened that had to."""
    return STORIES[story][1](costs, console, keep=keep)


def _outcome(story: str, costs: Path, console: Console, *, keep: bool) -> tuple[int, str]:
    """Run the demo; its exit status, and in words why that."""
    try:
        for node in NODES:
            parse_costs(costs.read_text(), node.product, str(costs))
        checks = play(story, costs.resolve(), console, keep=keep)
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


if __name__ == "__main__":
    sys.exit(main())
