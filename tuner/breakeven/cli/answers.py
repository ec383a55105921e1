"""`breakeven answers`: whether an arm answers as no speculation does, by the engines themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.output import document, echo_result, json_option, write_atomically
from breakeven.cli.parameters import InputFile, Number, OutputFile
from breakeven.cli.sweep_options import access_options, endpoint_of, model_option
from breakeven.errors import InputError

if TYPE_CHECKING:
    from breakeven.answering.answer import AnswerSet, GivenAnswer, JudgedSet
    from breakeven.answering.answer_gate import GateFinding
    from breakeven.load_driver.client import Endpoint

_SHOWN_TOKENS = 24
_LARGEST_FILE = 64 * 2**20
_FIELDS = (
    "arm word sentence answers tokens near_ties differing flawed places equal compared first_difference widest_gap p_value "
    "share_upper"
)


@click.command("answers")
@click.option("--url", required=True, help="The engine, http://host:port.")
@click.argument("files", nargs=-1, type=InputFile(), metavar="[NONE ARM...]")
@click.option("--arm", help="Asks: the arm that the engine runs, none or such as eagle3/3.")
@click.option(
    "-o", "--output", type=OutputFile(), help="Asks: file for the answers; nobody else should read it."
)
@click.option(
    "--dataset",
    type=InputFile(),
    help="Asks: your own prompts, JSON lines as for calibrate, in place of the shipped prose, code and languages.",
)
@model_option
@click.option(
    "--max-seconds",
    type=Number(1),
    default=300.0,
    show_default=True,
    help="Time for the answers of one arm, and again for their judgement.",
)
@click.option(
    "--differences",
    type=OutputFile(),
    help="Judges: file for the text of answers around their first fault; without it no text leaves the answers' files.",
)
@access_options
@json_option
def command(
    files: tuple[Path, ...],
    arm: str | None,
    output: Path | None,
    dataset: Path | None,
    max_seconds: float,
    differences: Path | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Ask an engine for greedy answers, or let an engine without speculation judge the answers of others.

    First ask: no speculation, then each arm, with --arm and -o. Nobody else may use the engine meanwhile. Then judge: start no
    speculation again and give the files, the one without speculation first. The words are AnswersAgree, AnswersDiffer,
    AnswersBroken and AnswersUndecided; docs/answers.md says what each rests on.

    \b
    Example:
      breakeven answers --url http://localhost:8000 --arm none -o none.answers
      breakeven answers --url http://localhost:8001 --arm eagle3/3 -o eagle3.answers
      breakeven answers --url http://localhost:8000 none.answers eagle3.answers
    """
    if bool(files) == (arm is not None):
        raise click.UsageError("expected either --arm and -o, or the files of no speculation and of arms")
    endpoint = endpoint_of(options, options["url"])
    if arm is not None:
        if output is None:
            raise click.UsageError("--arm needs -o: a file for the answers")
        given = asyncio.run(_ask(endpoint, arm, dataset, max_seconds))
        write_atomically(output, given.packed())
        if as_json:
            answers = len(given.answers)
            echo_result({"arm": arm, "file": str(output), "answers": answers, "refused": given.refused})
            return
        click.echo(f"{output}: {len(given.answers)} answers of {arm}, {given.refused} requests refused")
        return
    if len(files) < 2:
        raise click.UsageError("expected the file of no speculation and at least one of an arm")
    sets = [_read(file) for file in files]
    judged, shown = asyncio.run(_judge(endpoint, sets, max_seconds, texts=differences is not None))
    if differences is not None:
        write_atomically(differences, json.dumps(shown, indent=2, ensure_ascii=False) + "\n")
    if as_json:
        echo_result(
            {
                "arms": [
                    document(
                        {"": _FIELDS}, one, sentence=str(one), places=[str(place) for place in one.places]
                    )
                    for one in judged
                ]
            }
        )
        return
    for found in judged:
        click.echo(f"{found.arm:<14} {found.word:<17} {found}")


def _read(file: Path) -> AnswerSet:
    from breakeven.answering.answer import AnswerSet

    if file.stat().st_size > _LARGEST_FILE:
        raise InputError(str(file), "more than 64 MiB", "answers that this command wrote")
    return AnswerSet.unpacked(file.read_bytes(), str(file))


async def _ask(endpoint: Endpoint, arm: str, dataset: Path | None, longest_s: float) -> AnswerSet:
    from breakeven.load_driver.asking import ask, gate_prompts
    from breakeven.load_driver.client import EngineClient
    from breakeven.load_driver.dataset import read_dataset

    own = read_dataset(dataset) if dataset is not None else None
    async with EngineClient(endpoint) as client:
        return await ask(client, arm, gate_prompts(own), longest_s)


async def _judge(
    endpoint: Endpoint, sets: Sequence[AnswerSet], longest_s: float, *, texts: bool
) -> tuple[list[GateFinding], list[dict[str, Any]]]:
    """The findings, and the texts around first faults if they are asked for."""
    from breakeven.answering.answer_gate import judge_arm
    from breakeven.arm import NO_SPECULATION
    from breakeven.load_driver.asking import judge
    from breakeven.load_driver.client import EngineClient
    from breakeven.load_driver.sweep import check_arm

    async with EngineClient(endpoint) as client:
        await check_arm(client, NO_SPECULATION)
        floor, *arms = [await judge(client, given, longest_s) for given in sets]
        found = [judge_arm(asked, floor) for asked in arms]
        shown = []
        if texts:
            for finding, asked in zip(found, arms, strict=True):
                for place in finding.places:
                    pair = [_at(given, place.prompt, place.batched) for given in (asked, floor)]
                    begin = max(0, (place.position or 0) - _SHOWN_TOKENS)
                    cut = [one.token_ids[begin : begin + 2 * _SHOWN_TOKENS] if one else () for one in pair]
                    arm_text, none_text = [await client.text_of(ids) for ids in cut]
                    texts_there = {"arm_text": arm_text, "none_text": none_text}
                    shown.append({"arm": finding.arm, **place._asdict(), **texts_there})
        return found, shown


def _at(given: JudgedSet, prompt: str, batched: bool) -> GivenAnswer | None:
    return next((one for one in given.given.answers if (one.prompt, one.batched) == (prompt, batched)), None)
