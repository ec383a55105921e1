"""A pod template of a file, and the reason for an object that has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from breakeven.serving.opt_in import Places

MOST_OBJECTS = 10_000
"""Objects of a file that are looked at."""
Path = tuple[str, ...]
"""Keys from an object inwards."""


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A pod template, with what stands around it.

    Attributes:
        kind: of the object that has it, or the name of the chart whose values have it.
        where: file and document.
        annotations: annotations of the pods. annotations_path: where the file has them.
        pod_spec: as far as the file says it.
        inside: path of the pod spec; empty for a Deployment and its like.
        managed: whether the operator rolls what runs it.
        places: of a container by its name, if it does not lie as in a pod spec.
        rolling: what the spec of a managed object says about rolls; empty for another.
        remark: what is to be known of the place, as a sentence.
    """

    kind: str
    name: str
    where: str
    annotations: Mapping[str, Any]
    annotations_path: str
    pod_spec: Mapping[str, Any]
    inside: str = ""
    managed: bool = False
    places: Mapping[str, Places] = field(default_factory=dict)
    rolling: Mapping[str, Any] = field(default_factory=dict)
    namespace: str = ""
    remark: str = ""

    @property
    def title(self) -> str:
        """Kind and name."""
        return f"{self.kind}/{self.name}"

    @property
    def containers(self) -> Sequence[Mapping[str, Any]]:
        """Its containers."""
        found: Sequence[Mapping[str, Any]] = self.pod_spec.get("containers") or []
        return found

    def places_of(self, container: Mapping[str, Any]) -> Places:
        """Paths in the file of the parts of one of its containers."""
        name = str(container.get("name", ""))
        return self.places.get(name) or Places.of(container, self.inside)


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Something that is not read, by kind and name, and the reason with what would help; empty for an object that runs no pods."""

    title: str
    why: str = ""


def at(item: Any, path: Path) -> Any:
    """The part at a path; None if there is none."""
    for key in path:
        item = item.get(key) if isinstance(item, Mapping) else None
    return item
