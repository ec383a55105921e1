"""examples/library.ipynb runs cell by cell, and shows what stands in it.

`PYTHONPATH=tests:. python tests/unit/docs/test_notebook.py` writes the outputs again. Pictures are not stored.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "examples" / "library.ipynb"


def ran(source: str, names: dict[str, Any]) -> tuple[str, Any]:
    """Run a cell as Jupyter does: what it printed, and the value of its last line if that is an expression."""
    tree = ast.parse(source)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body[-1].value)
        del tree.body[-1]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        value = eval(compile(last, "cell", "eval"), names) if last else None
    return printed.getvalue(), value


def outputs(source: str, names: dict[str, Any]) -> tuple[list[dict[str, Any]], Any]:
    printed, value = ran(source, names)
    found: list[dict[str, Any]] = []
    if printed:
        found.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
    if isinstance(value, str | float | list):
        data = {"text/plain": [repr(value)]}
        found.append({"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return found, value


def shown() -> tuple[dict[str, Any], list[list[dict[str, Any]]], list[Any]]:
    """The notebook, what each of its cells of code shows now, and their values."""
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    every = [outputs("".join(cell["source"]), names) for cell in book["cells"] if cell["cell_type"] == "code"]
    return book, [one for one, _ in every], [value for _, value in every]


def test_every_cell_runs_and_shows_what_stands_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MPLBACKEND", "agg")
    book, now, values = shown()
    assert now == [cell["outputs"] for cell in book["cells"] if cell["cell_type"] == "code"]
    assert any(one for one in now)
    (figure,) = [value for value in values if hasattr(value, "savefig")]
    assert figure.axes[0].get_ylabel() == "speedup over no speculation"
    assert book["nbformat"] == 4
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])


if __name__ == "__main__":
    os.chdir(ROOT)
    document, found, _ = shown()
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = found.pop(0)
    NOTEBOOK.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
