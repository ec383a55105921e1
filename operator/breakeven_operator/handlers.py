"""The only kopf decorators: events of our own kinds wake the loop up. Nothing is decided and nothing written here.

No change handlers, timers, daemons or indexes: they would put finalizers and annotations on users' objects, and keep a
copy of every object in memory. What a cycle reads is kept up to date by `adapters/informer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import kopf

from breakeven_operator.kinds import GROUP, RUNS, SERVICES, VERSION
from breakeven_operator.serve.health import Health


def register(registry: kopf.OperatorRegistry, health: Health, wake: Callable[[], None]) -> None:
    """Put the handlers into a registry of the operator's own; importing this module registers nothing.

    Args:
        registry: kopf's.
        health: is informed of every event of a service, which proves that the watch lives.
        wake: called when something changed that a decision could depend on.
    """
    seen: dict[str, tuple[Any, ...]] = {}

    async def on_service(event: Mapping[str, Any], **_: Any) -> None:
        meta = (event.get("object") or {}).get("metadata") or {}
        uid, generation = str(meta.get("uid", "")), int(meta.get("generation", 0))
        if event.get("type") == "DELETED":
            seen.pop(uid, None)
            wake()
            return
        health.watch_delivered(uid, generation)
        # Our own status writes come back as events too; what a person changes shows in one of these.
        state = (generation, meta.get("deletionTimestamp"), dict(meta.get("annotations") or {}))
        if seen.get(uid) != state:
            seen[uid] = state
            wake()

    async def on_run(event: Mapping[str, Any], **_: Any) -> None:
        manifest = event.get("object") or {}
        status = manifest.get("status") or {}
        uid = str((manifest.get("metadata") or {}).get("uid", ""))
        # A run asked for, a phase, a point: worth a cycle. The estimate of the time left is not.
        if event.get("type") == "DELETED":
            seen.pop(uid, None)
            wake()
            return
        state = (status.get("phase"), len(status.get("points") or ()))
        if seen.get(uid) != state:
            seen[uid] = state
            wake()

    kopf.on.event(GROUP, VERSION, SERVICES.plural, registry=registry, id="service")(on_service)
    kopf.on.event(GROUP, VERSION, RUNS.plural, registry=registry, id="run")(on_run)
