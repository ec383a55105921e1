"""Makes the board's pictures of the documentation: a fleet in which every state is there, at three widths.

PYTHONPATH=tests:. .venv/bin/python tests/golden/board_pictures.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

from demo.photographs import photograph
from fakes.served_board import served_fleet

PAGES = {"board": "", "service": "services/llm/chat"}

if __name__ == "__main__":
    folder = Path(__file__).parents[2] / "docs" / "images"
    with served_fleet() as address:
        sys.stdout.write(photograph(address, PAGES, folder) + "\n")
    for file in (one for name in PAGES for one in folder.glob(f"{name}-*.png")):
        # A page has few colours: a palette takes a third of the room.
        Image.open(file).convert("RGB").quantize(256).save(file, optimize=True)
