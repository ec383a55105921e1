"""Screenshots of pages: of the board while the demo's cluster is up, and of what the demo writes; if a Chromium is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

WINDOWS = {1440: 1000, 1280: 900, 390: 844}
"""Widths of the pictures, and how much of a page each shows."""

# Of a window's height the frame of a browser takes some, which a busy machine's Chromium leaves blank in the picture.
_FRAME = 200
_LONGEST_S = 60.0
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def photograph(address: str, pages: Mapping[str, str], folder: Path) -> str:
    """Write `NAME-WIDTH.png` of each page at each width into a folder; a sentence about what was done, or why nothing was.

    Args:
        address: of the board or of a folder, with a slash at its end.
        pages: path below the address by name.
        folder: must exist.
    """
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        return "no screenshots: there is no Chromium (Debian, Ubuntu: apt-get install chromium)"
    files = {
        folder / f"{name}-{width}.png": (path, width) for name, path in pages.items() for width in WINDOWS
    }
    for file, (path, width) in files.items():
        file.unlink(missing_ok=True)
        problem = _shot(program, address + path, file, width, WINDOWS[width])
        if problem:
            return f"no screenshots: {Path(program).name} {problem}"
    return f"screenshots: {', '.join(map(os.path.relpath, files))}"


def _shot(program: str, url: str, file: Path, width: int, height: int) -> str:
    """Write one screenshot; empty, or why there is none."""
    # Chromium's sandbox refuses root, who runs the demo in containers.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as profile:
        try:
            done = subprocess.run(
                [
                    program, "--headless=new", *sandbox, "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                    f"--user-data-dir={profile}", f"--window-size={width},{height + _FRAME}", f"--screenshot={file.resolve()}", url,
                ],
                capture_output=True, text=True, check=False, timeout=_LONGEST_S,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"failed: {type(error).__name__}"
    if not file.exists():
        return f"wrote no picture (exit status {done.returncode})"
    with Image.open(file) as taken:
        taken.crop((0, 0, width, height)).save(file)
    return ""
