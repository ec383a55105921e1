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
    from breakeven.drafters.ranking import Assessment

_SHOWN = (1, 2, 3, 4, 5, 8)
_MEANINGFUL = 30


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
    from breakeven.drafters.ranking import assess, candidates, ranked
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
    found = [assess(one, facts, profile, rps, confidence) for one in ranked(answers, draft_model)]
    found.sort(key=lambda one: -((one.promise.speedup.value or 0.0) if one.promise is not None else 0.0))
    drafters = [_drafter(one, confidence, by_others=profile is not None) for one in found]
    tally = found[0].ranked.tally
    held = len(set(tally.conversations.tolist()))
    warnings = _warnings(drafters, answers, left_out, by, rps)
    if held < _MEANINGFUL:
        few = counted(held, "conversation")
        warnings.append(f"figures of {few}: thirty and more make bounds that mean something")
    result = {
        "answers": len(answers),
        "answer_tokens": sum(len(one.tokens) for one in answers),
        "prompt_tokens": sum(len(one.prompt) for one in answers),
        "judged_answers": len(tally.conversations),
        "judged_conversations": held,
        "confidence": confidence,
        "drafters": drafters,
        "candidates": candidates(found),
        "warnings": warnings,
    }
    if anonymise is not None:
        # Nothing is written if a drafter was refused.
        write_atomically(anonymise, "".join(renumbered(answers)))
    if as_json:
        echo_result(result)
    else:
        _print(result)


def _drafter(found: Assessment, confidence: float, *, by_others: bool) -> dict[str, Any]:
    from breakeven.drafters.replay import LONGEST

    one, promise, own = found.ranked, found.promise, found.by_profile
    by_k = {k: one.tally.tokens_per_step(k, confidence) for k in range(1, LONGEST + 1)}
    shown = {
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
        "best_k": found.k,
        "groups": [
            {
                "group": name,
                "answers": len(tally.steps),
                "tokens_per_step": (known := tally.tokens_per_step(found.k, confidence)).value,
                "tokens_per_step_ci": known.bounds,
            }
            for name, tally in one.groups.items()
        ],
        "lone_speedup": promise and promise.speedup.value,
        "lone_speedup_ci": promise and promise.speedup.bounds,
        "faster_alone_probability": promise and promise.probability,
        "measured_by_others": promise
        and f"{promise.row.method}/{promise.row.k} of {promise.row.model}, {promise.row.source}",
    }
    names = ("speedup", "speedup_ci", "break_even_rps", "break_even_ci_rps")
    if own is not None:
        return shown | {name: getattr(own, name) for name in names} | {"by": "profile"}
    if not by_others:
        return shown
    return shown | dict.fromkeys(names) | {"break_even_rps": found.others_break_even_rps, "by": "others"}


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
    held = counted(result["judged_conversations"], "conversation")
    judged = f"figures of {result['judged_answers']} of them in {held}, on which no parameter was chosen"
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
    if named := [
        f"{_name(one)}: {', '.join(one['options'])}" for one in result["drafters"] if one["options"]
    ]:
        print_text("; ".join(named))
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
