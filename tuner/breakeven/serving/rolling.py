"""Rolls of the kinds that the operator rolls: the pods beside and instead of the old ones, and whether a roll loses a request.

By default vLLM kills the engine at SIGTERM while requests are in flight, and clients hang until the pod is killed. A
roll loses no request only under three conditions (tried on vLLM 0.32). (1) `--shutdown-timeout` outlasts the longest
request. (2) A preStop hook holds SIGTERM back until clients have noticed that the pod goes.
(3) `terminationGracePeriodSeconds` covers both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from breakeven.serving.command_line import command_line, flag_number, shell_call
from breakeven.serving.engine_start import environment_of
from breakeven.serving.findings import said
from breakeven.serving.shell_script import shell_script
from breakeven.serving.vllm_versions import SHUTDOWN_TIMEOUT, version_of


class Strategy(NamedTuple):
    """Strategy of a workload's rolls, in pods."""

    max_surge: int
    max_unavailable: int


def strategy(spec: Mapping[str, Any], desired: int) -> Strategy:
    """The strategy of a Deployment's spec, percentages resolved as its controller does; Recreate takes every pod away at once."""
    found = spec.get("strategy") or {}
    if found.get("type") == "Recreate":
        return Strategy(0, desired)
    return _numbers(found.get("rollingUpdate") or {}, desired, "25%", "25%")


def ordinal_strategy(spec: Mapping[str, Any], desired: int) -> Strategy:
    """The strategy of a StatefulSet's spec: one pod at a time, or as many as maxUnavailable says; never one more than wanted."""
    rolling = (spec.get("updateStrategy") or {}).get("rollingUpdate") or {}
    return _numbers({**rolling, "maxSurge": 0}, desired, 0, 1)


def group_strategy(spec: Mapping[str, Any], desired: int) -> Strategy:
    """The strategy of a LeaderWorkerSet's spec, in groups: one at a time unless it says otherwise, and no surge above its size."""
    surge, unavailable = _numbers(_of_groups(spec), desired, 0, 1)
    surge = min(desired, surge)
    return Strategy(surge, unavailable or int(surge == 0))


def held_back(spec: Mapping[str, Any]) -> str | None:
    """Why a StatefulSet's controller would leave pods on an older template, as a clause with the way out; None if it would not."""
    found = spec.get("updateStrategy") or {}
    if found.get("type") == "OnDelete":
        return said("on delete")
    partition = int((found.get("rollingUpdate") or {}).get("partition", 0))
    place = "updateStrategy.rollingUpdate"
    return said("partition", partition=partition, what="pods", place=place) if partition > 0 else None


def groups_held_back(spec: Mapping[str, Any]) -> str | None:
    """The same of a LeaderWorkerSet and its groups."""
    partition = int(_of_groups(spec).get("partition") or 0)
    place = "rolloutStrategy.rollingUpdateConfiguration"
    return said("partition", partition=partition, what="groups", place=place) if partition > 0 else None


