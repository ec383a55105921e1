"""YAML from outside. A module by itself, because most commands read none and start sooner without its library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError

_DEEPEST: Final = 200
_MOST_MERGED: Final = 100_000
_LONGEST_NUMBER: Final = 64
# Errors that PyYAML raises by mistake: of `!!bool x`, `!!timestamp x`, `!!int ""`, a number of base 60.
_MISTAKES: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
# libyaml, if PyYAML has it: a megabyte takes a second in place of forty.
_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _BoundedLoader(_Fast):  # type: ignore[misc]
    """Builds no more than the text is worth: merge keys multiply it, and numbers of base 60 take its length squared."""

    merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        before = len(node.value)
        super().flatten_mapping(node)
        self.merged += max(0, len(node.value) - before)
        if self.merged > _MOST_MERGED:
            raise ConstructorError(None, None, f"merge keys make more than {_MOST_MERGED} members")

    def construct_number(self, node: yaml.ScalarNode) -> float:
        if len(node.value) > _LONGEST_NUMBER:
            raise ConstructorError(None, None, f"a number of more than {_LONGEST_NUMBER} characters")
        as_integer = node.tag.endswith(":int")
        number: float = self.construct_yaml_int(node) if as_integer else self.construct_yaml_float(node)
        return number


for _kind in ("int", "float"):
    _BoundedLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _BoundedLoader.construct_number)


class Written(str):
    """A text that a file holds; `source` is the text as the file writes it, with its quotes."""

    __slots__ = ("source",)
    source: str


def yaml_documents(text: str) -> Iterator[Any]:
    """The documents of a YAML text.

    Raises:
        yaml.YAMLError: it is no YAML, or none that is read: nested deeper than 200 levels, of more merged members, or with
            longer numbers than any file of ours has.
    """
    return _documents(text, _BoundedLoader)


def written_documents(text: str) -> Iterator[Any]:
    """The documents of a YAML text; each text in them is a `Written`. Raises what `yaml_documents` raises."""
    # libyaml does not count a byte order mark.
    text = text.removeprefix("\ufeff")

    class Loader(_BoundedLoader):
        """A loader of its own per text, because a constructor sees no text."""

    def construct(loader: Any, node: yaml.ScalarNode) -> Written:
        value = Written(loader.construct_scalar(node))
        value.source = text[node.start_mark.index : node.end_mark.index]
        return value

    Loader.add_constructor("tag:yaml.org,2002:str", construct)
    return _documents(text, Loader)


def _documents(text: str, loader: type[_BoundedLoader]) -> Iterator[Any]:
    _check_depth(text)
    try:
        yield from yaml.load_all(text, Loader=loader)  # a subclass of the safe one
    except _MISTAKES as mistake:
        raise yaml.YAMLError(f"a value that cannot be read ({type(mistake).__name__})") from mistake


def _check_depth(text: str) -> None:
    """Look at the nesting first: libyaml's reader recurses in C, and a text of 60 KB ends the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_Fast):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                raise yaml.YAMLError(f"nested deeper than {_DEEPEST} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
