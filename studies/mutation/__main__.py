"""`make mutants`: a sample of mutants of the core, each against the tests in memory that run its line, quickest first.

The sample is drawn from one tree and tried on the same or on another tree. There each mutant is found again by file,
function and text. Results stay in `.mutants/`: a run that was cut off goes on where it stopped.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from mutation import trial
from mutation.reach import CORE, OUTPUT, Reach
from mutation.sites import Mutant, drawn, found

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / ".mutants"
EQUAL: Final = Path(__file__).with_name("equal.yaml")
# The driver's own tests are in virtual time, with an engine beside it in one event loop.
_TESTS: Final = (
    "tests/unit", "tests/property", "tests/reference", "tests/fleet", "tests/engine/test_load_driver.py",
    "tests/engine/test_length_probes.py",
)  # fmt: skip
# They run none of the core.
_WITHOUT: Final = (
    "chart", "demo", "docs", "house", "localcluster", "real", "shipping", "timekeeping", "validation",
)  # fmt: skip
_LEAST_CPU_S: Final = 40
# So many times what its tests take without a change, or a mutant that nobody notices would pass for an endless loop.
_PATIENCE: Final = 5
_OF_CONTROL: Final = 30


def main(words: Sequence[str] | None = None) -> int:
    """Draw, try, print; 1 if a mutant is there that no test caught and that is not known to be equal."""
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument(
        "--of", default="", help="commit that the sample is drawn from (default: the working tree)"
    )
    parser.add_argument(
        "--on", default="", help="commit whose tests and sources are run (default: the working tree)"
    )
    parser.add_argument("--count", type=int, default=120, help="size of the sample (default 120)")
    parser.add_argument("--seed", type=int, default=25, help="of the draw (default 25)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument(
        "--longest", type=float, default=60.0, help="CPU seconds of tests for a mutant (default 60)"
    )
    options = parser.parse_args(words)
    os.nice(5)
    RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="breakeven-mutants-") as scratch:
        trees = [trial.copied(ROOT, options.on, Path(scratch) / f"tree{n}") for n in range(options.workers)]
        source = (
            trees[0] if options.of == options.on else trial.copied(ROOT, options.of, Path(scratch) / "of")
        )
        sample = drawn(core_of(source), options.count, options.seed)
        tree = digest(trees[0])
        _say(f"{len(sample)} mutants of {options.of or 'the working tree'}, seed {options.seed}")
        reach = reached(trees[0], RESULTS / f"reach-{tree}", options.workers)
        for other in trees[1:]:
            # With the compiled tests: nobody compiles them again.
            shutil.copytree(trees[0], other, dirs_exist_ok=True)
        control = sorted(reach.seconds, key=lambda test: (reach.seconds[test], test))[:_OF_CONTROL]
        if (outcome := trial.control(trees[0], control, _LEAST_CPU_S)).word != "survived":
            _say(f"without any change {outcome.killer or 'pytest'} fails: nothing can be tried")
            return 2
        kept = RESULTS / f"outcomes-{tree}.json"
        outcomes = tried(sample, trees, reach, kept, options.longest)
    equal = known_equal()
    _say("\n".join(table(sample, outcomes, equal)))
    return int(any(_word(one, outcomes, equal) in {"survived", "unreached"} for one in sample))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def core_of(tree: Path) -> list[dict[str, str]]:
    """Sources by path, of each package of the core."""
    return [
        {str(file.relative_to(tree)): file.read_text() for file in sorted(_sources(tree / one))}
        for one in CORE
    ]


def _sources(place: Path) -> Iterable[Path]:
    return [place] if place.is_file() else place.rglob("*.py")


def digest(tree: Path) -> str:
    """Of all that a result depends on: the tree's sources and tests, and this tool."""
    found = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        found.update(file.read_bytes())
    for folder in ("tuner", "operator", "tests"):
        for file in sorted((tree / folder).rglob("*.py")):
            found.update(str(file.relative_to(tree)).encode() + file.read_bytes())
    return found.hexdigest()[:12]


def reached(tree: Path, kept: Path, workers: int) -> Reach:
    """The lines that each test of a tree runs; kept in a folder, because it takes minutes."""
    if not kept.exists():
        _say("which tests run which lines: every test of the core once")
        path = os.pathsep.join([*trial.search_path(tree), str(Path(__file__).parents[1])])
        partial = kept.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        tests = [one for one in _TESTS if (tree / one).exists()]
        ignored = [f"--ignore=tests/unit/{name}" for name in _WITHOUT]
        # An older tree may have tests of what today's environment lacks.
        words = ["-q", "--continue-on-collection-errors", "-p", "mutation.reach", "-p", "no:cacheprovider"]
        words += ["-n", str(workers), "--dist=worksteal"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, *ignored, *tests],
            cwd=tree, check=False, text=True, capture_output=True,
            env={
                **os.environ, "PYTHONPATH": path, "HYPOTHESIS_PROFILE": "quick", "PYTHONDONTWRITEBYTECODE": "",
                OUTPUT: str(partial),
            },
        )  # fmt: skip
        _say(done.stdout.strip().rpartition("\n")[2])
        partial.replace(kept)
    return Reach.read(file.read_text() for file in sorted(kept.iterdir()))


