"""`make real ENGINE=gpu`: the same question on one NVIDIA GPU, with a vLLM that is installed there already.

A model shaped as Llama-3.1-8B without its weights, an EAGLE-3 head shaped as the published one, and n-gram lookup; drafts
are accepted by chance at shares that are given (`rejection_sample_method: synthetic`), so that cost is measured at a known
acceptance and nothing has to be downloaded. Every arm is swept by `breakeven calibrate`, as a user would; points, profile
and report end up in one folder. Answers are garbage: no such engine may ever serve anybody.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from localcluster.failure import LocalClusterError
from localcluster.free_ports import free_ports
from real import model
from real.deployments import LOOPBACK

# Share of steps whose first i drafts are all accepted; about what EAGLE-3 reaches on chat at temperature 0.
SURVIVAL = (0.75, 0.56, 0.42, 0.31, 0.23)
DRAFT_LENGTHS = (2, 5)
_WORDS = 128_256
_DRAFT_WORDS = 32_000
_START_S = 1800.0
_STOP_S = 120.0
_LLAMA_8B: Mapping[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
    "model_type": "llama",
    "vocab_size": _WORDS,
}
TARGET = {**_LLAMA_8B, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32}
HEAD = {
    **_LLAMA_8B,
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": _DRAFT_WORDS,
    # The published head has 2048, and a sweep also asks prompts of 2048 tokens: their answers would lie beyond its table.
    "rope_scaling": None,
}


@dataclass(frozen=True, slots=True)
class SweptArm:
    """One arm: how the engine is started for it, and how it is swept.

    Attributes:
        name: in words.
        serve: the engine's command line.
        health: the address that answers once the engine serves.
        calibrate: the load driver's.
    """

    name: str
    serve: tuple[str, ...]
    health: str
    calibrate: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The whole run as command lines.

    Attributes:
        arms: in order, none first.
        after: what makes profile and report of the points.
    """

    arms: tuple[SweptArm, ...]
    after: tuple[tuple[str, ...], ...]

    def lines(self) -> Iterator[str]:
        """For a person to read, or to run by hand."""
        for arm in self.arms:
            yield f"# {arm.name}"
            yield f"{shlex.join(arm.serve)} &"
            yield f"until curl --silent --fail {arm.health}; do sleep 1; done"
            yield shlex.join(arm.calibrate)
            yield "kill %1; wait"
        yield from map(shlex.join, self.after)


