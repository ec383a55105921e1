"""Error rates of `breakeven gate`: how often a sound upgrade is called a loss, and how often each seeded fault is found.

Engines are the simulated one's core, language and prefix cache, in virtual time: eight pairs of windows of 20 seconds at one
and at eight clients, with texts of their own, so that no acceptance cancels. Both windows of a pair meet the same state of
the host (6 %), each window scatters by 1 %, each start by 0.5 %. A wrong third answer is one of four, asked again after others.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.upgrade_worlds import FAULTS, World, engine_with

SOUND, FAULTY = 200, 60
FALSE_ALARMS, POWER = 0.02, 0.95


def words_of(seed: int) -> dict[str, str]:
    """The word for each fault in one world, and for none; few worlds are asked for faults."""
    world = World(seed)
    found = {"no fault": str(world.report(engine_with()).word)}
    for name, (_, change) in FAULTS.items() if seed < FAULTY else ():
        found[name] = str(world.report(engine_with(change)).word)
    return found


def main() -> int:
    """Print one row for each fault; 1 if a rate is not held."""
    began, words = time.perf_counter(), dict[str, Counter[str]]()
    with ProcessPoolExecutor() as pool:
        for found in pool.map(words_of, range(SOUND)):
            for name, word in found.items():
                words.setdefault(name, Counter())[word] += 1
    missed = 0
    print(f"{'fault':<24} {'gates':>5} {'loss said':>10} {'its word':>9}  words")  # noqa: T201
    for name, counts in words.items():
        total = counts.total()
        lost = total - sum(counts[word] for word in ("Same", "Faster", "Undecided"))
        own = counts[str(FAULTS[name][0])] / total if name in FAULTS else 0.0
        missed += lost / total > FALSE_ALARMS if name not in FAULTS else own < POWER
        shown = ", ".join(f"{word} {count}" for word, count in counts.most_common())
        print(f"{name:<24} {total:>5} {lost / total:>10.1%} {own:>9.1%}  {shown}")  # noqa: T201
    print(  # noqa: T201
        f"{time.perf_counter() - began:.0f} s; at most {FALSE_ALARMS:.0%} without a fault, {POWER:.0%} with one"
    )
    return missed


if __name__ == "__main__":
    sys.exit(main())
