"""`breakeven rank ANSWERS`: which drafter, on your own finished answers, before any engine starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.output import (
    bounds,
    confidence_option,
    echo_result,
    figure,
    json_option,
    print_table,
    print_text,
    print_warnings,
    write_atomically,
)
from breakeven.cli.parameters import InputFile, Number, OutputFile
from breakeven.cli.profile_options import read_profile
from breakeven.phrases import counted, percent

if TYPE_CHECKING:
    from breakeven.drafters.answers_file import FinishedAnswer
    from breakeven.drafters.ranking import Promise, Ranked
    from breakeven.profile import ArmFit, Profile

_SHOWN = (1, 2, 3, 4, 5, 8)
_WORTH_MEASURING = 0.5
_MEANINGFUL = 60


@click.command("rank", short_help="Which drafter, on your own finished answers.")
@click.argument("answers_path", metavar="ANSWERS", type=InputFile())
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="Folder of the model's tokenizer, where the file has texts.",
)
@click.option(
    "--draft-model",
    type=click.Path(path_type=Path),
    help="Folder of a small draft model, asked for its first choices.",
)
@click.option("--by", help="Column that groups answers, such as task or metadata.tool.")
@click.option(
    "--model", default="", help="The served model's name, to find what others measured of models like it."
)
@click.option("--gpu", help="Its GPU, such as H100.")
@click.option(
    "--profile", "profile_path", type=InputFile(), help="Speedup and break-even by this profile's law."
)
@click.option("--rps", type=Number(0, 1e6), help="The load of one replica for --profile.")
@click.option(
    "--anonymise",
    type=OutputFile(),
    help="Also write the answers as renumbered token ids: look-ups draft the same.",
)
@confidence_option
@json_option
def command(
    answers_path: Path,
    tokenizer: Path | None,
    draft_model: Path | None,
    by: str | None,
    model: str,
    gpu: str | None,
    profile_path: Path | None,
    rps: float | None,
    anonymise: Path | None,
    confidence: float,
    *,
    as_json: bool,
) -> None:
    """Rank drafters on finished answers: no engine starts, and nothing leaves this machine.

    Verification keeps the target's own text, whoever drafted it. So finished answers say what n-gram look-up, suffix decoding and
    a draft model would have got accepted. Look-ups are also searched for better parameters, on one half of the answers; the figures
    are of the other half. No text is printed or written.

    \b
    Examples:
      breakeven rank answers.jsonl --tokenizer ./llama-8b --by task
      breakeven rank vllm.log --model Llama-3.1-8B --gpu H100
      breakeven rank answers.jsonl --tokenizer ./llama-8b --profile chat.json --rps 4
    """
    from breakeven.drafters.answers_file import TEXT_COLUMNS, read_answers, renumbered
    from breakeven.drafters.ranking import judged, promise_of, ranked
    from breakeven.prior.public_table import ServiceFacts

    if rps is not None and profile_path is None:
        raise click.UsageError("--rps is the load for --profile")
    if anonymise is not None and anonymise.resolve() == answers_path.resolve():
        raise click.UsageError("--anonymise would replace ANSWERS; name another file")
    if by is not None and by.partition(".")[0] in TEXT_COLUMNS:
        raise click.UsageError(f"--by {by} would print texts; name a column such as task")
    profile = None if profile_path is None else read_profile(profile_path, confidence, None)
    answers, left_out = read_answers(answers_path, tokenizer, by)
    facts = ServiceFacts.of_name(model or (profile.provenance.get("model", "") if profile else ""), gpu)
    found = [
        (one, promise_of(one, facts, confidence, _lengths(one, profile, rps, confidence)))
        for one in ranked(answers, draft_model)
    ]
    found.sort(key=lambda pair: -((pair[1].speedup.value or 0.0) if pair[1] is not None else 0.0))
    drafters = [_drafter(one, promise, profile, rps, confidence) for one, promise in found]
    result = {
        "answers": len(answers),
        "answer_tokens": sum(len(one.tokens) for one in answers),
        "prompt_tokens": sum(len(one.prompt) for one in answers),
        "judged_answers": int(judged(len(answers)).sum()),
        "confidence": confidence,
        "drafters": drafters,
        "candidates": _candidates(found, drafters),
        "warnings": _warnings(drafters, answers, left_out, by, rps),
    }
    if anonymise is not None:
        # Nothing is written if a drafter was refused.
        write_atomically(anonymise, "".join(renumbered(answers)))
    if as_json:
        echo_result(result)
    else:
        _print(result)


def _drafter(
    one: Ranked, promise: Promise | None, profile: Profile | None, rps: float | None, confidence: float
) -> dict[str, Any]:
    from breakeven.drafters.replay import LONGEST

    by_k = {k: one.tally.tokens_per_step(k, confidence) for k in range(1, LONGEST + 1)}
    best = promise.k if promise is not None else max(by_k, key=lambda k: by_k[k].value or 0.0)
    return {
        "method": one.method,
        "options": one.options,
        "model": one.model,
        "draft_lengths": [
            {
                "k": k,
                "tokens_per_step": known.value,
                "tokens_per_step_ci": known.bounds,
                "survival": one.tally.survival(k),
                "drafted_share": one.tally.drafted_share(k),
            }
            for k, known in by_k.items()
        ],
        "best_k": best,
        "groups": [
            {
                "group": name,
                "answers": len(tally.steps),
                "tokens_per_step": (known := tally.tokens_per_step(best, confidence)).value,
                "tokens_per_step_ci": known.bounds,
            }
            for name, tally in one.groups.items()
        ],
        "lone_speedup": None if promise is None else promise.speedup.value,
        "lone_speedup_ci": None if promise is None else promise.speedup.bounds,
        "faster_alone_probability": None if promise is None else promise.probability,
        "measured_by_others": None
        if promise is None
        else f"{promise.row.method}/{promise.row.k} of {promise.row.model}, {promise.row.source}",
        **_at_load(one, best, promise, profile, rps, confidence),
    }


def _lengths(one: Ranked, profile: Profile | None, rps: float | None, confidence: float) -> Sequence[int]:
    """Draft lengths to choose from: the best one by the law of a profile that knows the method, because others measured one length."""
    from breakeven.drafters.replay import LONGEST

    lengths = range(1, LONGEST + 1)
    if profile is None or _fit_of(profile, one.method) is None:
        return lengths
    return [max(lengths, key=lambda k: _at_load(one, k, None, profile, rps, confidence)["speedup"] or 0.0)]


def _fit_of(profile: Profile, method: str) -> ArmFit | None:
    return next((fit for fit in profile.arms if fit.arm.method == method and not fit.arm.scheduled), None)


def _at_load(
    one: Ranked,
    k: int,
    promise: Promise | None,
    profile: Profile | None,
    rps: float | None,
    confidence: float,
) -> dict[str, Any]:
    """Speedup and break-even by a profile: by its law where it knows the method, else by the ratios of others on its own line."""
    from breakeven.arm import NO_SPECULATION, Arm
    from breakeven.past.others_measured import pays_until_rps
    from breakeven.profile import Conditions

    if profile is None:
        return {}
    fit = _fit_of(profile, one.method)
    if fit is None:
        none = next((fit for fit in profile.arms if fit.arm == NO_SPECULATION), None)
        row = None if promise is None else promise.row
        # The slope is taken as it stands: scaled by E, rows of the table predict each other worse (41 % off in place of 17).
        even = (
            None
            if promise is None or row is None or none is None
            else pays_until_rps(1.0 / (promise.speedup.value or math.nan), row.slope_ratio, none.c2_s)
        )
        return {"break_even_rps": even, "by": "others"}
    e, error = one.tally.tokens_per_step(k).value, one.tally.relative_error(k, confidence)
    now = Conditions(tokens_per_step=e, tokens_per_step_error=error)
    arm = Arm(one.method, k, fit.arm.candidate)
    load = profile.compare(arm, rps=0.0 if rps is None else rps, conditions=now, confidence=confidence)
    return {
        "speedup": load.speedup,
        "speedup_ci": load.speedup_ci,
        "break_even_rps": load.break_even_rps,
        "break_even_ci_rps": load.break_even_ci_rps,
        "by": "profile",
    }


def _candidates(
    found: Sequence[tuple[Ranked, Promise | None]], drafters: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """`spec.candidates.methods` of a SpeculativeService: of each method the better parameters, if it is likelier faster than not."""
    methods: dict[str, dict[str, Any]] = {}
    for (one, promise), shown in zip(found, drafters, strict=True):
        if promise is None or promise.probability <= _WORTH_MEASURING or one.method in methods:
            continue
        if shown.get("speedup_ci") and (shown["speedup_ci"][1] or math.inf) < 1.0:
            continue  # the user's own profile says that it loses at this load
        methods[one.method] = {
            "name": one.method.replace("_", "-"),
            "method": one.method,
            **({"model": one.model} if one.model else {}),
            "draftLengths": sorted({max(1, promise.k // 2), promise.k}),
            **({"options": dict(one.options)} if one.options else {}),
        }
    return list(methods.values())


def _warnings(
    drafters: Sequence[Mapping[str, Any]],
    answers: Sequence[FinishedAnswer],
    left_out: int,
    by: str | None,
    rps: float | None,
) -> list[str]:
    warnings = []
    if left_out:
        warnings.append(f"{counted(left_out, 'row')} without an answer of two tokens were left out")
    if len(answers) < _MEANINGFUL:
        warnings.append(f"{counted(len(answers), 'answer')}: sixty and more make bounds that mean something")
    if any(one["method"] == "suffix" and one.get("by") != "profile" for one in drafters):
        warnings.append(
            "suffix: what its step costs is taken from n-grams; nobody published a lone request of it"
        )
    if by is not None and all(answer.group in ("", "-") for answer in answers):
        warnings.append(f"no answer has a column {by!r}")
    foreign = sorted({one["method"] for one in drafters if one.get("by") == "others"})
    if rps is not None and foreign:
        warnings.append(
            f"the profile has no {' and no '.join(foreign)}: of these nothing is known at {rps:g} rps"
        )
    return warnings


def _print(result: Mapping[str, Any]) -> None:
    sizes = f"{counted(result['answers'], 'answer')}, {result['answer_tokens']:,} tokens, prompts {result['prompt_tokens']:,}"
    judged = f"figures of {result['judged_answers']} of them, on which no parameter was chosen"
    print_text(f"{sizes}; {judged}. Tokens per step (E) by draft length; 1 is no speculation")
    rows = []
    for one in result["drafters"]:
        by_k = {row["k"]: row for row in one["draft_lengths"]}
        best = by_k[one["best_k"]]
        rows.append(
            (
                _name(one),
                *(figure(by_k[k]["tokens_per_step"]) for k in _SHOWN),
                f"k={one['best_k']}: {bounds(best['tokens_per_step'], best['tokens_per_step_ci'])}",
                percent(best["drafted_share"]),
            )
        )
    print_table(("DRAFTER", *(f"k={k}" for k in _SHOWN), "BEST", "DRAFTED"), rows)
    groups = [{row["group"]: row for row in one["groups"]} for one in result["drafters"]]
    if groups[0]:
        click.echo()
        cells = [
            (name, str(row["answers"]), *(_group(known[name]) for known in groups))
            for name, row in groups[0].items()
        ]
        print_table(("GROUP", "ANSWERS", *map(_name, result["drafters"])), cells)
    click.echo()
    for one in result["drafters"]:
        print_text(_sentence(one))
    if result["candidates"]:
        click.echo("\nspec.candidates of a SpeculativeService:\n  methods:")
        from pydantic_core import to_json

        for method in result["candidates"]:
            click.echo(f"  - {to_json(method).decode()}")
    print_warnings(result["warnings"])


def _group(row: Mapping[str, Any]) -> str:
    return bounds(row["tokens_per_step"], row["tokens_per_step_ci"])


def _name(one: Mapping[str, Any]) -> str:
    """Method and parameters that are not vLLM's own: `ngram 2-8`, `suffix 24 x4`."""
    options = list(one["options"].values())
    if not options:
        return str(one["method"])
    return (
        f"{one['method']} {options[0]:g}-{options[1]:g}"
        if one["method"] == "ngram"
        else f"{one['method']} {options[0]:g} x{options[1]:g}"
    )


def _sentence(one: Mapping[str, Any]) -> str:
    if one["lone_speedup"] is None:
        return f"{_name(one)}: nobody published what a step of it costs, so E alone is known"
    speedup = bounds(one["lone_speedup"], one["lone_speedup_ci"])
    text = f"{_name(one)} at k = {one['best_k']}: a lone request {speedup} times as fast, by the step's cost in {one['measured_by_others']}"
    if one.get("by") == "profile":
        even = one["break_even_rps"]
        edge = "no break-even" if even is None else f"break-even {figure(even)} rps"
        return f"{text}; by the profile {bounds(one['speedup'], one['speedup_ci'])} at the load, {edge}"
    if (limit := one.get("break_even_rps")) is not None:
        where = {0.0: "at no load", math.inf: "at every load"}.get(limit, f"until {figure(limit)} rps")
        text += f"; pays {where} by ratios of others"
    # Others' figures leave more doubt than a hundredth.
    sure = min(max(one["faster_alone_probability"], 0.01), 0.99)
    return f"{text}; {percent(sure)} that it is faster at all"
