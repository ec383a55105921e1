"""The report of one profile: verdict, pictures, what not to believe, parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from breakeven import __version__
from breakeven.arm import NO_SPECULATION, Arm
from breakeven.laws.arrays import Span
from breakeven.phrases import bounded, figure, percent, ratio_text
from breakeven.planning.evaluation import LoadQuestion, evaluate
from breakeven.planning.prompt_lengths import PromptPart, by_prompt, prompts_text
from breakeven.profile import Comparison, Conditions, LoadPoint, Profile
from breakeven.profile.operating_conditions import ConditionsOf, as_measured, compared_text
from breakeven.reporting import lines as computed
from breakeven.reporting import plots
from breakeven.reporting.page import Draw, Picture, ReportPage, Table, render_page
from breakeven.reporting.theme import Theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDE, _NARROW = (9.6, 4.6), (4.4, 3.9)


class Recommended(NamedTuple):
    """An arm that an operator recommends, and the load (1/s per replica) at which it does; None if that is not known."""

    arm: Arm
    rps: float | None = None


class PageNotes(NamedTuple):
    """What the asker adds to a page: `answer` in place of the `verdict`, a note below it, and tables before the page's own."""

    note: str = ""
    answer: str = ""
    tables: tuple[Table, ...] = ()


NO_NOTES = PageNotes()


def render_report(
    profile: Profile,
    title: str,
    load_range_rps: Span | None = None,
    conditions: ConditionsOf = as_measured,
    beside: PageNotes = NO_NOTES,
) -> str:
    """One self-contained HTML page of a profile with at least one law.

    The load range is shaded: loads per replica that the fleet sees. The conditions hold for everything but the fit.
    """
    kinds = computed.kinds_over_load(computed.arm_curves(profile, conditions))
    told = {"kinds": f" {computed.which_kind(kinds, load_range_rps)}" if kinds else ""}
    pictures = [
        Picture(draw, _CAPTIONS[name] + told.get(name, ""), first=name != "fit", narrows=True)
        for name, draw in drawings(profile, load_range_rps, conditions).items()
    ]
    return render_page(
        ReportPage(
            title=title,
            facts=[*_facts(profile, title), *_asked(profile, conditions)],
            verdict=beside.answer or verdict(profile, load_range_rps, conditions),
            note=beside.note,
            pictures=pictures,
            warnings=profile.warnings,
            tables=[*beside.tables, *_tables(profile)],
            footer=f"breakeven {__version__}. Speedups are at equal request rate (open loop, Poisson) against no speculation.",
        )
    )


def page_title(profile: Profile) -> str:
    """Model, drafters, GPU and workload that were measured, if the profile names them."""
    drafters = dict.fromkeys(fit.arm.family for fit in profile.arms if fit.k > 0)
    known = (profile.provenance.get(key) for key in ("model", "gpu", "workload"))
    model, *rest = (value or "" for value in known)
    named = [part for part in (model, *drafters, *rest) if part]
    return " ".join(("Does speculative decoding pay?", ", ".join(named))).rstrip()


def _facts(profile: Profile, title: str) -> list[str]:
    """Facts that identify the measurement and are not in the title."""
    # Of the profile itself: which file a page was made from.
    digest = hashlib.sha256(profile.to_json().encode()).hexdigest()[:12]
    known = {"fingerprint": digest, **profile.provenance}
    facts = [
        f"{key.replace('_', ' ')} {value}" for key, value in known.items() if value and value not in title
    ]
    return [*facts, f"bounds at {profile.confidence:.0%} confidence"]


def _asked(profile: Profile, conditions: ConditionsOf) -> list[str]:
    """The acceptance and lengths of the page, if they differ from the measured ones."""
    by_arm = [(fit.arm, conditions(fit.arm)) for fit in computed.drawable(profile)]
    lengths = by_arm[0][1] if by_arm else Conditions()
    words = (("prompt", lengths.prompt_tokens), ("output", lengths.output_tokens))
    facts = [f"{tokens:g} {word} tokens" for word, tokens in words if tokens is not None]
    facts += [
        f"{figure(one.tokens_per_step)} tokens per step of {arm.name}"
        for arm, one in by_arm
        if arm.k and one.tokens_per_step is not None
    ]
    return [f"predicted for {', '.join(facts)}"] if facts else []


_CAPTIONS = {
    "speedup": "Speedup over no speculation at equal request rate. Bands are the bounds of the fit, hollow marks are measured "
    "points (against the predicted latency without speculation), upright ticks with a figure are break-evens with their interval.",
    "latency": "Mean end-to-end latency of a request. Dotted lines are saturation.",
    "kinds": "Speed of a request in percent of the fastest arm's at the same load, with no speculation, with the fixed length that "
    "loses least, with a schedule and with adaptive verification. A line ends where its arm saturates.",
    "map": "Which measured arm has the lowest predicted latency, if one draft token were accepted with the probability on "
    "the left at every position. An arm whose acceptance cannot be converted (a schedule) stands on the measured line alone, if "
    "it is the fastest there. Arms that are nowhere the fastest are named above.",
    "fit": "By how much the law predicts more (+) or less (-) than was measured, for every point that was used. The shaded "
    "lane is 10 % either way.",
}


