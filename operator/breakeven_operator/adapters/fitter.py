"""The library's `fit` in a child process: scipy never enters the long-lived operator, and a fit can be repeated by hand."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from breakeven_operator.actions import FitOutcome


class ChildFitter:
    """The `Fitter` port.

    Args:
        timeout_s: a fit that takes longer is killed.
    """

    def __init__(self, *, timeout_s: float = 120.0) -> None:
        self._timeout_s = timeout_s

    async def fit(self, points_csv: str, arguments: Sequence[str]) -> FitOutcome:
        """See `Fitter.fit`."""
        try:
            return await self._run(points_csv, arguments)
        except OSError as error:
            # No memory for the points, or no process: this run fails, and the other runs go on.
            return FitOutcome(None, f"the fit could not be run: {error.strerror or error}")

    async def _run(self, points_csv: str, arguments: Sequence[str]) -> FitOutcome:
        with tempfile.TemporaryDirectory(prefix="breakeven-fit-") as folder:
            points, profile = Path(folder, "points.csv"), Path(folder, "profile.json")
            await asyncio.to_thread(points.write_text, points_csv, "utf-8")
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                "from breakeven.cli import main; main()",
                "fit",
                str(points),
                "-o",
                str(profile),
                *arguments,
                # The child needs no credentials of the operator's; one thread suffices for a few dozen points.
                env={
                    **{
                        name: os.environ[name]
                        for name in ("PATH", "HOME", "LANG", "TMPDIR")
                        if name in os.environ
                    },
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                    "OMP_NUM_THREADS": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                },
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                _, complaint = await asyncio.wait_for(child.communicate(), self._timeout_s)
            except TimeoutError:
                child.kill()
                await child.wait()
                return FitOutcome(None, f"the fit did not end within {self._timeout_s:g} s")
            except asyncio.CancelledError:
                child.kill()
                await child.wait()
                raise
            if child.returncode != 0:
                lines = complaint.decode(errors="replace").strip().splitlines()
                return FitOutcome(
                    None, (lines[-1] if lines else f"the fit ended with {child.returncode}")[:500]
                )
            text = await asyncio.to_thread(profile.read_text, "utf-8")
        return FitOutcome(text, None)
