"""Whether the limits that `lint` names stand in vLLM's own code: `limits.py FOLDER...`, folders as for `speculation.py`."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from breakeven.serving.hindrances import LIMITS, Limit
from breakeven.serving.vllm_versions import VllmVersion


def _name(node: ast.AST) -> object:
    """The name of a function, a class, a variable or an attribute."""
    return next((getattr(node, key) for key in ("name", "attr", "id") if hasattr(node, key)), "")


def stands(limit: Limit, folder: Path) -> bool:
    """Whether the code of one version has the limit's words, in a text or as a name."""
    file = folder / limit.file
    if not file.exists():
        return False
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        text = node.value if isinstance(node, ast.Constant) else _name(node)
        if isinstance(text, str) and any(words in text for words in limit.words):
            return True
    return False


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        folder = Path(argument)
        for limit in LIMITS.values():
            holds = limit.versions.holds(VllmVersion.of(folder.name))
            verdict = "as said" if stands(limit, folder) == holds else f"NOT AS SAID (expected {holds})"
            sys.stdout.write(f"{folder.name} {limit.what}: {verdict}\n")
