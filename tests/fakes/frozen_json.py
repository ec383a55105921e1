"""JSON values that refuse every change: one object for all who read it, in place of a copy for each."""

from __future__ import annotations

import copy
from typing import Any, NoReturn


def frozen(value: Any) -> Any:
    """Returns a copy of a JSON value that nobody can change; what is frozen already is taken as it is.

    It equals the value it was made of, is a dict or a list, and `copy.deepcopy` of it can be changed again.
    """
    kind = type(value)
    if kind is dict:
        return FrozenDict({key: frozen(inner) for key, inner in value.items()})
    if kind is list:
        return FrozenList([frozen(inner) for inner in value])
    return value


def _refused(self: Any, *_arguments: Any, **_named: Any) -> NoReturn:
    raise TypeError(f"this {type(self).__name__} belongs to all who read it: change a copy.deepcopy of it")


class FrozenDict(dict[str, Any]):
    """An object of JSON."""

    __setitem__ = __delitem__ = __ior__ = _refused
    clear = pop = popitem = setdefault = update = _refused

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}


class FrozenList(list[Any]):
    """An array of JSON."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refused
    append = clear = extend = insert = pop = remove = reverse = sort = _refused

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]
