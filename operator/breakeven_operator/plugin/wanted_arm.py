"""The recommended arm as a patch of the target, for people whose clusters only Git changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from breakeven.arm import ADAPTIVE, NO_SPECULATION
from breakeven.errors import InputError
from breakeven.intake import wrong_field
from breakeven.phrases import spoken
from breakeven.printable import one_line
from breakeven.serving.opt_in import ANNOTATION
from breakeven.tiers import Schedule
from breakeven_operator.plugin.service_view import Json, ServiceView
from breakeven_operator.resources.candidates import Candidates, MeasuredCandidates
from breakeven_operator.resources.speculativeservice import TargetReference
from breakeven_operator.workloads.known import kind_of
from breakeven_operator.workloads.running_arm import same_value
from breakeven_operator.workloads.served_engine import ServedEngine
from breakeven_operator.workloads.workload_kind import WorkloadKind


@dataclass(frozen=True, slots=True)
class WantedArm:
    """The arm that should run, beside the arm that the target asks for.

    Attributes:
        running: name of the arm that runs, None if it is not known.
        running_value: of the annotation now; None if it is absent.
        patch: of the target; None if the annotation does not stand in its own manifest.
        missing: the lines that its manifest needs, or loses, before an annotation chooses its arm; None if it has opted in.
    """

    target: str
    arm: str
    value: str
    running: str | None
    running_value: str | None
    patch: Mapping[str, Any] | None
    missing: Sequence[str] | None

    @property
    def same(self) -> bool:
        """Whether the target asks for the recommended arm, by its annotation or by its own flags."""
        by_flags = self.running_value is None and self.running == self.arm
        return by_flags or (same_value(self.running_value, self.value) and self.running in {None, self.arm})

    @property
    def before_the_annotation(self) -> Sequence[str]:
        """Why a patch would change nothing, and the lines that change that."""
        return (
            f"{self.target}: {spoken(self.arm)} is recommended, and no annotation chooses the arm of this target yet",
            *(self.missing or ()),
        )


def needs_profile(service: ServiceView) -> str | None:
    """Name of the SpeculationProfile by which the recommended arm was measured; None for no speculation."""
    speculates = service.recommended not in {None, "", NO_SPECULATION.name}
    return service.part("calibration").get("profile") if speculates else None


def wanted_arm(service: ServiceView, target: Json, profile: Json | None) -> WantedArm:
    """The recommendation of a service: `target` is the manifest, `profile` the one in force if `needs_profile` names it.

    Raises:
        InputError: nothing is recommended, or the arm is no candidate of the spec.
    """
    where = f"SpeculativeService {service.namespace}/{service.name}"
    name = service.recommended
    if not name:
        raise InputError(
            where, f"recommends no arm yet ({service.reason or 'no decision'})", "status.decision.arm"
        )
    try:
        candidates = Candidates.model_validate(service.spec.get("candidates") or {})
        reference = TargetReference.model_validate(service.spec.get("targetRef") or {})
    except ValidationError as error:
        raise wrong_field(error, f"{where} spec", "is a field") from None
    arms = (profile or {}).get("spec", {}).get("arms") or ()
    drafters = {one["arm"]: one["drafter"] for one in arms if one.get("drafter")}
    if name in candidates.replaced(drafters):
        raise InputError(
            where,
            f"recommends {name} with the drafter that it had before",
            "a calibration of the one that it has now",
        )
    measured = MeasuredCandidates.of(candidates, dict(_schedules(arms)))
    arm = next((one for one in measured.arms() if one.name == name), None)
    if arm is None:
        raise InputError(
            f"{where} status.decision.arm",
            f"is {name!r}",
            f"one of {', '.join(one.name for one in measured.arms())}",
        )
    value = measured.speculative_config(arm)
    kind = kind_of(reference)
    own = kind.rolled and kind.borrows(target) is None
    meta = {"name": reference.name, "namespace": service.namespace}
    head = {"apiVersion": reference.api_version, "kind": reference.kind, "metadata": meta}
    return WantedArm(
        service.target,
        arm.name,
        value,
        service.running,
        kind.value_of(target) if own else service.memory.get("writtenValue"),
        {**head, **kind.change(target, value)} if own else None,
        _missing(service, kind, target) if own else None,
    )


def _missing(service: ServiceView, kind: WorkloadKind, target: Json) -> Sequence[str] | None:
    """The lines of `breakeven lint`, or else the operator's sentence; None if the annotation chooses the arm."""
    try:
        template = kind.template(target)
        engine = ServedEngine.of(template, service.part("target").get("containerName"))
    except (KeyError, TypeError, InputError):
        engine = None
    if engine is not None and not engine.opt_in.ok:
        return (*filter(None, [engine.opt_in.refusal]), *engine.opt_in.lines)
    if service.part("target").get("optedIn") is not False:
        return None
    return (one_line(str(service.ready.get("message") or "")),)


def _schedules(arms: Iterable[Json]) -> Iterator[tuple[str, Schedule]]:
    for arm in arms:
        if arm.get("schedule") not in {None, "", ADAPTIVE} and arm.get("candidate"):
            yield arm["candidate"], Schedule.parse(arm["schedule"], f"schedule of {arm.get('arm')}")


def exported(wanted: WantedArm) -> str:
    """The patch as YAML under a comment; of a kind that only its own controller changes, the annotation alone."""
    import yaml

    if wanted.missing is not None:
        return "".join(f"# {line}\n" for line in wanted.before_the_annotation)
    head = f"# {wanted.target}: {spoken(wanted.arm)} is recommended"
    if wanted.patch is not None:
        return f"{head}\n{yaml.safe_dump(dict(wanted.patch), sort_keys=False, width=10000)}"
    return (
        f"{head}; its pods take annotations from another object: put this one there\n"
        f"{yaml.safe_dump({ANNOTATION: wanted.value}, width=10000)}"
    )


def difference(wanted: WantedArm) -> str:
    """Running against recommended, as lines that a diff would show."""
    if wanted.same:
        return f"{wanted.target} runs what is recommended: {spoken(wanted.arm)}"
    if wanted.missing is not None:
        return "\n".join(wanted.before_the_annotation)
    before = f"-{ANNOTATION}: {_quoted(wanted.running_value)}" if wanted.running_value is not None else ""
    lines = [
        f"--- {wanted.target} runs {spoken(wanted.running or 'an arm that is not known')}",
        f"+++ {wanted.target} should run {spoken(wanted.arm)}",
        before,
        f"+{ANNOTATION}: {_quoted(wanted.value)}",
    ]
    return "\n".join(filter(None, lines))


def _quoted(value: str | None) -> str:
    return "'" + one_line(value or "").replace("'", "''") + "'"
