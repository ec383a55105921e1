"""Kinds whose controller makes a workload of another kind: the annotation goes to the parent, all else is read of the child.

A controller like KServe's writes its child from the parent whenever something else changes. An annotation that is written into
the child stays until then, and is gone after it. So the parent is written, and the child rolls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Self

from breakeven.serving.rolling import Strategy
from breakeven_operator.kinds import Ref
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.object_facts import Trouble, owner_uid
from breakeven_operator.workloads.workload_kind import (
    MADE,
    PodCounts,
    Workers,
    WorkloadKind,
    maker_of,
)

_LONGEST_NAME = 63


class OwningKind(WorkloadKind):
    """See WorkloadKind. Of an object without its child no more is known than its annotation.

    Attributes:
        annotated: path of the annotations that the controller copies into the pod template.
    """

    annotated: ClassVar[tuple[str, ...]]
    own_writers = frozenset({"manager"})
    takes_back = False

    def __init__(self, child: WorkloadKind | None = None) -> None:
        if child is not None:
            self.keeps_names = child.keeps_names
            self.without_loss = child.without_loss
        # Of either child: asked before anybody knows which it is.
        self.refusals_in_events = any(one.refusals_in_events for one in self.made_as.values())
        self._of_child: dict[str, Self] = {}

    def of(self, manifest: Manifest) -> Self:
        """See WorkloadKind.of."""
        child = self._child(manifest)
        return self._of_child.setdefault(child.resource.kind, type(self)(child))

    def made_of(self, parent: Manifest, found: Mapping[Ref, Manifest]) -> Manifest | None:
        """The parent with the child that its controller made, if that is found; None before there is one."""
        meta = parent["metadata"]
        for suffix, kind in self.made_as.items():
            child = found.get(Ref(kind.resource, meta["namespace"], f"{meta['name']}{suffix}"))
            if child is not None and owner_uid(child) == meta["uid"]:
                return {**parent, MADE: {**child, "kind": kind.resource.kind}}
        return None

    def unmade(self, parent: Manifest) -> str:
        """Why there is no child, with the way out, as the end of a sentence."""
        longest = _LONGEST_NAME - max(map(len, self.made_as))
        if len(parent["metadata"]["name"]) > longest:
            return f"its controller shortens names of more than {longest} characters, by which the pods are looked for"
        wanted = " and no ".join(kind.resource.kind for kind in self.made_as.values())
        return f"its controller has made no {wanted} of it: kubectl describe it, its conditions say why"

    def _child(self, manifest: Manifest) -> WorkloadKind:
        kind = maker_of(manifest)["kind"]
        return next(one for one in self.made_as.values() if one.resource.kind == kind)

    def check(self, manifest: Manifest) -> None:
        """See WorkloadKind.check; its child is checked as an object of its own kind."""
        self.value_of(manifest)
        self.halves(manifest)

    def _annotations_at(self, manifest: Manifest) -> list[tuple[str, ...]]:  # noqa: ARG002 - there is one place
        return [self.annotated]

    def given_value(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.given_value."""
        return self._child(manifest).value_of(maker_of(manifest))

    def observed_generation(self, manifest: Manifest) -> int:
        """See WorkloadKind.observed_generation; its own status does not say it of every change."""
        own, wanted = int(manifest["metadata"].get("generation") or 0), self.value_of(manifest)
        child = maker_of(manifest)
        copied = wanted is None or self.given_value(manifest) == wanted
        acted = self._child(manifest).observed_generation(child) >= int(
            child["metadata"].get("generation") or 0
        )
        return own if copied and acted else own - 1

    def template(self, manifest: Manifest) -> Manifest:
        """The child's pod template."""
        return self._child(manifest).template(maker_of(manifest))

    def workers(self, manifest: Manifest) -> Workers:
        """See WorkloadKind.workers."""
        return self._child(manifest).workers(maker_of(manifest))

    def owners(self, manifest: Manifest, makers: Iterable[Manifest]) -> frozenset[str]:
        """Uids of what owns the child's pods."""
        return self._child(manifest).owners(maker_of(manifest), makers)

    def newest_revision(self, manifest: Manifest, makers: Iterable[Manifest]) -> str:
        """See WorkloadKind.newest_revision."""
        return self._child(manifest).newest_revision(maker_of(manifest), makers)

    def revision_of(self, pod: Manifest) -> str:
        """By the child's kind, which the pod shows: of a group by its label."""
        labels = pod["metadata"].get("labels") or {}
        kinds = list(self.made_as.values())
        labelled = (one for one in kinds if any(label in labels for label in one.pod_labels))
        return next(labelled, kinds[0]).revision_of(pod)

    def counts(self, manifest: Manifest) -> PodCounts:
        """See WorkloadKind.counts."""
        return self._child(manifest).counts(maker_of(manifest))

    def held(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.held."""
        child = maker_of(manifest)
        why = self._child(manifest).held(child)
        return f"is served by {child['kind']} {child['metadata']['name']}, which {why}" if why else None

    def waits_for_ready(self, manifest: Manifest) -> bool:
        """See WorkloadKind.waits_for_ready."""
        return self._child(manifest).waits_for_ready(maker_of(manifest))

    def strategy(self, manifest: Manifest, desired: int) -> Strategy:
        """See WorkloadKind.strategy."""
        return self._child(manifest).strategy(maker_of(manifest), desired)

    def trouble(self, manifest: Manifest, refusal: str) -> Trouble | None:
        """See WorkloadKind.trouble."""
        return self._child(manifest).trouble(maker_of(manifest), refusal)
