"""PromQL over held series: what the operator's own queries ask, and nothing else.

A library parses the text. Functions, operators and modifiers that no query of ours has are refused by name, because an
evaluator that guesses proves nothing. `cluster/test_promql_evaluation.py` holds the rest to a real Prometheus, on random series.
"""

from __future__ import annotations

import functools
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias, cast

import promql_parser

from fakes.held_series import HeldSeries, NativeHistogram, SeriesStore, Stale
from fakes.promql_values import (
    AGGREGATIONS,
    COMPARED,
    COMPUTED,
    OVER_TIME,
    Labels,
    Ranged,
    RangeSamples,
    RefusedQueryError,
    Value,
    no,
)

_GROUPED = (promql_parser.VectorMatchCardinality.ManyToOne, promql_parser.VectorMatchCardinality.OneToMany)
LOOKBACK_MS = 300_000
"""How long a sample is the present one, as Prometheus has it by default."""
_NAME = "__name__"


class Element(NamedTuple):
    """A series of an instant vector."""

    labels: Labels
    value: Value


Vector: TypeAlias = list[Element]
_OfVector: TypeAlias = Callable[[SeriesStore, int], Vector]
_OfRange: TypeAlias = Callable[[SeriesStore, int], Iterator[RangeSamples]]
_OfScalar: TypeAlias = Callable[[int], float]


def evaluate(store: SeriesStore, promql: str, time_s: float) -> Vector:
    """An instant query's vector.

    Raises:
        RefusedQueryError: it asks what our queries do not, or two elements have the same labels.
    """
    found = _compiled(promql)(store, round(time_s * 1000))
    _distinct(found, promql)
    return found


def evaluate_range(store: SeriesStore, promql: str, time_s: float) -> list[Ranged]:
    """A range vector of an instant query: a selector with a range, or a subquery.

    Raises:
        RefusedQueryError: see `evaluate`.
    """
    return [window.series for window in _compiled_range(promql)(store, round(time_s * 1000))]


@functools.lru_cache(maxsize=256)
def _compiled(promql: str) -> _OfVector:
    return _vector(_parsed(promql))


@functools.lru_cache(maxsize=256)
def _compiled_range(promql: str) -> _OfRange:
    return _range(_parsed(promql))


def _parsed(promql: str) -> promql_parser.Expr:
    try:
        return promql_parser.parse(promql)
    except ValueError as error:
        raise RefusedQueryError(str(error)) from error


def _vector(node: promql_parser.Expr) -> _OfVector:
    if isinstance(node, promql_parser.ParenExpr):
        return _vector(node.expr)
    if isinstance(node, promql_parser.VectorSelector):
        return _instant(node, lambda _at, value: value)
    if isinstance(node, promql_parser.AggregateExpr):
        return _aggregate(node)
    if isinstance(node, promql_parser.BinaryExpr):
        return _binary(node)
    if isinstance(node, promql_parser.Call):
        return _call(node)
    raise no(type(node).__name__)


# Selectors ------------------------------------------------------------------------------------------------


def _chosen(node: promql_parser.VectorSelector) -> Callable[[SeriesStore], Iterator[HeldSeries]]:
    if node.at is not None or node.matchers.or_matchers:
        raise no(f"selector {node}")
    tests = [_test(one) for one in node.matchers.matchers]
    name = node.name

    def chosen(store: SeriesStore) -> Iterator[HeldSeries]:
        named = store.series if name is None else store.named(name)
        return (one for one in named if all(test(one.labels) for test in tests))

    return chosen


def _test(matcher: promql_parser.Matcher) -> Callable[[Labels], bool]:
    name, value, op = matcher.name, matcher.value, matcher.op
    if op == promql_parser.MatchOp.Equal:
        return lambda labels: labels.get(name, "") == value
    if op == promql_parser.MatchOp.NotEqual:
        return lambda labels: labels.get(name, "") != value
    matches = functools.cache(re.compile(value, re.DOTALL).fullmatch)
    wanted = op == promql_parser.MatchOp.Re
    return lambda labels: (matches(labels.get(name, "")) is not None) is wanted


def _offset_ms(node: promql_parser.VectorSelector) -> int:
    return round(node.offset.total_seconds() * 1000) if node.offset is not None else 0


