"""Writing to what is no plain file, and to what is a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from breakeven.cli.output import write_atomically
from breakeven.errors import InputError


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "profile")
        assert os.read(reader, 100) == b"profile"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "v1.json").write_text("old")
    (tmp_path / "latest.json").symlink_to("v1.json")
    write_atomically(tmp_path / "latest.json", "new")
    assert (tmp_path / "latest.json").is_symlink()
    assert (tmp_path / "v1.json").read_text() == "new"


def test_a_full_disk_is_a_refusal_and_leaves_nothing(tmp_path, monkeypatch):
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "p.json").write_text("old")
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match=r"p\.json: No space left on device"):
        write_atomically(tmp_path / "p.json", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("p.json", "old")]
