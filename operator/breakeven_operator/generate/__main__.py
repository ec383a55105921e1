"""Generated files: `python -m breakeven_operator.generate` prints the CRDs, `--write` and `--check` keep the copies.

The copies are committed so that `kubectl apply -f crds/`, the chart and its dashboard work without Python; `--check` (in
`make check`) holds them equal to the models.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from breakeven_operator.generate.dashboard import dashboard_json
from breakeven_operator.generate.krew_manifest import krew_manifest
from breakeven_operator.generate.pages import api_page, metrics_page, reasons_page
from breakeven_operator.generate.pictures import pictures
from breakeven_operator.generate.values_table import README, chart_readme
from breakeven_operator.resources.definitions import DEFINITIONS, to_yaml

CRD_FOLDERS = (Path("crds"), Path("charts/breakeven/files/crds"))


def generated(root: Path) -> dict[Path, str]:
    """Every generated file, relative to the repository's root, with its text."""
    crds = {definition.file_name: to_yaml(definition) for definition in DEFINITIONS}
    files = {folder / name: text for folder in CRD_FOLDERS for name, text in crds.items()}
    files[Path("charts/breakeven/files/dashboard.json")] = dashboard_json()
    files[README] = chart_readme(root)
    files[Path("packaging/krew/breakeven.yaml")] = krew_manifest()
    files[Path("docs/api.md")] = api_page()
    files[Path("docs/metrics.md")] = metrics_page()
    files[Path("docs/reasons.md")] = reasons_page()
    files |= {Path("docs/images") / name: text for name, text in pictures().items()}
    return files


def outdated(root: Path) -> dict[Path, str]:
    """The files whose committed text differs, with the difference to show."""
    result = {}
    for path, wanted in generated(root).items():
        file = root / path
        found = file.read_text() if file.exists() else ""
        if found != wanted:
            lines = difflib.unified_diff(
                found.splitlines(), wanted.splitlines(), f"{path}", "generated", lineterm="", n=1
            )
            result[path] = "\n".join(list(lines)[:20])
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Print, write or check; exit 1 if a committed file is not what the models say."""
    parser = argparse.ArgumentParser(prog="python -m breakeven_operator.generate", description=__doc__)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help="write every generated file below --root")
    action.add_argument("--check", action="store_true", help="compare them, exit 1 on a difference")
    parser.add_argument("--root", type=Path, default=Path(), help="root of the repository (default: here)")
    options = parser.parse_args(arguments)
    if options.write:
        for path in outdated(options.root):
            file = options.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(generated(options.root)[path])
            sys.stdout.write(f"{path}\n")
        return 0
    if options.check:
        differences = outdated(options.root)
        for path, difference in differences.items():
            sys.stderr.write(f"{path} is not what the models say; run `make generate`\n{difference}\n")
        return 1 if differences else 0
    sys.stdout.write("---\n".join(to_yaml(definition) for definition in DEFINITIONS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
