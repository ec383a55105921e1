"""Certified numbers for the formulas: `python tests/reference/certify.py` rewrites certified.json.

Nothing of `breakeven` is imported. Rationals are exact (fractions); irrational numbers come from mpmath with 50
digits, by summation or root finding of the defining equation. They never come from the closed form that is under
test. Each entry names its derivation. Inputs are decimal strings, so that no digit is lost on the way.
"""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath as mp

mp.mp.dps = 50
HERE = Path(__file__).parent
FILE = HERE / "certified.json"


def shown(value: Any) -> Any:
    """Twenty digits: more than a double holds, few enough to read."""
    if isinstance(value, Fraction):
        return mp.nstr(mp.mpf(value.numerator) / value.denominator, 20)
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return mp.nstr(mp.mpf(value), 20)


def independent_acceptance() -> list[dict[str, Any]]:
    """E as the sum of alpha^i over i = 0..k, term by term."""
    alphas = ("0.01", "0.5", "0.529", "0.9", "0.999999", "0.999999999999")
    return [
        {"alpha": alpha, "k": k, "tokens_per_step": shown(mp.fsum(mp.mpf(alpha) ** i for i in range(k + 1)))}
        for alpha in alphas
        for k in (1, 3, 5, 16)
    ]


def published_profile() -> dict[str, Any]:
    """EAGLE, k = 5, published by a lab: alpha is the root of sum alpha^i = E."""
    survival = ("0.5732", "0.2821", "0.1313", "0.0620", "0.0296")
    e = 1 + sum(Fraction(s) for s in survival)
    target = mp.mpf(e.numerator) / e.denominator
    alpha = mp.findroot(
        lambda a: mp.fsum(a**i for i in range(6)) - target, (mp.mpf("0.1"), mp.mpf("0.99")), solver="anderson"
    )
    return {
        "tokens_per_step": shown(e),
        "alpha": shown(alpha),
    }


def mixtures() -> list[dict[str, Any]]:
    """A long text of two kinds of stretches, cut into steps: tokens over steps, and survivors over steps.

    In a stretch of rate a, a step yields E(a) tokens, so T tokens need T/E(a) steps, of which a share a_1*...*a_i reaches
    position i.
    """
    found = []
    for rates, shares, decay in (
        (("0.2", "0.9"), ("0.6", "0.4"), "0"),
        (("0.5", "0.95"), ("0.75", "0.25"), "0.02"),
        (("0", "0.8"), ("0.8", "0.2"), "0"),
    ):
        for k in (1, 3, 7):
            steps, survivors = mp.mpf(0), [mp.mpf(0)] * k
            for rate, share in zip(rates, shares, strict=True):
                reach, reached = mp.mpf(1), []
                for i in range(k):
                    reach *= mp.mpf(rate) * mp.exp(-mp.mpf(decay) * i)
                    reached.append(reach)
                needed = mp.mpf(share) / (1 + mp.fsum(reached))
                steps += needed
                survivors = [s + needed * r for s, r in zip(survivors, reached, strict=True)]
            found.append(
                {
                    "rates": rates,
                    "token_shares": shares,
                    "decay": decay,
                    "k": k,
                    "tokens_per_step": shown(1 / steps),
                    "survival": shown([s / steps for s in survivors]),
                }
            )
    return found


def in_flight() -> list[dict[str, Any]]:
    """Stationary distribution of the birth-death chain, normalised by summation.

    Births at rate R; with j in flight deaths at rate j/(C1 + (j-1)*C2).
    """
    found = []
    for c1, c2, rps in (
        ("1.2", "0.07", "10"),
        ("0.5", "0.2", "4"),
        ("2", "0", "1.5"),
        ("0.05", "0.04", "20"),
    ):
        weights = [mp.mpf(1)]
        while len(weights) < 50 or weights[-1] > mp.mpf(10) ** -45 * max(weights):
            j = len(weights) - 1
            weights.append(weights[-1] * mp.mpf(rps) * (mp.mpf(c1) + j * mp.mpf(c2)) / (j + 1))
        total = mp.fsum(weights)
        p = [w / total for w in weights]
        mean = mp.fsum(j * x for j, x in enumerate(p))
        found.append(
            {
                "c1_s": c1,
                "c2_s": c2,
                "rps": rps,
                "mean": shown(mean),
                "exceedance": {str(j): shown(mp.fsum(p[j + 1 :])) for j in (0, 7, 40)},
            }
        )
    return found


def goodputs() -> dict[str, Any]:
    """B*E/T with a flat draft cost: two local maxima, the first at k = 0."""
    e = ("1", "1.5", "1.85", "2.1", "2.27", "2.4")
    steps = [1 + (Fraction("0.6") if k else 0) + Fraction("0.02") * k for k in range(6)]
    return {"tokens_per_step": e, "goodput": shown([Fraction(x) / t for x, t in zip(e, steps, strict=True)])}


def compute() -> dict[str, Any]:
    """All entries, JSON types only."""
    document = {
        "independent_acceptance": independent_acceptance(),
        "published_profile": published_profile(),
        "mixtures": mixtures(),
        "in_flight": in_flight(),
        "goodput": goodputs(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(document))
    return plain


if __name__ == "__main__":
    FILE.write_text(json.dumps(compute(), indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {FILE}\n")
