"""An API server in memory: server-side apply with field managers, generations, resource versions, status subresources.

What it stands for is tested against the real one in tests/cluster; here it serves speed and faults on demand.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from breakeven_operator.cluster.api_json import read_event, read_page
from breakeven_operator.kinds import FIELD_MANAGER, Ref, Resource
from breakeven_operator.ports import (
    Clock,
    ClusterError,
    EventKind,
    FieldConflictError,
    StaleObjectError,
    WatchEvent,
)
from fakes.frozen_json import frozen

Key = tuple[str, str, str]
Path = tuple[str, ...]
_SERVER_SET = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "deletionTimestamp",
)


@dataclass
class AdmissionPolicy:
    """A ValidatingAdmissionPolicy or a webhook that denies writes.

    Attributes:
        applies: whether it denies a write, from (verb as RBAC calls it, resource with its subresource, new object, old one);
            of a deletion there is no new object, of a creation no old one.
        answer: status and sentence of its denial, as a real server words them.
        denied: how often it has denied one.
    """

    applies: Callable[[str, str, Mapping[str, Any] | None, Mapping[str, Any] | None], bool]
    answer: tuple[int, str] = (
        422,
        "ValidatingAdmissionPolicy 'freeze' with binding 'freeze' denied request: no changes today",
    )
    denied: int = 0


class FakeCluster:
    """The `Cluster` port.

    Attributes:
        objects: by (plural, namespace, name).
        requests: how often each verb was asked.
        writes: (verb, plural, name) in order.
        created: (plural, manifest as it was sent) in order.
        fail: called before each request with (verb, resource, name); what it raises is raised.
        stored: texts of objects that somebody else keeps there, of any shape, by the plural of their kind.
        policies: that each write is shown to, in order.
        webhooks: mutating ones, which change an applied object in place on its way: each is called with (resource with its
            subresource, new object). What they take out stays the applier's in managedFields, as on a real server.
        missing_rights: (verb, resource with its subresource) that RBAC does not grant, such as ("patch", "deployments").
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self.objects: dict[Key, dict[str, Any]] = {}
        self.owners: dict[Key, dict[tuple[str, str], dict[Path, Any]]] = {}
        self.stored: dict[str, list[str]] = {}
        # Each object as it was last shown, and as it lay here then.
        self._views: dict[Key, tuple[dict[str, Any], dict[str, Any]]] = {}
        self.requests: Counter[str] = Counter()
        self.writes: list[tuple[str, str, str]] = []
        self.created: list[tuple[str, dict[str, Any]]] = []
        self.fail: Callable[[str, Resource, str], None] = lambda _verb, _resource, _name: None
        self.policies: list[AdmissionPolicy] = []
        self.webhooks: list[Callable[[str, dict[str, Any]], None]] = []
        self.missing_rights: set[tuple[str, str]] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeCluster:
        # Views are everybody's already.
        other = memo[id(self)] = copy.copy(self)
        state = {name: value for name, value in vars(self).items() if name != "_views"}
        vars(other).update(copy.deepcopy(state, memo), _views=dict(self._views))
        return other

    # The port.

    async def list_all(
        self,
        resource: Resource,
        namespace: str | None = None,
        labels: str = "",
        trim: Callable[[Any], Any] | None = None,
        fields: str = "",
    ) -> list[Any]:
        self._asked("list", resource, "")
        found = [
            self.shown(key)
            for key in self._keys(resource)
            if namespace in {None, key[1]}
            and _matches((self.objects[key]["metadata"].get("labels") or {}), labels)
            and _selected(self.objects[key], fields)
        ]
        texts = self.stored.get(resource.plural, ())
        items, _, _ = read_page(f'{{"items": [{", ".join(texts)}]}}'.encode(), resource)
        found += [item for item in items if namespace in {None, item["metadata"].get("namespace")}]
        return found if trim is None else [kept for item in found if (kept := trim(item)) is not None]

    async def watch(
        self, resource: Resource, namespace: str | None = None, labels: str = "", version: str = ""
    ) -> AsyncGenerator[WatchEvent]:
        """All objects of now; later changes do not come."""
        self._asked("watch", resource, "")
        for key in self._keys(resource):
            if namespace in {None, key[1]}:
                yield WatchEvent(EventKind.ADDED, self.shown(key))
        for text in self.stored.get(resource.plural, ()):
            event = read_event(f'{{"type": "ADDED", "object": {text}}}'.encode(), resource)
            if isinstance(event, WatchEvent) and namespace in {
                None,
                event.manifest["metadata"].get("namespace"),
            }:
                yield event
        yield WatchEvent(EventKind.SYNCED, {"metadata": {"resourceVersion": str(next(self._versions))}})
        await asyncio.Event().wait()

    async def get(self, resource: Resource, namespace: str, name: str) -> Any:
        self._asked("get", resource, name)
        key = (resource.plural, namespace, name)
        return self.shown(key) if key in self.objects else None

    async def create(self, resource: Resource, body: Mapping[str, Any]) -> Any:
        self._asked("create", resource, body["metadata"]["name"])
        key = _key(resource, body)
        self._authorise("create", resource, key)
        if key in self.objects:
            raise ClusterError(f"{key} already exists", 409)
        self._admit("create", resource.plural, body, None)
        self._note("create", key)
        self.created.append((resource.plural, copy.deepcopy(dict(body))))
        self.put(resource, body, manager=FIELD_MANAGER)
        return self.shown(key)

    async def apply(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        force: bool = False,
        subresource: str | None = None,
        manager: str = FIELD_MANAGER,
    ) -> Any:
        self._asked("apply", resource, body["metadata"]["name"])
        key = _key(resource, body)
        meta = body["metadata"]
        found = self.objects.get(key)
        self._authorise("patch", resource, key, subresource)
        if found is None:
            if "uid" in meta or subresource:
                raise ClusterError(f"{key} is not there", 404)
            self._authorise("create", resource, key)
            self._admit("create", resource.plural, body, None)
            self._note("apply", key)
            self.put(resource, body, manager=manager)
            return self.shown(key)
        for precondition in ("uid", "resourceVersion"):
            if precondition in meta and meta[precondition] != found["metadata"][precondition]:
                raise StaleObjectError(f"{key}: {precondition} is another one")
        self._apply(resource, key, body, manager=manager, force=force, subresource=subresource)
        return self.shown(key)

    async def replace(self, resource: Resource, body: Mapping[str, Any]) -> Any:
        self._asked("replace", resource, body["metadata"]["name"])
        key = _key(resource, body)
        if key not in self.objects:
            raise ClusterError(f"{key} is not there", 404)
        if body["metadata"].get("resourceVersion") != self.objects[key]["metadata"]["resourceVersion"]:
            raise StaleObjectError(f"{key} has changed")
        self._note("replace", key)
        self.put(resource, body, manager="replacer")
        return self.shown(key)

    async def delete(self, ref: Ref, resource_version: str | None = None) -> None:
        self._asked("delete", ref.resource, ref.name)
        key = (ref.resource.plural, ref.namespace, ref.name)
        self._authorise("delete", ref.resource, key)
        if key in self.objects and ref.uid in {"", self.objects[key]["metadata"]["uid"]}:
            if resource_version not in {None, self.objects[key]["metadata"]["resourceVersion"]}:
                raise StaleObjectError(f"{key} has changed")
            self._admit("delete", ref.resource.plural, None, self.objects[key])
            self._note("delete", key)
            self.remove(ref.resource, ref.namespace, ref.name)

    # Actions of people and controllers.

    def put(self, resource: Resource, body: Mapping[str, Any], *, manager: str = "kubectl") -> dict[str, Any]:
        """Create or replace an object as `kubectl replace` does: what changes belongs to `manager` from then on."""
        key = _key(resource, body)
        old = self.objects.get(key)
        new = copy.deepcopy(dict(body))
        meta = new["metadata"]
        if old is None:
            meta.setdefault("uid", f"uid-{next(self._uids)}")
            meta["generation"] = 1
            meta.setdefault("creationTimestamp", self._clock.now().isoformat())
        else:
            new.setdefault("status", old.get("status", {}))
            for name in ("uid", "generation", "creationTimestamp"):
                meta[name] = old["metadata"][name]
            if new.get("spec") != old.get("spec"):
                meta["generation"] += 1
        before = dict(_leaves(old)) if old is not None else {}
        after = dict(_leaves(new))
        owners = self.owners.setdefault(key, {})
        for fields in owners.values():
            for path in [path for path in fields if after.get(path) != before.get(path)]:
                del fields[path]
        # Who only takes fields away owns nothing more than before, and shows nowhere.
        taken = {p: value for p, value in after.items() if before.get(p) != value and not _server_set(p)}
        owners.setdefault((manager, "Update"), {}).update(taken)
        meta["resourceVersion"] = str(next(self._versions))
        new["_times"] = dict((old or {}).get("_times", {}))
        self.objects[key] = new
        if taken:
            self._stamp(key, (manager, "Update"))
        return new

    def change(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        edit: Callable[[dict[str, Any]], None],
        *,
        manager: str = "kubectl-edit",
    ) -> None:
        """Edit an object in place."""
        body = copy.deepcopy(self.objects[resource.plural, namespace, name])
        edit(body)
        self.put(resource, body, manager=manager)

    def remove(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete an object and what it owns."""
        gone = self.objects.pop((resource.plural, namespace, name), None)
        self.owners.pop((resource.plural, namespace, name), None)
        if gone is None:
            return
        uid = gone["metadata"]["uid"]
        for key, other in list(self.objects.items()):
            if any(owner.get("uid") == uid for owner in other["metadata"].get("ownerReferences") or []):
                self.objects.pop(key, None)
                self.owners.pop(key, None)

    def of(self, resource: Resource) -> list[dict[str, Any]]:
        """All objects of a kind, which tests compare with."""
        return [self.objects[key] for key in self._keys(resource)]

    def _keys(self, resource: Resource) -> list[Key]:
        return sorted(key for key in self.objects if key[0] == resource.plural)

    def _apply(
        self,
        resource: Resource,
        key: Key,
        body: Mapping[str, Any],
        *,
        manager: str,
        force: bool,
        subresource: str | None,
    ) -> None:
        found = self.objects[key]
        parts = {"status"} if subresource == "status" else {"spec", "metadata", "series"}
        wanted = {path: value for path, value in _leaves(body) if path[0] in parts and not _server_set(path)}
        owners = self.owners.setdefault(key, {})
        name = (manager, "Apply")
        current = dict(_leaves(found))
        conflicts = sorted(
            {
                other[0]
                for other, fields in owners.items()
                for path, value in wanted.items()
                if other != name and path in fields and current.get(path) != value
            }
        )
        if conflicts and not force:
            raise FieldConflictError(f"conflict with {conflicts}", tuple(conflicts))
        new = copy.deepcopy(found)
        for path, value in wanted.items():
            _set(new, path, value)
        mine = owners.get(name, {})
        for path in mine.keys() - wanted.keys():
            shared = any(path in fields for other, fields in owners.items() if other != name)
            if path[0] in parts and not shared:
                _unset(new, path)
        for webhook in self.webhooks:
            webhook(_with_sub(resource, subresource), new)
        # Nothing has changed before admission has spoken, the owners neither.
        self._admit("update", _with_sub(resource, subresource), new, found)
        kept = {path: value for path, value in mine.items() if path[0] not in parts}
        changed = {path for path, value in wanted.items() if current.get(path) != value}
        self._take(key, name, kept | wanted, changed)
        if new == found:
            return
        self._note("apply", key)
        if new.get("spec") != found.get("spec"):
            new["metadata"]["generation"] += 1
        new["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[key] = new
        self._stamp(key, name)

    def _take(
        self, key: Key, name: tuple[str, str], fields: dict[Path, Any], changed: Collection[Path]
    ) -> None:
        """Fields belong to a manager, and those that it changed to nobody else; a view shows whose they are."""
        owners = self.owners[key]
        for other in owners.keys() - {name}:
            for path in changed:
                owners[other].pop(path, None)
        if owners.get(name, {}).keys() != fields.keys():
            self._views.pop(key, None)
        owners[name] = fields

    def _stamp(self, key: Key, writer: tuple[str, str]) -> None:
        """Remember when a manager last wrote, as managedFields does."""
        times = self.objects[key].setdefault("_times", {})
        times["/".join(writer)] = self._clock.now().isoformat()

    def shown(self, key: Key) -> Any:
        """An object as a client receives it; nobody may change it, and it is the same one until the object changes.

        A controller of a test may change an object as it lies here: it is another version then, as any change makes it.
        """
        body = self.objects[key]
        lay, view = self._views.get(key, (None, None))
        if view is not None and body == lay:
            return view
        meta = body["metadata"]
        version = meta.get("resourceVersion")
        if version is None or (lay is not None and lay["metadata"]["resourceVersion"] == version):
            meta["resourceVersion"] = str(next(self._versions))
        lay = frozen(body)
        times = lay.get("_times", {})
        managed = [
            {
                "manager": manager,
                "operation": operation,
                "time": times.get(f"{manager}/{operation}", ""),
                "fieldsV1": _fields(paths),
            }
            for (manager, operation), paths in self.owners.get(key, {}).items()
            if paths
        ]
        shown = {name: value for name, value in lay.items() if name != "_times"}
        view = frozen({**shown, "metadata": {**lay["metadata"], "managedFields": managed}})
        self._views[key] = lay, view
        return view

    def _authorise(self, verb: str, resource: Resource, key: Key, subresource: str | None = None) -> None:
        asked = _with_sub(resource, subresource)
        if (verb, asked) in self.missing_rights:
            group = f' in API group "{resource.group}"'
            raise ClusterError(
                f"{verb.upper()} {key}: 403 forbidden",
                403,
                f'{resource.plural}.{resource.group} "{key[2]}" is forbidden: User "system:serviceaccount:breakeven:breakeven" '
                f'cannot {verb} resource "{asked}"{group} in the namespace "{key[1]}"',
            )

    def _admit(
        self, verb: str, asked: str, new: Mapping[str, Any] | None, old: Mapping[str, Any] | None
    ) -> None:
        for policy in self.policies:
            if policy.applies(verb, asked, copy.deepcopy(new), copy.deepcopy(old)):
                policy.denied += 1
                status, said = policy.answer
                raise ClusterError(f"{verb} {asked}: {status} {said}", status, said)

    def _asked(self, verb: str, resource: Resource, name: str) -> None:
        self.requests[verb] += 1
        self.fail(verb, resource, name)

    def _note(self, verb: str, key: Key) -> None:
        self.writes.append((verb, key[0], key[2]))


def _key(resource: Resource, body: Mapping[str, Any]) -> Key:
    return resource.plural, body["metadata"].get("namespace", ""), body["metadata"]["name"]


def _with_sub(resource: Resource, subresource: str | None) -> str:
    return f"{resource.plural}/{subresource}" if subresource else resource.plural


def _server_set(path: Path) -> bool:
    return path[0] == "metadata" and path[1] in (*_SERVER_SET, "name", "namespace")


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Paths to everything that is no map; lists count as atomic."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            if key != "_times":
                yield from _leaves(inner, (*path, key))
    elif path:
        yield path, value


def _set(target: dict[str, Any], path: Path, value: Any) -> None:
    for step in path[:-1]:
        inner = target.get(step)
        if not isinstance(inner, dict):
            inner = target[step] = {}
        target = inner
    target[path[-1]] = copy.deepcopy(value)


def _unset(target: dict[str, Any], path: Path) -> None:
    parents = [target]
    for step in path[:-1]:
        inner = parents[-1].get(step)
        if not isinstance(inner, dict):
            return
        parents.append(inner)
    parents[-1].pop(path[-1], None)
    for parent, step in zip(reversed(parents[:-1]), reversed(path[:-1]), strict=True):
        if parent.get(step) == {}:
            del parent[step]


def _fields(paths: Mapping[Path, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in paths:
        branch = tree
        for step in path:
            branch = branch.setdefault(f"f:{step}", {})
    return tree


def _selected(manifest: Mapping[str, Any], selector: str) -> bool:
    """Whether fields of an object have these values, as `regarding.uid=7`."""
    for term in filter(None, selector.split(",")):
        path, _, value = term.partition("=")
        found: Any = manifest
        for step in path.split("."):
            found = (found or {}).get(step)
        if found != value:
            return False
    return True


def _matches(labels: Mapping[str, str], selector: str) -> bool:
    for term in filter(None, selector.split(",")):
        if term.startswith("!"):
            if term[1:] in labels:
                return False
        elif "=" in term:
            key, _, value = term.partition("=")
            if labels.get(key) != value:
                return False
        elif term not in labels:
            return False
    return True
