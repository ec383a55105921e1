"""Who owns the pods of targets. A target whose controller makes another object of it is joined with that one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from breakeven.serving.shareable import mounted_claims
from breakeven_operator.adapters.api_json import problem_of
from breakeven_operator.kinds import Ref
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.known import KINDS, kind_at
from breakeven_operator.workloads.object_facts import owner_uid
from breakeven_operator.workloads.owning_kind import OwningKind
from breakeven_operator.workloads.workload_kind import maker_of


class JoinedTargets(NamedTuple):
    """Targets that can be looked at.

    Attributes:
        found: with what was made of them. unread: those of which nothing was made, or nothing that can be read, and why.
    """

    found: dict[Ref, Manifest]
    unread: dict[Ref, str]


def joined_targets(asked: Iterable[Ref], objects: Mapping[Ref, Manifest]) -> JoinedTargets:
    """The targets of services.

    Args:
        asked: what services point at.
        objects: what was read: targets, and what may have been made of them.
    """
    found: dict[Ref, Manifest] = {}
    unread: dict[Ref, str] = {}
    for ref in asked:
        one, kind = objects.get(ref), KINDS.get(ref.resource)
        if one is None:
            continue
        if isinstance(kind, OwningKind) and problem_of(one) is None:
            joined = kind.made_of(one, objects)
            problem = problem_of(maker_of(joined)) if joined is not None else kind.unmade(one)
            if joined is None or problem is not None:
                unread[ref] = str(problem)
                continue
            one = joined
        found[ref] = one
    return JoinedTargets(found, unread)


def owners_of_pods(
    targets: Iterable[Manifest], makers: Iterable[Manifest], jobs: Iterable[Manifest]
) -> set[str]:
    """Uids of what owns the pods of targets and of calibrations: the targets, their makers, the Jobs."""
    owners = {maker_of(one)["metadata"]["uid"] for one in targets}
    theirs = (one for one in makers if owner_uid(one) in owners)
    return owners | {one["metadata"]["uid"] for one in (*theirs, *jobs)}


def lacking_pods(targets: Mapping[Ref, Manifest], makers: Iterable[Manifest]) -> Iterator[Manifest]:
    """The makers of pods of targets with fewer than they want, if only events say why."""
    for ref, target in targets.items():
        kind = kind_at(ref.resource)
        counts = kind.counts(target)
        if kind.refusals_in_events and counts.total < counts.desired:
            owners = kind.owners(target, makers)
            yield from (one for one in (maker_of(target), *makers) if one["metadata"]["uid"] in owners)


def mounting(targets: Mapping[Ref, Manifest]) -> set[str]:
    """Namespaces of targets that mount claims: a roll must know who else may."""
    return {
        ref.namespace
        for ref, target in targets.items()
        if mounted_claims(kind_at(ref.resource).template(target)["spec"])
    }
