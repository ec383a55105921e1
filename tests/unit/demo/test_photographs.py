"""Screenshots are taken where a Chromium is, and one line says why there are none elsewhere."""

from __future__ import annotations

import pytest
from PIL import Image

from demo.photographs import photograph

PAGES = {"board": "", "chat": "services/demo/chat"}


def browser(tmp_path, monkeypatch, script):
    programs = tmp_path / "bin"
    programs.mkdir()
    if script:
        program = programs / "chromium"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        Image.new("RGB", (1440, 1200)).save(f"{program}.png")
    monkeypatch.setenv("PATH", f"{programs}:/usr/sbin" if not script else f"{programs}:/bin:/sbin")
    return tmp_path


TAKES = """
for word in "$@"; do
  case "$word" in --screenshot=*) file="${word#--screenshot=}";; http*) url="$word";; esac
done
cp "$0.png" "$file"; echo "$url $*" > "$file.asked"
"""


def test_each_page_is_taken_at_its_own_address_at_three_widths(tmp_path, monkeypatch):
    folder = browser(tmp_path, monkeypatch, TAKES)
    said = photograph("http://127.0.0.1:1/", PAGES, folder)
    assert said.startswith("screenshots: ")
    assert {file.name for file in folder.glob("*.png")} == {
        f"{name}-{width}.png" for name in PAGES for width in (390, 1280, 1440)
    }
    asked = (folder / "chat-390.png.asked").read_text()
    assert asked.startswith("http://127.0.0.1:1/services/demo/chat ")
    # Chromium may leave as much of the window blank as a browser's frame takes.
    assert " --window-size=390,1044 " in asked
    with Image.open(folder / "chat-390.png") as taken:
        assert taken.size == (390, 844)


@pytest.mark.parametrize(
    ("script", "words"),
    [("", "there is no Chromium"), ("exit 3", "chromium wrote no picture (exit status 3)")],
)
def test_without_a_picture_one_line_says_why_and_an_older_one_is_gone(tmp_path, monkeypatch, script, words):
    folder = browser(tmp_path, monkeypatch, script)
    if script:
        (folder / "board-1440.png").write_text("of yesterday")
    said = photograph("http://127.0.0.1:1/", PAGES, folder)
    assert words in said
    assert len(said.splitlines()) == 1
    assert not (folder / "board-1440.png").exists()
