"""Committed files that are generated from the models."""

from pathlib import Path

import pytest
import yaml

from shipping.generate.__main__ import README, generated, main, outdated
from shipping.generate.definitions import DEFINITIONS

ROOT = Path(__file__).parents[3]


def test_committed_files_are_what_the_models_say():
    assert outdated(ROOT) == {}


@pytest.fixture(scope="module")
def texts():
    return generated(ROOT)


def test_crds_of_the_repository_and_of_the_chart_are_the_same(texts):
    for path, text in texts.items():
        if path.parts[0] == "crds":
            assert texts[Path("charts/breakeven/files/crds") / path.name] == text


def test_a_changed_file_is_noticed_shown_and_written_anew(texts, tmp_path, capsys):
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for name in ("values.yaml", "values.schema.json"):
        (tmp_path / README.parent / name).write_text((ROOT / README.parent / name).read_text())
    page = tmp_path / "docs" / "reasons.md"
    page.write_text(page.read_text().replace("TakenOver", "TakenAway"))
    root = ["--root", str(tmp_path)]
    assert main([*root, "--check"]) == 1
    said = capsys.readouterr().err
    assert "docs/reasons.md is not what the models say; run `make generate`" in said
    assert "TakenAway" in said
    assert main([*root, "--write"]) == 0
    assert capsys.readouterr().out == "docs/reasons.md\n"
    assert main([*root, "--check"]) == 0


def test_without_a_wish_the_crds_are_printed_for_kubectl(capsys):
    assert main([]) == 0
    printed = [document["metadata"]["name"] for document in yaml.safe_load_all(capsys.readouterr().out)]
    assert printed == [f"{definition.plural}.breakeven.dev" for definition in DEFINITIONS]
