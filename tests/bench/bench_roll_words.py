"""How often each word about a roll is right where requests are long, lengths drift and new pods begin cold.

Fleets are those of `fakes.rolled_fleet`: events of an engine that was written for this bench alone. What their counters show
is read by the operator's own code, compared by `planning.roll_experiment` and judged by `roll_evidence.outcome` after every block, as
the operator does. The law is the straight line in the rate that a calibration would fit to the exact latencies. The promise is
a gain in any case, so that a roll is disproved as soon as it is shown to lose.

    PYTHONPATH=tests .venv/bin/python tests/bench/bench_roll_words.py [--judge] [--rolls N] [SHAPE ...]

`--judge`: the shapes and seeds that no rule was chosen on.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from statistics import median

from fakes.judged_roll import judged
from fakes.rolled_fleet import RolledShape

# Of the truths at which a word may be wrong, more rolls: what is rare is counted in them.
TRUTHS = {0.7: 0.25, 0.86: 0.25, 0.91: 0.25, 1.0: 1.0, 1.1: 1.0, 1.13: 0.25, 1.3: 0.25}
CHOSEN_ON: dict[str, RolledShape] = {
    "short": RolledShape(2.0, 1.0, inflight=3.0),
    "of 8 s": RolledShape(8.0, 1.5, "knee", balanced="LeastRequest"),
    "long": RolledShape(60.0, 1.5, replicas=16),
    "long, heavy": RolledShape(60.0, 2.0, "regimes", balanced="LeastRequest", replicas=12),
    "long, alike": RolledShape(60.0, 0.0, "knee"),
    "cold 10 min": RolledShape(8.0, 1.0, cold=0.3, cold_s=600.0, counted=True),
    "cold 30 min": RolledShape(8.0, 1.0, cold=0.3, cold_s=1800.0, counted=True),
    "cold 30 min, not counted": RolledShape(4.0, 1.0, "knee", cold=0.3, cold_s=1800.0, counted=None),
    "shorter by a quarter": RolledShape(8.0, 1.0, drift=0.75),
    "shorter, long": RolledShape(30.0, 1.5, "regimes", drift=0.75, balanced="LeastRequest"),
}
JUDGED_ON: dict[str, RolledShape] = {
    "of 4 s": RolledShape(4.0, 0.7, "steep", inflight=5.0),
    "of 20 s": RolledShape(20.0, 1.5, "line", balanced="LeastRequest", replicas=6),
    "of 45 s, many pods": RolledShape(45.0, 1.2, "knee", inflight=9.0, replicas=20),
    "of 60 s, heavy, two pods": RolledShape(60.0, 2.0, "line", replicas=2),
    "of 60 s, alike": RolledShape(60.0, 0.3, "regimes", inflight=10.0, balanced="LeastRequest", replicas=8),
    "cold 20 min": RolledShape(
        5.0, 1.5, "knee", cold=0.3, cold_s=1200.0, counted=True, balanced="LeastRequest"
    ),
    "cold 15 min, straight, not counted": RolledShape(
        12.0, 1.0, "line", cold=0.3, cold_s=900.0, falls="Straight", counted=None
    ),
    "cold 25 min, long": RolledShape(40.0, 1.5, "regimes", cold=0.3, cold_s=1500.0, counted=True, replicas=6),
    "shorter by a quarter, steep": RolledShape(10.0, 1.5, "steep", inflight=5.0, drift=0.75),
    "longer by a quarter, long": RolledShape(40.0, 1.0, "knee", drift=1.25, balanced="LeastRequest"),
}
ROLLS = 40
FIRST_SEEDS = {False: 0, True: 900_000}
WORDS = ("Confirmed", "NotWorse", "Unproven", "Unmeasured", "Disproved")


def main() -> int:
    """Print a row per shape and truth, and the goals."""
    judge, arguments = "--judge" in sys.argv, [one for one in sys.argv[1:] if one != "--judge"]
    rolls = int(arguments.pop(arguments.index("--rolls") + 1)) if "--rolls" in arguments else ROLLS
    arguments = [one for one in arguments if one != "--rolls"]
    shapes = JUDGED_ON if judge else CHOSEN_ON
    say, began = sys.stdout.write, time.process_time()
    say(
        f"{rolls} rolls at a true 1.0 and 1.1, a quarter of them at others; {', '.join(WORDS)} in percent.\n\n"
    )
    say("| fleet | true speedup | " + " | ".join(WORDS) + " | minutes to the word |\n")
    say("|" + "---|" * (3 + len(WORDS)) + "\n")
    shares: dict[tuple[str, float], dict[str, float]] = {}
    for name in arguments or shapes:
        for truth, part in TRUTHS.items():
            first = FIRST_SEEDS[judge] + 1000 * list(shapes).index(name)
            count = math.ceil(part * rolls)
            ends = [judged(shapes[name], truth, first + number).ended for number in range(count)]
            words = Counter("Unmeasured" if one is None else str(one.word.result) for one in ends)
            shares[name, truth] = {word: 100.0 * words[word] / count for word in WORDS}
            cells = " | ".join(f"{shares[name, truth][word]:.0f}" for word in WORDS)
            took = [one.minutes for one in ends if one is not None]
            say(
                f"| {name} | {truth} | {cells} | {median(took):.0f} |\n"
                if took
                else f"| {name} | {truth} | {cells} | - |\n"
            )
            sys.stdout.flush()
    say("\n| what | goal | all fleets | worst fleet |\n|---|---|---|---|\n")
    for what, goal, truth, result in (
        ("wrong Confirmed at a true 1.00", "5 %, then 2 %", 1.0, "Confirmed"),
        ("wrong Confirmed at a true 0.91", "5 %, then 2 %", 0.91, "Confirmed"),
        ("wrong Disproved at a true 1.00", "-", 1.0, "Disproved"),
        ("wrong Disproved at a true 1.10", "2 %, then 1 %", 1.1, "Disproved"),
        ("NotWorse said of a true 0.91", "-", 0.91, "NotWorse"),
        ("a true 1.3 is confirmed", "-", 1.3, "Confirmed"),
        ("a true 0.7 is disproved", "-", 0.7, "Disproved"),
    ):
        row = {name: words[result] for (name, at), words in shares.items() if at == truth}
        worst = (min if what.startswith("a true") else max)(row, key=row.__getitem__)
        say(f"| {what} | {goal} | {sum(row.values()) / len(row):.1f} % | {row[worst]:.0f} % ({worst}) |\n")
    say(f"\n{time.process_time() - began:.0f} s of CPU time.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
