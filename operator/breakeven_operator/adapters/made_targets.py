"""Targets whose controller makes the object that has their pods: each is joined with what was made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from breakeven_operator.adapters.api_json import problem_of
from breakeven_operator.kinds import Ref
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.known import KINDS
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
