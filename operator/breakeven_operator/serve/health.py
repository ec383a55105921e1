"""Whether this process still does its work: a loop that is late or a watch that is deaf makes the probe fail.

A kind whose objects were never read counts from the moment at which the operator began to watch it.
"""

from __future__ import annotations

from breakeven_operator.ports import Clock

# An API server that renews our Lease and says nothing on any watch for so long: the fault is ours. One that is away takes
# the Lease along, and who does not lead watches nothing.
_DEAF_S = 300.0


class Health:
    """Facts about the loop and the watch, and the verdict over them.

    It is `ready` if the world was read once, or another replica was seen to lead; `turns` counts how often the loop came round.
    """

    def __init__(self, clock: Clock, cycle_s: float) -> None:
        self._clock = clock
        self._cycle_s = cycle_s
        self._alive_at = clock.monotonic()
        self.ready = False
        self.turns = 0
        # Unknown until a cycle has watched anything.
        self._heard_of_s: float | None = None

    @property
    def late_after_s(self) -> float:
        """A cycle that takes longer is late: several cycles' time, and room for one fit in its child process."""
        return 5 * self._cycle_s + 150.0

    def loop_turned(self) -> None:
        """The fleet loop came round: a cycle ended (well or not), or this replica waits for the Lease."""
        self._alive_at = self._clock.monotonic()
        self.turns += 1

    def heard(self, age_s: float) -> None:
        """The API server was last heard of so long ago, by the watches that observations rest on."""
        self._heard_of_s = self._clock.monotonic() - age_s

    def cycle_succeeded(self) -> None:
        """A cycle read the world."""
        self.ready = True

    def stood_by(self) -> None:
        """Another replica leads, and this one would take over: as ready as a spare can be."""
        self.ready = True

    def problem(self) -> str | None:
        """Why the process should be restarted; None while it should not."""
        now = self._clock.monotonic()
        late_s = now - self._alive_at
        if late_s > self.late_after_s:
            return f"the fleet loop has not come round for {late_s:.0f} s"
        deaf_s = now - self._heard_of_s if self._heard_of_s is not None else 0.0
        if deaf_s > max(_DEAF_S, self.late_after_s):
            return f"no watch has been heard of for {deaf_s:.0f} s"
        return None
