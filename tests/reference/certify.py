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


def worked_check() -> dict[str, Any]:
    """Two laws are equally fast where C1a/(1 - r*C2a) = C1b/(1 - r*C2b), a linear equation in r."""
    laws = {"D": ("1.20", "0.070"), "A": ("0.78", "0.085"), "B": ("0.92", "0.072")}

    def crossing(a: str, b: str) -> Fraction:
        (c1a, c2a), (c1b, c2b) = ((Fraction(x), Fraction(y)) for x, y in (laws[a], laws[b]))
        return (c1a - c1b) / (c1a * c2b - c1b * c2a)

    return {
        "laws": laws,
        "crossings_rps": {pair: shown(crossing(*pair)) for pair in ("AB", "BD", "AD")},
        "others_at_AD": shown(
            (Fraction("1.20") - Fraction("0.78")) / (Fraction("0.085") - Fraction("0.070"))
        ),
        # From the definition of latency at 5 requests per second.
        "speedup_A_at_5": shown(
            (Fraction("1.20") / (1 - 5 * Fraction("0.070")))
            / (Fraction("0.78") / (1 - 5 * Fraction("0.085")))
        ),
        "speedup_A_at_concurrency_11": shown(
            (Fraction("1.20") + 10 * Fraction("0.070")) / (Fraction("0.78") + 10 * Fraction("0.085"))
        ),
        "capacity_A_at_2s_rps": shown((1 - Fraction("0.78") / 2) / Fraction("0.085")),
    }


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
    accepted = sum(Fraction(s) for s in survival)
    e = 1 + accepted
    target = mp.mpf(e.numerator) / e.denominator
    alpha = mp.findroot(
        lambda a: mp.fsum(a**i for i in range(6)) - target, (mp.mpf("0.1"), mp.mpf("0.99")), solver="anderson"
    )
    return {
        "survival": survival,
        "acceptance_rate": shown(accepted / 5),
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
                "variance": shown(mp.fsum(j * j * x for j, x in enumerate(p)) - mean**2),
                "probability": {str(j): shown(p[j]) for j in (0, 1, 7, 40)},
                "exceedance": {str(j): shown(mp.fsum(p[j + 1 :])) for j in (0, 7, 40)},
            }
        )
    return found


def fieller() -> list[dict[str, Any]]:
    """Ends of {z: (n - z*d)^2 <= t^2*(Vn - 2zC + z^2*Vd)} as roots of a quadratic."""
    found = []
    for n, d, vn, vd, c, t in (
        ("0.42", "0.0474", "0.0008", "0.000002", "0.00001", "1.7823"),
        ("1", "3", "0.01", "0.04", "-0.005", "2"),
        ("5", "0.5", "0.1", "0.01", "0", "1.5"),
    ):
        n_, d_, vn_, vd_, c_, t_ = (mp.mpf(x) for x in (n, d, vn, vd, c, t))
        # Fifty digits make the textbook formula harmless.
        a, h, c0 = d_**2 - t_**2 * vd_, n_ * d_ - t_**2 * c_, n_**2 - t_**2 * vn_
        roots = [(h - mp.sqrt(h * h - a * c0)) / a, (h + mp.sqrt(h * h - a * c0)) / a]
        found.append(
            {
                "top": n,
                "bottom": d,
                "top_var": vn,
                "bottom_var": vd,
                "cov": c,
                "t": t,
                "ends": shown(sorted(roots)),
            }
        )
    return found


def experts() -> list[dict[str, Any]]:
    """First root of n = R*L(n), stepped to from below in small steps and then refined."""
    found = []
    for c1u, c1s, c2u, c2s, m, of, verified, rps in (
        ("0.5", "0.8", "0.004", "0.03", 4, 64, 1, "10"),
        ("0.5", "0.8", "0.004", "0.03", 4, 64, 4, "20"),
        ("0.05", "0", "0.001", "0.5", 1, 256, 1, "15"),
    ):
        law = [mp.mpf(x) for x in (c1u, c1s, c2u, c2s)]
        q = 1 - mp.mpf(m) / of

        def latency(n: Any, law: list[Any] = law, q: Any = q, verified: int = verified) -> Any:
            phi = 1 - q ** (max(n, 1) * verified)
            return law[0] + phi * law[1] + n * (law[2] + phi * law[3])

        low, step = mp.mpf(0), mp.mpf("0.01")
        while low + step < mp.mpf(rps) * latency(low + step):
            low += step
        root = mp.findroot(
            lambda n, f=latency, r=rps: n - mp.mpf(r) * f(n), (low, low + step), solver="anderson"
        )
        found.append(
            {
                "c1u_s": c1u, "c1s_s": c1s, "c2u_s": c2u, "c2s_s": c2s, "active": m, "experts": of, "verified": verified,
                "rps": rps,
                "latency_s": shown(latency(root)),
                "closed_loop_latency_at_8_s": shown(latency_closed(law, q, verified, 8)),
            }
        )  # fmt: skip
    return found


def latency_closed(law: list[Any], q: Any, verified: int, clients: int) -> Any:
    """C clients share a step, and each meets C - 1 others."""
    phi = 1 - q ** (clients * verified)
    return law[0] + phi * law[1] + (clients - 1) * (law[2] + phi * law[3])


def pooled() -> list[dict[str, Any]]:
    """The form written out in rationals."""
    c = {
        "c1p": "0.02",
        "c1v": "0.006",
        "c1d": "0.0003",
        "c1s": "0.0008",
        "c2p": "0.0002",
        "c2v": "0.00006",
        "c2d": "0.00004",
        "c2s": "0.00002",
    }
    x = {name: Fraction(value) for name, value in c.items()}
    found = []
    for k, e, g, n in ((0, "1", 200, "12.5"), (3, "2.4", 200, "12.5"), (7, "2.75", 480, "63")):
        steps, flat = g / Fraction(e), 1 if k else 0
        c1 = x["c1p"] + steps * (x["c1v"] + k * x["c1d"] + flat * x["c1s"])
        c2 = x["c2p"] + steps * (x["c2v"] + k * x["c2d"] + flat * x["c2s"])
        found.append(
            {
                "coefficients": c,
                "k": k,
                "tokens_per_step": e,
                "output_tokens": g,
                "others": n,
                "latency_s": shown(c1 + Fraction(n) * c2),
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
        "worked_check": worked_check(),
        "independent_acceptance": independent_acceptance(),
        "published_profile": published_profile(),
        "mixtures": mixtures(),
        "in_flight": in_flight(),
        "fieller": fieller(),
        "experts": experts(),
        "pooled": pooled(),
        "goodput": goodputs(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(document))
    return plain


if __name__ == "__main__":
    FILE.write_text(json.dumps(compute(), indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {FILE}\n")