def known_equal() -> dict[Mutant, str]:
    """Mutants that change nothing anybody could notice, with the reason; without a path, because functions move."""
    listed: list[dict[str, Any]] = yaml.safe_load(EQUAL.read_text()) or []
    return {Mutant("", one["function"], one["before"], one["after"]): one["why"] for one in listed}


def tried(
    sample: Sequence[Mutant], trees: Sequence[Path], reach: Reach, kept: Path, longest_s: float
) -> dict[Mutant, trial.Outcome]:
    """Every mutant's outcome; those that are in the file are not tried again.

    Args:
        sample: mutants.
        trees: copies, one per worker.
        reach: tests by line.
        kept: file of outcomes, written after each.
        longest_s: CPU seconds after which the dearer tests of a mutant are left out.
    """
    outcomes: dict[Mutant, trial.Outcome] = {}
    if kept.exists():
        for one in json.loads(kept.read_text()):
            # A mutant that nobody has reached or found costs nothing to look for again; a broken one was not tried.
            if one["outcome"]["tests"] and one["outcome"]["word"] != "broken":
                outcomes[Mutant(**one["mutant"])] = trial.Outcome(**one["outcome"])
    context = multiprocessing.get_context("spawn")
    left = [one for one in sample if one not in outcomes]
    queue = _queue(trees, context)
    with concurrent.futures.ProcessPoolExecutor(len(trees), context, trial.start, (queue,)) as pool:
        waiting = {}
        for mutant in left:
            file = trees[0] / mutant.path
            site = found(mutant, file.read_text()) if file.exists() else None
            tests = reach.tests(mutant.path, site.lines if mutant.function else (0, 0)) if site else []
            ends_s = itertools.accumulate(reach.seconds[test] for test in tests)
            tests = [test for test, end_s in zip(tests, ends_s, strict=True) if end_s <= longest_s]
            if site is None or not tests:
                outcomes[mutant] = trial.Outcome("unreached" if site else "moved")
            else:
                cpu_s = max(_LEAST_CPU_S, math.ceil(_PATIENCE * sum(reach.seconds[test] for test in tests)))
                waiting[pool.submit(trial.in_own_tree, site, tests, cpu_s)] = mutant
        for number, done in enumerate(concurrent.futures.as_completed(waiting), start=1):
            mutant = waiting[done]
            outcomes[mutant] = done.result()
            _say(f"{number}/{len(waiting)} {outcomes[mutant].word:9} {mutant}")
            _keep(outcomes, kept)
    _keep(outcomes, kept)
    return outcomes


def _keep(outcomes: dict[Mutant, trial.Outcome], kept: Path) -> None:
    found = [{"mutant": m.to_dict(), "outcome": o.to_dict()} for m, o in sorted(outcomes.items())]
    kept.write_text(json.dumps(found, indent=1))


def _queue(trees: Sequence[Path], context: Any) -> Any:
    """A queue of trees, of which each worker takes one."""
    queue = context.Queue()
    for tree in trees:
        queue.put(tree)
    return queue


_WORDS: Final = ("caught", "equal", "moved", "survived", "unreached")
"""A mutant has moved where its function or its expression is not there any more: it is of code that was rewritten."""


def _word(one: Mutant, outcomes: dict[Mutant, trial.Outcome], equal: dict[Mutant, str]) -> str:
    if outcomes[one].caught:
        return "caught"
    return "equal" if replace(one, path="") in equal else outcomes[one].word


def table(
    sample: Sequence[Mutant], outcomes: dict[Mutant, trial.Outcome], equal: dict[Mutant, str]
) -> list[str]:
    """Counts by folder, then every mutant that nobody caught."""
    lines = ["", f"{'folder':40} {'mutants':>9}" + "".join(f"{word:>11}" for word in _WORDS)]
    rows: dict[str, Counter[str]] = {}
    for one in sample:
        rows.setdefault(str(Path(one.path).parent), Counter())[_word(one, outcomes, equal)] += 1
    for name, row in [*sorted(rows.items()), ("all", sum(rows.values(), Counter()))]:
        lines.append(f"{name:40} {row.total():9}" + "".join(f"{row[word]:11}" for word in _WORDS))
    for one in sample:
        if not outcomes[one].caught:
            lines.append(f"{_word(one, outcomes, equal)}: {one}")
            if why := equal.get(replace(one, path="")):
                lines.append(f"    {why}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
