"""PromQL built from users' text without letting the text become PromQL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OPERATORS = frozenset({"=", "!=", "=~", "!~"})
WHOLE_ANSWERS: Final[Mapping[str, str]] = {
    "partial_response": "false",
    "deny_partial_response": "1",
    "max_source_resolution": "0s",
}
"""Parameters beside every query: an answer without the share of a store that is down must be an error, never a low load.

Thanos knows the first, a cluster of VictoriaMetrics the second. The third keeps Thanos from answering with means of several
samples in place of counters. Prometheus ignores all of them.
"""


# A label's name as an argument of label_replace, any other text (a matcher's value comes behind = or ~), or a name.
_WORD = re.compile(r'(?<![=~])"(namespace|pod)"|"(?:\\.|[^"\\])*"|[a-zA-Z_:][a-zA-Z0-9_:]*', re.DOTALL)
_OTHER_EXPORTERS = ("kube_", "DCGM_")
_SUBQUERY = re.compile(r"\((.*)\)\[(\d+)s:(\d+)s\](?: @ (\d+))?", re.DOTALL)
_ESCAPES = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F)},
    **str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}),
}


class Matcher(NamedTuple):
    """One label matcher; `value` is raw text."""

    label: str
    operator: str
    value: str

    def render(self) -> str:
        """PromQL text; raises ValueError if the label is no label name, or PromQL has no such operator."""
        if not _LABEL_NAME.fullmatch(self.label):
            raise ValueError(f"{self.label!r} is not a Prometheus label name")
        if self.operator not in _OPERATORS:
            raise ValueError(f"{self.operator!r} is not a PromQL matching operator")
        return f"{self.label}{self.operator}{quoted(self.value)}"


def quoted(text: str) -> str:
    r"""A PromQL string literal of any text: what is between the quotes can end neither the string nor the query.

    PromQL reads Go's escapes; \ and " are escaped, line ends and other control characters become \n or \xNN.
    """
    return f'"{text.translate(_ESCAPES)}"'


def any_of(values: Iterable[str]) -> str:
    """A regular expression that matches exactly these texts (RE2, anchored by Prometheus)."""
    return "|".join(re.escape(value).replace("\\-", "-") for value in sorted(values))


def selector(matchers: Iterable[Matcher]) -> str:
    """`{a="b",...}`, or nothing for no matchers."""
    rendered = ",".join(matcher.render() for matcher in matchers)
    return "{" + rendered + "}" if rendered else ""


class LabelNames(NamedTuple):
    """Names that a Prometheus has for the labels of a pod, if a federation or relabelling has renamed them in engines' series.

    Questions are written, and answers are read, with `namespace` and `pod`. Only the client of a server translates.
    """

    namespace: str = "namespace"
    pod: str = "pod"

    @classmethod
    def of(cls, pairs: Iterable[str]) -> LabelNames:
        """The names that texts such as `pod=exported_pod` give.

        Raises:
            ValueError: one gives none, or both names are the same.
        """
        given = dict(pair.partition("=")[::2] for pair in pairs)
        names = cls(**given) if given.keys() <= set(cls._fields) else None
        if names is None or not all(map(_LABEL_NAME.fullmatch, names)) or names.namespace == names.pod:
            raise ValueError("namespace=LABEL or pod=LABEL, two names of letters, digits and _")
        return names

    def asked(self, promql: str) -> str:
        """A question in the server's names; questions about series of other exporters stay as they are."""
        if self == SAME_LABELS or any(
            found[0].startswith(_OTHER_EXPORTERS) for found in _WORD.finditer(promql)
        ):
            return promql
        names = self._asdict()
        return _WORD.sub(
            lambda found: f'"{names[found[1]]}"' if found[1] else names.get(found[0], found[0]), promql
        )

    def given(self, labels: Mapping[str, str]) -> dict[str, str]:
        """The labels of an answer in our names."""
        ours = {our: labels[name] for our, name in self._asdict().items() if name in labels}
        return {name: labels[name] for name in labels if name not in {*self, *self._fields}} | ours


SAME_LABELS: Final = LabelNames()
"""Of servers that keep the labels as scrapes give them."""


class RangeQuestion(NamedTuple):
    """A range query: the expression at `first_s` (Unix time, s), and each `step_s` until `last_s`."""

    promql: str
    first_s: int
    last_s: int
    step_s: int

    @classmethod
    def of_subquery(cls, promql: str, now_s: float) -> RangeQuestion | None:
        """The times and values of a subquery, by which servers mean different times; None if it is no subquery.

        Args:
            promql: `(EXPRESSION)[SPANs:STEPs]`, or the same with `@ TIME` behind it.
            now_s: Unix time at which the span ends if no time is given.
        """
        found = _SUBQUERY.fullmatch(promql)
        if found is None:
            return None
        expression, span_s, step_s, at_s = found[1], int(found[2]), int(found[3]), found[4]
        end_s = now_s if at_s is None else int(at_s)
        # Times of a subquery are multiples of its step; the beginning of the span is not in it.
        steps_before, steps = (int(time_s // step_s) for time_s in (end_s - span_s, end_s))
        return cls(expression, (steps_before + 1) * step_s, steps * step_s, step_s)
