"""The verbs of `kubectl breakeven`: each asks kubectl, and prints what a pure function of this package makes of the answer."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from breakeven import __version__
from breakeven.errors import BreakevenError, InputError
from breakeven_operator.plugin.kubectl_process import PROFILE, Kubectl, KubectlError, board_place
from breakeven_operator.plugin.service_change import (
    ServiceChange,
    after,
    manifest,
    pausing,
    pinning,
    recalibrating,
    resuming,
)
from breakeven_operator.plugin.service_table import document, frame
from breakeven_operator.plugin.service_view import Json, ServiceView

PROGRAM = "kubectl breakeven"
LOOK_S = 5.0
"""Time between two looks at a run that is followed."""
_F = TypeVar("_F", bound=Callable[..., Any])


def _service_names(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names for the shell; none where kubectl has no answer."""
    parameters = _context.params
    try:
        services = _kubectl(parameters).services()
    except BreakevenError:
        return []
    return [one.name for one in services if one.name.startswith(incomplete)]


def _options(*options: Callable[[Any], Any]) -> Callable[[_F], _F]:
    def add(command: _F) -> _F:
        for option in options:
            command = option(command)
        return command

    return add


_OF_CLUSTER = (
    click.option("--kubeconfig", metavar="FILE", help="As in kubectl."),
    click.option("--context", metavar="NAME", help="As in kubectl."),
    click.option("-n", "--namespace", metavar="NAME", help="As in kubectl; default: of the context."),
)
_of_cluster = _options(*_OF_CLUSTER)
_of_change = _options(
    click.option(
        "-o", "--output", type=click.Choice(["yaml", "json"]), help="Of --dry-run=client; default: yaml."
    ),
    click.option(
        "--dry-run",
        type=click.Choice(["none", "client", "server"]),
        default="none",
        show_default=True,
        help="client: print the part of the manifest that would make the change, and ask nobody. "
        "server: the API server checks it and writes nothing.",
    ),
    *_OF_CLUSTER,
)
_service = click.argument("service", shell_complete=_service_names)


# A change of one service by its name, or of all that options select.
_of_several = _options(
    click.option("--all", "every", is_flag=True, help="All services of the namespace."),
    click.option("-l", "--selector", metavar="LABELS", help="Services with these labels, as in kubectl."),
    click.argument("service", required=False, shell_complete=_service_names),
)


def _kubectl(options: dict[str, Any]) -> Kubectl:
    given = [f"--{name}={options[name]}" for name in ("context", "kubeconfig") if options.get(name)]
    return Kubectl(options.get("namespace"), tuple(given))


def _now() -> datetime:
    return datetime.now(UTC)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name=PROGRAM)
def root() -> None:
    """Does speculative decoding pay on the fleets of this cluster, why, and what may change.

    Every verb calls the kubectl on PATH: credentials, contexts and rights are yours.

    \b
      kubectl breakeven status -A
      kubectl breakeven explain chat
      kubectl breakeven pin chat none --dry-run=client
    """


