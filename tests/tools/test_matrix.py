"""`make matrix` finds the Pythons that are there, and says which are not."""

from __future__ import annotations

import sys

import pytest

import matrix

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_places_are_tried_in_the_order_path_pyenv_uv_newest_first(tmp_path):
    pyenv = [script(tmp_path / f"pyenv/versions/3.12.{n}/bin/python3.12", "exit 1") for n in (1, 7)]
    managed = script(tmp_path / "uv/cpython-3.12.4-linux/bin/python3.12", "exit 1")
    places = matrix.interpreters("3.12", f"/a::{tmp_path}", tmp_path / "pyenv", tmp_path / "uv")
    assert [str(place) for place in places] == [
        "/a/python3.12",
        f"{tmp_path}/python3.12",
        *map(str, reversed(pyenv)),
        str(managed),
    ]


def test_a_shim_that_stands_for_no_python_is_passed_over(tmp_path):
    shim = script(tmp_path / "python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    assert not matrix.works(shim, "3.12")
    assert not matrix.works(tmp_path / "absent", "3.12")
    assert not matrix.works(script(tmp_path / "other", "echo 3.14"), "3.12")
    real = script(tmp_path / "real", f'exec "{sys.executable}" "$@"')
    assert matrix.works(real, HERE)


def test_a_file_that_imports_the_operator_somewhere_is_beyond_the_library():
    assert "breakeven_operator" in matrix.imports(
        "def f():\n    from breakeven_operator.ports import InstantSample\n"
    )
    assert "fakes.manual_clock" in matrix.imports("from fakes import manual_clock")
    beyond = matrix.beyond_the_library(matrix.ROOT)
    assert "tests/unit/resources/test_specs.py" in beyond
    assert "tests/unit/planning/test_ranking.py" not in beyond
    # Half of the unit tests are the library's.
    assert len(beyond) < len(list((matrix.ROOT / "tests/unit").rglob("test_*.py"))) * 0.75


def test_tools_stay_as_locked():
    lock = "pytest==9.0.1 \\\n    --hash=sha256:00\npytest-asyncio==1.2.0 ; python_full_version < '3.14' \\\n"
    assert matrix.pinned(lock, ["pytest-asyncio", "pytest"]) == ["pytest-asyncio==1.2.0", "pytest==9.0.1"]


def test_the_matrix_has_every_python_that_the_package_promises():
    text = (matrix.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for version in matrix.PYTHONS:
        assert f'"Programming Language :: Python :: {version}"' in text
    assert f'requires-python = ">={matrix.PYTHONS[0]},<3.{int(matrix.PYTHONS[-1].split(".")[1]) + 1}"' in text


def test_a_missing_python_is_skipped_with_the_reason_and_alone_it_is_a_failure(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path))
    assert matrix.main(["3.12"]) == 1
    assert capsys.readouterr().out == (
        "3.12             skipped  no python3.12 on PATH, in pyenv or in uv (get one: uv python install 3.12)\n"
    )


def test_an_unknown_cell_is_refused_in_one_line(capsys):
    with pytest.raises(SystemExit):
        matrix.main(["3.9"])
    assert (
        "3.9 is no cell of the matrix; expected some of 3.11, 3.12, 3.13, lowest, lowest-operator"
        in capsys.readouterr().err
    )
