"""Whether a vLLM pod can be replaced without losing a request.

By default vLLM kills the engine at SIGTERM while requests are in flight, and clients hang until the pod is killed. A
roll loses no request only under three conditions (tried on vLLM 0.32). (1) `--shutdown-timeout` outlasts the longest
request. (2) A preStop hook holds SIGTERM back until clients have noticed that the pod goes.
(3) `terminationGracePeriodSeconds` covers both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from breakeven.serving.command_line import command_line, flag_number, shell_call
from breakeven.serving.engine_start import environment_of
from breakeven.serving.shell_script import shell_script
from breakeven.serving.vllm_versions import SHUTDOWN_TIMEOUT, VllmVersion, version_of

_DURATION = re.compile(r"(\d+\.?\d*|\.\d+)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
# Characters; a longer one does more than sleep.
_LONGEST_HOOK = 2000
# They take no time that counts, and do not change how long a sleep is.
_INSTANT = {":", "cd", "date", "echo", "export", "printf", "rm", "set", "touch", "trap", "true"}


@dataclass(frozen=True, slots=True)
class Drain:
    """Shutdown of one container.

    Attributes:
        pre_stop_s: seconds that a preStop hook holds SIGTERM back; 0 without one; None if its length is unknown (a script, an
            HTTP call).
        shutdown_timeout_s: vLLM's `--shutdown-timeout`; 0 is its default and aborts what is in flight.
        grace_s: the pod's terminationGracePeriodSeconds.
        problems: a whole sentence for each missing setting.
    """

    pre_stop_s: float | None
    shutdown_timeout_s: float
    grace_s: float
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether a roll loses no request by these settings."""
        return not self.problems


def drain(
    pod_spec: Mapping[str, Any], container: Mapping[str, Any], words: Sequence[str] | None = None
) -> Drain:
    """Read the drain settings of one container; `words` is vLLM's command line if a shell puts it together."""
    grace_s = float(pod_spec.get("terminationGracePeriodSeconds", 30))
    given = command_line(container) if words is None else words
    timeout_s = float(flag_number(given, "--shutdown-timeout") or 0)
    pre_stop_s = _pre_stop_s((container.get("lifecycle") or {}).get("preStop"), environment_of(container))
    problems = [*_timeout_problems(timeout_s, pre_stop_s, version_of(str(container.get("image", ""))))]
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


def _timeout_problems(
    timeout_s: float, pre_stop_s: float | None, version: VllmVersion | None
) -> Iterator[str]:
    if version is not None and version < SHUTDOWN_TIMEOUT:
        # A hook of unknown length may be a loop that waits for the last request: all that such a version can have.
        if pre_stop_s is not None or timeout_s > 0:
            refuses = ", and does not start with it" if timeout_s > 0 else ""
            yield (
                f"vLLM {version} does not know --shutdown-timeout ({SHUTDOWN_TIMEOUT} does){refuses}: upgrade, or let "
                "the preStop hook outlast the longest request"
            )
    elif timeout_s <= 0:
        yield (
            "--shutdown-timeout is 0 (vLLM's default): requests in flight are aborted at SIGTERM; "
            "set it above the longest request"
        )


def _pre_stop_s(hook: Mapping[str, Any] | None, environment: Mapping[str, str | None]) -> float | None:
    if not hook:
        return 0.0
    if "sleep" in hook:
        return float((hook["sleep"] or {}).get("seconds", 0))
    words = tuple(str(word) for word in (hook.get("exec") or {}).get("command") or [])
    return _lasts_s(words, tuple(sorted(environment.items())))


# A decision of the operator asks the same hook twice.
@lru_cache(maxsize=256)
def _lasts_s(words: tuple[str, ...], environment: tuple[tuple[str, str | None], ...]) -> float | None:
    """Seconds that the command of a hook takes; None if it cannot be said without running it."""
    call = shell_call(words)
    if call is None:
        return _slept_s(words)
    if len(call.script) > _LONGEST_HOOK:
        return None
    script = shell_script(call.script, dict(environment), call.arguments)
    total_s = 0.0
    for command in script.commands:
        name = command.words[0].rpartition("/")[2]
        if name == "exit" and not (command.repeated or command.conditional or command.background):
            break
        if name in _INSTANT:
            continue
        slept_s = _slept_s(command.words) if command.literal else None
        if slept_s is None or command.repeated or command.conditional or command.background:
            return None
        total_s += slept_s
    return total_s if script.complete and total_s > 0 else None


def _slept_s(words: Sequence[str]) -> float | None:
    """Seconds of a `sleep`, whose arguments add up; None for another command, or for an invalid duration."""
    if list(words[:1]) == ["exec"]:
        words = words[1:]
    if not words or words[0].rpartition("/")[2] != "sleep" or len(words) == 1:
        return None
    found = [_DURATION.fullmatch(word) for word in words[1:]]
    return sum((float(one[1]) * _SECONDS[one[2]] for one in found if one), 0.0) if all(found) else None
