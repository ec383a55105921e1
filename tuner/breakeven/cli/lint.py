"""`breakeven lint DEPLOYMENT.yaml`: what a manifest lacks before the operator may choose its arm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.output import DEFAULT_CONFIDENCE, echo_result, json_option
from breakeven.cli.parameters import InputFile
from breakeven.errors import BreakevenError, InputError

if TYPE_CHECKING:
    from breakeven.cli.results import LintedDeployment

_MOST_CHARACTERS = 4 << 20


@click.command("lint", short_help="Lines a Deployment needs for opt-in and draining.")
@click.argument("manifest", type=InputFile(dash=True))
@click.option("--container", help="The container that runs vLLM; default: the one that can be told.")
@click.option("--check", is_flag=True, help="Exit 1 when anything is missing (for CI).")
@json_option
def command(manifest: Path, container: str | None, *, check: bool, as_json: bool) -> None:
    """Print the exact lines to add to and remove from a Deployment.

    Two things are looked at: the opt-in (one environment variable, one argument) that lets the operator choose the
    arm by one annotation, and the drain settings without which a roll cuts off requests. Where the arm has a draft
    length per batch size, its table is checked, and whether vLLM would run it as it stands. Volumes that a second pod
    cannot mount are named where a roll adds a pod; put PersistentVolumeClaims into the same file.

    \b
    Example:
      breakeven lint deployment.yaml
      kubectl get deployment chat-vllm -o yaml | breakeven lint -
    """
    objects = list(_objects(manifest))
    claims = [item for item in objects if item[1].get("kind") == "PersistentVolumeClaim"]
    findings = [
        _examine(document, where, container, claims)
        for where, document in objects
        if document.get("kind") == "Deployment"
    ]
    if not findings:
        raise InputError(str(manifest), "no Deployment in it", "at least one apps/v1 Deployment")
    if as_json:
        from breakeven.cli.results import LintResult

        echo_result(LintResult(deployments=findings, confidence=DEFAULT_CONFIDENCE))
    else:
        for finding in findings:
            _print(finding)
    if check and not all(finding.ok for finding in findings):
        raise BreakevenError(f"{manifest}: not ready for rolls (see above)")


def _objects(manifest: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import yaml

    from breakeven.yaml_intake import yaml_documents

    with click.open_file(str(manifest), encoding="utf-8") as stream:
        try:
            text = stream.read(_MOST_CHARACTERS + 1)
            if len(text) > _MOST_CHARACTERS:
                raise InputError(
                    str(manifest), f"more than {_MOST_CHARACTERS >> 20} MiB", "Kubernetes manifests"
                )
            documents = list(yaml_documents(text))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            problem = " ".join(str(error).split())
            raise InputError(str(manifest), f"not YAML ({problem})", "Kubernetes manifests") from error
        except OSError as error:
            raise InputError(
                str(manifest), error.strerror or "cannot be read", "Kubernetes manifests"
            ) from error
        except RecursionError:
            raise InputError(str(manifest), "nested too deep", "Kubernetes manifests") from None
    for number, document in enumerate(documents, start=1):
        where = f"{manifest}:document {number}"
        if document is None:
            continue
        if not isinstance(document, Mapping):
            raise InputError(where, f"a {type(document).__name__}", "a Kubernetes object")
        items = document.get("items") if document.get("kind") == "List" else [document]
        for item in items if isinstance(items, list) else []:
            if isinstance(item, Mapping):
                yield where, item


def _examine(
    document: Mapping[str, Any],
    where: str,
    container_name: str | None,
    claims: Sequence[tuple[str, Mapping[str, Any]]],
) -> LintedDeployment:
    from breakeven.cli.results import LintedDeployment
    from breakeven.serving.command_line import command_line, speculation
    from breakeven.serving.drain import drain
    from breakeven.serving.dynamic_speculation import doubts
    from breakeven.serving.hindrances import hindrances
    from breakeven.serving.manifest import checked_deployment
    from breakeven.serving.opt_in import ANNOTATION, engine_container, opt_in
    from breakeven.serving.refused_requests import NOTE

    deployment = checked_deployment(document, where)
    name = str((deployment.get("metadata") or {}).get("name", "?"))
    template = (deployment.get("spec") or {}).get("template") or {}
    pod_spec = template.get("spec") or {}
    container = engine_container(pod_spec, container_name)
    if container is None:
        names = ", ".join(str(c.get("name")) for c in pod_spec.get("containers") or []) or "none"
        raise InputError(
            f"{where}: Deployment/{name}",
            f"cannot tell which container runs vLLM (containers: {names})",
            "--container NAME",
        )
    chosen, stopping = opt_in(container), drain(pod_spec, container)
    warnings = []
    if ANNOTATION in ((template.get("metadata") or {}).get("annotations") or {}):
        warnings.append(
            f"spec.template.metadata.annotations has {ANNOTATION}: in Git it takes the key back at every apply; "
            "remove the line from the manifest (the operator writes it)"
        )
    words = command_line(container)
    for found in (speculation(words).config, _annotated(template)):
        if found is not None:
            warnings += doubts(found, words, str(container.get("image", "")))
    warnings += [f"containers[{container.get('name')}] has {line}" for line in hindrances(words)]
    for part in ("command", "args"):
        ignored = [str(i) for i in container.get(part) or [] if str(i).startswith("--config=")]
        warnings += [
            f"containers[{container.get('name')}].{part} has {item}: vLLM 0.32 reads the file only when its name is an "
            "item of its own, and ignores it here without a word"
            for item in ignored
        ]
    alone, unknown = _volumes(deployment, where, claims)
    warnings += alone
    return LintedDeployment(
        deployment=name,
        container=container.get("name"),
        ok=chosen.ok and stopping.ok and not warnings,
        opt_in=chosen,
        drain=stopping,
        warnings=warnings,
        notes=[NOTE, *unknown],
    )


def _volumes(
    deployment: Mapping[str, Any], where: str, claims: Sequence[tuple[str, Mapping[str, Any]]]
) -> tuple[list[str], list[str]]:
    """What a pod that a roll adds would wait for in vain: as far as the claims are known, and what to look at where not."""
    from breakeven.serving.manifest import checked_claim
    from breakeven.serving.rolling import strategy
    from breakeven.serving.shareable import WITHOUT_SURGE, mounted_claims, unshareable

    spec, pod_spec = deployment["spec"], deployment["spec"]["template"]["spec"]
    try:
        surge = strategy(spec, int(spec.get("replicas", 1))).max_surge
    except ValueError:
        raise InputError(
            f"{where}: spec.strategy.rollingUpdate",
            str(spec["strategy"]["rollingUpdate"]),
            "numbers of pods or percentages",
        ) from None
    if surge == 0:
        return [], []
    own = (deployment.get("metadata") or {}).get("namespace", "default")
    known = [
        claim
        for place, document in claims
        if (claim := checked_claim(document, place))["metadata"].get("namespace", own) == own
    ]
    alone = unshareable(pod_spec, known)
    unknown = sorted(mounted_claims(pod_spec) - {claim["metadata"]["name"] for claim in known})
    return (
        [f"a roll adds {surge} pod{'s' if surge > 1 else ''}: {alone}; or write {WITHOUT_SURGE}"]
        if alone
        else [],
        [
            f"the pod mounts PersistentVolumeClaim {claim}, which is not in this file: if its accessModes are ReadWriteOnce, a "
            f"pod that a roll adds waits for it in vain; then write accessModes: [ReadOnlyMany] there, or {WITHOUT_SURGE} here"
            for claim in unknown
        ],
    )


def _annotated(template: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The arm that the template's annotation chooses; None where it chooses none, or says nothing that can be read."""
    from breakeven.serving.command_line import configuration
    from breakeven.serving.opt_in import ANNOTATION

    try:
        return configuration(
            str(((template.get("metadata") or {}).get("annotations") or {}).get(ANNOTATION) or "")
        )
    except InputError:
        return None


def _print(finding: LintedDeployment) -> None:
    click.echo(f"Deployment/{finding.deployment}, container {finding.container}")
    opt_in, drain = finding.opt_in, finding.drain
    if opt_in.ok:
        click.echo("  opt-in    complete")
    elif opt_in.refusal:
        click.echo(f"  opt-in    refused: {opt_in.refusal}")
    else:
        for verb, changes in (("remove", opt_in.remove), ("add", opt_in.add)):
            for change in changes:
                click.echo(f"  opt-in    {verb} under {change.path}:")
                for line in change.lines:
                    click.echo(f"              {line}")
    click.echo("  draining  complete" if drain.ok else "  draining  a roll would lose requests:")
    for problem in drain.problems:
        click.echo(f"              {problem}")
    for note in finding.notes:
        click.echo(f"  note      {note}")
    for warning in finding.warnings:
        click.echo(f"! {warning}")
