"""Types of options: what is refused as input, and what as wrong usage."""

from __future__ import annotations

import click
import pytest

from breakeven.cli.parameters import InputFile, Number, OutputFile
from breakeven.errors import InputError


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "x", "-1"])
def test_a_number_is_finite_and_within_its_bounds(text):
    with pytest.raises(click.BadParameter):
        Number(min=0).convert(text, None, None)
    assert Number(min=0).convert("2.5", None, None) == 2.5


def test_a_file_to_read_is_there(tmp_path):
    (tmp_path / "there").touch()
    assert InputFile().convert(str(tmp_path / "there"), None, None) == tmp_path / "there"
    assert str(InputFile(dash=True).convert("-", None, None)) == "-"
    with pytest.raises(InputError, match="absent: no such file; expected a file to read"):
        InputFile().convert(str(tmp_path / "absent"), None, None)
    with pytest.raises(InputError, match="a folder; expected a file to read"):
        InputFile().convert(str(tmp_path), None, None)


def test_the_folder_of_a_file_to_write_is_there(tmp_path):
    assert OutputFile().convert(str(tmp_path / "new"), None, None) == tmp_path / "new"
    with pytest.raises(InputError, match="nowhere: no such folder; expected a folder to write to"):
        OutputFile().convert(str(tmp_path / "nowhere" / "new"), None, None)
    with pytest.raises(InputError, match="a folder; expected a file to write"):
        OutputFile().convert(str(tmp_path), None, None)
