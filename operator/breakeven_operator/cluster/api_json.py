"""Reads the API server's JSON object by object, and trims each: an object that cannot be read is marked, and stops no other.

The API server stores objects nested up to 10,000 deep: in `metadata.managedFields` of any kind, and in fields without a
schema. The parser's limit of 200 levels is kept, because everything behind it recurses too. Whole pods of a large cluster would fill
this process's memory, so only the fields that a cycle reads are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from sys import intern
from typing import Annotated, Any, Final

import msgspec
import pydantic_core

from breakeven.serving.opt_in import ANNOTATION
from breakeven_operator.kinds import (
    CLAIMS,
    CRONJOBS,
    FINISHED_LABEL,
    JOBS,
    MANAGED_SELECTOR,
    NODES,
    PODS,
    RUN_LABEL,
    RUNS,
    SERVICES,
    Resource,
)
from breakeven_operator.ports import EventKind, Manifest, WatchEvent
from breakeven_operator.resources.calibrationrun import FINAL_PHASES
from breakeven_operator.workloads.known import KINDS, POD_LABELS
from breakeven_operator.workloads.workload_kind import WorkloadKind

UNREADABLE = "breakeven.dev/unreadable"
"""The member of a manifest that says in one line why no more than its identity was read; no API object has such a member."""
MOST_WORDS: Final = 1000
"""Of a command, and of the arguments of a container. A decision cuts them into flags, and keeps the flags of the last lines."""
# On the bookmark that ends the objects of a list that came as a stream.
_INITIAL_EVENTS_END = "k8s.io/initial-events-end"
# Possessive: a text that is no JSON costs no more than its length.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{\]},]', re.DOTALL)
_NAME = re.compile(rb'\s*("(?:[^"\\]++|\\.)*+")\s*:', re.DOTALL)
_IDENTITY = ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp")
_WRITERS = "managedFields"
_TOO_DEEP = "recursion"


class UnexpectedJsonError(ValueError):
    """JSON that is not what the API server answers with."""


# The types of what the operator reads of an object before anything is known about whose it is. Unlisted members are free.
class _Owner(msgspec.Struct):
    kind: str | None = None
    name: str | None = None
    uid: str | None = None


class _Writer(msgspec.Struct, rename="camel"):
    manager: str | None = None
    operation: str | None = None
    time: str | None = None
    fields_v1: dict[str, Any] | None = msgspec.field(default=None, name="fieldsV1")


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None
    managed_fields: list[_Writer] | None = None


class _Object(msgspec.Struct):
    metadata: _Meta


class _Whole(_Object):
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class _Condition(msgspec.Struct):
    type: str | None = None


class _Container(msgspec.Struct):
    state: dict[str, Any] | None = None


class _PodStatus(msgspec.Struct, rename="camel"):
    conditions: list[_Condition] | None = None
    container_statuses: list[_Container] | None = None


class _Pod(_Object):
    spec: dict[str, Any] | None = None
    status: _PodStatus | None = None


_Words = Annotated[list[str], msgspec.Meta(max_length=MOST_WORDS)]


class _CommandLine(msgspec.Struct):
    command: _Words | None = None
    args: _Words | None = None


class _TargetPod(msgspec.Struct):
    containers: list[_CommandLine] | None = None


class _Template(msgspec.Struct):
    spec: _TargetPod


def _of_kind(kind: WorkloadKind) -> type[msgspec.Struct]:
    """The shape of a kind of workloads, with the template at its place in that kind."""
    if kind.made_as:
        return _Whole
    beside = dict.fromkeys(kind.beside_at, _Template | None)
    template = _Template | None if kind.may_borrow else _Template
    return _struct("_Target", {**beside, kind.template_at: template}, bases=(_Object,))


def _struct(
    name: str, leaves: Mapping[tuple[str, ...], Any], *, bases: tuple[type[msgspec.Struct], ...] = ()
) -> type[msgspec.Struct]:
    """A struct with fields at these paths; a field that may be None may be left out."""
    inner: dict[str, dict[tuple[str, ...], Any]] = {}
    for (first, *rest), leaf in leaves.items():
        inner.setdefault(first, {})[tuple(rest)] = leaf
    fields = [
        (first, below[()]) if () in below else (first, _struct("_TemplatePart", below))
        for first, below in inner.items()
    ]
    optional = [(field, kind, None) for field, kind in fields if kind == _Template | None]
    needed = [(field, kind) for field, kind in fields if kind != _Template | None]
    return msgspec.defstruct(name, [*needed, *optional], bases=bases or None, kw_only=True)


class _ServiceRef(msgspec.Struct):
    name: str | None = None


class _RunSpec(msgspec.Struct, rename="camel"):
    service_ref: _ServiceRef | None = None
    import_from: list[dict[str, Any]] | None = None


class _RunStatus(msgspec.Struct):
    phase: str | None = None
    points: list[dict[str, Any]] | None = None


class _RunParts(_Object):
    spec: _RunSpec | None = None
    status: _RunStatus | None = None


_LONGEST_WHY = 200
_SHAPES: Mapping[Resource, type[msgspec.Struct]] = {
    PODS: _Pod,
    NODES: _Pod,
    RUNS: _RunParts,
    **{resource: _of_kind(kind) for resource, kind in KINDS.items()},
}


def problem_of(manifest: Manifest) -> str | None:
    """Why an object could not be read; None if it was."""
    problem: str | None = manifest.get(UNREADABLE)
    return problem


def read_object(text: bytes, resource: Resource) -> dict[str, Any]:
    """One object; what cannot be read of it leaves its identity, its status and UNREADABLE.

    Raises:
        ValueError: it is no object of the API.
    """
    try:
        # It keeps texts that come again and again once: a service's object takes a third of the memory.
        found = pydantic_core.from_json(text)
    except ValueError:
        return _in_parts(text, resource)
    return _shaped(found, resource)


def read_page(text: bytes, resource: Resource) -> tuple[list[Manifest], str, str]:
    """The objects of a page of a list, the token of the next page (empty: there is none), and the moment that all pages are of.

    Raises:
        ValueError: it is no page, or one of its objects has no identity.
    """
    try:
        page = pydantic_core.from_json(text)
        items: list[Manifest] = [_shaped(item, resource) for item in _list(page)]
    except ValueError:
        members = _members(text)
        page = {"metadata": pydantic_core.from_json(members.get("metadata", b"{}")), "items": []}
        items = [read_object(item, resource) for item in _pieces(members.get("items", b""))]
    meta = page.get("metadata") or {}
    if any(not _is_identified(item) for item in items):
        raise UnexpectedJsonError("an item without a uid")
    return items, str(meta.get("continue") or ""), str(meta.get("resourceVersion") or "")


def read_event(line: bytes, resource: Resource) -> WatchEvent | Mapping[str, Any]:
    """One line of a watch; of a refusal, its Status.

    Raises:
        ValueError: it is neither.
    """
    try:
        said = pydantic_core.from_json(line)
        word, manifest = _fields(said)
        if word == "ERROR":
            status: Mapping[str, Any] = manifest
            return status
        # The bookmark of a CRD's kind has metadata alone.
        manifest = _shaped(manifest, resource) if word != "BOOKMARK" else manifest
    except ValueError:
        members = _members(line)
        word = str(pydantic_core.from_json(members.get("type", b"")))
        manifest = read_object(members.get("object", b""), resource)
    if word == "BOOKMARK":
        ends = _INITIAL_EVENTS_END in (manifest["metadata"].get("annotations") or {})
        return WatchEvent(EventKind.SYNCED if ends else EventKind.BOOKMARK, manifest)
    if not _is_identified(manifest):
        raise UnexpectedJsonError("an object without a uid")
    return WatchEvent(EventKind(word), manifest)


def reduced(manifest: Manifest, problem: str) -> dict[str, Any]:
    """The identity and the status of an object, and why there is no more of it."""
    meta, status = manifest["metadata"], manifest.get("status")
    return {
        "metadata": {name: meta[name] for name in _IDENTITY if isinstance(meta.get(name), str | int)},
        **({"status": status} if isinstance(status, dict) else {}),
        UNREADABLE: " ".join(problem.split()),
    }


def _list(page: Any) -> list[Any]:
    """The items of a page; Go writes null for none."""
    if not isinstance(page, dict) or not isinstance(page.get("items") or [], list) or "items" not in page:
        raise UnexpectedJsonError("no list of objects")
    return page["items"] or []


def _fields(said: Any) -> tuple[str, Any]:
    if not isinstance(said, dict) or not isinstance(said.get("object"), dict):
        raise UnexpectedJsonError("no event")
    return str(said.get("type")), said["object"]


def _is_identified(manifest: Manifest) -> bool:
    return bool(manifest["metadata"].get("uid"))


def _shaped(found: Any, resource: Resource) -> dict[str, Any]:
    """An object whose parts have the types that are relied on, or what `reduced` leaves of it."""
    if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict):
        raise UnexpectedJsonError("no object with metadata")
    try:
        msgspec.convert(found, _SHAPES.get(resource, _Whole))
    except msgspec.ValidationError as error:
        return reduced(found, f"it does not have the shape of a {resource.kind}: {error}")
    kind = KINDS.get(resource)
    if kind is None:
        return found
    try:
        kind.check(found)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"[:_LONGEST_WHY]
        return reduced(found, f"a part of it is not what a {resource.kind} has there: {why}")
    return found


def _in_parts(text: bytes, resource: Resource) -> dict[str, Any]:
    """An object that could not be read as a whole, read by its members and the members of its metadata."""
    members = _members(text)
    found, problems = _readable(members, "")
    if "metadata" in members and "metadata" not in found:
        del problems["metadata"]
        found["metadata"], inner = _readable(_members(members["metadata"]), "metadata.")
        problems |= inner
    # managedFields are read of targets alone; other kinds may nest them as deep as they like.
    if resource not in KINDS:
        problems.pop(f"metadata.{_WRITERS}", None)
    shaped = _shaped(found, resource)
    if not problems:
        return shaped
    # A member that is too deep is missing from the shape too: the message states the cause, not its consequence.
    return reduced(found, "; ".join(f"{name} {why}" for name, why in problems.items()))


def _readable(members: Mapping[str, bytes], prefix: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The members that can be read, and why the others cannot."""
    found: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, text in members.items():
        try:
            found[name] = pydantic_core.from_json(text)
        except ValueError as error:
            deep = _TOO_DEEP in str(error)
            problems[prefix + name] = "is nested too deep" if deep else f"cannot be read ({error})"
    return found, problems


