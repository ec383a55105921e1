"""Notes of a status, as tests write and read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from breakeven_operator.packed import joined, pack


def notes_of(memory: Mapping[str, Any]) -> str:
    """The notes that hold a memory."""
    return pack({"workings": {"memory": memory}})


def memory_of(status: Mapping[str, Any]) -> dict[str, Any]:
    """The memory that a status' notes hold; empty before there is one."""
    found: dict[str, Any] = (joined(status).get("workings") or {}).get("memory") or {}
    return found