def _instant(node: promql_parser.VectorSelector, of: Callable[[int, Value], Value]) -> _OfVector:
    """The newest sample of each series, or something of its time (ms) and value."""
    chosen, offset_ms = _chosen(node), _offset_ms(node)

    def vector(store: SeriesStore, at_ms: int) -> Vector:
        found = []
        for series in chosen(store):
            place = bisect_right(series.times_ms, at_ms - offset_ms) - 1
            if place < 0 or series.times_ms[place] <= at_ms - offset_ms - LOOKBACK_MS:
                continue
            value = series.values[place]
            if not isinstance(value, Stale):
                found.append(Element(series.labels, of(series.times_ms[place], value)))
        return found

    return vector


def _range(node: promql_parser.Expr) -> _OfRange:
    if isinstance(node, promql_parser.ParenExpr):
        return _range(node.expr)
    if isinstance(node, promql_parser.MatrixSelector):
        return _selected_range(node)
    if isinstance(node, promql_parser.SubqueryExpr):
        return _subquery(node)
    raise no(f"{type(node).__name__} in place of a range")


def _selected_range(node: promql_parser.MatrixSelector) -> _OfRange:
    chosen, offset_ms = _chosen(node.vector_selector), _offset_ms(node.vector_selector)
    range_ms = round(node.range.total_seconds() * 1000)

    def windows(store: SeriesStore, at_ms: int) -> Iterator[RangeSamples]:
        end_ms = at_ms - offset_ms
        for series in chosen(store):
            begin = bisect_right(series.times_ms, end_ms - range_ms)
            end = bisect_right(series.times_ms, end_ms)
            times_ms: Sequence[int] = series.times_ms[begin:end]
            held = series.values[begin:end]
            if any(isinstance(one, Stale) for one in held):
                kept = [
                    (at, one) for at, one in zip(times_ms, held, strict=True) if not isinstance(one, Stale)
                ]
                times_ms, held = [at for at, _ in kept], [one for _, one in kept]
            if times_ms:
                values = cast("Sequence[Value]", held)
                yield RangeSamples(Ranged(series.labels, times_ms, values), end_ms - range_ms, end_ms)

    return windows


