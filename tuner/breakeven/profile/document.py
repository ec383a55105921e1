"""The profile: everything a fit found, as one versioned document that predicts by itself.

JSON round trip is exact. Reading needs no scipy; a document of another version, or one that was edited into something
impossible, is refused with the JSON path of the first fault.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Annotated, Any

from pydantic import Field

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.intake import json_value, wrong_field
from breakeven.phrases import listed
from breakeven.profile.comparisons import Comparison, compare_curves
from breakeven.profile.curves import Curve, in_bursts
from breakeven.profile.document_checks import check, check_sizes
from breakeven.profile.fits import ArmFit, Lengths, MeasuredDrafter, drafters_of
from breakeven.profile.operating_conditions import Conditions, compared_lengths
from breakeven.profile.predictions import LoadPoint, Prediction, at_quantile, predict_on, refuse_unmeasured
from breakeven.profile.step_curves import step_curve
from breakeven.profile.step_fit import EngineStarts, StepCostFound, StepLaw

SCHEMA = "breakeven.dev/profile/v1"

HIDDEN_PROMPTS = "all rows are of closed loops of one length, which hide what prompts cost beside answers: bounds at a rate are wider"
"""The warning of a profile whose rows show no prompt beside requests that decode; said wherever a figure at a rate is printed."""

_MOST_NAMED = 8
"""Files that a sentence names at most."""


@dataclass(frozen=True, eq=False)
class Profile:
    """A fitted profile of one model on one GPU class under one workload; equal to itself alone, because its curves are kept by it.

    Attributes:
        confidence: two-sided level of all bounds stored in it.
        arms: fit of every measured arm, no speculation first.
        steps: the law of steps of all arms; None without a usable row.
        warnings: limits of the other figures, a sentence each.
        provenance: where it comes from: files, gpu, model, workload, engine_version, fingerprint, created.
    """

    confidence: float
    arms: tuple[ArmFit, ...]
    steps: Annotated[StepLaw | None, Field(exclude_if=lambda value: value is None)] = None
    warnings: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    schema: str = SCHEMA

    @classmethod
    def from_json(cls, text: str, where: str = "profile") -> Profile:
        """Read a document; `where` is the name of its file in messages.

        Raises:
            InputError: not JSON, another version, or a field that is missing or wrong; names the JSON path.
        """
        document = json_value(text, where, "a profile written by `breakeven fit`")
        found = document.get("schema") if isinstance(document, dict) else None
        if found != SCHEMA:
            shown = "no schema" if found is None else f"schema {str(found)[:60]!r}"
            raise InputError(where, shown, f"a profile written by `breakeven fit` (schema {SCHEMA})")
        check_sizes(document, "", where)
        from pydantic import ValidationError  # noqa: PLC0415

        try:
            profile: Profile = _adapter().validate_json(json.dumps(document), strict=True)
        except ValidationError as error:
            raise wrong_field(error, where, "`breakeven fit` writes") from None
        except ValueError as error:
            raise InputError(where, str(error), "what `breakeven fit` writes") from error
        check(profile.confidence, profile.arms, profile.steps, where)
        return profile

    def to_json(self) -> str:
        """Write the document, indented, its schema first, with a final newline."""
        document = self.document()
        return json.dumps({"schema": document.pop("schema"), **document}, indent=2, allow_nan=False) + "\n"

    def document(self) -> dict[str, Any]:
        """Return the document as JSON types."""
        document: dict[str, Any] = _adapter().dump_python(self, mode="json")
        return document

    @property
    def step_costs(self) -> tuple[StepCostFound, ...]:
        """Costs of the law of steps."""
        return self.steps.costs_found(self.confidence) if self.steps is not None else ()

    @property
    def starts(self) -> EngineStarts | None:
        """Scatter from one start of an engine to the next; None without a law of steps."""
        return self.steps.starts if self.steps is not None else None

    @cached_property
    def lengths(self) -> Lengths:
        """The lengths at which arms are compared unless others are asked for."""
        return compared_lengths(self.arms)

    @property
    def drafters(self) -> tuple[MeasuredDrafter, ...]:
        """The drafters of which other draft lengths can be derived."""
        return drafters_of(self.arms)

    def arm(self, arm: Arm) -> ArmFit:
        """Return the fit of a measured arm.

        Raises:
            NotIdentifiedError: the arm was not measured.
        """
        if (found := self.fit_of(arm)) is not None:
            return found
        known = ", ".join(str(fit.arm) for fit in self.arms) or "none at all"
        raise NotIdentifiedError(f"{arm}: not in the profile; measured arms: {known}")

    def fit_of(self, arm: Arm) -> ArmFit | None:
        """The fit of an arm; None if it was not measured."""
        return next((fit for fit in self.arms if fit.arm == arm), None)

    def measured(self, arm: Arm) -> bool:
        """Whether the arm was measured."""
        return self.fit_of(arm) is not None

    def curve(self, arm: Arm, conditions: Conditions | None = None) -> Curve:
        """Latency of an arm against load.

        Raises:
            NotIdentifiedError: what was measured does not determine the curve.
            InputError: impossible conditions.
        """
        return _curve(self, arm, conditions or Conditions())

    def predict(
        self,
        arm: Arm,
        *,
        rps: float | None = None,
        concurrency: float | None = None,
        conditions: Conditions | None = None,
        quantile: float | None = None,
        confidence: float | None = None,
    ) -> Prediction:
        """Predict one arm at one load; `predict_along` lets means stand in for a quantile that was not measured.

        Args:
            arm: measured or not; one that was not needs a method of which another draft length was measured.
            rps: rate of an open loop (Poisson); this or `concurrency`.
            concurrency: imposed concurrency of a closed loop.
            conditions: acceptance, lengths and arrivals now; None for acceptance as measured, at `self.lengths`.
            quantile: 0.5, 0.95 or 0.99 in place of the means. TTFT and TPOT stay means where theirs was not measured,
                and `means` of the answer names them.
            confidence: level of the bounds; None for the level of the profile.

        Raises:
            InputError: an argument outside its range.
            NotIdentifiedError: what was measured does not determine the answer, or the quantile of the latency was not measured.
        """
        load = LoadPoint(rps, concurrency)
        curve = self.curve(arm, conditions)
        if quantile is not None:
            refuse_unmeasured(self.arm(arm) if self.measured(arm) else None, arm, quantile)
        return self.predict_along(arm, curve, load, quantile=quantile, confidence=confidence)

    def predict_along(
        self,
        arm: Arm,
        curve: Curve,
        load: LoadPoint,
        *,
        quantile: float | None = None,
        confidence: float | None = None,
    ) -> Prediction:
        """Predict at one load of `self.curve(arm, conditions)`, for many loads of one arm: a derived arm's curve takes milliseconds to make.

        With a quantile in place of the means, what was not measured stays a mean and is named.
        """
        found, met = predict_on(arm, curve, load, confidence or self.confidence)
        if quantile is None:
            return found
        # At the lengths at which the arm was measured, whatever is asked for.
        fit, measured_s = self.fit_of(arm), math.nan
        if fit is not None:
            closed = load.concurrency is not None
            measured_s = self.measured_curve(fit).loop_latency_s(met.value or 0.0, closed=closed)
        return at_quantile(found, quantile, met, fit, measured_s, confidence or self.confidence)

    def measured_curve(self, fit: ArmFit) -> Curve:
        """The curve of an arm at the lengths at which it was measured, as far as they are known and something decodes."""
        own = fit.lengths
        if own == self.lengths:
            return self.curve(fit.arm)
        decodes = (own.output_tokens or 0.0) > 1.0
        output = own.output_tokens if decodes else None
        return self.curve(fit.arm, Conditions(prompt_tokens=own.prompt_tokens or None, output_tokens=output))

    def compare(
        self,
        arm: Arm,
        against: Arm = NO_SPECULATION,
        *,
        rps: float | None = None,
        concurrency: float | None = None,
        conditions: Conditions | None = None,
        confidence: float | None = None,
    ) -> Comparison:
        """Compare an arm with another one at one load; `compare_curves` compares any two curves over a range of rates.

        Args:
            arm: the arm judged.
            against: the other arm.
            rps: equal rate to compare at; this or `concurrency`.
            concurrency: equal concurrency to compare at.
            conditions: lengths and arrivals of both arms, and acceptance of `arm` alone; None as in `predict`.
            confidence: level of the bounds; None for the level of the profile.

        Raises:
            InputError: an argument outside its range.
            NotIdentifiedError: what was measured does not determine one of the two.
        """
        wanted = conditions or Conditions()
        judged = self.curve(arm, wanted)
        other = self.curve(against, wanted.of_another_arm())
        return compare_curves(judged, other, LoadPoint(rps, concurrency), confidence or self.confidence)


# One decision uses each of its curves two or three times, and an idle service the same ones in every cycle.
@lru_cache(maxsize=256)
def _curve(profile: Profile, arm: Arm, wanted: Conditions) -> Curve:
    if wanted.dispersion != 1.0:
        # The law is asked once, however the requests arrive.
        even = _curve(profile, arm, replace(wanted, dispersion=1.0))
        wanted.check(arm)
        return in_bursts(even, wanted.dispersion)
    if profile.steps is None:
        raise NotIdentifiedError(f"{arm}: the profile has no usable row")
    if not profile.measured(arm) and (
        arm.scheduled or not any(one.method == arm.family for one in profile.drafters)
    ):
        # Raises: a schedule, or an arm of another drafter, has no curve before it was measured.
        profile.arm(arm)
    return step_curve(profile.steps, arm, profile.arms, profile.drafters, wanted)


def rows_left_out(fits: Sequence[ArmFit]) -> str:
    """The reasons and files of all rows, if no arm has a usable one: `NotSteady: c1.json, c4.json`; empty if one has."""
    if any(fit.measurements for fit in fits):
        return ""
    by_reason: dict[str, dict[str, int]] = {}
    for one in (row for fit in fits for row in fit.excluded):
        files = by_reason.setdefault(one.reason, {})
        files[one.source] = files.get(one.source, 0) + 1
    named = {
        reason: [file if rows == 1 else f"{rows} rows of {file}" for file, rows in files.items()]
        for reason, files in by_reason.items()
    }
    return "; ".join(f"{reason}: {listed(files, _MOST_NAMED)}" for reason, files in named.items())


def with_usable_rows(profile: Profile, where: str) -> Profile:
    """The profile, if it has a law of steps; `where` is the name of its file.

    Raises:
        InputError: no row of it was usable, so that nothing can be predicted.
    """
    if profile.steps is None:
        left_out = rows_left_out(profile.arms) or "it has none"
        raise InputError(where, f"no row of it is usable ({left_out})", "rows of a steady state")
    return profile


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter  # noqa: PLC0415  not needed to use a profile that was just fitted

    return TypeAdapter(Profile)
