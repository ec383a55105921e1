"""Kubernetes' `$(VAR)` references in command, args, env values and subPathExpr.

Rules: Kubernetes API reference, Container v1 core, fields `command` and `args`. A reference to an undefined variable
stays unchanged. `$$` is a literal `$`, so `$$(VAR)` never expands. Every other use of `$` means itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# `$$` must be consumed before `$(`: otherwise `$$(VAR)` would expand the reference after a lone `$`.
_REFERENCE = re.compile(r"\$(?:(?P<escape>\$)|\((?P<name>[^)]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replaces every reference that `variables` defines; one pass, values are not expanded again."""

    def value(match: re.Match[str]) -> str:
        if match["escape"]:
            return "$"
        return variables.get(match["name"], match[0])

    return _REFERENCE.sub(value, text)


def expand_all(texts: Iterable[str], variables: Mapping[str, str]) -> list[str]:
    """`expand` for each item of a command line; items stay items whatever the values hold."""
    return [expand(text, variables) for text in texts]
