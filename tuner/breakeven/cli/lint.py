"""`breakeven lint MANIFEST`: the lines that a manifest needs before the operator may choose its arm."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.output import DEFAULT_CONFIDENCE, document, echo_result, json_option
from breakeven.cli.parameters import InputFile
from breakeven.errors import BreakevenError, InputError
from breakeven.phrases import listed

if TYPE_CHECKING:
    from breakeven.serving.examination import EngineVerdict, Examination
    from breakeven.serving.pod_templates import PassedOver

_MOST_CHARACTERS = 4 << 20
_MOST_NAMED = 12


class _Command(click.Command):
    """`--engine` takes the word that follows if that is a Python; a manifest may follow as well."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        for at, word in enumerate(args):
            following = Path(args[at + 1]).name if at + 1 < len(args) else ""
            if word == "--engine" and not following.startswith("python"):
                words[at] = f"--engine={sys.executable}"
        return super().parse_args(ctx, words)


@click.command("lint", cls=_Command)
@click.argument("manifest", type=InputFile(dash=True))
@click.option("--container", help="The container that runs vLLM; default: those that say so.")
@click.option(
    "--engine",
    metavar="[PYTHON]",
    help="Let vLLM judge the command line: the vLLM of this Python, or of PYTHON (a path, or python3...).",
)
@click.option(
    "--model-config",
    type=click.Path(path_type=Path),
    help="With --engine: a folder with the model's config.json, or with folders MODEL/NAME for several.",
)
@click.option("--check", is_flag=True, help="Exit 1 when anything is missing (for CI).")
@json_option
def command(
    manifest: Path,
    container: str | None,
    engine: str | None,
    model_config: Path | None,
    *,
    check: bool,
    as_json: bool,
) -> None:
    """Print the exact lines to add to and remove from a manifest.

    Two things are checked: the opt-in (one environment variable, one argument) that lets the operator choose the arm by one
    annotation, and the drain settings without which a roll cuts off requests. If the arm has a draft length per batch size,
    its table is checked, and whether vLLM would run that table. Advice fits the version in the image's tag; words about
    speculation that this version does not know are named. Volumes that a second pod cannot mount are named if a roll adds a
    pod; put PersistentVolumeClaims into the same file.

    The command reads pod templates of Deployment, StatefulSet, DaemonSet, Rollout, LeaderWorkerSet, InferenceService,
    ServingRuntime, LLMInferenceService, Pod and Job. A file may hold several documents and Lists. Values
    of the charts production-stack and llm-d-modelservice are read too, by themselves or in a HelmRelease or
    Application. Lines stand under paths in the file's own terms. Objects that do not run vLLM, or cannot be read, are passed
    over by name.

    A script in `command` or `args` is read and never run. The file of `--config` and a mounted script are read if their
    ConfigMap is in the same file. The operator rolls Deployments, StatefulSets, LeaderWorkerSets, Argo Rollouts, and KServe's
    LLMInferenceServices and InferenceServices: for a file without one the lines are printed, and then the file is refused.

    With --engine the parser and the configuration classes of an installed vLLM judge each engine's command line, VLLM_*
    variables and speculative configuration, without a GPU and without the network: accepted, and what it comes to; or refused,
    in vLLM's words, with status 1. What depends on a model is judged if its config.json is here: under the manifest's path, in
    the cache of Hugging Face, or in --model-config. An engine for GPUs is judged as on an NVIDIA H100, by vLLM's own code for
    CUDA. What vLLM checks only once it loads weights or answers requests is not judged; lint's own warnings name what is known.

    \b
    Example:
      breakeven lint deployment.yaml
      breakeven lint deployment.yaml --engine
      kubectl get deployment chat-vllm -o yaml | breakeven lint -
    """
    found, passed = _examined(manifest, container)
    if not found:
        raise _nothing(manifest, passed)
    judged = _judged(found, engine, model_config)
    # Objects without pods get no line beside those that have some.
    reasons = [f"{one.title}: {one.why}" for one in passed if one.why]
    if as_json:
        findings = [_document(one, verdict) for one, verdict in zip(found, judged, strict=True)]
        echo_result({"deployments": findings, "passed_over": reasons, "confidence": DEFAULT_CONFIDENCE})
    else:
        for one, verdict in zip(found, judged, strict=True):
            _print(one, verdict)
        for reason in reasons:
            click.echo(f"- {reason}")
    _refuse(manifest, found, passed, judged)
    if check and not all(one.ok for one in found):
        raise BreakevenError(f"{manifest}: not ready for rolls (see above)")


def _examined(manifest: Path, container: str | None) -> tuple[list[Examination], list[PassedOver]]:
    """Containers of a file that run vLLM, and the objects that are passed over."""
    from breakeven.serving.examination import examinations
    from breakeven.serving.pod_templates import PassedOver, neighbours, pod_templates

    found: list[Examination] = []
    passed: list[PassedOver] = []
    documents = [(f"{manifest}:document {number}", one) for number, one in enumerate(_documents(manifest), 1)]
    beside = neighbours(documents)
    for where, one in documents:
        for template in pod_templates(one, where):
            results = (
                [template] if isinstance(template, PassedOver) else examinations(template, container, beside)
            )
            for result in results:
                passed.append(result) if isinstance(result, PassedOver) else found.append(result)
    return found, passed