def _members(text: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    if not text.lstrip().startswith(b"{"):
        raise UnexpectedJsonError("no object")
    for piece in _pieces(text):
        name = _NAME.match(piece)
        if name is None:
            raise UnexpectedJsonError("a member without a name")
        found[str(pydantic_core.from_json(name[1]))] = piece[name.end() :]
    return found


def _pieces(text: bytes) -> list[bytes]:
    """Splits a text's outermost object or list into its members, without recursion, in time that grows with the length alone."""
    found: list[bytes] = []
    depth = begun = 0
    for token in _TOKEN.finditer(text):
        match text[token.start()]:
            case 0x7B | 0x5B:
                depth += 1
                if depth == 1:
                    begun = token.end()
            case 0x7D | 0x5D:
                depth -= 1
                if depth == 0:
                    found.append(text[begun : token.start()])
                    return found if found[0].strip() or len(found) > 1 else []
            case 0x2C if depth == 1:
                found.append(text[begun : token.start()])
                begun = token.end()
    raise UnexpectedJsonError("it is cut off")


LABELS: Mapping[Resource, str] = {
    JOBS: MANAGED_SELECTOR,
    CRONJOBS: MANAGED_SELECTOR,
}
"""Label selectors of the kinds of which not all objects are looked at."""
_CONDITIONS = frozenset({"Ready", "PodScheduled"})
# A service says in its status that its own object or its target's cannot be read.
_NAMED = frozenset({SERVICES, *KINDS})
_OF_RUN = ("startedAt", "finishedAt", "exitCode")
_STATES = frozenset({"waiting", "running", "terminated"})


def trimmed(resource: Resource, manifest: Manifest) -> Manifest | None:
    """The fields of an object that are read later; None of one that cannot be read, unless that is said of it by its name."""
    if problem_of(manifest) is not None:
        return manifest if resource in _NAMED else None
    if resource in KINDS:
        # The fields whose writers nobody asks about are most of their list.
        asked = KINDS[resource].written_fields(manifest)
        writers = [_slim_writer(entry, asked) for entry in manifest["metadata"].get("managedFields") or []]
        return {**manifest, "metadata": {**manifest["metadata"], "managedFields": writers}}
    if resource == PODS:
        return _slim_pod(manifest)
    if resource == NODES:
        return _slim_node(manifest)
    if resource == CLAIMS:
        return {
            "metadata": _some(manifest["metadata"], "namespace", "name", "uid", "resourceVersion"),
            "spec": _some(manifest.get("spec") or {}, "accessModes"),
        }
    meta = {name: value for name, value in manifest["metadata"].items() if name != "managedFields"}
    return {**manifest, "metadata": meta}


def is_selected(resource: Resource, manifest: Manifest) -> bool:
    """Whether an object is kept; a run that is accounted for is not.

    The phase is checked too, because anybody may set the label, which would hide a run that holds a GPU.
    """
    if resource != RUNS or FINISHED_LABEL not in (manifest["metadata"].get("labels") or {}):
        return True
    return str((manifest.get("status") or {}).get("phase") or "") not in FINAL_PHASES


def _slim_writer(entry: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of managedFields, without the fields that nobody here asks about."""
    return {
        **_shared(entry, "manager", "operation", "subresource"),
        **_some(entry, "time"),
        "fieldsV1": _within(entry.get("fieldsV1") or {}, asked),
    }


def _within(fields: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _within(fields[name], inner)
        for name, inner in wanted.items()
        if isinstance(fields.get(name), Mapping)
    }


def _slim_pod(pod: Manifest) -> Manifest:
    """The fields that are read of a pod: ten thousand pods are kept."""
    meta = pod["metadata"]
    if RUN_LABEL in (meta.get("labels") or {}):
        return pod
    status = pod.get("status") or {}
    slim: Manifest = {
        **_some(meta, "name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"),
        **_shared(meta, "namespace"),
        "annotations": _shared(meta.get("annotations") or {}, ANNOTATION),
        **({"labels": _shared(meta.get("labels") or {}, *POD_LABELS)} if POD_LABELS else {}),
        "ownerReferences": [
            {**_shared(owner, "kind", "name", "uid"), "controller": True}
            for owner in meta.get("ownerReferences") or []
            if owner.get("controller")
        ],
    }
    return {
        "metadata": slim,
        "spec": _shared(pod.get("spec") or {}, "nodeName"),
        "status": {
            **_shared(status, "phase", "reason"),
            "conditions": [
                {
                    **_shared(one, "type", "status", "reason"),
                    **_some(one, "lastTransitionTime"),
                    # The scheduler's message is present only while a pod has no node.
                    **(_some(one, "message") if one.get("type") == "PodScheduled" else {}),
                }
                for one in status.get("conditions") or []
                if one.get("type") in _CONDITIONS
            ],
            **{
                kind: [_slim_container(one) for one in status[kind]]
                for kind in ("initContainerStatuses", "containerStatuses")
                if status.get(kind)
            },
        },
    }


def _slim_container(status: Mapping[str, Any]) -> Manifest:
    """How a container is, and how its last run ended."""
    last = (status.get("lastState") or {}).get("terminated")
    return {
        **_shared(status, "name", "image", "imageID"),
        **_some(status, "restartCount"),
        "state": {
            state: {**_shared(found, "reason"), **_some(found, *_OF_RUN, "message")}
            for state, found in (status.get("state") or {}).items()
            if state in _STATES
        },
        **(
            {"lastState": {"terminated": _some(last, "reason", "exitCode", "message", "finishedAt")}}
            if last
            else {}
        ),
    }


def _slim_node(node: Manifest) -> Manifest:
    """Labels, and whether its kubelet answers: the images that a node holds are most of its status."""
    meta = node["metadata"]
    return {
        "metadata": _some(meta, "name", "uid", "resourceVersion", "labels"),
        "status": {
            "conditions": [
                _shared(one, "type", "status")
                for one in (node.get("status") or {}).get("conditions") or []
                if one.get("type") == "Ready"
            ]
        },
    }


def _some(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}


def _shared(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Texts that many pods have, each kept once."""
    return {name: intern(fields[name]) for name in names if isinstance(fields.get(name), str)}
