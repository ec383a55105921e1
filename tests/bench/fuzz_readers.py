"""`make fuzz`: spoil valid files of every kind for a fixed time and feed them to the readers.

    python tests/bench/fuzz_readers.py [--seconds 60] [--seed N]

Ends with the number of files per outcome; the first input that does anything but succeed or be refused in one line
ends it with exit 1 and is printed with its seed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzzing import SEEDS, campaign


def _until(end: float, _: int) -> bool:
    return time.monotonic() < end


def main() -> int:
    """Share the time among the kinds of files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    warnings.simplefilter("error")
    print(f"seed {options.seed}")  # noqa: T201
    for number, kind in enumerate(sorted(SEEDS)):
        ends = time.monotonic() + options.seconds / len(SEEDS)
        try:
            outcomes = campaign(kind, random.Random(options.seed + number), partial(_until, ends))
        except AssertionError as fault:
            print(fault, file=sys.stderr)  # noqa: T201
            return 1
        print(f"{kind}: " + ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items())))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