@root.command(short_help="Arm, gain, last roll and calibration of each service.")
@click.argument("service", required=False, shell_complete=_service_names)
@click.option("-A", "--all-namespaces", is_flag=True, help="Services of all namespaces.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@_of_cluster
def status(service: str | None, *, all_namespaces: bool, as_json: bool, **options: Any) -> None:
    """Print the columns of `kubectl get specsvc`, the age of the decision, the last roll and the calibration."""
    asked = _kubectl(options)
    services = _services(asked, service, everywhere=all_namespaces)
    leases = asked.leases()
    if as_json:
        import json

        click.echo(json.dumps(document(services, leases, _now()), indent=2))
        return
    if services:
        click.echo(frame(services, leases, _now(), everywhere=all_namespaces))
    elif all_namespaces:
        click.echo("no SpeculativeService in any namespace")
    else:
        click.echo(f"no SpeculativeService in namespace {asked.place()}; -A looks in all namespaces")


def _services(asked: Kubectl, name: str | None, *, everywhere: bool) -> Sequence[ServiceView]:
    if name is not None and everywhere:
        raise click.UsageError("a SERVICE is in one namespace: leave --all-namespaces out")
    return (asked.service(name),) if name is not None else asked.services(everywhere=everywhere)


@root.command(short_help="Why this arm, what would change it, what it waits for.")
@_service
@_of_cluster
def explain(service: str, **options: Any) -> None:
    """Say why this arm runs, what would change it, and what it waits for."""
    from breakeven_operator.plugin.alert_course import alerts_of
    from breakeven_operator.plugin.explanation import explanation

    asked, now = _kubectl(options), _now()
    found = asked.service(service)
    click.echo(explanation(found, asked.leases(), now, _needed(asked, found), alerts_of(found, now)))


def _needed(asked: Kubectl, service: ServiceView) -> Sequence[str]:
    """Sentences about what it would take for a losing arm to pay, by the command `breakeven`; none if its profile may not be read."""
    import json

    from breakeven_operator.plugin.explanation import losing, needed

    name, question = service.part("calibration").get("profile"), losing(service)
    if not name or question is None:
        return ()
    (method, _, length), rps, e = question[0].rpartition("/"), *question[1:]
    with tempfile.TemporaryDirectory() as folder:
        try:
            file = _profile_file(asked, service, str(name), Path(folder))
        except BreakevenError:
            return ()
        words = ["--method", method, "--k", length, "--rps", str(rps), "--would-pay", "--json"]
        words += ["--tokens-per-step", str(e)] if e is not None else []
        try:
            found = _breakeven("predict", str(file), *words, capture_output=True)
        except InputError:
            return (
                f"What it would take for {question[0]} to pay: see the board, or install the command `breakeven` beside this plugin.",
            )
    # A law that was not fitted to these figures predicts no others.
    return () if found.returncode else needed(service, json.loads(found.stdout).get("would_pay") or {})


@root.command(short_help="The recommended arm as a patch of the target.")
@_service
@click.option("--receipt", is_flag=True, help="The text of the pull request, with the patch in it.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Of --receipt: the text goes there, the patch to standard output.",
)
@_of_cluster
def export(service: str, *, receipt: bool, output: Path | None, **options: Any) -> None:
    """Print the recommended arm as a patch of the target, for a repository that Git alone changes.

    With --receipt also what was measured, what is promised, what is at stake and the way back, as Markdown.
    """
    from breakeven_operator.plugin.receipt import receipt as text_of
    from breakeven_operator.plugin.wanted_arm import exported

    if output is not None and not receipt:
        raise click.UsageError("--output goes with --receipt")
    found, wanted, profile = _wanted(_kubectl(options), service)
    patch = exported(wanted)
    if not receipt or wanted.missing is not None:
        click.echo(patch, nl=False)
    elif output is None:
        click.echo(text_of(found, wanted, profile, patch), nl=False)
    else:
        output.write_text(text_of(found, wanted, profile, None), encoding="utf-8")
        click.echo(patch, nl=False)


@root.command(short_help="The running arm against the recommended one.")
@_service
@_of_cluster
def diff(service: str, **options: Any) -> None:
    """Print the arm that runs against the arm that should run."""
    from breakeven_operator.plugin.wanted_arm import difference

    click.echo(difference(_wanted(_kubectl(options), service)[1]))


def _wanted(asked: Kubectl, name: str) -> tuple[ServiceView, Any, Json | None]:
    from breakeven_operator.plugin.wanted_arm import needs_profile, wanted_arm

    service = asked.service(name)
    reference = service.spec.get("targetRef") or {}
    group, _, version = str(reference.get("apiVersion")).rpartition("/")
    kind = str(reference.get("kind"))
    target = asked.get(
        f"{kind}.{version}.{group}" if group else kind, str(reference.get("name")), service.namespace
    )
    profile = needs_profile(service)
    table = asked.get(PROFILE, profile, service.namespace) if profile is not None else None
    return service, wanted_arm(service, target, table), table


@root.command(short_help="Change and start nothing until resume.")
@_of_several
@_of_change
def pause(service: str | None, **options: Any) -> None:
    """Set spec.paused: nothing is changed or started until `resume`."""
    _make_all(service, pausing(), options)


@root.command(short_help="Go on after a pause, or after undone rolls.")
@_of_several
@click.option(
    "--retry",
    is_flag=True,
    help="Also give the annotation breakeven.dev/resume a new value: hands the target back, ends the wait after undone rolls.",
)
@_of_change
def resume(service: str | None, *, retry: bool, **options: Any) -> None:
    """Take spec.paused back; with --retry, rolls that wait after undone ones may begin at once."""
    _make_all(service, resuming(_now(), retry=retry), options)


@root.command(short_help="Let one arm run whatever the figures show.")
@_service
@click.argument("arm")
@_of_change
def pin(service: str, arm: str, **options: Any) -> None:
    """Let ARM run whatever the figures show: `none` (no speculation), NAME/LENGTH or NAME/schedule of a candidate.

    `unpin` takes the pin away.
    """
    _make(service, pinning(arm), options)


@root.command(short_help="Take a pin away: figures decide again.")
@_service
@_of_change
def unpin(service: str, **options: Any) -> None:
    """Take spec.updatePolicy.pinnedArm away: figures decide again."""
    _make(service, pinning(None), options)


@root.command(short_help="Measure the arms again.")
@_service
@_of_change
def recalibrate(service: str, **options: Any) -> None:
    """Give the annotation breakeven.dev/recalibrate a new value: the arms are measured again."""
    _make(service, recalibrating(_now()), options)


@root.command(short_help="Does the service's arm still work on another image.")
@_service
@click.option("--from", "before", metavar="IMAGE", required=True, help="The engine's image of today.")
@click.option("--to", "after", metavar="IMAGE", required=True, help="The next one.")
@click.option("--arm", metavar="ARM", help="The arm on both; default: the target's.")
@click.option(
    "--wait", is_flag=True, help="Follow it to its end: exit 0 nothing lost, 1 a loss, 2 undecided."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@_of_cluster
def gate(
    service: str, before: str, after: str, arm: str | None, *, wait: bool, as_json: bool, **options: Any
) -> None:
    """Compare one arm on two images, in two copies of the target's pod at once: a CalibrationRun that the operator carries out."""
    import json

    from breakeven_operator.plugin import gate_run

    asked, name = _kubectl(options), ""
    try:
        asked.service(service)
        run = asked.create(gate_run.gate_manifest(service, (before, after), arm))
        name = f"calibrationrun/{run['metadata']['name']}"
        click.echo(f"{name} created", err=wait or as_json)
        if wait:
            run = gate_run.followed(
                asked,
                run["metadata"]["name"],
                lambda: time.sleep(LOOK_S),
                lambda line: click.echo(line, err=True),
            )
    except KubectlError as error:
        if not wait:
            raise
        # Status 1 is a loss, and nothing is known of one.
        click.echo(f"{name or PROGRAM}: {error}", err=True)
        sys.exit(gate_run.UNDECIDED)
    if as_json:
        click.echo(json.dumps(gate_run.gate_document(run), indent=2))
    elif wait:
        click.echo("\n".join(gate_run.gate_text(run)))
    sys.exit(gate_run.gate_status(run) if wait else 0)


def _make_all(name: str | None, change: ServiceChange, options: dict[str, Any]) -> None:
    """Make a change of the named service, or of every selected one; a refusal about one does not keep the others from it."""
    every, selector = options.pop("every"), options.pop("selector")
    if sum((name is not None, every, selector is not None)) != 1:
        raise click.UsageError("expected one of SERVICE, --selector and --all")
    if name is not None:
        _make(name, change, options)
        return
    asked, refused = _kubectl(options), False
    found = asked.services(selector=selector)
    if not found:
        labels = f" with {selector}" if selector else ""
        raise InputError(f"namespace {asked.place()}", f"has no SpeculativeService{labels}", "one at least")
    for place, one in enumerate(found):
        if place and options["dry_run"] == "client":
            click.echo("---")
        try:
            _make(one.name, change, options)
        except BreakevenError as error:
            refused = True
            click.echo(f"! {one.name}: {error}", err=True)
    if refused:
        sys.exit(1)


def _make(name: str, change: ServiceChange, options: dict[str, Any]) -> None:
    if options["output"] is not None and options["dry_run"] != "client":
        raise click.UsageError("--output goes with --dry-run=client")
    if options["dry_run"] == "client":
        click.echo(_written(manifest(change, name, options["namespace"]), options["output"]), nl=False)
        return
    checked = options["dry_run"] == "server"
    found = _kubectl(options).patch(name, change.fields, dry_run=checked)
    click.echo(f"speculativeservice/{name} {change.done}" + (" (server dry run)" if checked else ""))
    for line in after(change, found, _now()):
        click.echo(f"! {line}", err=True)


def _written(document_: dict[str, Any], form: str | None) -> str:
    if form == "json":
        import json

        return json.dumps(document_, indent=2) + "\n"
    import yaml

    text: str = yaml.safe_dump(document_, sort_keys=False)
    return text


@root.command(
    short_help="The page of the profile in force.", context_settings={"ignore_unknown_options": True}
)
@_service
@click.option(
    "--to",
    "page",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The page to write; default: SERVICE.html.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@_of_cluster
def report(service: str, page: Path | None, arguments: tuple[str, ...], **options: Any) -> None:
    """Run `breakeven report` on the profile in force; further arguments are passed on to it."""
    asked = _kubectl(options)
    found = asked.service(service)
    name = found.part("calibration").get("profile")
    if not name:
        where = f"SpeculativeService {found.namespace}/{service}"
        raise InputError(where, "no profile is in force", "a finished calibration")
    worth = str(found.part("savings").get("message") or "")
    words = ["--note", worth] if worth and "--note" not in arguments else []
    kept = asked.get(PROFILE, str(name), found.namespace).get("spec") or {}
    if found.recommended in {one.get("arm") for one in kept.get("arms") or ()} and "--arm" not in arguments:
        load = found.decision.get("loadRps")
        words += ["--arm", str(found.recommended), *(["--rps", str(load)] if load else [])]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.json"
        file.write_text(str(kept.get("profile")), encoding="utf-8")
        words += [] if "--receipts" in arguments else _receipts_of(asked, found, Path(folder))
        done = _breakeven("report", str(file), "-o", str(page or f"{service}.html"), *words, *arguments)
    sys.exit(done.returncode)


@root.command(short_help="The board, a page about all services, in your browser.")
@click.option("--pod", metavar="NAME", help="The operator's pod; default: the holder of the Lease.")
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="PORT", help="Local port; default: a free one."
)
@click.option("--open", "opens", is_flag=True, help="Open it in your browser.")
@_of_cluster
def board(pod: str | None, port: int | None, *, opens: bool, **options: Any) -> None:
    """Forward a local port to the operator's board and print its address; Ctrl-C ends it.

    It needs the right to forward ports to the operator's pod. Its namespace is the namespace of the operator's Lease, or -n.
    """
    asked = _kubectl(options)
    leases = asked.leases()
    at = board_place(asked.operators(leases, asked.namespace), leases, pod)
    for address in asked.forwarded(at, port):
        click.echo(address)
        if opens:
            click.launch(address)


@root.command(
    short_help="Does speculation pay right now, and if not, why.",
    context_settings={"ignore_unknown_options": True},
)
@_service
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@_of_cluster
def doctor(service: str, arguments: tuple[str, ...], **options: Any) -> None:
    """Run `breakeven doctor` on the pods of the service's target.

    Model, pods, running arm and profile come from the service, the Prometheus from the service or else the operator. A port
    is forwarded to a Service of the cluster. Further arguments are passed on; with --prometheus nothing is looked for.
    """
    from breakeven_operator.plugin.examined import examined

    asked = _kubectl(options)
    found = asked.service(service)
    with tempfile.TemporaryDirectory() as folder:
        words = examined(found, lambda name: _profile_file(asked, found, name, Path(folder)))
        _ask_prometheus("doctor", asked, found, [*words, *arguments])


@root.command(
    short_help="What Prometheus already knows of a service's past.",
    context_settings={"ignore_unknown_options": True},
)
@_service
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@_of_cluster
def history(service: str, arguments: tuple[str, ...], **options: Any) -> None:
    """Run `breakeven history` on the pods of the service's target; no GPU is used.

    Pods, model, GPU and candidates come from the service, the Prometheus as for `doctor`. Further arguments are passed on,
    such as --since 30d or -o past.csv.
    """
    from breakeven_operator.plugin.examined import past_of

    asked = _kubectl(options)
    found = asked.service(service)
    _ask_prometheus("history", asked, found, [*past_of(found), *arguments])


@root.command(
    short_help="What speculation saved in each month, from experiments.",
    context_settings={"ignore_unknown_options": True},
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Services of all namespaces.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@_of_cluster
def savings(arguments: tuple[str, ...], *, all_namespaces: bool, **options: Any) -> None:
    """Run `breakeven savings` on the services of a namespace.

    The operator names the Prometheus, as for `doctor`. Further arguments are passed on, such as --since 90d, --service chat or -o csv.
    """
    asked = _kubectl(options)
    words = [] if all_namespaces else ["--namespace", asked.place()]
    _ask_prometheus("savings", asked, None, [*words, *arguments])


def _ask_prometheus(
    command: str, asked: Kubectl, service: ServiceView | None, words: Sequence[str]
) -> NoReturn:
    """Run a command of `breakeven` on the Prometheus of a service unless the words name one, and end with its status.

    Without a service it is the Prometheus of the operators.
    """
    given = any(one.partition("=")[0] == "--prometheus" for one in words)
    with contextlib.ExitStack() as forwarding:
        place = [] if given else forwarding.enter_context(_prometheus(asked, service))
        sys.exit(_breakeven(command, *place, *words).returncode)


@contextlib.contextmanager
def _prometheus(asked: Kubectl, service: ServiceView | None) -> Iterator[list[str]]:
    """Options that name the Prometheus of a service, or of the operators, while a port is forwarded to it.

    Raises:
        InputError: none is named.
    """
    from breakeven_operator.plugin.examined import prometheus_of, prometheus_of_operators

    def operators() -> Sequence[Json]:
        # The verb's namespace is the namespace of the services.
        return asked.operators(asked.leases())

    server = prometheus_of_operators(operators) if service is None else prometheus_of(service, operators)
    with contextlib.ExitStack() as forwarding:
        at, address = server.inside(asked.has), server.address
        if at:
            address = next(forwarding.enter_context(contextlib.closing(asked.forwarded(at))))
        yield ["--prometheus", address, *(word for label in server.labels for word in ("--label", label))]


def _receipts_of(asked: Kubectl, service: ServiceView, folder: Path) -> list[str]:
    """Options that put the service's receipts on a page; a line on stderr says why there are none."""
    words = ["--namespace", service.namespace, "--service", service.name, "--json"]
    try:
        with _prometheus(asked, None) as place:
            done = _breakeven("savings", *place, *words, capture_output=True)
    except BreakevenError as error:
        click.echo(f"! no receipts: {error}", err=True)
        return []
    if done.returncode:
        click.echo(f"! no receipts: {done.stderr.decode(errors='replace').strip()}", err=True)
        return []
    file = folder / "receipts.json"
    file.write_bytes(done.stdout)
    return ["--receipts", str(file)]


def _profile_file(asked: Kubectl, service: ServiceView, name: str, folder: Path) -> Path:
    file = folder / f"{name}.json"
    kept = asked.get(PROFILE, name, service.namespace).get("spec") or {}
    file.write_text(str(kept.get("profile")), encoding="utf-8")
    return file


def _breakeven(*arguments: str, capture_output: bool = False) -> subprocess.CompletedProcess[bytes]:
    """A call of the command `breakeven` beside this Python, else on PATH: its numerical packages are larger than all of the plugin.

    Raises:
        InputError: there is none.
    """
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    program = shutil.which("breakeven", path=places)
    if program is None:
        raise InputError("breakeven", "is not on PATH", "the command that `pip install` of Breakeven brings")
    return subprocess.run([program, *arguments], capture_output=capture_output, check=False)


def completions(words: Sequence[str]) -> str:
    """The answer to kubectl's completion: a line per proposal, and cobra's directive that files are none."""
    from click.shell_completion import ShellComplete

    *before, incomplete = words or [""]
    found = ShellComplete(root, {}, PROGRAM, "").get_completions(before, incomplete)
    lines = [f"{one.value}\t{one.help}" if one.help else str(one.value) for one in found]
    return "\n".join([*lines, ":4"])
