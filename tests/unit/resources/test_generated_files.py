"""Committed files that are generated from the models."""

import subprocess
import sys
from pathlib import Path

from breakeven_operator.resources.__main__ import generated, outdated

ROOT = Path(__file__).parents[3]


def test_committed_files_are_what_the_models_say():
    assert outdated(ROOT) == {}


def test_crds_of_the_repository_and_of_the_chart_are_the_same():
    texts = generated()
    for path, text in texts.items():
        if path.parts[0] == "crds":
            assert texts[Path("charts/breakeven/files/crds") / path.name] == text


def test_a_changed_file_is_noticed_shown_and_written_anew(tmp_path):
    for path, text in generated().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    page = tmp_path / "docs" / "reasons.md"
    page.write_text(page.read_text().replace("TakenOver", "TakenAway"))
    command = [sys.executable, "-m", "breakeven_operator.resources", "--root", str(tmp_path)]
    check = subprocess.run([*command, "--check"], capture_output=True, text=True, check=False)
    assert check.returncode == 1
    assert "docs/reasons.md is not what the models say; run `make generate`" in check.stderr
    assert "TakenAway" in check.stderr
    written = subprocess.run([*command, "--write"], capture_output=True, text=True, check=True)
    assert written.stdout == "docs/reasons.md\n"
    assert subprocess.run([*command, "--check"], check=False).returncode == 0
