"""`make real ENGINE=gpu`: pairs of arms on one NVIDIA GPU, with a vLLM that is installed there already.

A model shaped as Llama-3.1-8B without its weights and an EAGLE-3 head shaped as the published one; drafts are accepted by
chance at shares that are given (`rejection_sample_method: synthetic`), so that cost is measured at a known acceptance and
nothing has to be downloaded. Answers are garbage: no such engine may ever serve anybody.

It imports what vLLM's own environment has (aiohttp, numpy, pydantic) and nothing of a cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.load_driver.client import Endpoint, EngineClient, EngineError
from localcluster.free_ports import free_ports
from localcluster.progress import Say
from real import model
from real.engine_process import LOOPBACK
from real.machine_state import recorded
from real.pair_rows import AGAIN
from real.pairs import KeptWindows, PairScript, Script, table_of

RESULTS = Path(__file__).resolve().parents[1] / ".real" / "gpu"
# Share of steps whose first i drafts are all accepted; about what EAGLE-3 reaches on chat at temperature 0.
SURVIVAL = (0.75, 0.56, 0.42, 0.31, 0.23)
_WORDS = 128_256
_DRAFT_WORDS = 32_000
_STOP_S = 30.0
# Weights, graphs and what a step needs, of one engine; the rest of a GPU is for the KV caches of three.
_ENGINE_BYTES, _MOST_KV_BYTES, _USED = 20e9, 14e9, 0.92
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
    # The published head has 2048, and prompts of 2048 tokens are asked too: their answers would lie beyond its table.
    "rope_scaling": None,
}


@dataclass(frozen=True, slots=True)
class OwnEngine:
    """An engine of this machine: how it is started, and its port on loopback."""

    serve: tuple[str, ...]
    port: int
    environment: Mapping[str, str]


class OwnEngines:
    """Engines as processes of this one; nothing of them stays after `end`.

    Args:
        engines: by name.
        folder: for their logs.
    """

    def __init__(self, engines: Mapping[str, OwnEngine], folder: Path) -> None:
        self._engines = engines
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    async def start(self, name: str, within_s: float) -> str:
        """The address of an engine that serves.

        Raises:
            EngineError: it ended, or did not answer in time.
        """
        one, log = self._engines[name], self._folder / f"{name.replace('/', '-').replace(' ', '-')}.log"
        process = self._running[name] = _started(one, log)
        url, end_s = f"http://127.0.0.1:{one.port}", time.monotonic() + within_s
        async with EngineClient(Endpoint(url)) as client:
            while process.poll() is None and time.monotonic() < end_s:
                with contextlib.suppress(EngineError):
                    await client.wait_until_ready(deadline_s=1.0, pause_s=0.5)
                    return url
        why = "did not answer in" if process.poll() is None else "ended within"
        await self.stop(name)
        words = log.read_text(errors="replace").strip().rpartition("\n")[2][-200:]
        raise EngineError(f"it {why} {within_s:.0f} s; its last line is {words!r}")

    async def stop(self, name: str) -> None:
        """Return when nothing of an engine is left."""
        process = self._running.pop(name)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, _STOP_S)
        _kill(process)

    def end(self) -> None:
        """End what is running: vLLM removes its shared memory if it is asked to."""
        for process in self._running.values():
            process.terminate()
        end_s = time.monotonic() + _STOP_S
        while self._running:
            _, process = self._running.popitem()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end_s - time.monotonic()))
            _kill(process)


def _started(one: OwnEngine, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        # In a session of its own: its engine processes must end with it, however this run ends.
        return subprocess.Popen(
            one.serve,
            env={**os.environ, **one.environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def speculative_config(arm: Arm, head: Path) -> dict[str, Any]:
    """The engine's configuration of an arm: drafts are accepted by chance, at the shares of `SURVIVAL`."""
    return {
        "method": arm.method,
        "model": str(head),
        "num_speculative_tokens": arm.k,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": list(SURVIVAL[: arm.k]),
    }


