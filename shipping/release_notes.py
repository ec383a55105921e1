"""The section of the changelog that a release has, and its changes in the form of Artifact Hub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypedDict

from shipping.shipping_error import ShippingError

_KINDS: Final = {"Security": "security", "Removed": "removed", "Deprecated": "deprecated", "Changed": "changed", "Fixed": "fixed", "Added": "added"}  # fmt: skip
_LINK: Final = re.compile(r"\s*\(\[[^]]*\]\([^)]*\)\)|\[([^]]*)\]\([^)]*\)")
MOST_CHANGES: Final = 40
"""Changes that the chart's page shows; the release notes have all."""


class PublishedChange(TypedDict):
    """One entry of `artifacthub.io/changes`."""

    kind: str
    description: str


def release_notes(changelog: str, version: str) -> str:
    """The text below the version's heading, or below `[Unreleased]` before the version has one.

    Raises:
        ShippingError: the changelog has neither, or nothing below it.
    """
    for heading in (version, "Unreleased"):
        found = re.search(rf"(?ms)^## \[{re.escape(heading)}\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog)
        if found and found[1].strip():
            return f"{found[1].strip()}\n"
    raise ShippingError(
        f"CHANGELOG.md says nothing about {version}: expected a section [{version}] or [Unreleased]"
    )


def changes(notes: str) -> Sequence[PublishedChange]:
    """The first changes of the notes, the most important kinds first, as plain text."""
    sections = re.split(r"(?m)^### (\w+)\n", notes)
    texts = dict(zip(sections[1::2], sections[2::2], strict=True))
    found: list[PublishedChange] = [
        {"kind": kind, "description": _LINK.sub(r"\1", bullet).strip()}
        for heading, kind in _KINDS.items()
        for bullet in re.findall(r"(?m)^- (.+)$", texts.get(heading, ""))
    ]
    return found[:MOST_CHANGES]