def _subquery(node: promql_parser.SubqueryExpr) -> _OfRange:
    if node.offset is not None or node.step is None or node.range is None:
        raise no("a subquery without a step, or with an offset")
    inner, fixed_ms = _vector(node.expr), _fixed_ms(node)
    range_ms, step_ms = (round(one.total_seconds() * 1000) for one in (node.range, node.step))

    def windows(store: SeriesStore, at_ms: int) -> Iterator[RangeSamples]:
        at_ms = at_ms if fixed_ms is None else fixed_ms
        begin_ms = at_ms - range_ms
        found: dict[Hashable, tuple[Labels, list[int], list[Value]]] = {}
        # Steps are whole multiples; the begin does not belong to the range.
        for step in range((begin_ms // step_ms + 1) * step_ms, at_ms + 1, step_ms):
            for labels, value in inner(store, step):
                _, times_ms, values = found.setdefault(_key(labels), (labels, [], []))
                times_ms.append(step)
                values.append(value)
        for labels, times_ms, values in found.values():
            if len(set(times_ms)) < len(times_ms):
                raise RefusedQueryError(f"two elements have the labels {dict(labels)}")
            yield RangeSamples(Ranged(labels, times_ms, values), begin_ms, at_ms)

    return windows


def _fixed_ms(node: promql_parser.SubqueryExpr) -> int | None:
    """The time (ms) at which a subquery ends, if it names one."""
    if node.at is None:
        return None
    if node.at.type is not promql_parser.AtModifierType.At or node.at.at is None:
        raise no("a subquery at the begin or end of a range")
    return round(node.at.at.timestamp() * 1000)


# Functions ------------------------------------------------------------------------------------------------


def _call(node: promql_parser.Call) -> _OfVector:
    name, arguments = node.func.name, node.args
    if name in OVER_TIME:
        return _over_time(OVER_TIME[name], _range(arguments[0]))
    if name == "label_replace":
        return _label_replace(_vector(arguments[0]), *(one.val for one in arguments[1:]))
    if name == "timestamp":
        if not isinstance(arguments[0], promql_parser.VectorSelector):
            raise no("timestamp of what is no selector")
        return _bare(_instant(arguments[0], lambda at_ms, _: at_ms / 1000))
    if name == "vector":
        scalar = _scalar(arguments[0])
        return lambda _, at_ms: [Element({}, scalar(at_ms))]
    if name == "clamp_min":
        least = _scalar(arguments[1])
        return _mapped(_vector(arguments[0]), lambda value, at_ms: _at_least(value, least(at_ms)))
    if name in {"histogram_count", "histogram_sum"}:
        figure = attrgetter("count" if name == "histogram_count" else "total")
        return _mapped(
            _vector(arguments[0]),
            lambda value, _: float(figure(value)) if isinstance(value, NativeHistogram) else None,
        )
    raise no(f"function {name}")


def _scalar(node: promql_parser.Expr) -> _OfScalar:
    if isinstance(node, promql_parser.ParenExpr):
        return _scalar(node.expr)
    if isinstance(node, promql_parser.NumberLiteral):
        number = node.val
        return lambda _: number
    if isinstance(node, promql_parser.Call) and node.func.name == "time":
        return lambda at_ms: at_ms / 1000
    if isinstance(node, promql_parser.BinaryExpr) and str(node.op) == "-":
        left, right = _scalar(node.lhs), _scalar(node.rhs)
        return lambda at_ms: left(at_ms) - right(at_ms)
    raise no(f"scalar {node}")


def _is_scalar(node: promql_parser.Expr) -> bool:
    if isinstance(node, promql_parser.ParenExpr):
        return _is_scalar(node.expr)
    if isinstance(node, promql_parser.BinaryExpr):
        return _is_scalar(node.lhs) and _is_scalar(node.rhs)
    return isinstance(node, promql_parser.NumberLiteral) or (
        isinstance(node, promql_parser.Call) and node.func.name == "time"
    )


def _at_least(value: Value, least: float) -> float | None:
    if isinstance(value, NativeHistogram):
        return None
    return value if math.isnan(value) else max(value, least)


def _mapped(of: _OfVector, how: Callable[[Value, int], Value | None]) -> _OfVector:
    """Another value of each element, without its name; None: it has none."""

    def vector(store: SeriesStore, at_ms: int) -> Vector:
        made = ((labels, how(value, at_ms)) for labels, value in of(store, at_ms))
        return _distinct(
            [Element(_nameless(labels), value) for labels, value in made if value is not None], "a function"
        )

    return vector


def _bare(of: _OfVector) -> _OfVector:
    return _mapped(of, lambda value, _: value)


def _label_replace(of: _OfVector, target: str, replacement: str, source: str, expression: str) -> _OfVector:
    compiled = re.compile(expression, re.DOTALL)
    # Go reads a group that there is not as an empty one.
    template = re.sub(
        r"\$(\d+)",
        lambda found: rf"\g<{found[1]}>" if int(found[1]) <= compiled.groups else "",
        replacement.replace("\\", "\\\\"),
    )

    def vector(store: SeriesStore, at_ms: int) -> Vector:
        found = []
        for labels, value in of(store, at_ms):
            match = compiled.fullmatch(labels.get(source, ""))
            if match is None:
                found.append(Element(labels, value))
                continue
            others = {name: one for name, one in labels.items() if name != target}
            put = match.expand(template)
            found.append(Element({**others, target: put} if put else others, value))
        return _distinct(found, "label_replace")

    return vector


def _over_time(how: Callable[[RangeSamples], Value | None], of: _OfRange) -> _OfVector:
    def vector(store: SeriesStore, at_ms: int) -> Vector:
        made = ((window.series.labels, how(window)) for window in of(store, at_ms))
        return _distinct(
            [Element(_nameless(labels), value) for labels, value in made if value is not None],
            "a function over time",
        )

    return vector


# Aggregations ---------------------------------------------------------------------------------------------


def _aggregate(node: promql_parser.AggregateExpr) -> _OfVector:
    how, modifier = str(node.op), node.modifier
    if how not in AGGREGATIONS or node.param is not None:
        raise no(f"aggregation {how}")
    if modifier is not None and modifier.type != promql_parser.AggModifierType.By:
        raise no("without")
    by, of, put = tuple(modifier.labels if modifier else ()), _vector(node.expr), AGGREGATIONS[how]

    def vector(store: SeriesStore, at_ms: int) -> Vector:
        groups: dict[tuple[str, ...], list[Value]] = {}
        for labels, value in of(store, at_ms):
            groups.setdefault(tuple(labels.get(name, "") for name in by), []).append(value)
        made = ((key, put(values)) for key, values in groups.items())
        return [
            Element({name: one for name, one in zip(by, key, strict=True) if one}, value)
            for key, value in made
            if value is not None
        ]

    return vector


# Operators ------------------------------------------------------------------------------------------------


def _binary(node: promql_parser.BinaryExpr) -> _OfVector:
    op, modifier = str(node.op), node.modifier
    if modifier is not None and (modifier.return_bool or modifier.card in _GROUPED):
        raise no("bool and group_left")
    signature = _signature(modifier.matching if modifier is not None else None)
    if op in {"or", "and", "unless"}:
        return _set_operation(op, _vector(node.lhs), _vector(node.rhs), signature)
    if op not in COMPARED and op not in COMPUTED:
        raise no(f"operator {op}")
    if _is_scalar(node.lhs):
        raise no("a scalar on the left")
    if _is_scalar(node.rhs):
        return _with_scalar(op, _vector(node.lhs), _scalar(node.rhs))
    on = tuple(modifier.matching.labels) if modifier is not None and modifier.matching is not None else None
    return _matched(op, _vector(node.lhs), _vector(node.rhs), signature, on)


def _signature(matching: promql_parser.LabelModifier | None) -> Callable[[Labels], Hashable]:
    if matching is None:
        return lambda labels: _key(_nameless(labels))
    if matching.type != promql_parser.LabelModifierType.Include:
        raise no("ignoring")
    names = tuple(matching.labels)
    return lambda labels: tuple(labels.get(name, "") for name in names)


def _set_operation(
    op: str, left: _OfVector, right: _OfVector, signature: Callable[[Labels], Hashable]
) -> _OfVector:
    def vector(store: SeriesStore, at_ms: int) -> Vector:
        one, other = left(store, at_ms), right(store, at_ms)
        if op == "or":
            if not one or not other:
                return one or other
            known = {signature(labels) for labels, _ in one}
            return [*one, *(element for element in other if signature(element.labels) not in known)]
        wanted = op == "and"
        known = {signature(labels) for labels, _ in other}
        return [element for element in one if (signature(element.labels) in known) is wanted]

    return vector


def _with_scalar(op: str, of: _OfVector, scalar: _OfScalar) -> _OfVector:
    if op in COMPUTED:
        compute = COMPUTED[op]
        return _mapped(
            of,
            lambda value, at_ms: (
                None if isinstance(value, NativeHistogram) else compute(value, scalar(at_ms))
            ),
        )
    compare = COMPARED[op]

    def vector(store: SeriesStore, at_ms: int) -> Vector:
        than = scalar(at_ms)
        return [
            element
            for element in of(store, at_ms)
            if not isinstance(element.value, NativeHistogram) and compare(element.value, than)
        ]

    return vector


def _matched(
    op: str,
    left: _OfVector,
    right: _OfVector,
    signature: Callable[[Labels], Hashable],
    on: tuple[str, ...] | None,
) -> _OfVector:
    """One element to one, by their labels."""

    def vector(store: SeriesStore, at_ms: int) -> Vector:
        sides = left(store, at_ms), right(store, at_ms)
        one, other = ({signature(element.labels): element for element in side} for side in sides)
        if len(one) + len(other) < sum(map(len, sides)):
            raise RefusedQueryError("many-to-many matching")
        found = []
        for key in one.keys() & other.keys():
            labels, value = one[key]
            than = other[key].value
            if isinstance(value, NativeHistogram) or isinstance(than, NativeHistogram):
                continue
            if on is not None:
                labels = {name: labels[name] for name in on if name in labels}
            if op in COMPUTED:
                found.append(Element(_nameless(labels), COMPUTED[op](value, than)))
            elif COMPARED[op](value, than):
                found.append(Element(labels, value))
        return found

    return vector


# Labels ---------------------------------------------------------------------------------------------------


def _key(labels: Labels) -> Hashable:
    return tuple(sorted(labels.items()))


def _nameless(labels: Labels) -> Labels:
    return {name: value for name, value in labels.items() if name != _NAME} if _NAME in labels else labels


def _distinct(found: Vector, where: str) -> Vector:
    if len({_key(labels) for labels, _ in found}) < len(found):
        raise RefusedQueryError(f"{where[:80]}: two elements have the same labels")
    return found
