"""`make matrix`: unit and property tests on every Python that Breakeven promises, and with its oldest dependencies.

Each cell has an environment of its own in `.matrix/`: the Pythons with what `requirements/dev.lock` pins; on the oldest
Python, `lowest` and `lowest-operator` with the oldest version of each direct dependency that `pyproject.toml` allows. They
are two, because the operator's dependencies ask for newer versions of the library's. A Python that this machine does not
have is reported as skipped with the reason; the others are run all the same.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PYTHONS: Final = ("3.11", "3.12", "3.13")
LOWEST: Final = {"lowest": ("engine", "report"), "lowest-operator": ("engine", "report", "operator")}
"""Cells with the oldest dependencies, and the extras whose dependencies these are."""
TESTS: Final = ("tests/unit", "tests/property")
UV: Final = (sys.executable, "-m", "uv")
_LOCK: Final = ROOT / "requirements" / "dev.lock"
# Packages that run the tests are not under test: these stay as locked while the dependencies go down.
_TOOLS: Final = (
    "cryptography",
    "hatchling",
    "hypothesis",
    "mpmath",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
)
_BEYOND: Final = ("breakeven_operator", "kubernetes", "localcluster", "demo")
_PROBE: Final = "import ssl, sys, venv; print('%d.%d' % sys.version_info[:2])"


@dataclass(frozen=True)
class Cell:
    """How one cell of the matrix went."""

    name: str
    passed: bool | None
    """None: skipped."""
    said: str


def interpreters(version: str, path: str, pyenv: Path, managed: Path) -> Iterator[Path]:
    """Where a Python of that version may be: on PATH, in pyenv, among those that `uv python install` brought.

    Args:
        version: "3.12".
        path: as the environment variable PATH.
        pyenv: pyenv's root.
        managed: the folder of uv's interpreters.
    """
    for folder in filter(None, path.split(os.pathsep)):
        yield Path(folder) / f"python{version}"
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)
    yield from sorted(managed.glob(f"cpython-{version}.*/bin/python{version}"), reverse=True)


def works(python: Path, version: str) -> bool:
    """Whether it is that Python, with all that an environment needs; pyenv's shims exist for versions that are off."""
    try:
        done = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def pinned(lock: str, names: Sequence[str]) -> list[str]:
    """The lines `NAME==VERSION` of those packages in a lock."""
    found = dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", lock, re.MULTILINE))
    return [f"{name}=={found[name]}" for name in names]


def _environment(name: str, python: Path) -> Path:
    """An environment with a cell's packages; its Python."""
    folder = ROOT / ".matrix" / name
    inside = folder / "bin" / "python"
    _uv("venv", "--quiet", "--clear", "--no-python-downloads", f"--python={python}", str(folder))
    if name in LOWEST:
        wanted = folder / "requirements.txt"
        _uv(
            *("pip", "compile", "--quiet", "--no-header", "--no-annotate", "--resolution=lowest-direct"),
            *(f"--python={inside}", f"--output-file={wanted}", "pyproject.toml", "-"),
            *(f"--extra={extra}" for extra in LOWEST[name]),
            stdin="\n".join(pinned(_LOCK.read_text(encoding="utf-8"), _TOOLS)),
        )
        _uv("pip", "install", "--quiet", f"--python={inside}", f"--requirement={wanted}")
    else:
        _uv("pip", "install", "--quiet", f"--python={inside}", "--require-hashes", f"--requirement={_LOCK}")
    _uv(
        "pip", "install", "--quiet", f"--python={inside}", "--no-deps", "--no-build-isolation", "--editable=."
    )
    return inside


def _selection(name: str) -> list[str]:
    """The tests of a cell, as arguments of pytest."""
    if name not in LOWEST:
        return list(TESTS)
    # An old release meets new ones of its own dependencies, and warns of them: nothing that a lower bound can help.
    # House rules are about this repository, and want its tools.
    arguments = [*TESTS, "--override-ini=filterwarnings=default", "--ignore=tests/unit/house"]
    if "operator" not in LOWEST[name]:
        arguments += [f"--ignore={file}" for file in beyond_the_library(ROOT)]
    return arguments


def beyond_the_library(root: Path) -> list[str]:
    """Test files that import, themselves or through the helpers beside the tests, more than the library needs."""
    helpers = {
        ".".join(file.relative_to(root / "tests").with_suffix("").parts): file.read_text(encoding="utf-8")
        for folder in ("fakes", "operatorcluster")
        for file in (root / "tests" / folder).glob("*.py")
    }
    beyond = set(_BEYOND)
    while more := {name for name, text in helpers.items() if imports(text) & beyond} - beyond:
        beyond |= more
    files = [file for folder in TESTS for file in sorted((root / folder).rglob("test_*.py"))]
    return [
        str(file.relative_to(root)) for file in files if imports(file.read_text(encoding="utf-8")) & beyond
    ]


def imports(text: str) -> set[str]:
    """Every module that a Python file imports anywhere, each with the packages that it is in."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {".".join(name.split(".")[: n + 1]) for name in found for n in range(name.count(".") + 1)}


def _uv(*arguments: str, stdin: str = "") -> None:
    done = subprocess.run(
        [*UV, *arguments], cwd=ROOT, input=stdin, text=True, stderr=subprocess.PIPE, check=False
    )
    if done.returncode:
        raise ChildProcessError(f"uv {' '.join(arguments[:2])}: {done.stderr.strip()}")


def _run(name: str) -> Cell:
    version = PYTHONS[0] if name in LOWEST else name
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    managed = subprocess.run([*UV, "python", "dir"], capture_output=True, text=True, check=True)
    places = interpreters(version, os.environ.get("PATH", ""), pyenv, Path(managed.stdout.strip()))
    python = next((place for place in places if works(place, version)), None)
    if python is None:
        return Cell(
            name,
            None,
            f"no python{version} on PATH, in pyenv or in uv (get one: uv python install {version})",
        )
    try:
        inside = _environment(name, python)
    except ChildProcessError as problem:
        return Cell(name, False, str(problem))
    began = time.monotonic()
    done = subprocess.run(
        [inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", *_selection(name)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    said = f"{_last(done.stdout)} ({python}, {time.monotonic() - began:.0f} s)"
    if done.returncode:
        sys.stdout.write(done.stdout)
    return Cell(name, done.returncode == 0, said)


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["said nothing"])[-1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells; exit 1 if one failed or none could be run."""
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__)
    names = (*PYTHONS, *LOWEST)
    parser.add_argument("cell", nargs="*", help=f"some of {', '.join(names)} (default: all)")
    wanted = parser.parse_args(arguments).cell or names
    if unknown := sorted(set(wanted) - set(names)):
        parser.error(f"{unknown[0]} is no cell of the matrix; expected some of {', '.join(names)}")
    cells = []
    for name in wanted:
        cells.append(_run(name))
        word = {True: "passed", False: "FAILED", None: "skipped"}[cells[-1].passed]
        sys.stdout.write(f"{name:16} {word:8} {cells[-1].said}\n")
        sys.stdout.flush()
    return 0 if any(cell.passed for cell in cells) and all(cell.passed is not False for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
