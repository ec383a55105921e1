"""The operator's image leaves the instrument out."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_image_is_built_without_the_instrument():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    # The last line that matches a path wins.
    assert ignored.index("tuner/breakeven_sim") > ignored.index("!tuner")
