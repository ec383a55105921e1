"""What `import breakeven` gives: fit files, ask the profile, compare it, show it. Each calls what the command of that name calls."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from breakeven.arm import NO_SPECULATION, Arm, arm_drafting
from breakeven.errors import InputError
from breakeven.estimate import Estimate
from breakeven.fitting import fit_points
from breakeven.intake import file_text, package
from breakeven.planning.evaluation import ArmEvaluation, LoadQuestion
from breakeven.planning.objective import Slo
from breakeven.planning.plan_at_load import Plan, plan_of
from breakeven.points.point import Point
from breakeven.profile import Comparison, Conditions, LoadPoint, Profile
from breakeven.profile.changes import Changes, changes_between
from breakeven.profile.document import with_usable_rows
from breakeven.profile.fits import ArmFit
from breakeven.readers.reading import read_sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OF_AN_ARM = "c1_s c1_ci_s c2_s c2_ci_s saturation_rps saturation_ci_rps tokens_per_step points max_relative_error loo_error"


class FittedProfile(Profile):
    """A fitted profile with its questions as methods; arms may be given by name, such as `eagle3/2`."""

    __slots__ = ()

    @classmethod
    def of(cls, fitted: Profile) -> FittedProfile:
        """The same profile with these methods."""
        return cls(**{one.name: getattr(fitted, one.name) for one in fields(fitted)})

    @classmethod
    def read(cls, path: str | Path) -> FittedProfile:
        """Read what `breakeven fit` wrote.

        Raises:
            InputError: it is no profile, or no row of it is usable.
        """
        text = file_text(Path(path), "a profile")
        return cls.of(with_usable_rows(Profile.from_json(text, str(path)), str(path)))

    def named(self, arm: Arm | str) -> Arm:
        """A measured arm by its name; `none` is no speculation.

        Raises:
            InputError: no measured arm has this name.
        """
        if isinstance(arm, Arm):
            return arm
        names = {one.arm.name: one.arm for one in self.arms}
        if arm not in names:
            raise InputError("arm", repr(arm[:64]), f"one of {', '.join(names)}")
        return names[arm]

    def plan(
        self,
        *,
        rps: float | None = None,
        concurrency: float | None = None,
        conditions: Conditions | None = None,
        slo: Slo | None = None,
        min_gain: float = 0.0,
    ) -> Plan:
        """The best arm at one load of a replica, as `breakeven plan`: print it, or ask `best`, `arms` and `warnings`.

        Args:
            rps: rate of an open loop (Poisson unless the conditions say otherwise); this or `concurrency`.
            concurrency: clients of a closed loop.
            conditions: lengths and arrivals now, and acceptance of every speculative arm; None as measured.
            slo: objectives that the arm has to keep.
            min_gain: share that the lower bound of a gain has to exceed.
        """
        wanted = conditions or Conditions()
        question = LoadQuestion(
            LoadPoint(rps, concurrency),
            lambda arm: wanted if arm.k else wanted.of_another_arm(),
            slo or Slo(),
            derived=True,
        )
        return plan_of(self, question, min_gain=min_gain)

    def compare(self, arm: Arm | str, against: Arm | str = NO_SPECULATION, **load: Any) -> Comparison:
        """Compare an arm with another one at a load, as `breakeven.profile.Profile.compare`."""
        return Profile.compare(self, self.named(arm), self.named(against), **load)

    def changes_since(
        self, before: Profile, *, rps: float | None = None, conditions: Conditions | None = None
    ) -> Changes:
        """What is different from an earlier profile of the same service, as `breakeven compare`."""
        return changes_between(before, self, rps=rps, conditions=conditions)

    def to_frame(self, *, rps: float | None = None) -> Any:
        """A pandas frame with a row per arm: the figures of `breakeven fit`, the break-even, and at a load latency and speedup.

        Raises:
            InputError: pandas is not installed.
        """
        at = {one.arm: one for one in self.plan(rps=rps).arms} if rps is not None else {}
        rows = [self._row(fit) | _at_load(at.get(fit.arm)) for fit in self.arms]
        return package("pandas", "a frame").DataFrame(rows)

    def _row(self, fit: ArmFit) -> dict[str, Any]:
        row: dict[str, Any] = {"arm": fit.arm.name}
        for name in _OF_AN_ARM.split():
            row |= _columns(name, getattr(fit, name))
        against = (
            self.compare(fit.arm, rps=0.0)
            if fit.k and fit.measurements and self.measured(NO_SPECULATION)
            else None
        )
        for name in ("break_even_rps", "break_even_ci_rps"):
            row |= _columns(name, getattr(against, name, None))
        return row

    def figure(self, name: str = "speedup") -> Figure:
        """A picture of the report: `speedup`, `latency`, `map` (the best arm by load and acceptance) or `fit`.

        Raises:
            InputError: the profile has no such picture.
        """
        from breakeven.reporting.profile_page import drawings  # noqa: PLC0415  matplotlib takes longer than a plan
        from breakeven.reporting.theme import LIGHT, drawing  # noqa: PLC0415

        found = drawings(self)
        if name not in found:
            raise InputError("figure", repr(name), f"one of {', '.join(found)}")
        with drawing(LIGHT):
            return found[name](LIGHT)


def fit(
    *sources: str | Path | Point | Iterable[Point],
    method: str | None = None,
    k: int | None = None,
    confidence: float = 0.9,
) -> FittedProfile:
    """Fit files, folders and patterns of a sweep, or points, as `breakeven fit`; notes about files are warnings of Python.

    Args:
        sources: `points.csv`, `runs/`, `runs/*.json`, points; also mixed.
        method: vLLM's method, or none, of results that do not name their arm.
        k: its draft length; left out for none.
        confidence: level of all bounds.

    Raises:
        InputError: a file is refused, or no row is usable.
    """
    places = [Path(one) for one in sources if isinstance(one, str | Path)]
    points: list[Point] = []
    for one in sources:
        if not isinstance(one, str | Path):
            points += [one] if isinstance(one, Point) else one
    arm = None if method is None else arm_drafting(method, k or 0, None, None)
    found = read_sweep(places, {} if arm is None else dict.fromkeys(places, (arm, None)))
    for note in found.notes:
        warnings.warn(note, stacklevel=2)
    fitted = fit_points([*points, *found.points], confidence)
    return FittedProfile.of(with_usable_rows(fitted, ", ".join(map(str, places)) or "points"))


def _at_load(one: ArmEvaluation | None) -> dict[str, Any]:
    if one is None:
        return {}
    row: dict[str, Any] = {}
    for part, names in (
        (one.prediction, ("latency_s", "latency_ci_s")),
        (one.against_none, ("speedup", "speedup_ci")),
    ):
        for name in names:
            row |= _columns(name, getattr(part, name, None))
    return row


def _columns(name: str, value: Any) -> dict[str, Any]:
    """A column, or two of bounds: `c1_ci_s` becomes `c1_lower_s` and `c1_upper_s`."""
    stem, ci, unit = name.partition("_ci")
    if not ci:
        return {name: value}
    known = Estimate.of(None, value)
    return {f"{stem}_lower{unit}": known.lower, f"{stem}_upper{unit}": known.upper}
