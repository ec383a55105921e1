"""`breakeven fit POINTS... -o PROFILE.json`: the latency law of every measured arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from breakeven.arm import Arm
from breakeven.cli.output import (
    bounds,
    confidence_option,
    document,
    echo_result,
    figure,
    json_option,
    print_table,
    print_text,
    print_warnings,
    write_atomically,
)
from breakeven.cli.parameters import InputFile, OutputFile, read_lengths_or_schedules
from breakeven.cli.profile_options import arm_of, compared
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.phrases import percent
from breakeven.printable import printable
from breakeven.tiers import Drafts

if TYPE_CHECKING:
    from breakeven.points.point import Point
    from breakeven.profile import Profile

_T = TypeVar("_T")


def read_points(
    files: tuple[Path, ...],
    methods: tuple[str, ...],
    lengths: tuple[Drafts, ...],
    conditions: tuple[str, ...],
) -> tuple[Point, ...]:
    """Read all files and keep the rows that meet the conditions; say which files and runs are passed over.

    Raises:
        InputError: as the readers; also arms that do not pair with the files.
    """
    from breakeven.readers.reading import matching, read_sweep

    points, notes = read_sweep(files, _arms(files, methods, lengths))
    for line in notes:
        click.echo(printable(f"breakeven: {line}"), err=True)
    pairs = []
    for condition in conditions:
        column, equals, value = condition.partition("=")
        if not equals or not column.strip():
            raise click.BadParameter(f"{condition!r} is not COLUMN=VALUE", param_hint="--where")
        pairs.append((column.strip(), value.strip()))
    return matching(points, pairs)


def _arms(
    files: tuple[Path, ...], methods: tuple[str, ...], lengths: tuple[Drafts, ...]
) -> dict[Path, tuple[Arm, str | None]]:
    """Arm, and schedule if it has one, of each file that does not name its arm."""
    if not methods:
        if lengths:
            raise click.UsageError("--k without --method")
        return {}
    silent = [file for file in files if file.suffix.lower() != ".csv"]
    wanted = max(len(silent), 1)
    all_methods = _each("--method", methods, wanted)
    if not lengths and set(all_methods) == {"none"}:
        lengths = (0,)
    arms = (
        (arm_of(method, k), None if isinstance(k, int) else str(k))
        for method, k in zip(all_methods, _each("--k", lengths, wanted), strict=True)
    )
    return dict(zip(silent, arms, strict=False))


def _each(option: str, given: tuple[_T, ...], wanted: int) -> tuple[_T, ...]:
    """A value of the option for each file: one for all of them if it was given once."""
    if len(given) not in (1, wanted):
        raise click.UsageError(
            f"{option} given {len(given)} times; expected once, or once for each JSON file ({wanted})"
        )
    return given * wanted if len(given) == 1 else given


FIELDS = {
    "": "confidence arms step_costs? starts? warnings",
    "arms[].": "method k candidate? schedule? c1_s c1_ci_s c2_s c2_ci_s saturation_rps saturation_ci_rps points excluded "
    "max_relative_error loo_error measured_range tokens_per_step",
    "arms[].excluded[].": "row line reason source",
    "arms[].measured_range.": "rps inflight",
    "step_costs[].": "name value ci prior",
    "starts.": "sd beside_sd differences",
}
"""Fields of `--json`."""


@click.command("fit")
@click.argument(
    "files",
    metavar="POINTS...",
    nargs=-1,
    required=True,
    type=InputFile(folder=True),
)
@click.option(
    "-o",
    "--output",
    metavar="PROFILE.json",
    required=True,
    type=OutputFile(),
    help="The profile to write.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    help="Method of the arm of each JSON file or folder, in their order; one for all of them if given once.",
)
@click.option(
    "--k",
    "lengths",
    callback=read_lengths_or_schedules,
    metavar="K|TABLE|adaptive:K",
    multiple=True,
    help="Draft length of the arm of each JSON file or folder, in their order; of a schedule its table, such as 1-8:5,9-32:2,33-:0; "
    "adaptive:7 with adaptive verification of 7 drafts.",
)
@click.option(
    "--where",
    "conditions",
    metavar="COLUMN=VALUE",
    multiple=True,
    help="Use only rows with this value; may be repeated.",
)
@click.option(
    "--group-by", metavar="COLUMN", help="Fit each value of a column by itself, into PROFILE-<value>.json."
)
@click.option("--verbose", is_flag=True, help="Also print what the parts of an engine step cost.")
@confidence_option
@json_option
def command(
    files: tuple[Path, ...],
    output: Path,
    methods: tuple[str, ...],
    lengths: tuple[Drafts, ...],
    conditions: tuple[str, ...],
    group_by: str | None,
    confidence: float,
    *,
    verbose: bool,
    as_json: bool,
) -> None:
    """Fit one law of engine steps to the rows of all arms of one or more points files.

    C1 is the latency of a lone request, C2 what each other request in flight adds on average up to the highest load measured, both read off that law, in seconds. Rows that show
    no steady state are left out and counted. GuideLLM reports, results of `vllm bench serve`, folders and patterns
    of them are taken as well. A result whose `--metadata` has method and k, or that holds the engine's speculative_config, names its arm; of others say it with --method and --k.

    \b
    Example:
      breakeven fit points.csv -o chat.json
      breakeven fit runs/ -o chat.json
      breakeven fit none.json eagle.json --method none --method eagle3 --k 0 --k 3 -o chat.json
      breakeven fit all.csv --where workload=chat -o chat.json
    """
    from breakeven.readers.reading import grouped

    points = read_points(files, methods, lengths, conditions)
    if group_by is None:
        profile = _fitted(points, confidence)
        _spare(files, points, output)
        write_atomically(output, profile.to_json())
        if as_json:
            echo_result(_shown(profile))
        else:
            _show(profile, verbose=verbose)
        return
    groups = grouped(points, group_by)
    profiles = {value: _fitted(rows, confidence, f"{group_by} {value}: ") for value, rows in groups.items()}
    paths = {value: output.with_stem(f"{output.stem}-{_file_part(value)}") for value in profiles}
    if len(set(paths.values())) < len(paths):
        raise InputError(
            f"--group-by {group_by}", "values that give the same file name", "values that differ in letters"
        )
    _spare(files, points, *paths.values())
    for value, profile in profiles.items():
        write_atomically(paths[value], profile.to_json())
    if as_json:
        members = [
            {group_by: value, "profile": str(paths[value]), **_shown(profile)}
            for value, profile in profiles.items()
        ]
        echo_result({"confidence": confidence, "groups": members})
        return
    for value, profile in profiles.items():
        click.echo(f"{group_by} {value}: {paths[value]}")
        _show(profile, verbose=verbose)


def _fitted(points: Sequence[Point], confidence: float, group: str = "") -> Profile:
    """Fit; refuse to go on without a usable row, because a script would go on with a profile of none."""
    from breakeven.fitting import fit_points
    from breakeven.profile.document import rows_left_out

    profile = fit_points(points, confidence)
    if left_out := rows_left_out(profile.arms):
        raise NotIdentifiedError(f"{group}no row is usable, so that no profile is written ({left_out})")
    return profile


def _spare(files: Sequence[Path], points: Sequence[Point], *outputs: Path) -> None:
    """Refuse an output path that is one of the points files, or one that stands in a folder of them."""
    read = {*files, *(Path(one.origin.source) for one in points)}
    for output in outputs:
        if output.exists() and any(output.samefile(file) for file in read):
            raise InputError(f"--output {output}", "one of the points files", "another file")


def _file_part(value: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in value)[:64]


def _shown(profile: Profile) -> dict[str, Any]:
    """The profile as `--json` shows it: C1 and C2 of all arms at one set of lengths, which its first warning names."""
    return document(FIELDS, replace(profile, warnings=(*compared(profile), *profile.warnings)))


def _show(profile: Profile, *, verbose: bool) -> None:
    for text in compared(profile):
        print_text(text)
    print_table(
        ("arm", "C1 s", "C2 ms/req", "saturation rps", "points", "worst", "LOO"),
        [
            (
                str(fit.arm),
                bounds(fit.c1_s, fit.c1_ci_s),
                bounds(fit.c2_s, fit.c2_ci_s, scale=1e3),
                bounds(fit.saturation_rps, fit.saturation_ci_rps).partition(" [")[0],
                str(fit.points),
                percent(fit.max_relative_error),
                percent(fit.loo_error),
            )
            for fit in profile.arms
        ],
    )
    if verbose and profile.step_costs:
        print_table(
            ("cost of a step", "value", "from", "to", ""),
            [
                (
                    f"{one.name.removesuffix('_s')}{' ms' if scale > 1 else ''}".replace("_", " "),
                    *(figure(scale * x) for x in (one.value, *one.ci)),
                    "hardly measured: as assumed before" if one.prior else "",
                )
                for one in profile.step_costs
                for scale in (1e3 if one.name.endswith("_s") else 1.0,)
            ],
        )
    starts = profile.starts
    # Rows of live traffic come from many pods and all minutes.
    if starts is not None and (arms := [one for one in starts.arms if one.number]):
        basis = (
            f"{starts.differences} compared"
            if starts.differences
            else "a prior: each arm was measured on one"
        )
        beside = sum(bool(one.beside) for one in arms)
        how = (
            "beside each other"
            if beside == len(arms)
            else "one after another"
            if not beside
            else "in part beside each other"
        )
        order = f"arms were measured {how}; " if len(arms) > 1 else ""
        doubt = (
            f"one start of an engine to the next: {percent(starts.beside_sd)}"
            if beside == len(arms)
            else f"from one start and its minutes to the next: {percent(starts.sd)}"
        )
        print_text(f"{order}{doubt} ({basis}), in all bounds")
    print_warnings(profile.warnings)
