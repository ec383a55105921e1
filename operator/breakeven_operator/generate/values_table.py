"""The table of values in the chart's README, made of its defaults and of the descriptions in its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

README: Final = Path("charts/breakeven/README.md")
_HEADING: Final = "## Values\n"
_TABLE: Final = "\n| value | default | meaning |\n|---|---|---|\n"


def chart_readme(root: Path) -> str:
    """The README below `root` with its last section, the table, made again."""
    folder = (root / README).parent
    values = yaml.safe_load((folder / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((folder / "values.schema.json").read_text(encoding="utf-8"))
    head, heading, _ = (root / README).read_text(encoding="utf-8").partition(_HEADING)
    return f"{head}{heading or _HEADING}{_TABLE}{''.join(_rows(values, schema, ''))}"


def _rows(values: Mapping[str, Any], schema: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, described in schema["properties"].items():
        if "properties" in described:
            yield from _rows(values[name], described, f"{prefix}{name}.")
        elif name != "global":  # Helm adds it to every subchart
            yield f"| `{prefix}{name}` | `{json.dumps(values[name])}` | {described['description']} |\n"
