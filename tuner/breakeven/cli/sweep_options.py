"""Options of requests to engines: which engine, and of `breakeven calibrate` lengths, text, sampling, shared prefix, and the sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import click

from breakeven.cli.output import several
from breakeven.cli.parameters import InputFile, Number, length_or_schedule
from breakeven.cli.prometheus_options import from_environment
from breakeven.errors import InputError

if TYPE_CHECKING:
    from breakeven.arm import Arm
    from breakeven.load_driver.client import Endpoint
    from breakeven.load_driver.course import Sweep
    from breakeven.load_driver.dataset import Dataset
    from breakeven.load_driver.design import SweepSettings
    from breakeven.load_driver.lengths import LengthDistribution
    from breakeven.load_driver.question import Question
    from breakeven.load_driver.sent_workload import SentWorkload

_MOST_LOADS = 12
_GUESSED_STEP_S = 0.01  # 7 ms on an H100 with 8 billion parameters, four times as much with 70
_NAMED = "expected each arm once, such as none=http://localhost:8000 or eagle3/3=http://localhost:8001"
model_option = click.option("--model", help="Served model name.  [default: the engine's first]")
access_options = several(
    click.option(
        "--api-key-env", metavar="NAME", help="Environment variable that holds the engine's API key."
    ),
    click.option("--ca", type=InputFile(), help="CA certificate for https."),
)
workload_options = several(
    click.option(
        "--prompt-tokens",
        type=click.IntRange(1),
        default=256,
        show_default=True,
        help="Wanted mean prompt length.",
    ),
    click.option(
        "--output-tokens",
        type=click.IntRange(2),
        default=128,
        show_default=True,
        help="Mean output length; every answer is exactly as long as drawn.",
    ),
    click.option(
        "--prompt-tokens-stdev",
        type=Number(0),
        default=0.0,
        help="Standard deviation of prompt lengths (lognormal).  [default: all equal]",
    ),
    click.option(
        "--output-tokens-stdev",
        type=Number(0),
        default=0.0,
        help="Standard deviation of output lengths (lognormal).  [default: all equal]",
    ),
    click.option(
        "--lengths",
        type=InputFile(),
        help="Pairs to draw lengths from, in place of means and deviations: CSV with prompt_tokens, output_tokens and, if rows "
        "count unequally, weight; a request trace is such a file.",
    ),
    click.option(
        "--dataset",
        type=InputFile(),
        help='Your own requests, JSON lines such as {"prompt": "...", "output_tokens": 120} or with messages in place of prompt. '
        "A line without output_tokens gets a drawn length.",
    ),
    click.option(
        "--category",
        metavar="NAME",
        help="Only the lines of --dataset whose category it is, such as coding in a file of SPEED-Bench.",
    ),
    click.option(
        "--prefix-share",
        type=Number(0, 1),
        default=0.0,
        help="Share of a mean prompt that all prompts begin with, which the prefix cache then serves.  [default: none]",
    ),
    click.option(
        "--text",
        "label",
        help="Name of the text in points, for example `synthetic acceptance`.  [default: the file's name, or synthetic text]",
    ),
    click.option(
        "--temperature", type=Number(0, 10), default=0.0, show_default=True, help="Sampling temperature."
    ),
    click.option("--top-p", type=Number(0, 1, min_open=True), help="Sampling field of the requests."),
    click.option("--top-k", type=click.IntRange(-1, 1_000_000), help="Likewise."),
    click.option(
        "--min-p", type=Number(0, 1), help="Likewise; an engine that speculates refuses it (HTTP 400)."
    ),
    click.option("--presence-penalty", type=Number(-2, 2), help="Likewise."),
    click.option("--frequency-penalty", type=Number(-2, 2), help="Likewise."),
    click.option("--repetition-penalty", type=Number(0, 10, min_open=True), help="Likewise."),
    click.option(
        "--sampling-seed",
        type=click.IntRange(0, 2**63 - 1),
        help="The engine's own seed, sent with every request.",
    ),
)


def endpoint_of(options: Mapping[str, Any], url: str) -> Endpoint:
    """The engine at an address, with the model and the access that the options name.

    Raises:
        click.UsageError: its address is none.
        InputError: the variable with the key is not set.
    """
    from breakeven.load_driver.client import Endpoint

    try:
        parts = urlsplit(url)
        known = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise click.UsageError(f"{url or 'no address'}: expected http://host:port or https://host:port")
    key = from_environment("--api-key-env", options["api_key_env"], "the engine's API key in that variable")
    return Endpoint(url, options["model"], key, options["ca"])


class MeasuredEngine(NamedTuple):
    """An engine that is up: its arm, the text of its schedule if its draft length follows the load, and its address."""

    arm: Arm
    schedule: str | None
    url: str


def engines_of(options: Mapping[str, Any]) -> tuple[MeasuredEngine, ...]:
    """The engines that the options name, by --engine or one by --url, --method and --k.

    Raises:
        UsageError: they name none, name one in both ways, or name an arm twice or one that cannot be.
    """
    one, engines = [options[name] for name in ("method", "k", "candidate")], list[MeasuredEngine]()
    texts = options["engine"]
    if texts and any((options["url"], *one)):
        raise click.UsageError("--engine excludes --url, --method, --k and --candidate")
    if not (texts or (options["url"] and options["method"])):
        raise click.UsageError("expected --url and --method, or engines by --engine ARM=URL")
    if not texts:
        return (_engine(options["url"], *one),)
    for name, _, url in (text.partition("=") for text in texts):
        engine = _named("--engine", name, url, _NAMED)
        if any(engine.arm == other.arm for other in engines):
            raise click.UsageError(f"--engine: {engine.arm} is named twice; expected each arm once")
        engines.append(engine)
    return tuple(engines)


def _engine(url: str, method: str, k: str | None = None, candidate: str | None = None) -> MeasuredEngine:
    from breakeven.cli.profile_options import arm_of

    if "" in {url, method, k, candidate}:
        raise click.UsageError("an empty method, draft length or name" if url else "no address")
    if k is None and method != "none":
        raise click.UsageError(f"--k is needed with --method {method} (--engine {method}/K=URL)")
    drafts = length_or_schedule(k or "0")
    arm = arm_of(method, drafts, candidate)
    return MeasuredEngine(arm, str(drafts) if arm.scheduled else None, url)


def arm_named(name: str) -> Arm:
    """The arm of a name such as `none` or `eagle3/3`.

    Raises:
        UsageError: there can be no such arm.
    """
    return _named("--arm", name, "-", "expected none or such as eagle3/3").arm


def _named(option: str, name: str, url: str, expected: str) -> MeasuredEngine:
    try:
        return _engine(url, *name.split("/", 2))
    except (click.UsageError, InputError) as error:
        said = str(error.__cause__ or error).rstrip(".")
        raise click.UsageError(f"{option} {name!r}: {said}; {expected}") from None


def sweep_of(options: Mapping[str, Any], arms: tuple[Arm, ...]) -> Sweep:
    """The sweep of these arms: its workload, and how its loads are chosen.

    Raises:
        UsageError: options that do not belong together.
        InputError: an option whose value is refused.
    """
    from breakeven.load_driver.course import Sweep
    from breakeven.load_driver.design import SweepSettings
    from breakeven.points.point import LoadMode
    from breakeven.serving.vllm_versions import check_min_p

    workload = workload_of(options)
    for arm in arms:
        check_min_p(workload.sampling.min_p, arm)
    loads = options["loads"]
    settings = SweepSettings(
        loads=_MOST_LOADS if loads == "auto" else loads,
        arrivals=LoadMode(options["arrivals"]),
        max_concurrency=options["max_concurrency"],
        point_seconds=options["point_seconds"],
        min_point_seconds=min(5.0, options["point_seconds"]),
        warmup_seconds=options["warmup_seconds"],
        relative_error=options["relative_error"],
        max_seconds=options["max_seconds"],
    )
    question = _question(arms, settings, workload, options)
    paired_rps, lengths = tuple(options["expected_rps"]), options["other_lengths"]
    return Sweep(arms, workload, settings, question=question, lengths=lengths, paired_rps=paired_rps)


def _question(
    arms: tuple[Arm, ...], settings: SweepSettings, workload: SentWorkload, options: Mapping[str, Any]
) -> Question | None:
    """The decision that the loads are chosen for; None if loads are spread evenly."""
    from breakeven.arm import NO_SPECULATION
    from breakeven.load_driver.question import Question

    expected_rps, target_percent = tuple(options["expected_rps"]), options["target_regret_percent"]
    if options["loads"] != "auto":
        why = "other loads are spread evenly"
        if expected_rps and (len(arms) == 1 or NO_SPECULATION not in arms):
            raise click.UsageError(
                f"--expected-rps needs --loads auto, or no speculation beside other engines: {why}"
            )
        if target_percent:
            raise click.UsageError(f"--target-regret-percent needs --loads auto: {why}")
        return None
    lone_s = guessed_lone_s(workload.output_tokens)
    question = Question(arms, settings, expected_rps=expected_rps, running=arms[0], lone_s=lone_s)
    return question if target_percent is None else replace(question, target_regret=target_percent / 100.0)


def guessed_lone_s(output_tokens: int) -> float:
    """Latency of a lone request (s) before there is a point."""
    return _GUESSED_STEP_S * output_tokens


def workload_of(options: Mapping[str, Any]) -> SentWorkload:
    """The workload that the options ask for; wrong usage if two options exclude each other.

    Raises:
        InputError: a file has wrong content; names line and column, never a prompt.
    """
    from breakeven.load_driver.sent_workload import Sampling, SentWorkload

    if options["category"] is not None and options["dataset"] is None:
        raise click.UsageError("--category without --dataset")
    if options["dataset"] is not None and options["prefix_share"]:
        raise click.UsageError("--prefix-share excludes --dataset: its prompts are what they are")
    lengths = _lengths(options)
    prompt_tokens, output_tokens = _means(lengths, options)
    return SentWorkload(
        prompt_tokens,
        output_tokens,
        options["seed"],
        options["workload"],
        lengths=lengths,
        sampling=Sampling(
            temperature=options["temperature"],
            top_p=options["top_p"],
            top_k=options["top_k"],
            min_p=options["min_p"],
            presence_penalty=options["presence_penalty"],
            frequency_penalty=options["frequency_penalty"],
            repetition_penalty=options["repetition_penalty"],
            seed=options["sampling_seed"],
        ),
        prefix_share=options["prefix_share"],
        dataset=_dataset(options),
        label=options["label"],
    )


def _lengths(options: Mapping[str, Any]) -> LengthDistribution | None:
    """Distribution of lengths; None if they do not scatter."""
    from breakeven.load_driver.lengths import LogNormalLengths, read_lengths

    scatter = options["prompt_tokens_stdev"], options["output_tokens_stdev"]
    if options["lengths"] is not None:
        if any(scatter):
            raise click.UsageError("--lengths excludes --prompt-tokens-stdev and --output-tokens-stdev")
        return read_lengths(options["lengths"], options["seed"])
    if not any(scatter):
        return None
    return LogNormalLengths(options["prompt_tokens"], options["output_tokens"], *scatter, options["seed"])


def _means(lengths: LengthDistribution | None, options: Mapping[str, Any]) -> tuple[int, int]:
    from breakeven.load_driver.lengths import EmpiricalLengths

    if not isinstance(lengths, EmpiricalLengths):
        return options["prompt_tokens"], options["output_tokens"]
    return max(1, round(lengths.mean_prompt_tokens)), max(2, round(lengths.mean_output_tokens))


def _dataset(options: Mapping[str, Any]) -> Dataset | None:
    from breakeven.load_driver.dataset import read_dataset

    file = options["dataset"]
    return None if file is None else read_dataset(file, category=options["category"])
