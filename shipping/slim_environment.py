"""Removes from the image's environment what its programs never load, and compiles the rest; a step of the Dockerfile.

Only the standard library is imported, because the environment itself is what is cut. Each removal is proved at once: every import
that our sources contain, those inside functions too, is carried out in what is left.
"""

from __future__ import annotations

import ast
import compileall
import importlib
import py_compile
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

OURS: Final = ("breakeven", "breakeven_operator")
REMOVED: Final = (
    # The client's typed models and calls: we read and write JSON, and these modules are loaded by name when asked for.
    "kubernetes/client/api",
    "kubernetes/client/models/v[0-9]*.py",
    "kubernetes/aio/client/api",
    "kubernetes/aio/client/models/v[0-9]*.py",
    "kubernetes/test",
    # All of scipy but special, and linalg, which special loads from scipy 1.18 on.
    *(
        f"scipy/{part}"
        for part in (
            "_lib/cobyqa",
            "_lib/pyprima",
            "cluster",
            "constants",
            "datasets",
            "differentiate",
            "fft",
            "fftpack",
            "integrate",
            "interpolate",
            "io",
            "misc",
            "ndimage",
            "odr",
            "optimize",
            "signal",
            "sparse",
            "spatial",
            "stats",
        )
    ),
    # Of the client of Prometheus: it parses dates for those who ask in words. We ask in seconds, and these modules are never imported.
    "dateparser",
    "dateparser_*",
    "pytz",
    "regex",
    "tzlocal",
    # Of the colours for source text that rich can print: our commands print none.
    "pygments/lexers/[a-z]*",
    # Compilers' files and tests.
    "numpy/distutils",
    "numpy/_core/_*tests.*.so",
    "numpy/_core/_simd.*.so",
    "numpy/f2py/src",
    "numpy/_core/include",
    "numpy/_core/lib",
    "numpy/random/lib",
    "numpy/random/_examples",
    "**/tests",
    "**/*.pyi",
    "**/*.pxd",
    "**/*.pyx",
    "**/*.h",
    "**/*.c",
    "**/*.a",
    # The folder that the source was built from says nothing to a user.
    "breakeven-*.dist-info/direct_url.json",
)
"""Paths below site-packages."""
ACTIVATION: Final = ("activate", "activate.csh", "activate.fish", "Activate.ps1")
"""Scripts of the environment for shells, which the image does not have."""


def removed(packages: Path) -> Iterator[Path]:
    """The files and folders below `packages` that match `REMOVED`, none inside another."""
    found = {path for pattern in REMOVED for path in packages.glob(pattern)}
    return (path for path in sorted(found) if not found.intersection(path.parents))


def imports(packages: Path) -> frozenset[str]:
    """Absolute imports in our sources, wherever they stand, by module; and our own modules."""
    names = set()
    for package in OURS:
        for file in sorted((packages / package).rglob("*.py")):
            module = file.relative_to(packages).with_suffix("").as_posix().replace("/", ".")
            names.add(module.removesuffix(".__init__"))
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.Import):
                    names.update(alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names.add(node.module)
    return frozenset(names)


def broken_imports(packages: Path) -> Sequence[str]:
    """Imports that fail though their package is installed: those of packages that are not belong to other uses."""
    failed = []
    for name in sorted(imports(packages)):
        top = packages / name.partition(".")[0]
        if name.endswith("__main__") or not (top.exists() or top.with_suffix(".py").exists()):
            continue
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A page's pictures, say: the module of ours names a package that the image does without.
            missing = (error.name or "").partition(".")[0]
            if (packages / missing).exists():
                failed.append(f"{name}: {error}")
        except ImportError as error:
            failed.append(f"{name}: {error}")
    return failed


def compiled(modules: Iterable[ModuleType], packages: Path) -> bool:
    """Writes byte code of modules below `packages`; it holds no time, so it is the same in every build and is never written again.

    The other modules, which no import of ours loads, are compiled when somebody loads them.
    """
    files = {Path(file) for module in modules if (file := getattr(module, "__file__", None))}
    wanted = sorted(file for file in files if file.suffix == ".py" and packages in file.parents)
    by_content = py_compile.PycInvalidationMode.UNCHECKED_HASH
    return all(
        compileall.compile_file(file, quiet=1, force=True, invalidation_mode=by_content) for file in wanted
    )


def cut(packages: Path) -> None:
    """Removes what is not needed."""
    for path in removed(packages):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in ACTIVATION:
        (Path(sys.prefix) / "bin" / name).unlink(missing_ok=True)


def main() -> int:
    """Cuts the environment of the running Python; exit 1 with the imports that no longer work."""
    packages = next(Path(sys.prefix).glob("lib/python3.*/site-packages"))
    cut(packages)
    failed = broken_imports(packages)
    for line in failed:
        sys.stderr.write(f"the image lacks what its programs import: {line}\n")
    return 0 if not failed and compiled(tuple(sys.modules.values()), packages) else 1


if __name__ == "__main__":
    sys.exit(main())