def drawings(
    profile: Profile,
    load_range_rps: Span | None = None,
    conditions: ConditionsOf = as_measured,
) -> dict[str, Draw]:
    """Pictures of a profile by name; only those it has data for. Curves are computed once and drawn on any paper."""
    lines = computed.arm_curves(profile, conditions)
    best = computed.best_arm_map(profile, conditions=conditions)
    points = computed.measured_points(profile)
    arms = [line.arm for line in lines]

    def on_axes(plot: Callable[..., None], drawn: object, *, shaded: bool = False) -> Draw:
        def draw(theme: Theme) -> Figure:
            from matplotlib.figure import Figure  # noqa: PLC0415 - only pictures need it

            figure = Figure(figsize=_NARROW if theme.narrow else _WIDE)
            axes = figure.add_subplot()
            if shaded and load_range_rps is not None:
                plots.shade_load(axes, load_range_rps, theme)
            plot(axes, drawn, theme.strokes(arms), theme)
            return figure

        return draw

    chosen: dict[str, Draw] = {}
    if NO_SPECULATION in arms and len(arms) > 1:
        chosen["speedup"] = on_axes(plots.speedup_against_load, lines, shaded=True)
    if lines:
        chosen["latency"] = on_axes(plots.latency_against_load, lines, shaded=True)
    if kinds := computed.kinds_over_load(lines):
        chosen["kinds"] = on_axes(plots.kinds_against_load, kinds, shaded=True)
    if best is not None:
        chosen["map"] = on_axes(plots.best_arm_map, best)
    if points:
        chosen["fit"] = on_axes(plots.measured_against_predicted, points)
    return chosen


def verdict(
    profile: Profile,
    load_range_rps: Span | None = None,
    conditions: ConditionsOf = as_measured,
    prompts: Sequence[PromptPart] = (),
    about: Recommended | None = None,
) -> str:
    """One sentence with bounds, and one of prompts if any are asked for: does the recommended arm, else the best one, pay, at which load, until when, and how its speedup is known."""
    fits = computed.drawable(profile)
    plain = next((fit for fit in fits if fit.k == 0), None)
    if plain is None or len(fits) == 1:
        return "Nothing to compare: a profile needs one arm without speculation and one with it."
    saturation_rps = plain.saturation_rps or 0.0
    known_rps = about.rps if about is not None else None
    rps = known_rps or (sum(load_range_rps) / 2 if load_range_rps else 0.2 * saturation_rps)
    said = known_rps or load_range_rps
    where = f"at {figure(rps, 2)} rps per replica" + ("" if said else " (a fifth of saturation)")
    if lengths := compared_text(profile.arms, conditions(NO_SPECULATION)):
        where += f" and {lengths}"
    arms = [fit.arm for fit in fits]
    found = evaluate(profile, arms, LoadQuestion(LoadPoint(rps=rps), conditions, derived=True))
    compared = {one.arm: one.against_none for one in found.arms if one.against_none}
    fastest = max(compared, key=lambda arm: compared[arm].speedup or 0.0, default=NO_SPECULATION)
    arm = about.arm if about is not None and about.arm in compared else fastest
    best = compared.get(arm)
    if best is None or best.speedup is None:
        return f"These points do not show whether speculation pays {where}."
    until = f", {best.how_known}" + (f"; it {best.break_even}" if best.break_even else "")
    if about is not None and about.arm.k and fastest != arm:
        until += f"; {fastest} would be faster by this profile, {compared[fastest].speedup or 0.0:.2f}x"
    lengths = prompts_text(by_prompt(found.of(arm), found.none, prompts))
    until += f". By prompt: {lengths}" if lengths else ""
    return _judged(arm, best, about, where, until)


def _judged(arm: Arm, best: Comparison, about: Recommended | None, where: str, until: str) -> str:
    """The sentence about the arm that was chosen."""
    known = best.known
    ratio, slows = ratio_text(known), "Speculation slows requests: the"
    if about is not None and not about.arm.k:
        return f"No speculation is recommended {where}; {arm}, the fastest other arm, reaches {ratio}{until}."
    if known.above(1.0):
        return f"{arm} is {ratio} as fast as no speculation {where}{until}."
    whose = "best" if about is None else "recommended"
    if best.saturated and best.speedup == 0.0:
        return f"{slows} {whose} arm, {arm}, is saturated {where}{until}."
    if known.below(1.0):
        return f"{slows} {whose} arm, {arm}, reaches {ratio} {where}{until}."
    return f"Too close to decide: {arm} is {ratio} {where}{until}."


def _tables(profile: Profile) -> list[Table]:
    arms = Table(
        "Parameters",
        (
            "arm",
            "C1, s",
            "C2, ms per other in flight",
            "saturation, rps",
            "tokens per step",
            "points",
            "worst",
            "LOO",
        ),
        [
            (
                fit.arm.name,
                bounded(fit.c1_s, fit.c1_ci_s),
                bounded(fit.c2_s, fit.c2_ci_s, lambda one: figure(1e3 * one)),
                bounded(fit.saturation_rps, fit.saturation_ci_rps),
                "-" if fit.tokens_per_step is None else f"{fit.tokens_per_step:.2f}",
                str(fit.points),
                percent(fit.max_relative_error),
                percent(fit.loo_error),
            )
            for fit in profile.arms
        ],
        note=" ".join(
            [
                "C1: latency of a lone request; C2: what each other in flight adds on average, up to the highest load measured. Both are read off the law of steps.",
                f"All arms at {lengths}." if (lengths := compared_text(profile.arms, Conditions())) else "",
            ]
        ).rstrip(),
    )
    excluded = [
        (fit.arm.name, str(row.row), row.reason, row.source) for fit in profile.arms for row in fit.excluded
    ]
    left_out = [Table("Points left out", ("arm", "row", "reason", "file"), excluded)] if excluded else []
    return [arms, *left_out]
