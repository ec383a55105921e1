"""Compiling one program, with signs of life and one clear line when it fails."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from localcluster.cache import published
from localcluster.catalog import Bundle, Program, manifests_of
from localcluster.failure import LocalClusterError
from localcluster.progress import Say, duration
from localcluster.toolchain import Toolchain

SIGN_OF_LIFE_S: Final = 30.0
_NETWORK_TROUBLE: Final = re.compile(
    r"dial tcp|no such host|i/o timeout|TLS handshake|connection re(?:fused|set)|proxyconnect|"
    r"unexpected EOF|x509:|50[0234] |429 |certificate|network is unreachable",
)


def build(
    bundle: Bundle,
    program: Program,
    target: Path,
    toolchain: Toolchain,
    say: Say,
    position: str,
    given_up: threading.Event,
) -> None:
    """Builds a program at `target`; nothing is there before it is complete.

    Args:
        bundle: the module it comes from.
        program: what to build.
        target: final path of the program.
        toolchain: the Go command to use.
        say: receives progress.
        position: number of the build and of all builds, shown to the person who waits.
        given_up: set once nobody wants the program any more; the compiler is ended at its next word.

    Raises:
        LocalClusterError: a download or the compiler failed, or the program was given up.
    """
    label = f"[{position}] {program.name} {bundle.version(program)}"
    say(f"{label}: usually {duration(program.usual_s)} on two cores")
    started = time.monotonic()
    with published(target) as unfinished:
        command = go_build(bundle, program, toolchain.go, unfinished)
        with subprocess.Popen(
            command,
            cwd=bundle.source,
            env=dict(toolchain.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as go:
            assert go.stderr is not None
            try:
                said = _follow(go.stderr, label, say, given_up)
            except BaseException:
                go.terminate()
                raise
        if go.returncode != 0:
            raise LocalClusterError(complaint(program.name, said))
        if bundle.manifests:
            _keep_manifests(bundle, manifests_of(target), toolchain)
    size_mb = target.stat().st_size / 1e6
    say(f"{label}: built in {duration(time.monotonic() - started)} ({size_mb:.0f} MB)")


def _keep_manifests(bundle: Bundle, target: Path, toolchain: Toolchain) -> None:
    """Copies the bundle's manifests out of its module, which is deleted when everything is built."""
    asked = subprocess.run(
        [toolchain.go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", bundle.requires],
        cwd=bundle.source,
        env=dict(toolchain.environment),
        capture_output=True,
        text=True,
        check=True,
    )
    module = Path(asked.stdout.strip())
    with published(target) as unfinished:
        unfinished.mkdir()
        for name in bundle.manifests:
            found = module / name
            for file in sorted(found.glob("*.yaml")) if found.is_dir() else [found]:
                (unfinished / file.name).write_bytes(file.read_bytes())


def go_build(bundle: Bundle, program: Program, go: Path, output: Path) -> list[str]:
    """The command; `-v` prints each package as it is compiled, which is the only progress that Go offers.

    The linker drops what debuggers read, so the compiler does not make it.
    """
    tags = ["-tags", ",".join(bundle.tags)] if bundle.tags else []
    return [
        str(go), "build", "-v", "-trimpath", "-mod=readonly", "-buildvcs=false", *tags,
        "-gcflags=all=-dwarf=false", "-ldflags", bundle.linker_flags(), "-o", str(output), program.package,
    ]  # fmt: skip


def _follow(lines: Iterable[str], label: str, say: Say, given_up: threading.Event) -> Sequence[str]:
    """Counts packages and downloads until the stream ends; returns its last lines."""
    last: deque[str] = deque(maxlen=40)
    compiled = downloaded = 0
    live = sys.stderr.isatty()
    started = spoken = time.monotonic()
    for line in lines:
        if given_up.is_set():
            raise LocalClusterError(f"{label}: given up, because another program could not be built")
        last.append(line.rstrip())
        if line.startswith("go: downloading "):
            downloaded += 1
        else:
            compiled += 1
        now = time.monotonic()
        if now - spoken >= (5.0 if live else SIGN_OF_LIFE_S):
            spoken = now
            say(
                f"{label}: {downloaded} modules fetched, {compiled} packages compiled in {duration(now - started)}"
            )
    return last


def complaint(name: str, output: Sequence[str]) -> str:
    """One line out of Go's last lines: network trouble, or the compiler's error."""
    said = [line.strip() for line in output if line.strip() and not line.startswith("go: downloading ")]
    network = [line for line in said if _NETWORK_TROUBLE.search(line)]
    if network:
        return (
            f"cannot download the Go modules of {name}: {network[-1].removeprefix('go: ')}; check the network or "
            f"GOPROXY and start again (what was built is kept), or name a folder with the programs in BREAKEVEN_ASSETS"
        )
    return f"cannot build {name}: {said[-1] if said else 'go build failed without a word'}"
