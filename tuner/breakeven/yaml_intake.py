"""YAML from outside. A module by itself, because most commands read none and start sooner without its library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml


def yaml_documents(text: str) -> Iterator[Any]:
    """The documents of a YAML text, by libyaml where PyYAML has it: a megabyte takes a second in place of forty.

    Raises:
        yaml.YAMLError: it is no YAML.
    """
    return yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
