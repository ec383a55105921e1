"""Versions of vLLM: which one an image runs, and which words each of them knows.

The table `vllm_speculation.json` was read from vLLM's own packages by `tests/realvllm/speculation.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_TABLE = "vllm_speculation.json"
_TAG = re.compile(r"v?([01])\.(\d{1,3})(?![\d])(?:\.\d+)?(?:\.?(?:post|rc|dev)\d+)?(?:[-_.+].*)?")
# Images that are called after vLLM and count versions of their own.
_OTHERS = re.compile(r"(?:^|/)(?:lmcache|ai-dynamo|opea)/|vllm-(?:runtime|gaudi)|scaler-vllm")
_INSIDE = re.compile(r"(?:^|[-_.])vllm[-_]?v?([01])\.(\d{1,3})(?!\d)")


class VllmVersion(NamedTuple):
    """Major and minor version."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def of(cls, text: str) -> VllmVersion:
        """The version that `0.32` or `0.32.1` says."""
        major, minor = text.split(".")[:2]
        return cls(int(major), int(minor))


@dataclass(frozen=True, slots=True)
class Span:
    """The versions that know a word; an end is None if the oldest or the newest version of the table knows it too."""

    first: VllmVersion | None
    last: VllmVersion | None

    @classmethod
    def of(cls, ends: Iterable[str | None]) -> Span:
        """The span between two versions in words; None where it is open."""
        return cls(*(VllmVersion.of(end) if end is not None else None for end in ends))

    def holds(self, version: VllmVersion) -> bool:
        """Whether a version knows the word."""
        return (self.first is None or version >= self.first) and (self.last is None or version <= self.last)


SHUTDOWN_TIMEOUT = VllmVersion(0, 18)
"""The first version with `--shutdown-timeout`."""
OLDEST = VllmVersion(0, 14)
"""The oldest supported version: older ones answer some requests otherwise than asked while they speculate."""


def version_of(image: str) -> VllmVersion | None:
    """The version of vLLM that an image's tag names; None if it names none.

    A tag counts only of an image that is called after vLLM, because others have versions of their own. A calendar
    (`25.09-py3`, `2025-05-27-v1`) is no vLLM version.
    """
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    if inside := _INSIDE.search(tag):
        return VllmVersion(int(inside[1]), int(inside[2]))
    own = "vllm" in name.lower() and not _OTHERS.search(image.partition("@")[0].lower())
    found = _TAG.fullmatch(tag) if own else None
    return VllmVersion(int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True, slots=True)
class Known:
    """The table: versions that were read, and the words of `--speculative-config` and flags that each knows."""

    oldest: VllmVersion
    newest: VllmVersion
    methods: dict[str, Span]
    keys: dict[str, Span]
    flags: dict[str, Span]
    verification: dict[str, Span]


@cache
def known() -> Known:
    """The table."""
    table = json.loads(files("breakeven.serving").joinpath(_TABLE).read_text(encoding="utf-8"))
    read = [VllmVersion.of(version) for version in table["read"]]
    return Known(
        min(read),
        max(read),
        *(
            {word: Span.of(ends) for word, ends in table[part].items()}
            for part in ("methods", "keys", "flags", "rejection_sample_method")
        ),
    )
