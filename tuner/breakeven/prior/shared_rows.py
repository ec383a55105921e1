"""A profile's ratios as rows of the table: nothing of the profile goes into a row but ratios, draft lengths and vLLM's own words."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from breakeven.arm import NO_SPECULATION
from breakeven.errors import NotIdentifiedError
from breakeven.methods import drafter_of
from breakeven.prior.public_table import RatioRow
from breakeven.profile import Comparison, Profile
from breakeven.profile.fits import ArmFit

OTHER_METHOD = "other"
"""Word for a method that vLLM does not know: its name is the user's, and stays with the user."""


class SharedRows(NamedTuple):
    """Rows, and how many speculative arms have none, by reason."""

    rows: tuple[RatioRow, ...]
    left_out: tuple[str, ...]


def shared_rows(profile: Profile, named: RatioRow) -> SharedRows:
    """Make a row for each speculative arm with a law.

    Args:
        profile: of any service.
        named: what its user names: facts, stack, model, text and source; method and figures are taken from the profile.

    Raises:
        NotIdentifiedError: no law without speculation, or no speculative arm with one.
    """
    none = profile.arm(NO_SPECULATION) if profile.measured(NO_SPECULATION) else None
    if none is None or not _has_law(none):
        raise NotIdentifiedError(
            "profile: no law of arm none; ratios need the same engine without speculation"
        )
    rows, left_out = [], []
    for fit in profile.arms:
        if fit.arm == NO_SPECULATION:
            continue
        if fit.scheduled or not _has_law(fit):
            reason = "a schedule has no single draft length" if fit.scheduled else "no law that may be used"
            left_out.append(f"draft length {fit.k}: {reason}")
            continue
        rows.append(_row(fit, profile.compare(fit.arm, rps=0.0), named))
    if not rows:
        raise NotIdentifiedError(
            "profile: no speculative arm with a law and a draft length; nothing to share"
        )
    return SharedRows(tuple(rows), tuple(left_out))


def _has_law(fit: ArmFit) -> bool:
    return bool(fit.believable and fit.c1_s and fit.c2_s)


def _row(fit: ArmFit, compared: Comparison, named: RatioRow) -> RatioRow:
    steps = fit.tokens_per_step
    return replace(
        named,
        method=fit.method if drafter_of(fit.method) is not None else OTHER_METHOD,
        k=fit.k,
        lone_ratio=_three_digits(compared.c1_ratio),
        slope_ratio=_three_digits(compared.c2_ratio),
        tokens_per_step=None if steps is None else _three_digits(min(max(steps, 1.0), fit.k + 1.0)),
    )


def _three_digits(value: float) -> float:
    """A figure as rows have it: more digits would tell one profile from all others."""
    return float(f"{value:.3g}")
