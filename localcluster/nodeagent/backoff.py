"""Crash back-off of one container, as the kubelet counts it.

The first restart is immediate; the next waits `base_s` after its crash, then twice that, up to `max_s`. A container that
crashes more than twice `max_s` after its latest restart starts over. (kubelet: `doBackOff` over client-go's
`flowcontrol.Backoff`, 10 s to 300 s.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Backoff:
    """The delay that a container's crashes add to its next restart. Each restart makes a new value, so asking changes nothing."""

    base_s: float = 10.0
    max_s: float = 300.0
    delay_s: float = 0.0
    restarted_at: float | None = None

    def not_before(self, crashed_at: float) -> float:
        """The earliest time of the restart after a crash at `crashed_at`."""
        return crashed_at + (0.0 if self._forgiven(crashed_at) else self.delay_s)

    def restarted(self, crashed_at: float, now: float) -> Backoff:
        """The back-off once the restart after the crash at `crashed_at` has happened."""
        delay = self.base_s if self._forgiven(crashed_at) else min(self.delay_s * 2, self.max_s)
        return replace(self, delay_s=delay, restarted_at=now)

    def _forgiven(self, crashed_at: float) -> bool:
        return self.restarted_at is None or crashed_at - self.restarted_at > 2 * self.max_s
