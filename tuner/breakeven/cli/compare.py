"""`breakeven compare BEFORE.json AFTER.json`: what changed, such as before and after an upgrade of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.output import (
    ARM,
    bounds,
    confidence_option,
    document,
    echo_result,
    json_option,
    print_table,
    print_text,
    print_warnings,
)
from breakeven.cli.parameters import InputFile, Number
from breakeven.cli.profile_options import length_options, read_profile
from breakeven.errors import BreakevenError
from breakeven.phrases import counted, figure, spoken

if TYPE_CHECKING:
    from breakeven.estimate import Estimate
    from breakeven.profile import Conditions
    from breakeven.profile.changes import Changes, FigureChange, Word

FIELDS = {
    "": "confidence rps prompt_tokens output_tokens identity changes verdicts only_before only_after",
    "changes[].": f"{ARM} figure before before_ci after after_ci ratio ratio_ci word",
    "verdicts[].": f"{ARM} before after",
    "only_before[].": ARM,
    "only_after[].": ARM,
}
"""Fields of `--json`."""

_NAMES = {
    "c1_s": ("C1 s", 1.0),
    "c2_s": ("C2 ms/req", 1e3),
    "saturation_rps": ("saturation rps", 1.0),
    "break_even_rps": ("break-even rps", 1.0),
    "latency_s": ("latency s", 1.0),
    "speedup": ("speedup", 1.0),
}


_WORDS: tuple[Word, ...] = ("worse", "better")
_WHERE = {
    "below": "below its break-even",
    "above": "above its break-even",
    "always": "at every load",
    "never": "at no load",
    "tie": "nowhere and lost nowhere",
    "uncertain": "at no load for sure",
}


@click.command("compare", short_help="What changed from one profile to another, with bounds.")
@click.argument("before_path", metavar="BEFORE.json", type=InputFile())
@click.argument("after_path", metavar="AFTER.json", type=InputFile())
@click.option(
    "--rps", type=Number(0, 1e6), help="Compare latency and speedup at this load per replica, too (Poisson)."
)
@length_options
@click.option("--check", is_flag=True, help="Exit 1 when a figure surely became worse (for CI).")
@confidence_option
@json_option
def command(
    before_path: Path,
    after_path: Path,
    rps: float | None,
    lengths: Conditions,
    confidence: float,
    *,
    check: bool,
    as_json: bool,
) -> None:
    """Compare two profiles arm by arm: before and after an upgrade of engine, model, drafter or GPU.

    Figures are compared at the lengths of BEFORE unless others are given, each with the acceptance that was measured with it. A
    change counts if the bounds of its ratio exclude 1. They hold one start of an engine to the next.

    \b
    Example:
      breakeven compare before.json after.json --rps 4 --check
    """
    from dataclasses import replace

    from breakeven.profile.changes import changes_between

    before, after = (read_profile(path, confidence) for path in (before_path, after_path))
    found = changes_between(replace(before, confidence=confidence), after, rps=rps, conditions=lengths)
    if as_json:
        echo_result(_document(found))
    else:
        _print(found)
    if check and (worse := found.worse):
        raise BreakevenError(
            f"{after_path}: {counted(len(worse), 'figure')} surely worse than in {before_path}"
        )


def _document(found: Changes) -> dict[str, Any]:
    rows = []
    for one in found.changes:
        ratio = one.ratio
        rows.append(
            document(
                FIELDS, one.arm, one, place="changes[].",
                before=one.before.value, before_ci=one.before.bounds, after=one.after.value, after_ci=one.after.bounds,
                ratio=ratio and ratio.value, ratio_ci=ratio and ratio.bounds,
            )
        )  # fmt: skip
    verdicts = [
        document(FIELDS, arm, place="verdicts[].", before=was, after=became)
        for arm, (was, became) in found.verdicts.items()
    ]
    return document(FIELDS, found, changes=rows, verdicts=verdicts)


def _print(found: Changes) -> None:
    for name, (was, became) in found.identity.items():
        print_text(f"{name.replace('_', ' ')}: {was or '?'} -> {became or '?'}")
    print_text(_sentence(found))
    print_table(
        ("arm", "figure", "before", "after", "after/before", ""),
        [
            (
                str(one.arm),
                _NAMES[one.figure][0],
                _cell(one, one.before),
                _cell(one, one.after),
                "-" if one.ratio is None else bounds(one.ratio.value, one.ratio.bounds),
                "" if one.word == "no difference shown" else one.word,
            )
            for one in found.changes
        ],
    )
    for arm, (was, became) in found.verdicts.items():
        print_text(f"{arm}: it paid {_WHERE[was]}, and now {_WHERE[became]}")
    print_warnings(
        [
            f"{spoken(arm)} is in one profile only ({place})"
            for place, arms in (("before", found.only_before), ("after", found.only_after))
            for arm in arms
        ]
    )


def _cell(one: FigureChange, known: Estimate) -> str:
    return bounds(known.value, known.bounds, _NAMES[one.figure][1])


def _sentence(found: Changes) -> str:
    load = "" if found.rps is None else f" at {figure(found.rps)} rps per replica"
    lengths = "/".join(
        "?" if one is None else f"{one:.4g}" for one in (found.prompt_tokens, found.output_tokens)
    )
    parts = [
        f"{counted(len(some), 'figure')} surely {word}" for word in _WORDS if (some := getattr(found, word))
    ]
    return f"{' and '.join(parts) or 'no difference shown'}{load}, at {lengths} tokens and {found.confidence:.0%} confidence"