def _of_groups(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (spec.get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}
    return found


def _numbers(rolling: Mapping[str, Any], desired: int, surge: int | str, unavailable: int | str) -> Strategy:
    """Numbers of a roll, where the spec leaves these to its kind; with neither surge nor unavailable pods a roll could never begin."""

    def pods(value: int | str, rounded: Callable[[float], int]) -> int:
        text = str(value)
        if not text.endswith("%"):
            return int(text)
        return rounded(int(text.removesuffix("%")) * desired / 100)

    more = pods(rolling.get("maxSurge", surge), math.ceil)
    fewer = pods(rolling.get("maxUnavailable", unavailable), math.floor)
    return Strategy(more, fewer or int(more == 0))


def stepwise_strategy(spec: Mapping[str, Any], desired: int) -> Strategy:
    """The strategy of an Argo Rollout's spec. Behind a switch of traffic all new pods stand beside the old ones."""
    found = spec.get("strategy") or {}
    canary = found.get("canary") or {}
    if found.get("blueGreen") is not None or canary.get("trafficRouting"):
        return Strategy(desired, 0)
    return strategy({"strategy": {"rollingUpdate": canary}}, desired)


def _made_strategy(spec: Mapping[str, Any], desired: int) -> Strategy:
    """The strategy of what KServe's controller makes of an LLMInferenceService's spec, which has no fields for it."""
    return group_strategy({}, desired) if spec.get("worker") is not None else strategy({}, desired)


def _predictor_strategy(spec: Mapping[str, Any], desired: int) -> Strategy:
    """The strategy of the Deployment that KServe's controller makes of an InferenceService's spec."""
    return strategy({"strategy": (spec.get("predictor") or {}).get("deploymentStrategy")}, desired)


def _half_held(spec: Mapping[str, Any]) -> str | None:
    return None if spec.get("prefill") is None else said("half")


class RolledKind(NamedTuple):
    """A kind that the operator rolls, with what a spec of it says.

    Attributes:
        group: of the API.
        strategy: of a spec, for so many replicas; raises ValueError if a number of pods is invalid.
        rolls_at: where a spec has the numbers of pods of a roll; empty if it has none.
        held: why its controller would leave pods on an older template, as a clause with the way out.
    """

    group: str
    strategy: Callable[[Mapping[str, Any], int], Strategy]
    rolls_at: tuple[str, ...] = ()
    held: Callable[[Mapping[str, Any]], str | None] = lambda _: None


ROLLED: Final[Mapping[str, RolledKind]] = {
    "Deployment": RolledKind("apps", strategy, ("strategy", "rollingUpdate")),
    "StatefulSet": RolledKind("apps", ordinal_strategy, ("updateStrategy", "rollingUpdate"), held_back),
    "LeaderWorkerSet": RolledKind(
        "leaderworkerset.x-k8s.io",
        group_strategy,
        ("rolloutStrategy", "rollingUpdateConfiguration"),
        groups_held_back,
    ),
    "Rollout": RolledKind("argoproj.io", stepwise_strategy, ("strategy", "canary")),
    "LLMInferenceService": RolledKind("serving.kserve.io", _made_strategy, held=_half_held),
    "InferenceService": RolledKind(
        "serving.kserve.io", _predictor_strategy, ("predictor", "deploymentStrategy", "rollingUpdate")
    ),
}
"""The kinds that the operator rolls, by name."""


def rolled_kinds(word: str, plural: str = "") -> str:
    """Their names in a sentence, each with the ending of a plural: `Deployment, StatefulSet or LeaderWorkerSet`."""
    *first, last = (f"{name}{plural}" for name in ROLLED)
    return f"{', '.join(first)} {word} {last}"


_MANY = frozenset({"ReadOnlyMany", "ReadWriteMany"})


WITHOUT_SURGE = "maxSurge: 0 and maxUnavailable: 1"
"""The lines with which a pod is gone before the next one comes."""


def mounted_claims(pod_spec: Mapping[str, Any]) -> frozenset[str]:
    """Names of the PersistentVolumeClaims that a pod mounts."""
    claims = (volume.get("persistentVolumeClaim") or {} for volume in pod_spec.get("volumes") or [])
    return frozenset(str(claim["claimName"]) for claim in claims if claim.get("claimName"))


def unshareable(pod_spec: Mapping[str, Any], claims: Iterable[Mapping[str, Any]]) -> str | None:
    """The part that a second pod cannot have, as a sentence with the way out; claims are known as far as they may be read."""
    for claim in pod_spec.get("resourceClaims") or []:
        if claim.get("resourceClaimName"):
            return said("claimed device", name=claim["resourceClaimName"])
    mounted = mounted_claims(pod_spec)
    for claim in claims:
        name, modes = claim["metadata"]["name"], set(claim["spec"].get("accessModes") or [])
        if name in mounted and modes and not modes & _MANY:
            return said("claimed volume", name=name, modes="/".join(sorted(modes)))
    return None


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
    version = version_of(str(container.get("image", "")))
    problems = []
    if version is not None and version < SHUTDOWN_TIMEOUT:
        # A hook of unknown length may be a loop that waits for the last request: all that such a version can have.
        if pre_stop_s is not None or timeout_s > 0:
            refuses = ", and does not start with it" if timeout_s > 0 else ""
            problems.append(said("no timeout", version=version, first=SHUTDOWN_TIMEOUT, refuses=refuses))
    elif timeout_s <= 0:
        problems.append(said("aborts"))
    if pre_stop_s == 0:
        problems.append(said("no hook"))
    hook_s = pre_stop_s or 0
    needed_s = timeout_s + hook_s
    if grace_s < needed_s or (grace_s == needed_s and needed_s > 0):
        figures = {"grace_s": grace_s, "needed_s": needed_s, "hook_s": hook_s, "timeout_s": timeout_s}
        problems.append(said("killed", **figures))
    return Drain(pre_stop_s, timeout_s, grace_s, tuple(problems))


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
