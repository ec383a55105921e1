"""The library's `fit` in a child process, beside the cycles: scipy never enters the operator, and a fit can be repeated by hand."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from breakeven_operator.actions import DoneFit, Fit, FitOutcome
from breakeven_operator.ports import Clock, Fitter

# A run that asks no more is gone after so long: a cycle of a large fleet is shorter.
_FORGOTTEN_S = 300.0
_PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR")


class ChildFitter:
    """The `Fitter` port; a fit that takes longer than `timeout_s` is killed."""

    def __init__(self, *, timeout_s: float = 600.0) -> None:
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
                # Named from within the folder: a profile repeats the name, and a path that is gone tells nobody anything.
                points.name,
                "-o",
                profile.name,
                *arguments,
                # The child needs none of the operator's credentials; one thread suffices for a few dozen points.
                env={
                    **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                    "OMP_NUM_THREADS": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                },
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                _, complaint = await asyncio.wait_for(child.communicate(), self._timeout_s)
            except TimeoutError:
                return FitOutcome(None, f"the fit did not end within {self._timeout_s:g} s")
            finally:
                # Ended late, or cancelled.
                if child.returncode is None:
                    child.kill()
                    await child.wait()
            if child.returncode != 0:
                lines = complaint.decode(errors="replace").strip().splitlines()
                return FitOutcome(None, [f"the fit ended with {child.returncode}", *lines][-1][:500])
            text = await asyncio.to_thread(profile.read_text, "utf-8")
        return FitOutcome(text, None)


class FitTurns:
    """Fits of calibrations, one at a time beside the cycles. Namespaces share the time that fits take.

    A cycle that awaited a fit would hold up the decisions of every tenant for as long as the largest import of one takes.

    Args:
        ended: is called when a fit has ended.
        patience_s: longest wait for one fit; 0: none, and a later cycle finds its outcome.
    """

    def __init__(
        self,
        fitter: Fitter,
        clock: Clock,
        *,
        ended: Callable[[], None] = lambda: None,
        patience_s: float = 0.0,
    ) -> None:
        self._fitter = fitter
        self._clock = clock
        self._ended = ended
        self._patience_s = patience_s
        self._task: asyncio.Task[None] | None = None
        # By uid of the run: the fit that it waits for, the newest fit that ended, and when the run last asked.
        self._waiting: dict[str, Fit] = {}
        self._done: dict[str, DoneFit] = {}
        self._asked_s: dict[str, float] = {}
        # Time that fits took, by namespace. A namespace that begins to wait starts at the time of the last one that had a turn.
        self._taken_s: dict[str, float] = {}
        self._begun_at_s = 0.0

    async def outcome(self, fit: Fit) -> FitOutcome | None:
        """The outcome of a fit; None while it waits or is under way, so that a later cycle asks again."""
        uid = fit.run.uid
        self._asked_s[uid] = self._clock.monotonic()
        if self._outcome(fit) is None:
            self._waiting[uid] = fit
            self._begin()
            if self._task is not None:
                await asyncio.wait({self._task}, timeout=self._patience_s)
        return self._outcome(fit)

    def _outcome(self, fit: Fit) -> FitOutcome | None:
        done = self._done.get(fit.run.uid)
        return done.outcome if done is not None and done.fit == fit else None

    def _begin(self) -> None:
        """Begin the next fit if none is under way: of the namespace whose fits have taken the least time."""
        self._forget()
        if self._task is not None or not self._waiting:
            return
        namespaces = {fit.run.namespace for fit in self._waiting.values()}
        self._taken_s = {name: self._taken_s.get(name, self._begun_at_s) for name in namespaces}
        fit = min(self._waiting.values(), key=lambda one: self._taken_s[one.run.namespace])
        self._begun_at_s = self._taken_s[fit.run.namespace]
        self._task = asyncio.create_task(self._run(fit), name="fit")

    async def _run(self, fit: Fit) -> None:
        began_s, uid = self._clock.monotonic(), fit.run.uid
        try:
            outcome = await self._fitter.fit(fit.points_csv, fit.arguments)
            self._done[uid] = DoneFit(fit, outcome)
        finally:
            self._task = None
        if self._waiting.get(uid) == fit:
            del self._waiting[uid]
        self._taken_s[fit.run.namespace] = self._begun_at_s + self._clock.monotonic() - began_s
        self._begin()
        self._ended()

    def _forget(self) -> None:
        """Forget runs that ask no more: they have ended, or this replica does not lead."""
        now_s = self._clock.monotonic()
        for uid in [uid for uid, asked_s in self._asked_s.items() if now_s - asked_s > _FORGOTTEN_S]:
            for known in (self._asked_s, self._waiting, self._done):
                known.pop(uid, None)
