"""`make pictures`: what the last demo photographed, and the site, as the pictures of docs/images, at a third of the size."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageChops

from demo.performance import RESULTS
from demo.photographs import WINDOWS, photograph

_ROOT = Path(__file__).resolve().parent.parent
_MARGIN = 24


def main(names: Sequence[str]) -> int:
    """Copy the pictures of these pages; 1 and one line if one is missing, and then none is copied."""
    said = (
        photograph(f"{(_ROOT / '.site').as_uri()}/", {"site": "index.html"}, RESULTS)
        if "site" in names
        else ""
    )
    files = [RESULTS / f"{name}-{width}.png" for name in names for width in WINDOWS]
    if missing := [file.name for file in files if not file.exists()]:
        sys.stderr.write(
            f"breakeven: .demo has no {', '.join(missing)}; expected those of a whole `make demo`; {said or 'a Chromium takes them'}\n"
        )
        return 1
    images = _ROOT / "docs" / "images"
    for file in files:
        # A page has few colours, and small ones are arms: a palette that covers them all takes a third of the room.
        with Image.open(file) as taken:
            _without_foot(taken.convert("RGB")).quantize(256, Image.Quantize.MAXCOVERAGE).save(
                images / file.name, optimize=True
            )
    total_kb = sum((images / file.name).stat().st_size for file in files) / 1000
    sys.stdout.write(f"docs/images: {len(files)} pictures, {total_kb:.0f} kB\n")
    return 0


def _without_foot(picture: Image.Image) -> Image.Image:
    """The picture without what is blank below a short page."""
    blank = Image.new("RGB", picture.size, picture.getpixel((0, picture.height - 1)))
    painted = ImageChops.difference(picture, blank).getbbox() or (0, 0, *picture.size)
    return picture.crop((0, 0, picture.width, min(picture.height, painted[3] + _MARGIN)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
