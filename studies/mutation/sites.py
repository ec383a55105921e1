"""The mutants of a source text: one small change each, by Python's own syntax tree; pure."""

from __future__ import annotations

import ast
import copy
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_COMPARED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "maximum": "minimum", "minimum": "maximum"}
_FACTOR = 1.5
# Messages are compared by golden tests; what a type says is not evaluated; a decorator says how a class is made.
_UNSEEN = ("annotation", "returns", "decorator_list", "exc", "type_params")


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """One change, identified by its text: it is found again wherever its function has moved in the file.

    Attributes:
        path: of the source, from the root.
        function: qualified name; empty in the module's own body.
        before, after: the expression or statement, as Python unparses it.
        number: of several equal changes in the function, which one.
    """

    path: str
    function: str
    before: str
    after: str
    number: int = 0

    def __str__(self) -> str:
        count = f" ({self.number + 1})" if self.number else ""
        return f"{self.path} {self.function or '(module)'}: {self.before} -> {self.after}{count}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Site:
    """The place of a mutant in one text.

    Attributes:
        mutant: which.
        lines: of the statement that holds it, first and last; a compound statement's head alone.
        span: first and last byte of what is replaced.
        text: what stands there then.
    """

    mutant: Mutant
    lines: tuple[int, int]
    span: tuple[int, int]
    text: str

    def in_source(self, source: str) -> str:
        """The whole text with the change."""
        whole, (begin, end) = source.encode(), self.span
        return (whole[:begin] + self.text.encode() + whole[end:]).decode()


def sites(path: str, source: str) -> Iterator[Site]:
    """All mutants of a text, in its order.

    Args:
        path: goes into the mutants.
        source: Python.
    """
    tree = ast.parse(source)
    offsets = _line_offsets(source)
    seen: dict[tuple[str, str, str], int] = {}
    for node, function, lines in _walk(tree, "", (0, 0)):
        for changed in _changes(node):
            before, after = ast.unparse(node), ast.unparse(changed)
            key = (function, before, after)
            number = seen[key] = seen.get(key, -1) + 1
            begin = offsets[node.lineno - 1] + node.col_offset
            end = offsets[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            # In parentheses: what stands around the expression binds as tightly as before.
            new = after if isinstance(node, ast.stmt) else f"({after})"
            yield Site(Mutant(path, function, before, after, number), lines, (begin, end), new)


def drawn(packages: Sequence[Mapping[str, str]], count: int, seed: int) -> list[Mutant]:
    """A sample of the mutants of some packages, as many of each: the same one for the same texts, count and seed.

    Args:
        packages: text by path, of each.
        count: how many at most.
        seed: of the draw.
    """
    random_order = random.Random(seed)  # nothing is kept secret
    shuffled = []
    for sources in packages:
        every = [site.mutant for path in sorted(sources) for site in sites(path, sources[path])]
        shuffled.append(random_order.sample(every, len(every)))
    in_turn = (one for turn in itertools.zip_longest(*shuffled) for one in turn if one is not None)
    return sorted(itertools.islice(in_turn, count))


def found(mutant: Mutant, source: str) -> Site | None:
    """The place of a mutant in a text; None if its function or its expression is not there any more."""
    return next((site for site in sites(mutant.path, source) if site.mutant == mutant), None)


def _line_offsets(source: str) -> list[int]:
    offsets = [0]
    for line in source.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    return offsets


def _walk(node: ast.AST, function: str, lines: tuple[int, int]) -> Iterator[tuple[Any, str, tuple[int, int]]]:
    for name, value in ast.iter_fields(node):
        if name in _UNSEEN:
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _said(child):
                continue
            within, at = function, lines
            if isinstance(child, ast.stmt):
                at = _head(child)
            if isinstance(child, ast.expr | ast.stmt):
                yield child, within, at
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                within = f"{function}.{child.name}".lstrip(".")
            yield from _walk(child, within, at)


def _said(node: ast.AST) -> bool:
    """Texts, and what no run can show."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    # `zip(strict=True)` says that lengths are equal; where they are, it changes nothing.
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return True
    # Inside of a formatted string, Python 3.11 gives no positions.
    return isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom)


def _head(statement: ast.stmt) -> tuple[int, int]:
    body = getattr(statement, "body", None)
    last = statement.end_lineno or statement.lineno
    return statement.lineno, max(statement.lineno, body[0].lineno - 1) if body else last


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    yield from _other_operators(node)
    yield from _other_values(node)
    yield from _other_statements(node)


def _other_operators(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                operators: list[ast.cmpop] = list(node.ops)
                operators[index] = _COMPARED[type(operator)]()
                yield _with(node, ops=operators)
        case ast.BinOp() if type(node.op) in _COMPUTED and not _textual(node):
            yield _with(node, op=_COMPUTED[type(node.op)]())
        case ast.BoolOp():
            yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.IfExp():
            yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))


def _other_values(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int(number)):
            yield ast.Constant(number + 1)
        case ast.Constant(value=float(number)):
            yield ast.Constant(number * _FACTOR or 1.0)
        case ast.Call(func=ast.Name(id=name)) if name in _CALLED:
            yield _with(node, func=ast.Name(_CALLED[name]))
        case ast.Call(func=ast.Attribute(attr=name)) if name in _CALLED:
            yield _with(node, func=_with(node.func, attr=_CALLED[name]))


def _other_statements(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))
        case ast.Raise() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Continue():
            yield ast.Break()


def _textual(node: ast.BinOp) -> bool:
    return any(
        isinstance(one, ast.JoinedStr) or (isinstance(one, ast.Constant) and isinstance(one.value, str))
        for one in (node.left, node.right)
    )


def _with(node: Any, **changed: Any) -> Any:
    other = copy.copy(node)
    for name, value in changed.items():
        setattr(other, name, value)
    return other
