"""PromQL built from users' text without letting the text become PromQL."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OPERATORS = frozenset({"=", "!=", "=~", "!~"})


class Matcher(NamedTuple):
    """One label matcher; `value` is raw text."""

    label: str
    operator: str
    value: str

    def render(self) -> str:
        """PromQL text.

        Raises:
            ValueError: the label is no label name, or the operator none of PromQL's.
        """
        if not _LABEL_NAME.fullmatch(self.label):
            raise ValueError(f"{self.label!r} is not a Prometheus label name")
        if self.operator not in _OPERATORS:
            raise ValueError(f"{self.operator!r} is not a PromQL matching operator")
        return f"{self.label}{self.operator}{quoted(self.value)}"


def quoted(text: str) -> str:
    r"""A PromQL string literal of any text: what is between the quotes can end neither the string nor the query.

    PromQL reads Go's escapes; \ and " are escaped, line ends and other control characters become \n or \xNN.
    """
    named = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    shown = "".join(
        named.get(c) or (f"\\x{ord(c):02x}" if ord(c) < 0x20 or ord(c) == 0x7F else c) for c in text
    )
    return f'"{shown}"'


def any_of(values: Iterable[str]) -> str:
    """A regular expression that matches exactly these texts (RE2, anchored by Prometheus)."""
    return "|".join(re.escape(value).replace("\\-", "-") for value in sorted(values))


def selector(matchers: Iterable[Matcher]) -> str:
    """`{a="b",...}`, or nothing for no matchers."""
    rendered = ",".join(matcher.render() for matcher in matchers)
    return "{" + rendered + "}" if rendered else ""
