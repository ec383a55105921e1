"""The `kubectl` of the user as a child process, with their credentials, contexts and rights; and the board among its pods."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from breakeven.errors import BreakevenError, InputError
from breakeven.printable import one_line
from breakeven_operator.plugin.service_view import Json, LeaseView, ServiceView, variable_of

SERVICE = "speculativeservices.breakeven.dev"
PROFILE = "speculationprofiles.breakeven.dev"
RUN = "calibrationruns.breakeven.dev"
FIELD_MANAGER = "kubectl-breakeven"
_PORT, _PREFIX = "board", "BREAKEVEN_BOARD_PATH_PREFIX"
OPERATORS = "app.kubernetes.io/name=breakeven"
_LONGEST = 1000
_LOGGED = re.compile(r"^[IWEF][0-9]{4} .*\n?", re.MULTILINE)
_FORWARDED = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ->")


class KubectlError(BreakevenError):
    """The refusal of kubectl or of the API server, in their words, as one line."""


class ForwardedPort(NamedTuple):
    """A port of `pod/NAME` or `service/NAME` that is forwarded to this machine; it answers below a path."""

    namespace: str
    place: str
    port: int
    path: str = ""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Calls of kubectl for one verb, in the context's namespace unless one is given, with further options such as --context."""

    namespace: str | None = None
    options: tuple[str, ...] = ()

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        """Output of one call; KubectlError if it exits with another status than 0, or there is no kubectl."""
        done = subprocess.run(
            [self._program(), *arguments, *self.options],
            capture_output=True,
            text=True,
            check=False,
            input=stdin,
        )
        if done.returncode:
            # Without a server kubectl logs five lines of its client before its own sentence.
            said = _LOGGED.sub("", done.stderr) or done.stderr or done.stdout
            words = one_line(said) or f"kubectl ended with status {done.returncode}"
            raise KubectlError(words.removeprefix("error: ")[:_LONGEST])
        return done.stdout

    @staticmethod
    def _program() -> str:
        program = shutil.which("kubectl")
        if program is None:
            raise KubectlError("kubectl is not on PATH; expected kubectl 1.28 or later beside this plugin")
        return program

    def json(self, *arguments: str, stdin: str | None = None) -> Mapping[str, Any]:
        """The document that a call prints; InputError if it is no JSON object."""
        text = self.run(*arguments, "--output=json", stdin=stdin)
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise InputError(
                f"kubectl {' '.join(arguments)}", f"printed {one_line(text)[:80]!r}", "a JSON object"
            )
        return found

    def _here(self) -> tuple[str, ...]:
        return (f"--namespace={self.namespace}",) if self.namespace else ()

    def get(self, kind: str, name: str, namespace: str | None = None) -> Mapping[str, Any]:
        """One object; its namespace is the verb's unless it is given."""
        where = (f"--namespace={namespace}",) if namespace else self._here()
        return self.json("get", kind, name, *where)

    def create(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """The object as the API server made it."""
        said = (f"--field-manager={FIELD_MANAGER}", "--filename=-")
        return self.json("create", *self._here(), *said, stdin=json.dumps(manifest))

    def service(self, name: str) -> ServiceView:
        """One SpeculativeService."""
        return ServiceView.of(self.get(SERVICE, name))

    def place(self) -> str:
        """The namespace that a verb without -A looks in: the given one, else the context's."""
        return (
            self.namespace
            or self.run("config", "view", "--minify", "--output=jsonpath={..namespace}")
            or "default"
        )

    def services(self, *, everywhere: bool = False, selector: str | None = None) -> tuple[ServiceView, ...]:
        """All of a namespace, or of the cluster, that labels select."""
        where = ("--all-namespaces",) if everywhere else self._here()
        found = self.json("get", SERVICE, *where, *((f"--selector={selector}",) if selector else ()))
        return tuple(map(ServiceView.of, found.get("items") or ()))

    def leases(self) -> tuple[LeaseView, ...]:
        """Leases of operators; none where the user may not list Leases."""
        try:
            found = self.json("get", "leases.coordination.k8s.io", "--all-namespaces")
        except BreakevenError:
            return ()
        return LeaseView.among(found.get("items") or ())

    def operators(
        self, leases: Sequence[LeaseView], namespace: str | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """Pods of operators: in a namespace, else where operators have their Leases, else where they may be."""
        places = [namespace] if namespace else sorted({one.place.partition("/")[0] for one in leases})
        found = [f"--namespace={place}" for place in places] or ["--all-namespaces"]
        answers = (self.json("get", "pods", where, f"--selector={OPERATORS}") for where in found)
        return [pod for answer in answers for pod in answer.get("items") or ()]

    def has(self, at: ForwardedPort) -> bool:
        """Whether there is such a pod or Service, and the user may see it."""
        try:
            self.run("get", at.place, f"--namespace={at.namespace}", "--output=name")
        except KubectlError:
            return False
        return True

    def forwarded(self, at: ForwardedPort, local_port: int | None = None) -> Generator[str]:
        """The address on this machine of a forwarded port, as soon as it answers; it goes on until kubectl ends.

        Without a local port a free one is taken.

        Raises:
            KubectlError: kubectl ends by itself.
        """
        ports = f"{local_port or ''}:{at.port}"
        arguments = ("port-forward", f"--namespace={at.namespace}", at.place, ports, "--address=127.0.0.1")
        with subprocess.Popen(
            [self._program(), *arguments, *self.options], stdout=subprocess.PIPE, text=True
        ) as running:
            try:
                for line in running.stdout or ():
                    if found := _FORWARDED.match(line):
                        yield f"http://127.0.0.1:{found[1]}{at.path}"
            finally:
                running.terminate()
        raise KubectlError("kubectl port-forward has ended; its message stands above")

    def patch(self, name: str, change: Mapping[str, Any], *, dry_run: bool = False) -> ServiceView:
        """A merge patch of a SpeculativeService; dry_run: the API server checks it and writes nothing."""
        asked = ("--dry-run=server",) if dry_run else ()
        return ServiceView.of(
            self.json(
                "patch", SERVICE, name, *self._here(), "--type=merge",
                f"--field-manager={FIELD_MANAGER}", f"--patch={json.dumps(change)}", *asked,
            )
        )  # fmt: skip


class _Board(NamedTuple):
    release: str
    pod: str
    at: ForwardedPort


def board_place(pods: Iterable[Json], leases: Sequence[LeaseView], pod: str | None = None) -> ForwardedPort:
    """The port of the board: of several replicas the holder of the Lease; without any Lease the first pod that runs.

    `pod` is its name if a person chose one.

    Raises:
        InputError: no pod serves a board, or pods of several releases do.
    """
    found = [one for each in pods for one in _boards(each) if pod in {None, one.pod}]
    if not found:
        raise InputError(
            pod or "the operator's pods",
            "serve no board",
            "a running pod of a release with board.enabled, in a namespace that you may read (-n)",
        )
    if len({(one.at.namespace, one.release) for one in found}) > 1:
        names = ", ".join(f"{one.at.namespace}/{one.pod}" for one in found)
        raise InputError("board", "belongs to several releases", f"--pod, one of {names}")
    holders = {one.holder.rpartition("_")[0] for one in leases}
    return next((one for one in found if one.pod in holders), found[0]).at


def _boards(pod: Json) -> Iterator[_Board]:
    meta, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    if (pod.get("status") or {}).get("phase") != "Running" or meta.get("deletionTimestamp"):
        return
    release, name = (meta.get("labels") or {}).get("app.kubernetes.io/instance", ""), str(meta.get("name"))
    for container in spec.get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == _PORT:
                path = f"{variable_of(container, _PREFIX)}/"
                at = ForwardedPort(
                    str(meta.get("namespace")), f"pod/{name}", int(port["containerPort"]), path
                )
                yield _Board(str(release), name, at)
