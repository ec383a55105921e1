"""Ratios of speculative arms over no speculation as others measured them: the table that ships with the library, looked up.

It is shown before anything was measured, and is never a reason for a roll.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from breakeven.arm import Arm
from breakeven.methods import MTP_ALIAS
from breakeven.tiers import ADAPTIVE_FORM

TABLE_FILE = Path(__file__).with_name("public_ratios.csv")
_EXPERTS = {"": None, "yes": True, "no": False}
_SIZE_IN_NAME = re.compile(r"(?<![a-z0-9.])(\d{1,4}(?:\.\d{1,2})?)b(?![a-z0-9])", re.IGNORECASE)
_ACTIVE_IN_NAME = re.compile(r"(?<![a-z0-9])a\d{1,3}(?:\.\d)?b(?![a-z0-9])", re.IGNORECASE)
_PRODUCT = re.compile(r"(?<![A-Z0-9])(GH|GB|MI|RTX |RTX-|[ABHL])[0-9]{1,4}[XS]?(?![0-9])")
_QUANTISATION_IN_NAME = re.compile(r"nvfp4|mxfp4|fp8|awq|gptq|int4|int8", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """Facts of a served model that its ratios depend on, such as 8 (thousand millions of parameters), H100, fp8; None if not known."""

    parameters_b: float | None = None
    experts: bool | None = None
    gpu: str | None = None
    quantisation: str | None = None

    @classmethod
    def of_name(cls, model: str, gpu: str | None = None) -> ServiceFacts:
        """Facts in a model's name: `Qwen3-30B-A3B-FP8` has 30, experts and fp8; `Llama-3.1-8B` is dense, as the table has it."""
        size, quantisation = _SIZE_IN_NAME.search(model), _QUANTISATION_IN_NAME.search(model)
        listed = (
            row.facts.experts for row in public_ratios() if row.model and row.model.lower() in model.lower()
        )
        return cls(
            parameters_b=float(size[1]) if size and float(size[1]) > 0.0 else None,
            experts=True if _ACTIVE_IN_NAME.search(model) else next(listed, None),
            gpu=gpu,
            quantisation=quantisation[0].lower() if quantisation else None,
        )


@dataclass(frozen=True, slots=True)
class RatioRow:
    """An arm's ratios as somebody measured them; None if not measured, empty if the source does not name it.

    Attributes:
        adaptive: with vLLM's adaptive verification of k drafts.
        lone_ratio: latency of a lone request over that without speculation, C1 over C1.
        slope_ratio: slope of latency against requests in flight over that without speculation, C2 over C2.
        tokens_per_step: E, bonus token included.
        source: address of the measurement.
    """

    facts: ServiceFacts
    method: str
    k: int
    adaptive: bool = False
    lone_ratio: float | None = None
    slope_ratio: float | None = None
    tokens_per_step: float | None = None
    stack: str = ""
    model: str = ""
    workload: str = ""
    source: str = ""


@cache
def public_ratios() -> tuple[RatioRow, ...]:
    """The table that ships with the library."""
    with TABLE_FILE.open(encoding="utf-8", newline="") as file:
        return tuple(_row(fields) for fields in csv.DictReader(file))


def _row(fields: dict[str, str]) -> RatioRow:
    """A row; an empty field is a figure that was not measured."""

    def number(name: str) -> float | None:
        return float(fields[name]) if fields[name] else None

    facts = ServiceFacts(
        number("parameters_b"),
        _EXPERTS[fields["experts"]],
        fields["gpu"] or None,
        fields["quantisation"] or None,
    )
    figures = (number(name) for name in ("lone_ratio", "slope_ratio", "tokens_per_step"))
    texts = (fields[name] for name in ("stack", "model", "workload", "source"))
    adaptive = ADAPTIVE_FORM.fullmatch(fields["k"])
    k = int(adaptive[1] if adaptive else fields["k"])
    return RatioRow(facts, fields["method"], k, adaptive is not None, *figures, *texts)  # type: ignore[arg-type]


def nearest_row(facts: ServiceFacts, arm: Arm, *, with_tokens: bool = False) -> RatioRow | None:
    """The row of an arm's method with the nearest draft length and model; None if nobody measured the method, or E beside it.

    Adaptive verification and fixed lengths are no rows of each other.
    A doubled draft length counts as much as the step between a dense model and one of experts, or four times the parameters.
    """
    rows = [
        row
        for row in public_ratios()
        if _word(row.method) == _word(arm.method)
        and row.adaptive == arm.adaptive
        and row.lone_ratio
        and (row.tokens_per_step or not with_tokens)
    ]
    return min(rows, key=lambda row: _distance(row, facts, arm.k), default=None)


@cache
def costs_error() -> float:
    """Relative standard error of a step's cost, `lone_ratio` times E, that is taken from the nearest row of another source.

    Rows of one source share model, machine and habits of measuring: left out one by one, they would look twice as good. It is less
    than half of the error of the ratio itself, because E differs more between texts than the cost between models.
    """
    rows = [row for row in public_ratios() if row.lone_ratio and row.tokens_per_step and not row.adaptive]
    errors = []
    for row in rows:
        others = [one for one in rows if _word(one.method) == _word(row.method) and one.source != row.source]
        if others:
            nearest = min(others, key=lambda one: _distance(one, row.facts, row.k))
            errors.append(_log_cost(row) - _log_cost(nearest))
    return math.sqrt(math.fsum(error**2 for error in errors) / len(errors))


def _log_cost(row: RatioRow) -> float:
    return math.log((row.lone_ratio or math.nan) * (row.tokens_per_step or math.nan))


def _word(method: str) -> str:
    """The word under which the table has a method: n-grams were measured on the CPU, and look up the same drafts on the GPU."""
    return "mtp" if method.endswith(MTP_ALIAS) else "ngram" if method == "ngram_gpu" else method


def _distance(row: RatioRow, facts: ServiceFacts, k: int) -> float:
    """How unlike two measurements are; a fact that is not known makes no difference."""
    drafts = abs(math.log2((row.k + 1.0) / (k + 1.0)))
    other = [
        (row.facts.experts, facts.experts, 1.0),
        (_product(row.facts.gpu), _product(facts.gpu), 0.5),
        (row.facts.quantisation, facts.quantisation, 0.25),
    ]
    sizes = (row.facts.parameters_b, facts.parameters_b)
    size = 0.5 * abs(math.log2(sizes[0] / sizes[1])) if sizes[0] and sizes[1] else 0.0
    differs = sum(weight for one, two, weight in other if None not in (one, two) and one != two)
    # Between equal rows, one that also says what other requests cost.
    return drafts + size + differs + 0.01 * (row.slope_ratio is None)


def _product(gpu: str | None) -> str | None:
    """A GPU's product among the words of its label: `NVIDIA-H100-80GB-HBM3` is an H100."""
    found = None if gpu is None else _PRODUCT.search(gpu.upper())
    return found[0] if found else gpu
