"""Error rates of the answer gate: how often it calls sound arms different, and how often it sees broken ones.

Each row is so many calibrations of made-up judgements (`fakes.gate_worlds`): 47 answers of 256 tokens to the shipped requests, of
no speculation on one start and of the arm. Broken: share of the arm's free answers that are wrong from some place on, every
eighth token by 6 to 18 nats. Two kinds of floor: rounding turns a share of all tokens round, by .06 nats in the mean; or no
speculation itself answers a share of requests as wrongly as a broken arm does, and the arm does so too. Rows of one floor use the
same seeds. It fails if sound arms are called different or broken in significantly more than the stated share.

    PYTHONPATH=tests .venv/bin/python tests/bench/bench_answer_gate.py [--calibrations N]
"""

from __future__ import annotations

import sys
import time
from collections import Counter

from scipy.stats import binom

from breakeven.answering.gate import ERROR_RATE, judge_arm
from breakeven.reasons import Reason
from fakes.gate_worlds import judged_world

CALIBRATIONS = 100
BROKEN = (0.0, 0.005, 0.02, 0.1)
NOISE = (0.0, 0.01, 0.05)
WORDS = (
    Reason.ANSWERS_AGREE,
    Reason.ANSWERS_UNDECIDED,
    Reason.ANSWERS_DIFFER,
)


def main() -> int:
    """Print a row per floor and share of broken answers; the status is 1 if the stated error rate is missed."""
    arguments = sys.argv[1:]
    count = (
        int(arguments[arguments.index("--calibrations") + 1])
        if "--calibrations" in arguments
        else CALIBRATIONS
    )
    say, began, worst = sys.stdout.write, time.process_time(), 0
    say(
        f"{count} calibrations a row; words in percent; at most {100 * ERROR_RATE:.0f} % of sound arms may be called different.\n\n"
    )
    say("| floor | noise | broken answers | Agree | Undecided | Differ |\n|---|---|---|---|---|---|\n")
    for floor in ("near-ties", "own faults"):
        for noise in NOISE if floor == "near-ties" else NOISE[1:]:
            ties = noise if floor == "near-ties" else 0.01
            own = 0.0 if floor == "near-ties" else noise
            for broken in BROKEN:
                words = Counter(_word(seed, ties, own, broken) for seed in range(count))
                cells = " | ".join(f"{100 * words[word] / count:.1f}" for word in WORDS)
                say(f"| {floor} | {100 * noise:g} % | {100 * broken:g} % | {cells} |\n")
                sys.stdout.flush()
                worst = max(worst, words[Reason.ANSWERS_DIFFER]) if not broken else worst
    missed = binom.sf(worst - 1, count, ERROR_RATE) < 0.001
    say(
        f"\nworst row of sound arms: {worst} of {count}; {'missed' if missed else 'kept'}; {time.process_time() - began:.0f} s of CPU\n"
    )
    return int(missed)


def _word(seed: int, ties: float, own: float, broken: float) -> Reason:
    """The word for one arm; a share of its answers is broken beside those that the floor's fault breaks."""
    floor = judged_world(2 * seed, arm="none", tie_share=ties, broken_share=own, tokens=256)
    arm = judged_world(2 * seed + 1, tie_share=ties, broken_share=own + broken - own * broken, tokens=256)
    return judge_arm(arm, floor).word


if __name__ == "__main__":
    sys.exit(main())
