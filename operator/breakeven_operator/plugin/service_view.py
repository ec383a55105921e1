"""A SpeculativeService and a Lease as the API server's JSON, frozen, with the few questions that the texts ask.

No model of `resources` reads them: a plugin that is older or newer than the operator still shows what it knows, and pydantic
would take longer to import than kubectl takes to answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from breakeven.errors import InputError
from breakeven.printable import one_line
from breakeven_operator.packed import whole

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ServiceView:
    """One SpeculativeService; its spec has the generation."""

    namespace: str
    name: str
    generation: int
    created: datetime | None
    spec: Json
    status: Json

    @classmethod
    def of(cls, manifest: Json) -> ServiceView:
        """The view of an object as kubectl prints it.

        Raises:
            InputError: it is no object of Kubernetes.
        """
        meta = manifest.get("metadata")
        if not isinstance(meta, Mapping) or not meta.get("name"):
            raise InputError("kubectl", "printed no object", "a SpeculativeService as JSON")
        return cls(
            str(meta.get("namespace", "default")),
            str(meta["name"]),
            int(meta.get("generation") or 0),
            time_of(meta.get("creationTimestamp")),
            manifest.get("spec") or {},
            whole(manifest.get("status") or {}),
        )

    def part(self, *path: str) -> Json:
        """A part of the status; empty if it is not there."""
        found: Json = reduce(lambda part, name: part.get(name) or {}, path, self.status)
        return found

    @property
    def display(self) -> Json:
        """The columns of kubectl get."""
        return self.part("workings", "display")

    @property
    def memory(self) -> Json:
        """The decision's memory; empty if an operator of another version has written it."""
        return self.part("workings", "memory")

    @property
    def decision(self) -> Json:
        """The last decision."""
        return self.part("decision")

    @property
    def policy(self) -> Json:
        """The spec's updatePolicy."""
        found: Json = self.spec.get("updatePolicy") or {}
        return found

    @property
    def mode(self) -> str:
        """The mode, by default Recommend."""
        return str(self.policy.get("mode", "Recommend"))

    @property
    def paused(self) -> bool:
        """Whether spec.paused is true."""
        return bool(self.spec.get("paused"))

    @property
    def target(self) -> str:
        """Kind and name of the target."""
        reference = self.spec.get("targetRef") or {}
        return f"{reference.get('kind', '?')}/{reference.get('name', '?')}"

    @property
    def running(self) -> str | None:
        """The arm that the target runs; None if it is not known."""
        return self.part("current").get("arm")

    @property
    def conditions(self) -> Sequence[Json]:
        """The conditions in the order of the status."""
        return self.status.get("conditions") or ()

    @property
    def ready(self) -> Json:
        """The condition Ready; empty before there is one."""
        return next((one for one in self.conditions if one.get("type") == "Ready"), {})

    @property
    def last_roll(self) -> Json | None:
        """The newest change of arm that has ended."""
        history = self.status.get("history") or ()
        return history[0] if history else None

    @property
    def reason(self) -> str | None:
        """The reason word of the decision, else the word in kubectl's column."""
        shown = str(self.display.get("reason") or "").partition(" ")[0]
        return self.decision.get("reason") or shown or None

    @property
    def recommended(self) -> str | None:
        """The arm that should run; None while nothing is recommended, whatever arm the decision keeps."""
        return None if self.display.get("recommended") == "-" else self.decision.get("arm")

    @property
    def decided(self) -> datetime | None:
        """When the last decision was made that was written down."""
        return time_of(self.decision.get("time"))

    @property
    def unseen_spec(self) -> bool:
        """Whether the spec has changed since the operator last acted on it."""
        return int(self.status.get("observedGeneration") or 0) < self.generation


@dataclass(frozen=True, slots=True)
class LeaseView:
    """The Lease of an operator; another replica may take it after `lasts_s`.

    `holder` is its holderIdentity: the pod's name, an underscore and a token.
    """

    place: str
    renewed: datetime
    lasts_s: float
    holder: str = ""

    @classmethod
    def among(cls, manifests: Iterable[Json]) -> tuple[LeaseView, ...]:
        """The Leases of operators, by the name that the chart gives them."""
        found = []
        for one in manifests:
            meta, spec = one.get("metadata") or {}, one.get("spec") or {}
            renewed = time_of(spec.get("renewTime"))
            if "breakeven" in str(meta.get("name")) and renewed is not None:
                place = f"{meta.get('namespace')}/{meta.get('name')}"
                found.append(
                    cls(
                        place,
                        renewed,
                        float(spec.get("leaseDurationSeconds") or 0),
                        str(spec.get("holderIdentity") or ""),
                    )
                )
        return tuple(found)


def time_of(text: object) -> datetime | None:
    """A time of the API; None if there is none that can be read."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def variable_of(container: Json, name: str) -> str:
    """The value of an environment variable of a container; empty if it has none there."""
    found = (one.get("value") for one in container.get("env") or () if one.get("name") == name)
    return str(next(found, None) or "")


def number_of(part: Json, name: str) -> float | None:
    """A figure of the status, where figures are decimal strings; None if there is none."""
    try:
        return float(part[name])
    except (KeyError, TypeError, ValueError):
        return None


def short_age(since: datetime | None, now: datetime) -> str:
    """A time that has passed, as kubectl shows it: 12s, 5m, 3h, 2d; a dash where none is known."""
    if since is None:
        return "-"
    seconds = max(0, int((now - since).total_seconds()))
    for unit, size, most in (("s", 1, 120), ("m", 60, 180 * 60), ("h", 3600, 48 * 3600)):
        if seconds < most:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86400}d"


def sentence(text: object) -> str:
    """A message as one sentence that ends in a full stop; empty where there is none."""
    words = one_line(str(text or ""))
    return words if not words or words.endswith((".", "!", "?")) else f"{words}."
