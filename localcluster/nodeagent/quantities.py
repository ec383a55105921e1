"""Kubernetes resource quantities (`500m`, `1.5Gi`, `2e3`) as exact decimals."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

_SUFFIXES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    **{letter: Decimal(10 ** (3 * power)) for power, letter in enumerate("MGTPE", start=2)},
    **{f"{letter}i": Decimal(1024**power) for power, letter in enumerate("KMGTPE", start=1)},
}
# An exponent needs digits, so that `1E` is one exa and `1E3` one thousand.
_QUANTITY = re.compile(r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?P<suffix>[A-Za-z]{0,2})")


def parse(quantity: str | float) -> Decimal:
    """The quantity's value in its base unit (cores, bytes, pieces).

    Raises:
        ValueError: it is no Kubernetes quantity.
    """
    match = _QUANTITY.fullmatch(str(quantity).strip())
    if match is None or match["suffix"] not in _SUFFIXES:
        raise ValueError(f"{quantity!r} is not a Kubernetes quantity")
    return Decimal(match["number"]) * _SUFFIXES[match["suffix"]]


def divided(quantity: str | float, divisor: str | float) -> str:
    """`quantity / divisor` rounded up to a whole number, as resourceFieldRef shows it; a divisor of 0 means 1."""
    unit = parse(divisor) or Decimal(1)
    return str((parse(quantity) / unit).to_integral_value(ROUND_CEILING))
