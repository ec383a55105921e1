"""Commands of others that shipping calls, and the tools among them, which are installed from their locks at first use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from shipping.shipping_error import ShippingError

ROOT: Final = Path(__file__).parents[1]
UV: Final = str(Path(sys.executable).with_name("uv"))


def checked(command: Sequence[str], **options: Any) -> str:
    """The output of a command.

    Args:
        command: the program and its arguments.
        options: as of `subprocess.run`.

    Raises:
        ShippingError: it failed; the message has its last line.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        raise ShippingError(f"{Path(command[0]).name} {' '.join(command[1:3])} failed: {said}")
    return str(done.stdout)


def git(*arguments: str) -> str:
    """The output of git in this checkout, without the line's end.

    Raises:
        ShippingError: it failed, such as in a folder that is no checkout.
    """
    return checked(["git", *arguments], cwd=ROOT).strip()


def commit_time_s(commit: str = "HEAD") -> int:
    """The time of a commit, which is the same for everybody who builds it, seconds since 1970."""
    return int(git("log", "-1", "--format=%ct", commit))


def environment(folder: Path, lock: Path) -> list[str]:
    """Make a new environment with the packages of a lock; returns the command that installs more into it."""
    checked([UV, "venv", "--quiet", "--clear", str(folder)])
    install = [UV, "pip", "install", "--quiet", f"--python={folder / 'bin' / 'python'}", "--no-deps"]
    checked([*install, "--require-hashes", "--requirement", str(lock)])
    return install


def tool(name: str) -> Path:
    """A program that `requirements/NAME.lock` installs, in an environment of its own; installed once."""
    folder = ROOT / ".local" / name
    program = folder / "bin" / name
    if not program.exists():
        environment(folder, ROOT / "requirements" / f"{name}.lock")
    return program