def engines(folder: Path, vllm: str, memory_bytes: float, ports: Sequence[int]) -> dict[str, OwnEngine]:
    """The engines of a script on one GPU, by name.

    Args:
        folder: holds `models`.
        vllm: the program.
        memory_bytes: of the GPU, which three of them share.
        ports: one for each, on loopback.

    Raises:
        EngineError: the GPU is too small.
    """
    arms, models = Script().arms, folder / "models"
    kv_bytes = min(_MOST_KV_BYTES, _USED * memory_bytes / len(arms) - _ENGINE_BYTES)
    if kv_bytes < _MOST_KV_BYTES / 3:
        raise EngineError(
            f"the GPU has {memory_bytes / 1e9:.0f} GB; expected 80, because three engines share it"
        )
    environment = {
        **LOOPBACK,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # It is compiled at the start, where a compiler is there.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    own: dict[str, tuple[str, ...]] = {AGAIN: ("--max-cudagraph-capture-size=1024",)}
    for arm in arms:
        config = json.dumps(speculative_config(arm, models / "eagle3"))
        own[arm.name] = () if arm == NO_SPECULATION else (f"--speculative-config={config}",)
    return {
        name: OwnEngine(
            (
                vllm, "serve", str(models / "target"), "--load-format=dummy", "--served-model-name=llama-3.1-8b-shaped",
                "--host=127.0.0.1", f"--port={port}", "--max-model-len=4096", "--max-num-seqs=256",
                "--no-enable-prefix-caching", f"--kv-cache-memory-bytes={kv_bytes:.0f}",
                # Only a limit of what must be free at the start, beside an explicit size of the KV cache.
                "--gpu-memory-utilization=0.25", *words,
            ),
            port,
            environment,
        )
        for (name, words), port in zip(own.items(), ports, strict=True)
    }  # fmt: skip


def write_models(folder: Path) -> None:
    """Configuration and tokenizer of target and head; every id has a word, those of the prose come first."""
    prose = model.prose_words()
    filler = [f"w{number}" for number in range(_WORDS - model.SPECIAL - len(prose))]
    for name, config in (("target", TARGET), ("eagle3", HEAD)):
        model.write_files(folder / "models" / name, config, [*prose, *filler])


def first_gpu(listing: str) -> tuple[str, float]:
    """Name and bytes of memory from `nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits`.

    Raises:
        EngineError: there is none.
    """
    name, comma, mebibytes = listing.strip().partition("\n")[0].rpartition(", ")
    if not comma or not mebibytes.strip().isdecimal():
        raise EngineError("nvidia-smi lists no GPU with its memory; expected one NVIDIA GPU")
    return name.replace(" ", "-"), float(mebibytes) * 2**20


def measure_pairs(
    script: Script, own: Mapping[str, OwnEngine], folder: Path, gpu: str, report: Say
) -> list[str]:
    """Run a script on engines of this machine; a sentence for each thing that was left out.

    A run that is cut off makes its table of what it has, and leaves no process.
    """
    results = KeptWindows(folder, report)
    lines = [f"# {name}\n{shlex.join(one.serve)}\n" for name, one in own.items()]
    (folder / "commands.txt").write_text("".join(lines))
    starter = OwnEngines(own, folder)

    def show() -> None:
        shown = table_of(folder)
        (folder / "table.txt").write_text(shown)
        report(f"pairs of arms: {os.path.relpath(folder)}\n{shown}")

    with contextlib.ExitStack() as last:
        last.callback(starter.end)
        # Before engines end, which takes its time: this one may have none.
        last.callback(show)
        with recorded(folder):
            asyncio.run(PairScript(script, starter, results, gpu).run())
    return results.left_out


def _measure(whole_s: float) -> tuple[int, str]:
    smi, vllm, begun_s = shutil.which("nvidia-smi"), shutil.which("vllm"), time.monotonic()
    if smi is None:
        raise EngineError("there is no nvidia-smi; ENGINE=gpu needs one NVIDIA GPU with its driver")
    if vllm is None:
        raise EngineError("there is no vllm on PATH; expected an environment with vLLM 0.26 or later")
    asked = [smi, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    name, memory_bytes = first_gpu(subprocess.run(asked, check=False, capture_output=True, text=True).stdout)
    own = engines(RESULTS, vllm, memory_bytes, free_ports(4))
    write_models(RESULTS)

    def report(line: str) -> None:
        _print(f"{time.monotonic() - begun_s:5.0f} s  {line}")

    left_out = measure_pairs(replace(Script(), whole_s=whole_s), own, RESULTS, name, report)
    where = f"what was kept is in {os.path.relpath(RESULTS)}"
    return (1, f"{len(left_out)} left out; {where}") if left_out else (0, where)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Measure; 0 only if nothing was left out."""
    parser = argparse.ArgumentParser(prog="real.gpu", description=__doc__)
    parser.add_argument("--seconds", type=float, default=Script().whole_s, help="time for all (default 900)")
    parser.add_argument(
        "--read", type=Path, help="print the table of a folder that a run left, and measure nothing"
    )
    options = parser.parse_args()
    if not 0 < options.seconds < math.inf:
        parser.error(f"--seconds {options.seconds:g} (SECONDS); expected a time above 0")
    try:
        if options.read:
            _print(table_of(options.read))
            return 0
        status, words = _measure(options.seconds)
    except EngineError as problem:
        status, words = 1, str(problem)
    except KeyboardInterrupt:
        status, words = 130, "interrupted; everything it had started is gone"
    _print(f"real: exit status {status}: {words}")
    return status


if __name__ == "__main__":
    # A SIGTERM does the same as Ctrl-C: engines stop, and the table is printed as far as it goes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
