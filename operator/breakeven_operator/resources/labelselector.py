"""A label selector as Kubernetes' own kinds have it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from breakeven_operator.resources.base import Model


class LabelRequirement(Model):
    """A condition on one label."""

    key: Annotated[str, Field(min_length=1, max_length=317, description="Label.")]
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[tuple[str, ...], Field(description="Values of In and NotIn.")] = ()


class LabelSelector(Model):
    """All of its conditions hold; an empty one selects everything."""

    match_labels: dict[str, str] = Field(default_factory=dict, description="Labels with their values.")
    match_expressions: tuple[LabelRequirement, ...] = Field(default=(), description="Further conditions.")
