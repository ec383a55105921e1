"""Whether a vLLM pod can be replaced without losing a request.

vLLM's default kills the engine at SIGTERM while requests are in flight, and clients hang until the pod is killed. A
roll loses nothing only if (1) `--shutdown-timeout` outlasts the longest request, (2) a preStop hook holds SIGTERM back
until clients have noticed that the pod goes, and (3) `terminationGracePeriodSeconds` covers both (tried on vLLM 0.32).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from breakeven.serving.command_line import command_line, flag_number

_SLEEP = re.compile(r"\bsleep\s+(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Drain:
    """How one container stops.

    Attributes:
        pre_stop_s: seconds that a preStop hook holds SIGTERM back; 0 when there is none; None when a hook exists
            of unknown length (a script, an HTTP call).
        shutdown_timeout_s: vLLM's `--shutdown-timeout`; 0 is its default and aborts what is in flight.
        grace_s: the pod's terminationGracePeriodSeconds.
        problems: whole sentences, one per missing setting; empty when a roll loses nothing.
    """

    pre_stop_s: float | None
    shutdown_timeout_s: float
    grace_s: float
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether a roll loses no request by these settings."""
        return not self.problems


def drain(pod_spec: Mapping[str, Any], container: Mapping[str, Any]) -> Drain:
    """Read the drain settings of one container of a pod spec (manifest JSON)."""
    grace_s = float(pod_spec.get("terminationGracePeriodSeconds", 30))
    timeout_s = float(flag_number(command_line(container), "--shutdown-timeout") or 0)
    pre_stop_s = _pre_stop_s((container.get("lifecycle") or {}).get("preStop"))
    problems = []
    if timeout_s <= 0:
        problems.append(
            "--shutdown-timeout is 0 (vLLM's default): requests in flight are aborted at SIGTERM; "
            "set it above the longest request"
        )
    if pre_stop_s == 0:
        problems.append(
            "there is no preStop hook: requests still arriving after SIGTERM fail; add a preStop sleep"
        )
    needed_s = timeout_s + (pre_stop_s or 0)
    if grace_s < needed_s or (grace_s == needed_s and needed_s > 0):
        problems.append(
            f"terminationGracePeriodSeconds is {grace_s:g}: the pod is killed before it has drained; "
            f"set it above {needed_s:g} (preStop {pre_stop_s or 0:g} + --shutdown-timeout {timeout_s:g})"
        )
    return Drain(pre_stop_s, timeout_s, grace_s, tuple(problems))


def _pre_stop_s(hook: Mapping[str, Any] | None) -> float | None:
    if not hook:
        return 0.0
    if "sleep" in hook:
        return float(hook["sleep"].get("seconds", 0))
    command = " ".join(map(str, (hook.get("exec") or {}).get("command") or []))
    seconds = _SLEEP.search(command)
    return float(seconds.group(1)) if seconds else None
