"""Reads in the source of vLLM's versions which speculation each knows: `speculation.py TABLE.json FOLDER...`.

A folder holds the package `vllm` of one version and is called after it (`0.32.0/vllm/...`). Nothing of it is imported:
its syntax trees say the words, so that no GPU and no other package is needed. `pip install --no-deps --target FOLDER`
makes one.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

SPECULATIVE = "vllm/config/speculative.py"
ARGUMENTS = "vllm/engine/arg_utils.py"
# Words of vLLM's main that no released package has yet: commit 05084858 runs suffixes on the GPU.
AHEAD: Mapping[str, Mapping[str, list[str | None]]] = {
    "keys": {"suffix_decoding_corpus_tokens": ["0.34", None]}
}
FLAGS = (
    "--shutdown-timeout",
    "--spec-method",
    "--spec-model",
    "--spec-tokens",
    "--speculative-config",
    "-sc",
)


def words_of(folder: Path) -> dict[str, list[str]]:
    """Methods, keys, ways of verification and flags that one version knows."""
    tree = ast.parse((folder / SPECULATIVE).read_text(encoding="utf-8"))
    named = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    (config,) = (
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "SpeculativeConfig"
    )
    fields = [ast.unparse(node.target) for node in config.body if isinstance(node, ast.AnnAssign)]
    arguments = ast.parse((folder / ARGUMENTS).read_text(encoding="utf-8"))
    return {
        "methods": sorted(_literals(named["SpeculativeMethod"], named)),
        "keys": sorted(name for name in fields if not name.startswith("_")),
        "rejection_sample_method": sorted(
            _literals(named["RejectionSampleMethod"], named) if "RejectionSampleMethod" in named else ()
        ),
        "flags": sorted(
            {
                node.value
                for node in ast.walk(arguments)
                if isinstance(node, ast.Constant) and node.value in FLAGS
            }
        ),
    }


def _literals(node: ast.expr, named: Mapping[str, ast.expr]) -> set[str]:
    """The words of a `Literal[...]`, whose parts may be names of others."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            found.add(part.value)
        elif isinstance(part, ast.Name) and part.id in named:
            found |= _literals(named[part.id], named)
    return found


def spans(read: Mapping[tuple[int, int], Iterable[str]]) -> dict[str, list[str | None]]:
    """First and last version by word; None where the span reaches an end of what was read.

    Raises:
        ValueError: a word went and came again, which a span cannot say.
    """
    versions = sorted(read)
    found: dict[str, list[str | None]] = {}
    for word in sorted({word for words in read.values() for word in words}):
        holds = [version for version in versions if word in read[version]]
        if holds != [version for version in versions if holds[0] <= version <= holds[-1]]:
            raise ValueError(f"{word} is in {holds} and not between")
        first, last = (f"{one[0]}.{one[1]}" for one in (holds[0], holds[-1]))
        found[word] = [
            first if holds[0] != versions[0] else None,
            last if holds[-1] != versions[-1] else None,
        ]
    return found


def table(folders: Iterable[Path]) -> str:
    """The whole table as JSON, one word a line."""
    rows = {folder.name: words_of(folder) for folder in folders}
    names = sorted(rows, key=lambda name: [int(part) for part in name.split(".")[:3]])
    lines = [
        f'{{"source": {json.dumps(f"{SPECULATIVE} and {ARGUMENTS} of the packages of these versions")},',
        f' "read": {json.dumps(names)}',
    ]
    for part in ("methods", "keys", "rejection_sample_method", "flags"):
        found = spans({_minor(name): rows[name][part] for name in names})
        found = dict(sorted({**AHEAD.get(part, {}), **found}.items()))
        words = ",\n".join(f"  {json.dumps(word)}: {json.dumps(ends)}" for word, ends in found.items())
        lines[-1] += ","
        lines += [f' "{part}": {{', words, " }"]
    return "\n".join([*lines, "}"]) + "\n"


def _minor(name: str) -> tuple[int, int]:
    major, minor, *_ = name.split(".")
    return int(major), int(minor)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(table(Path(argument) for argument in sys.argv[2:]), encoding="utf-8")