def _nothing(manifest: Path, passed: list[PassedOver]) -> InputError:
    """The refusal of a file without an engine: everything in it by name, with the reason."""
    from breakeven.serving.rolling import ROLLED, rolled_kinds

    none = f"no {rolled_kinds('or')} in it"
    if not passed:
        return InputError(str(manifest), none, "at least one")
    reasons = [f"{one.title}: {one.why}" for one in passed if one.why]
    titles = [one.title for one in passed]
    managed = all(title.partition("/")[0] in ROLLED for title in titles)
    unread = any(reason.partition(": ")[2].startswith("not read") for reason in reasons)
    if ((reasons and managed) or len(reasons) == len(titles) == 1) and not unread:
        return InputError(
            str(manifest), listed(reasons, _MOST_NAMED), "a container that runs vLLM (or --container NAME)"
        )
    if not reasons:
        return InputError(
            str(manifest),
            f"{none}, only {listed(titles, _MOST_NAMED)}",
            "one that runs vLLM",
        )
    others = [f"{one.title} ({one.why})" if one.why else one.title for one in passed]
    return InputError(str(manifest), listed(others, _MOST_NAMED), _expected())


def _expected() -> str:
    from breakeven.serving.rolling import rolled_kinds

    return f"a {rolled_kinds('or')} (other kinds that own their pods are not managed)"


def _documents(manifest: Path) -> list[Any]:
    import yaml

    from breakeven.serving.pod_templates import is_helm_template, other_form
    from breakeven.yaml_intake import written_documents

    with click.open_file(str(manifest), encoding="utf-8") as stream:
        text = ""
        try:
            text = stream.read(_MOST_CHARACTERS + 1)
            if len(text) > _MOST_CHARACTERS:
                raise InputError(
                    str(manifest), f"more than {_MOST_CHARACTERS >> 20} MiB", "Kubernetes manifests"
                )
            documents = list(written_documents(text))
        except (yaml.YAMLError, ValueError) as error:
            expected = "Kubernetes manifests"
            if (form := other_form(text)) is not None:
                raise InputError(str(manifest), form, expected) from error
            if is_helm_template(text):
                expected += " (a Helm template: lint what `helm template` renders)"
            # PyYAML calls every text <unicode string>.
            why = " ".join(str(error).replace(' in "<unicode string>",', " in").split())
            raise InputError(str(manifest), f"not YAML ({why})", expected) from error
        except OSError as error:
            raise InputError(
                str(manifest), error.strerror or "cannot be read", "Kubernetes manifests"
            ) from error
        except RecursionError:
            raise InputError(str(manifest), "nested too deep", "Kubernetes manifests") from None
    no_manifest = any(isinstance(one, str | int | float) for one in documents)
    if no_manifest and (form := other_form(text)) is not None:
        raise InputError(str(manifest), form, "Kubernetes manifests")
    return documents


def _judged(found: list[Examination], python: str | None, configs: Path | None) -> list[EngineVerdict | None]:
    """Verdict of vLLM on each engine; None if it is not asked."""
    if python is None:
        if configs is not None:
            raise click.UsageError("--model-config is for --engine")
        return [None] * len(found)
    from breakeven.serving.examination import EngineVerdict, question_of, verdicts

    asked = [question_of(one.template, one.engine, one.start) for one in found]
    questions = [one for one in asked if not isinstance(one, EngineVerdict)]
    answers = verdicts(questions, python, configs)
    return [one if isinstance(one, EngineVerdict) else answers[one] for one in asked]


def _refuse(
    manifest: Path,
    found: list[Examination],
    passed: list[PassedOver],
    judged: list[EngineVerdict | None],
) -> None:
    if not any(one.template.managed for one in found):
        titles = dict.fromkeys([one.template.title for one in found] + [one.title for one in passed])
        raise InputError(str(manifest), listed([*titles], _MOST_NAMED), _expected())
    for word in ("refused", "unjudged"):
        named = [
            f"{one.template.title} ({one.container})"
            for one, verdict in zip(found, judged, strict=True)
            if verdict is not None and verdict.outcome == word
        ]
        if named:
            does = "refuses" if word == "refused" else "did not judge"
            raise BreakevenError(f"{manifest}: vLLM {does} {listed(named, _MOST_NAMED)} (see above)")


FIELDS = {
    "": "deployment container ok opt_in drain warnings notes kind engine?",
    "opt_in.": "ok refusal add remove",
    "drain.": "ok pre_stop_s shutdown_timeout_s termination_grace_period_s problems",
}
"""Fields of a deployment of `--json`."""


def _document(found: Examination, verdict: EngineVerdict | None) -> dict[str, Any]:
    drain = document(FIELDS, found.drain, place="drain.", termination_grace_period_s=found.drain.grace_s)
    of_pods = {"deployment": found.template.name, "kind": found.template.kind}
    return document(FIELDS, found, **of_pods, drain=drain, engine=verdict)


def _print(found: Examination, verdict: EngineVerdict | None) -> None:
    opt_in, drain = found.opt_in, found.drain
    click.echo(f"{found.template.title}, container {found.container}")
    if opt_in.ok:
        click.echo("  opt-in    complete")
    elif opt_in.refusal:
        click.echo(f"  opt-in    refused: {opt_in.refusal}")
    for line in opt_in.lines:
        click.echo(f"{'          ' if line.startswith(' ') else '  opt-in    '}{line}")
    click.echo("  draining  complete" if drain.ok else "  draining  a roll would lose requests:")
    for problem in drain.problems:
        click.echo(f"              {problem}")
    if verdict is not None:
        from breakeven.serving.examination import verdict_line

        click.echo(f"  engine    {verdict_line(verdict, str(found.engine.get('image', '')))}")
    for note in found.notes:
        click.echo(f"  note      {note}")
    for warning in found.warnings:
        click.echo(f"! {warning}")
