"""When a run of probe results changes a probe's verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ProbeVerdict:
    """A probe's verdict after the results so far.

    Guarantees: `passing` becomes True only after `success_threshold` successes in a row and False only after
    `failure_threshold` failures in a row; in between it stays what it was. It starts as None: no verdict yet.
    """

    success_threshold: int
    failure_threshold: int
    passing: bool | None = None
    run: int = 0
    run_of: bool | None = None

    def observe(self, *, ok: bool) -> ProbeVerdict:
        """This verdict with one more result counted."""
        run = self.run + 1 if ok is self.run_of else 1
        threshold = self.success_threshold if ok else self.failure_threshold
        return replace(self, run=run, run_of=ok, passing=ok if run >= threshold else self.passing)
