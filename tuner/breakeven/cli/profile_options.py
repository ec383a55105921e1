"""Options of every command that starts from a profile: the file, and the conditions to predict for, which the arms get of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from breakeven.arm import Arm, arm_drafting
from breakeven.cli.output import gathered, several
from breakeven.cli.parameters import InputFile, MeasuredDrafts, Number, read_numbers
from breakeven.errors import InputError
from breakeven.intake import file_text
from breakeven.phrases import figure
from breakeven.tiers import AdaptiveDrafts, Drafts, Schedule

if TYPE_CHECKING:
    from breakeven.planning.prompt_lengths import PromptPart
    from breakeven.profile import Conditions, LoadPoint, Profile

_LONGEST_PROMPT = 1e8
profile_argument = click.argument("profile_path", metavar="PROFILE.json", type=InputFile())


def _load(rps: float | None, concurrency: float | None) -> LoadPoint:
    from breakeven.profile import LoadPoint

    if (rps is None) == (concurrency is None):
        raise click.UsageError("one of --rps (open loop) and --concurrency (closed loop) is needed")
    return LoadPoint(rps, concurrency)


def _lengths(prompt_tokens: float | None, output_tokens: float | None) -> Conditions:
    from breakeven.profile import Conditions

    return Conditions(prompt_tokens=prompt_tokens, output_tokens=output_tokens)


load_options = gathered(
    "load",
    _load,
    click.option(
        "--rps",
        type=Number(min=0, max=1e6),
        help="Requests per second of one replica, open loop (Poisson).",
    ),
    click.option(
        "--concurrency",
        type=Number(min=1, max=1e6),
        help="Clients of a closed loop, each waiting for its answer before it asks again.",
    ),
)
"""The load to predict for, as `load`."""
length_options = gathered(
    "lengths",
    _lengths,
    click.option(
        "--prompt-tokens",
        type=Number(min=0, max=_LONGEST_PROMPT, min_open=True),
        help="Mean prompt tokens per request, if other than no speculation was measured at.",
    ),
    click.option(
        "--output-tokens",
        type=Number(min=1, max=1e8),
        help="Mean output tokens per request, if other than no speculation was measured at.",
    ),
)
"""Conditions with these mean lengths, as `lengths`."""

prompts_option = click.option(
    "--prompts",
    callback=read_numbers,
    metavar="T1,T2,...",
    help="Mean prompt tokens of equal shares of the requests, such as of each quarter: also say the speedup at each.",
)
"""`prompt_parts` makes shares of it."""

dispersion_options = several(
    click.option(
        "--dispersion",
        type=Number(min=0, max=1e4),
        help="How bursty arrivals are: variance over mean of their counts in spans as long as a request. Without it 1, Poisson.",
    ),
    click.option(
        "--arrivals",
        type=InputFile(),
        help="Request times, as `simulate --trace` takes them: measure the dispersion.",
    ),
)
"""`dispersion_of` checks that at most one of these is given."""

steps_option = click.option(
    "--tokens-per-step",
    "steps",
    multiple=True,
    metavar="[METHOD/K=]E",
    help="Tokens per request-step now; of one arm, or without a name of every speculative arm, at most k + 1.",
)


def prompt_parts(means: tuple[float, ...] | None) -> tuple[PromptPart, ...]:
    """Equal shares of the requests; none without any, and lengths that no prompt has are a refused input."""
    from breakeven.planning.prompt_lengths import given_parts

    for mean in means or ():
        if not 0.0 < mean <= _LONGEST_PROMPT:
            raise InputError("--prompts", f"{mean:g}", f"tokens above 0, at most {_LONGEST_PROMPT:g}")
    return given_parts(means) if means else ()


def read_profile(path: Path, confidence: float, arm: Arm | None = None) -> Profile:
    """Read a profile, or fit one on the fly from any file that `breakeven fit` takes; the arm is for a result that does not name it.

    Raises:
        InputError: as `Profile.from_json` and the readers.
    """
    from breakeven.profile.document import Profile, with_usable_rows

    text = file_text(path, "a profile or a points file")
    if not text.strip():
        raise InputError(str(path), "an empty file", "a profile written by `breakeven fit`")
    if '"breakeven.dev/profile/' not in text:
        from breakeven.readers.reading import is_measured, read_text

        if is_measured(text, str(path)):
            if arm is None and text.lstrip().startswith(("{", "[")):
                raise InputError(
                    str(path),
                    "a result that does not say which arm it measured",
                    "its profile: `breakeven fit` with --method and --k (plan and predict take these too)",
                )
            from breakeven.fitting import fit_points

            return with_usable_rows(fit_points(read_text(text, str(path), arm), confidence), str(path))
    return with_usable_rows(Profile.from_json(text, str(path)), str(path))


def compared(profile: Profile, wanted: Conditions | None = None) -> list[str]:
    """A sentence that names the lengths at which all arms are compared; none if no arm was measured at others."""
    from breakeven.profile import Conditions
    from breakeven.profile.operating_conditions import compared_text

    lengths = compared_text(profile.arms, wanted or Conditions())
    return [f"all arms at {lengths}"] if lengths else []


def arm_of(method: str, k: Drafts | None, candidate: str | None = None) -> Arm:
    """Make an arm of options; a draft length that does not fit the method is wrong usage."""
    varied = isinstance(k, Schedule | AdaptiveDrafts)
    longest = max(k.num_speculative_tokens, 1) if isinstance(k, Schedule | AdaptiveDrafts) else k or 0
    try:
        return arm_drafting(method, longest, candidate if longest else None, str(k) if varied else None)
    except ValueError as error:
        raise click.UsageError(f"{error} (--method, --k)") from error


def arm_in(
    profile: Profile, method: str, k: int | MeasuredDrafts | None, candidate: str | None = None
) -> Arm:
    """Find the arm that a user means, also where the profile has a drafter's name beside the method.

    An operator's profile calls its arms by the candidate's name (`eagle/3`); `--method eagle3` and `--method eagle` both
    mean that drafter as long as it is the only one.

    Raises:
        click.UsageError: no such arm can exist (draft length of none, or none without one).
        InputError: the method was measured with several drafters, so the name alone does not say which; or its schedule or
            adaptive verification is asked for and was not measured.
    """
    if isinstance(k, str):
        wanted = f"{arm_in(profile, method, 1, candidate).family}/{k}"
        found = next((fit.arm for fit in profile.arms if fit.arm.name == wanted), None)
        if found is None:
            known = ", ".join(fit.arm.name for fit in profile.arms) or "none at all"
            family = wanted.partition("/")[0]
            what = "no schedule" if k == "schedule" else "no adaptive verification"
            raise InputError(f"--k {k}", f"{what} of {family} was measured", f"one of {known}")
        return found
    arm = arm_of(method, k, candidate)
    if arm.k == 0 or profile.measured(arm):
        return arm
    measured = {fit.arm.family: fit.arm for fit in profile.arms if fit.k}
    drafters = sorted(family for family, of in measured.items() if of.method == method)
    if (name := candidate or method) in measured:
        drafters = [name]
    elif len(drafters) > 1 and candidate is None:
        raise InputError(
            f"--method {method}",
            f"measured with several drafters ({', '.join(drafters)})",
            "the name of one of them as --method",
        )
    elif candidate is not None or not drafters:
        return arm
    return replace(measured[drafters[0]], k=arm.k, scheduled=False, adaptive=False)


def conditions_of(
    profile: Profile,
    steps: tuple[str, ...],
    alpha: float | None,
    per_position: tuple[float, ...] | None,
    load: Conditions,
) -> Callable[[Arm], Conditions]:
    """Conditions of each arm: lengths and arrivals of the load, acceptance of the options."""
    from breakeven.laws.acceptance_numbers import AcceptanceModel, tokens_per_step_iid

    if sum([bool(steps), alpha is not None, per_position is not None]) > 1:
        raise click.UsageError("--tokens-per-step, --alpha and --per-position say the same thing; give one")
    named, common = _named_steps(profile, steps)

    def conditions(arm: Arm) -> Conditions:
        e: float | None = None
        if arm.k and str(arm) in named:
            e = named[str(arm)]
        elif arm.k and common is not None:
            e = min(common, arm.k + 1.0)
        elif arm.k and alpha is not None:
            e = float(tokens_per_step_iid(alpha, arm.k))
        elif arm.k and per_position is not None:
            measured_k = len(per_position)
            model = AcceptanceModel(
                arm.method, {measured_k: 1.0 + sum(per_position)}, {measured_k: per_position}
            )
            e = model.at(arm.k).value
        return replace(load, tokens_per_step=e)

    return conditions


def dispersion_of(
    profile: Profile, dispersion: float | None, arrivals: Path | None, load: LoadPoint
) -> float:
    """Dispersion of arrivals: the given number, or what a file of request times shows.

    A file is counted in spans as long as a lone request of the slowest arm.

    Raises:
        InputError: the file holds rates, or too few requests for an estimate.
    """
    if dispersion is not None and arrivals is not None:
        raise click.UsageError("--dispersion and --arrivals say the same thing; give one")
    if load.concurrency is not None and (dispersion is not None or arrivals is not None):
        raise click.UsageError(
            "--dispersion and --arrivals are about --rps: clients ask when they are answered"
        )
    if arrivals is None:
        return 1.0 if dispersion is None else dispersion
    # Only a file of request times needs the simulator, which the image lacks.
    from breakeven.laws.latency import FEWEST_SPANS
    from breakeven.laws.latency import dispersion as measured
    from breakeven_sim.replay.trace_files import read_trace
    from breakeven_sim.replay.traces import RequestTrace

    trace = read_trace(arrivals, prompt_tokens=1, output_tokens=1)
    if not isinstance(trace, RequestTrace):
        raise InputError(str(arrivals), "rates of windows", "a moment for each request")
    span_s = max(fit.c1_s for fit in profile.arms if fit.c1_s is not None)
    found = measured(trace.arrival_s, span_s)
    if found is None:
        raise InputError(
            str(arrivals),
            f"{len(trace)} requests in {figure(trace.duration_s)} s",
            f"more than {FEWEST_SPANS} times {figure(span_s)} s",
        )
    return found


def _named_steps(profile: Profile, steps: tuple[str, ...]) -> tuple[dict[str, float], float | None]:
    named: dict[str, float] = {}
    common: float | None = None
    for text in steps:
        name, equals, figure = text.rpartition("=")
        try:
            value = float(figure)
        except ValueError:
            value = 0.0
        if not 1.0 <= value < float("inf"):
            raise click.BadParameter(f"{text!r} is no number of at least 1", param_hint="--tokens-per-step")
        if not equals:
            common = value
            continue
        arm = next((fit.arm for fit in profile.arms if str(fit.arm) == name), None)
        if arm is None or not arm.k:
            known = ", ".join(str(fit.arm) for fit in profile.arms if fit.k) or "none"
            raise InputError("--tokens-per-step", f"arm {name!r}", f"a measured speculative arm ({known})")
        if value > arm.k + 1:
            raise InputError("--tokens-per-step", f"{value:g} for {arm}", f"1 to k + 1 = {arm.k + 1}")
        named[name] = value
    arms = [fit.arm for fit in profile.arms if fit.arm.k and str(fit.arm) not in named]
    if common is not None and (beyond := [str(arm) for arm in arms if common > arm.k + 1]):
        click.echo(
            f"! --tokens-per-step {common:g}: more than k + 1 of {', '.join(beyond)}; k + 1 is taken there",
            err=True,
        )
    return named, common
