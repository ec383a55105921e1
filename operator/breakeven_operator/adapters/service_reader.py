"""Reads the services of a cluster, and tells those apart that break a rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from breakeven.errors import InputError
from breakeven_operator.adapters.api_json import problem_of
from breakeven_operator.adapters.snapshot import InvalidService
from breakeven_operator.kinds import Ref
from breakeven_operator.ports import Manifest
from breakeven_operator.reconcile.target import Claim
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.known import target_of


class Scope(NamedTuple):
    """Services that an installation takes on.

    Attributes:
        drafters: how drafters begin that services may name; a service that names another one breaks a rule. Empty: all.
        annotated: whether workloads that ask for a service by their annotation are read.
    """

    drafters: tuple[str, ...] = ()
    annotated: bool = False


class ReadServices(NamedTuple):
    """The services that can be acted upon, and services that break a rule, which an older CRD let through."""

    services: tuple[SpeculativeService, ...]
    invalid: tuple[InvalidService, ...]

    @property
    def claims(self) -> dict[Ref, list[Claim]]:
        """Claims of services on targets, by target."""
        found: dict[Ref, list[Claim]] = defaultdict(list)
        for service in self.services:
            found[target_of(service)].append(Claim.of(service))
        return found


class ServiceReader:
    """Parses a service again only if its object has changed, which most do not between two cycles."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._known: dict[str, SpeculativeService] = {}

    def read(self, manifests: Sequence[Manifest]) -> ReadServices:
        """The services among these objects."""
        parsed: dict[str, SpeculativeService] = {}
        invalid = []
        for manifest in manifests:
            read = self._parsed(manifest)
            if isinstance(read, SpeculativeService):
                parsed[manifest["metadata"]["uid"]] = read
            else:
                invalid.append(InvalidService(manifest, read))
        self._known = parsed
        return ReadServices(tuple(parsed.values()), tuple(invalid))

    def _parsed(self, manifest: Manifest) -> SpeculativeService | str:
        meta = manifest["metadata"]
        if (problem := problem_of(manifest)) is not None:
            return problem
        known = self._known.get(meta["uid"])
        if known is not None and known.metadata.resource_version == meta["resourceVersion"]:
            return known
        try:
            service = SpeculativeService.read(
                manifest, f"SpeculativeService {meta['namespace']}/{meta['name']}"
            )
        except InputError as error:
            return str(error)
        strays = ((m.name, m.strays_from(self._scope.drafters)) for m in service.spec.candidates.methods)
        problems = (f"spec.candidates.methods {name}: {problem}" for name, problem in strays if problem)
        return next(problems, service)
