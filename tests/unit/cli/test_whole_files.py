"""A file is written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from breakeven.cli.output import write_atomically
from breakeven.errors import InputError


def test_an_interruption_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "chat.json"
    file.write_text("old")

    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]
    assert file.read_text() == "old"


def test_new_files_have_the_rights_that_the_umask_gives(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere/a: No such file or directory; expected a folder"):
        write_atomically(tmp_path / "nowhere" / "a", "x")


def test_ctrl_c_ends_with_one_line_and_no_file(tmp_path):
    """The points come through a pipe, so the signal finds the command at work."""
    os.mkfifo(tmp_path / "points.csv")
    process = subprocess.Popen(
        [sys.executable, "-m", "breakeven.cli", "fit", "points.csv", "-o", "p.json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Opening for writing waits until the command has opened for reading. The pipe stays open until the command has
    # ended by the signal; only a signal that fell between two instructions of its read needs the end of the file.
    with (tmp_path / "points.csv").open("w"), contextlib.suppress(subprocess.TimeoutExpired):
        process.send_signal(signal.SIGINT)
        process.wait(timeout=180)
    out, err = process.communicate(timeout=180)
    # The empty line ends the one on which the terminal shows ^C.
    assert (process.returncode, out, err) == (130, "", "\nbreakeven: interrupted; nothing half written\n")
    assert [path.name for path in tmp_path.iterdir()] == ["points.csv"]
