"""Whether this process still does its work: a loop that is late or a watch that is deaf makes the probe fail.

kopf's own `/healthz` says only that the event loop runs a coroutine; a watcher that died leaves it green for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

from breakeven_operator.ports import Clock

# A watch event may trail a LIST by this much without anything being wrong.
_TRAILING_S = 120.0
# An API server that renews our Lease and says nothing on any watch for so long: the fault is ours. One that is away takes
# the Lease along, and who does not lead watches nothing.
_DEAF_S = 300.0


class Health:
    """Facts about the loop and the watch, and the verdict over them.

    Args:
        clock: monotonic time.
        cycle_s: time between cycles when nothing wakes the loop.

    Attributes:
        turns: how often the loop came round.
    """

    def __init__(self, clock: Clock, cycle_s: float) -> None:
        self._clock = clock
        self._cycle_s = cycle_s
        self._alive_at = clock.monotonic()
        self._ready = False
        self.turns = 0
        self._watched: dict[str, int] = {}
        self._missing_since: dict[str, float] = {}
        self._watching = False
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

    def cycle_succeeded(self, generations: Mapping[str, int]) -> None:
        """A cycle read the world; what it saw is what a live watch must have delivered.

        Args:
            generations: of every service by uid.
        """
        self._ready = True
        now = self._clock.monotonic()
        if not self._watching:
            return
        behind = {uid for uid, generation in generations.items() if self._watched.get(uid, -1) < generation}
        self._missing_since = {uid: self._missing_since.get(uid, now) for uid in behind}
        for uid in self._watched.keys() - generations.keys():
            # Deletions during a reconnect are never delivered; the LIST repairs that.
            del self._watched[uid]

    def stood_by(self) -> None:
        """Another replica leads, and this one would take over: as ready as a spare can be."""
        self._ready = True

    def watch_started(self) -> None:
        """Kopf has started; from now on its events are expected."""
        self._watching = True

    def watch_delivered(self, uid: str, generation: int) -> None:
        """An event of a service arrived."""
        self._watched[uid] = max(generation, self._watched.get(uid, -1))
        self._missing_since.pop(uid, None)

    def problem(self) -> str | None:
        """Why the process should be restarted; None while it should not."""
        now = self._clock.monotonic()
        late_s = now - self._alive_at
        if late_s > self.late_after_s:
            return f"the fleet loop has not come round for {late_s:.0f} s"
        deaf_s = now - self._heard_of_s if self._heard_of_s is not None else 0.0
        if deaf_s > max(_DEAF_S, self.late_after_s):
            return f"no watch has been heard of for {deaf_s:.0f} s"
        since = min(self._missing_since.values(), default=now)
        if now - since > _TRAILING_S:
            return f"the watch has delivered nothing of a change that is {now - since:.0f} s old"
        return None

    @property
    def ready(self) -> bool:
        """Whether the world was read once, or another replica was seen to lead."""
        return self._ready
