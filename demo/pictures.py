"""`make pictures`: what the last demo photographed, and the site, as the pictures of docs/images, at a third of the size."""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

from demo.performance import RESULTS
from demo.photographs import WINDOWS, photograph

_ROOT = Path(__file__).resolve().parent.parent
NAMES = ("board", "service", "report", "demo", "site")


def main() -> int:
    """Copy them; 1 and one line if a picture is missing, and then none is copied."""
    said = photograph(f"{(_ROOT / '.site').as_uri()}/", {"site": "index.html"}, RESULTS)
    files = [RESULTS / f"{name}-{width}.png" for name in NAMES for width in WINDOWS]
    if missing := [file.name for file in files if not file.exists()]:
        sys.stderr.write(
            f"breakeven: .demo has no {', '.join(missing)}; expected those of a whole `make demo` ({said})\n"
        )
        return 1
    images = _ROOT / "docs" / "images"
    for file in files:
        # A page has few colours: a palette takes a third of the room.
        Image.open(file).convert("RGB").quantize(256).save(images / file.name, optimize=True)
    total_kb = sum((images / file.name).stat().st_size for file in files) / 1000
    sys.stdout.write(f"docs/images: {len(files)} pictures, {total_kb:.0f} kB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