def speculative_config(method: str, k: int, head: Path) -> dict[str, Any]:
    """The engine's configuration of an arm: drafts are accepted by chance, at the shares of `SURVIVAL`."""
    drafter = {"model": str(head)} if method == "eagle3" else {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
    return {
        "method": method,
        "num_speculative_tokens": k,
        **drafter,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": list(SURVIVAL[:k]),
    }


def plan(folder: Path, vllm: str, breakeven: str, gpu: str, port: int) -> SweepPlan:
    """The commands of the run.

    Args:
        folder: for everything that is written; models are in `models/`.
        vllm: the program.
        breakeven: ours.
        gpu: product name, for the points.
        port: of the engine, on loopback.
    """
    target, head = folder / "models" / "target", folder / "models" / "eagle3"
    points, profile = folder / "points.csv", folder / "profile.json"
    serve = (
        vllm, "serve", str(target), "--load-format=dummy", "--served-model-name=llama-3.1-8b-shaped", "--host=127.0.0.1",
        f"--port={port}", "--max-model-len=4096", "--max-num-seqs=128", "--no-enable-prefix-caching",
    )  # fmt: skip
    health = f"http://127.0.0.1:{port}/health"
    calibrate = (
        breakeven, "calibrate", f"--url=http://127.0.0.1:{port}", f"--output={points}", "--loads=8",
        "--prompt-tokens=512", "--output-tokens=128", "--point-seconds=60", "--max-concurrency=128", f"--gpu={gpu}",
        "--workload=synthetic-acceptance", "--text=synthetic acceptance",
    )  # fmt: skip
    arms = [SweptArm("none", serve, health, (*calibrate, "--method=none"))]
    for method in ("eagle3", "ngram"):
        for k in DRAFT_LENGTHS:
            config = json.dumps(speculative_config(method, k, head))
            arms.append(
                SweptArm(
                    f"{method}, k = {k}",
                    (*serve, f"--speculative-config={config}"),
                    health,
                    (*calibrate, f"--method={method}", f"--k={k}"),
                )
            )
    after = (
        (breakeven, "fit", str(points), f"--output={profile}"),
        (breakeven, "plan", str(profile), "--rps=2"),
        (breakeven, "report", str(profile), f"--output={folder / 'report.html'}"),
    )
    return SweepPlan(tuple(arms), after)


def write_models(folder: Path) -> None:
    """Configuration and tokenizer of target and head; every id has a word, those of the prose come first."""
    prose = model.prose_words()
    filler = [f"w{number}" for number in range(_WORDS - model.SPECIAL - len(prose))]
    for name, config in (("target", TARGET), ("eagle3", HEAD)):
        model.write_files(folder / "models" / name, config, [*prose, *filler])


def gpu_product(listing: str) -> str:
    """The one GPU's name from `nvidia-smi --query-gpu=name --format=csv,noheader`.

    Raises:
        LocalClusterError: there is none, or there are several of different names.
    """
    names = {line.strip() for line in listing.splitlines() if line.strip()}
    if not names:
        raise LocalClusterError("nvidia-smi lists no GPU; expected one NVIDIA GPU")
    if len(names) > 1:
        raise LocalClusterError(f"nvidia-smi lists {', '.join(sorted(names))}; expected GPUs of one product")
    return names.pop().replace(" ", "-")


def run(folder: Path, console: Console, *, dry_run: bool) -> tuple[int, str]:
    """Sweep every arm and write points, profile and report; exit status and its words.

    Raises:
        LocalClusterError: there is no GPU or no vLLM; the text is one line.
    """
    home = folder / "gpu"
    breakeven = str(Path(sys.executable).with_name("breakeven"))
    if dry_run:
        for line in plan(home, "vllm", "breakeven", "GPU", 8000).lines():
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        return 0, "nothing was run"
    vllm, smi = shutil.which("vllm"), shutil.which("nvidia-smi")
    if smi is None:
        raise LocalClusterError(
            "there is no nvidia-smi; ENGINE=gpu needs one NVIDIA GPU with its driver (--dry-run prints what would run)"
        )
    if vllm is None:
        raise LocalClusterError("there is no vllm on PATH; expected an environment with vLLM 0.32 or later")
    asked = [smi, "--query-gpu=name", "--format=csv,noheader"]
    product = gpu_product(_ended_well(asked, capture_output=True, text=True).stdout)
    (port,) = free_ports(1)
    whole = plan(home, vllm, breakeven, product, port)
    write_models(home)
    (home / "commands.txt").write_text("\n".join(whole.lines()) + "\n")
    broken = sweep(
        whole, home, lambda line: console.print(f"{line} on {product}", markup=False, highlight=False)
    )
    where = f"points, profile and report are in {os.path.relpath(home)}"
    if broken:
        return (
            1,
            f"{len(broken)} commands or sweeps broke off: {'; '.join(broken)}; {where}, as far as they go",
        )
    return 0, where


def sweep(whole: SweepPlan, folder: Path, say: Callable[[str], None]) -> list[str]:
    """Sweep every arm, and make of the points what there is to make; a line for each sweep or command that broke off.

    Args:
        whole: the commands.
        folder: for the engines' logs.
        say: takes a line per arm.
    """
    broken = []
    for number, arm in enumerate(whole.arms, start=1):
        say(f"{number} of {len(whole.arms)}: {arm.name}")
        try:
            with _serving(arm, folder / f"engine-{number}.log"):
                _ended_well(arm.calibrate)
        except LocalClusterError as problem:
            broken.append(f"{arm.name}: {problem}")
    for command in whole.after:
        try:
            _ended_well(command)
        except LocalClusterError as problem:
            broken.append(str(problem))
    return broken


def _ended_well(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; what it prints is seen unless the options say otherwise.

    Raises:
        LocalClusterError: its exit status is not 0.
    """
    done = subprocess.run(command, check=False, **options)
    if done.returncode:
        words = " ".join([Path(command[0]).name, *command[1:2]])
        raise LocalClusterError(f"{words} ended with exit status {done.returncode}; what it says is above")
    return done


@contextlib.contextmanager
def _serving(arm: SweptArm, log: Path) -> Iterator[None]:
    """The engine, from its first answer until the block ends; nothing of it stays.

    Raises:
        LocalClusterError: it ended, or did not answer in time.
    """
    with log.open("wb") as output:
        # In a session of its own: its engine processes must end with it, however this run ends.
        process = subprocess.Popen(
            arm.serve,
            env={**os.environ, **LOOPBACK},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _START_S
        while not _answers(arm.health):
            if process.poll() is not None or time.monotonic() > deadline:
                raise LocalClusterError(f"vLLM did not start; its last words are in {os.path.relpath(log)}")
            time.sleep(1.0)
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
