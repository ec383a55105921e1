"""Whether the limits that `lint` names stand in vLLM's own code: `limits.py FOLDER...`, folders as for `speculation.py`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

from breakeven.serving.vllm_versions import Limit, VllmVersion, limits


def _name(node: ast.AST) -> object:
    """The name of a function, a class, a variable or an attribute."""
    return next((getattr(node, key) for key in ("name", "attr", "id") if hasattr(node, key)), "")


def stands(limit: Limit, folder: Path) -> bool:
    """Whether the code of one version has the limit's words, in a text or as a name."""
    return any(_has(folder / file, words) for file, words in limit.sources.items())


def _has(file: Path, words: Sequence[str]) -> bool:
    if not file.exists():
        return False
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        text = node.value if isinstance(node, ast.Constant) else _name(node)
        if isinstance(text, str) and any(one in text for one in words):
            return True
    return False


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        folder = Path(argument)
        for limit in limits():
            holds = limit.versions.holds(VllmVersion.of(folder.name))
            verdict = "as said" if stands(limit, folder) == holds else f"NOT AS SAID (expected {holds})"
            sys.stdout.write(f"{folder.name} {limit.what}: {verdict}\n")
