"""Options about arms that were never run: which, on which model and GPU, at which cost, by whose measurements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from breakeven.arm import Arm
from breakeven.cli.output import several
from breakeven.cli.parameters import InputFile, Number
from breakeven.errors import InputError
from breakeven.intake import file_text

if TYPE_CHECKING:
    from breakeven.prior.calibration_worth import CalibrationCost
    from breakeven.prior.expected_ratios import AskedArm
    from breakeven.prior.public_table import RatioRow, ServiceFacts

_LONGEST_NAME = 120

fact_options = several(
    click.option(
        "--parameters-b", type=Number(1e-3, 1e5), help="Parameters of the model, in thousands of millions."
    ),
    click.option(
        "--experts/--dense", default=None, help="Whether the model is a mixture of experts, or dense."
    ),
    click.option("--gpu", metavar="PRODUCT", help="GPU product, such as H100."),
    click.option("--quantisation", metavar="WORD", help="Of the weights, such as bf16, fp8 or awq."),
)
"""`facts_given` reads them."""

prior_options = several(
    click.option(
        "--arm",
        "asked",
        multiple=True,
        metavar="METHOD/K[=E]",
        help="Arm that might be calibrated, with its tokens per step if you know them; may be given several times.  [default: eagle3/3, mtp/2, ngram/3]",
    ),
    fact_options,
    click.option(
        "--ratios",
        multiple=True,
        type=InputFile(),
        help="More measured ratios, as `breakeven share` prints them; may be given several times.",
    ),
    click.option(
        "--startup-seconds",
        type=Number(0, 86_400),
        default=300.0,
        show_default=True,
        help="Start of an engine, for the cost of a calibration.",
    ),
    click.option(
        "--gpus", type=click.IntRange(1, 1024), default=1, show_default=True, help="GPUs of one replica."
    ),
    click.option(
        "--least-gain-percent",
        type=Number(0, 100, max_open=True),
        default=5.0,
        show_default=True,
        help="Share of request time from which a gain is worth a calibration.",
    ),
)
"""Options of a question about a calibration; `PriorQuestion.of` takes them out of a command's."""


class PriorQuestion(NamedTuple):
    """A question about arms that were never run.

    Attributes:
        asked: the arms; empty: the usual ones.
        facts: those that were given.
        rows: measurements of others.
        cost: of calibrating one arm.
        least_gain: share of request time from which a gain is worth having.
    """

    asked: tuple[AskedArm, ...]
    facts: ServiceFacts
    rows: tuple[RatioRow, ...]
    cost: CalibrationCost
    least_gain: float

    @classmethod
    def of(cls, options: dict[str, Any]) -> PriorQuestion:
        """Take the options out of a command's.

        Raises:
            InputError: an arm or a file that cannot be read, or a name with characters that do not print.
        """
        from breakeven.prior.calibration_worth import CalibrationCost
        from breakeven.prior.public_table import public_ratios, read_ratios

        names = ("asked", "ratios", "startup_seconds", "gpus", "least_gain_percent")
        given = {name: options.pop(name) for name in names}
        facts = facts_given(
            {name: options.pop(name) for name in ("parameters_b", "experts", "gpu", "quantisation")}
        )
        files: tuple[Path, ...] = given["ratios"]
        own = [row for file in files for row in read_ratios(file_text(file, "a table of ratios"), str(file))]
        return cls(
            tuple(map(_asked_arm, given["asked"])),
            facts,
            (*public_ratios(), *own),
            CalibrationCost(startup_s=given["startup_seconds"], gpus=given["gpus"]),
            given["least_gain_percent"] / 100.0,
        )


def facts_given(options: Mapping[str, Any]) -> ServiceFacts:
    """Facts of the model and the GPU.

    Raises:
        InputError: a name with characters that do not print.
    """
    from breakeven.prior.public_table import ServiceFacts

    return ServiceFacts(
        options["parameters_b"],
        options["experts"],
        printable_name("--gpu", options["gpu"]),
        printable_name("--quantisation", options["quantisation"]),
    )


def printable_name(option: str, text: str | None) -> str | None:
    """A name as it was given; None if it was not, or is empty.

    Raises:
        InputError: it does not print, or is too long.
    """
    if text and not (text.isprintable() and len(text) <= _LONGEST_NAME):
        raise InputError(option, repr(text[:24]), f"at most {_LONGEST_NAME} characters that print")
    return (text or "").strip() or None


def _asked_arm(text: str) -> AskedArm:
    """An arm such as eagle3/3, or eagle3/3=2.4 with its tokens per step.

    Raises:
        InputError: it is none.
    """
    from breakeven.prior.expected_ratios import AskedArm

    expected = "METHOD/K or METHOD/K=TOKENS_PER_STEP, such as eagle3/3 or eagle3/3=2.4"
    name, equals, steps = text.partition("=")
    method, _, k = name.partition("/")
    if not (method.isprintable() and method not in {"", "none"} and k.isascii() and k.isdecimal()):
        raise InputError("--arm", repr(text[:64]), expected)
    if not 1 <= int(k[:5]) <= 1000:
        raise InputError("--arm", repr(text[:64]), "a draft length from 1 to 1000")
    try:
        value = float(steps) if equals else None
    except ValueError:
        raise InputError("--arm", repr(text[:64]), expected) from None
    if value is not None and not 1.0 <= value <= int(k) + 1.0:
        raise InputError("--arm", repr(text[:64]), f"1 to {int(k) + 1} tokens per step")
    return AskedArm(Arm(method, int(k)), value)
