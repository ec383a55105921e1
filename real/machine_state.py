"""State of a machine: written down by a process of its own as long as its parent lives, and read again.

    python real/machine_state.py FOLDER

`machine.jsonl` has a line a second: a fixed loop of Python by the wall's clock, and the shares of /proc/stat. `gpu.csv` is
what nvidia-smi says twice a second, where there is one. Only the standard library: in another process than the requests that
are measured the loop takes no time from them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_EVERY_S = 1.0
_ROUNDS = 200_000
_LOOKS, _GPU_LOOKS = "machine.jsonl", "gpu.csv"
_QUERY = "timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu"
_GPU_FIGURES = ("sm_mhz", "memory_mhz", "watts", "celsius")
# Drivers before 535 know the second name alone.
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")


@dataclass(frozen=True, slots=True)
class MachineLook:
    """Figures of the machine at one time (Unix, s), each with its unit in its name, and why the GPU's clock is low, bit by bit."""

    at_s: float
    figures: Mapping[str, float]
    reasons: int = 0


@contextlib.contextmanager
def recorded(folder: Path) -> Iterator[None]:
    """Write the machine's state down while the body runs; what an earlier run wrote there goes."""
    for name in (_LOOKS, _GPU_LOOKS):
        (folder / name).unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, __file__, str(folder)], start_new_session=True)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def read_looks(folder: Path) -> list[MachineLook]:
    """What was written down; a line that was cut off is left out."""
    looks = []
    for line in _lines(folder / _LOOKS):
        with contextlib.suppress(ValueError):
            looks.append(MachineLook(**json.loads(line)))
    for line in _lines(folder / _GPU_LOOKS):
        with contextlib.suppress(ValueError):
            at, *numbers, reasons = line.split(", ")
            moment = datetime.strptime(at, "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC)
            figures = dict(zip(_GPU_FIGURES, map(float, numbers), strict=True))
            looks.append(MachineLook(moment.timestamp(), figures, int(reasons, 16)))
    return looks


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def _ask_gpu(folder: Path) -> None:
    """Let nvidia-smi write on; it ends with this process's group."""
    smi = shutil.which("nvidia-smi")
    for reasons in _REASONS if smi else ():
        asked = [str(smi), "--id=0", f"--query-gpu={_QUERY},{reasons}", "--format=csv,noheader,nounits"]
        if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
            with (folder / _GPU_LOOKS).open("ab") as file:
                # Its times are local ones.
                subprocess.Popen([*asked, "--loop-ms=500"], stdout=file, env={**os.environ, "TZ": "UTC"})
            return


def _loop_ms() -> float:
    begun_s, total = time.perf_counter(), 0
    for number in range(_ROUNDS):
        total += number
    return 1e3 * (time.perf_counter() - begun_s)


def _ticks() -> list[int]:
    """Ticks of all processors: user, nice, system, idle, iowait, irq, softirq, steal."""
    return [int(one) for one in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]


def main() -> None:
    """Write until the parent is gone."""
    folder, parent, before = Path(sys.argv[1]), os.getppid(), _ticks()
    _ask_gpu(folder)
    with (folder / _LOOKS).open("a", buffering=1) as file:
        while os.getppid() == parent:
            time.sleep(_EVERY_S)
            grown = [late - early for early, late in zip(before, _ticks(), strict=True)]
            before, whole = _ticks(), max(sum(grown), 1)
            figures = {
                "loop_ms": _loop_ms(),
                "busy": 1 - (grown[3] + grown[4]) / whole,
                "steal": grown[7] / whole,
            }
            file.write(json.dumps({"at_s": time.time(), "figures": figures}) + "\n")
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
