"""`make demo STORY=drift`: the text under a service changes half-way, and its profile is wrong from then on.

The drafter was trained on short texts. Users begin with prompts that it knows, and speculation pays. Then their prompts
grow beyond that, and hardly a draft is accepted. Nobody informs the operator. It must notice, leave the arm on measured
latency, measure again at the new lengths, and come to the arm that is right for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.profile import Profile
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.updatepolicy import Timing
from demo import installation
from demo.director import Director
from demo.performance import CALIBRATION_TIMEOUT_S, Casting, Scene, perform, what_to_try
from demo.story import fastest_arm
from demo.summary import Check, safety_checks, tell_checks
from demo.traffic import RequestShape
from localcluster import LocalCluster

_LONG_PROMPT_TOKENS = 400
_MIN_GAIN = 0.05
_RPS = 3.0
_TIMEOUT_S = 400.0
_CAST = Casting("chat", "A100", "RollingUpdate", replicas=2)
_TRAFFIC_S = 20.0
_TIMING = Timing(disagreement_seconds=60, calibration_interval_seconds=30)
"""Measurements contradict the profile for a minute before it is suspected, half an hour in production."""
NOTICED = frozenset(
    {ClusterReason.ACCEPTANCE_DRIFTED, ClusterReason.LENGTHS_DRIFTED, ClusterReason.MODEL_DISAGREES}
)
"""Words of which at least one must appear."""
_ALIKE = 0.15
"""Mean lengths that differ by less are the same lengths."""


@dataclass(frozen=True, slots=True)
class TextChange:
    """The operator's reaction to the change, as the demo saw it.

    Attributes:
        changed_s: wall clock at which the text changed.
        left_s: another arm was in place from then on.
        measured_s: another profile was in force from then on.
        prompt_tokens: mean prompt length that the first and the last profile were measured at.
        right: the fastest arm by the first and by the last profile.
        running: the arm in place before the change and at the end.
    """

    changed_s: float
    left_s: float
    measured_s: float
    prompt_tokens: tuple[float, float]
    right: tuple[Arm, Arm]
    running: tuple[str, str]


def play(costs: Path, console: Console, *, keep: bool) -> list[Check]:
    """Play it; whether the operator came to the right arm for the new text."""
    performance = perform(costs, console, (_CAST,), _installed, _acts, keep=keep, timing=_TIMING)
    seen, events = performance.told, performance.record.events
    words = [event.reason for event in events if event.service == _CAST.name and event.at_s >= seen.changed_s]
    checks = judge(seen, words)
    checks += safety_checks(performance.record, performance.failures)
    tell_checks(console, checks)
    if keep:
        what_to_try(console, performance.cluster)
    return checks


def _installed(cluster: LocalCluster) -> str:
    installation.apply(cluster, *installation.deployment("vllm-a100.yaml", _CAST.replicas))
    return "a Deployment, and nobody who watches it yet"


def _service() -> installation.Manifest:
    service = installation.service(_CAST.name, f"{_CAST.name}-vllm", _CAST.mode)
    # Lengths as the users' own traffic shows them, at every calibration.
    service["spec"]["calibration"].pop("workload")
    # The acceptance of other arms follows their load: the story is about one draft length.
    for method in service["spec"]["candidates"]["methods"]:
        method |= {"schedule": "Never", "adaptiveVerification": "Never"}
    return service


async def _acts(scene: Scene) -> TextChange:
    """Short prompts until the right arm runs; then long ones until the right arm runs again."""
    player, director = scene.players[_CAST.name], scene.director

    def running() -> str:
        return player.record.samples[-1].arm if player.record.samples else ""

    def profile_name() -> str:
        return str((player.status.get("calibration") or {}).get("profile") or "")

    def settled(arm: Arm) -> bool:
        return running() == arm.name and not player.status.get("rollout")

    player.traffic.set_rate(_RPS * player.replicas)
    scene.view.step(f"users send {installation.PROMPT_TOKENS} tokens")
    # A calibration copies the lengths of users' requests: there must have been some.
    asked_s = time.time()
    await director.until("some traffic", lambda: time.time() > asked_s + _TRAFFIC_S, _TIMEOUT_S)
    await asyncio.to_thread(installation.apply, scene.cluster, _service())
    scene.view.step("a SpeculativeService is applied: every arm is calibrated at the users' lengths")
    await director.until("a first profile", lambda: bool(profile_name()), CALIBRATION_TIMEOUT_S)
    first = profile_name()
    before = await director.profile(first)
    right_before = fastest_arm(before, _RPS, _MIN_GAIN)
    await director.until(
        f"{right_before} runs and its roll is judged",
        lambda: settled(right_before) and bool(player.status.get("history")),
        _TIMEOUT_S,
    )
    running_before, changed_s = running(), time.time()
    player.traffic.shape = RequestShape(_LONG_PROMPT_TOKENS, installation.OUTPUT_TOKENS)
    scene.view.step(f"from now on users send {_LONG_PROMPT_TOKENS} tokens; the operator is not informed")
    left_s, measured_s = await asyncio.gather(
        _when(director, "the arm is left", lambda: running() not in {"", running_before}),
        _when(director, "another profile", lambda: profile_name() not in {"", first}),
    )
    scene.view.step(f"{running_before} was left, and every arm measured again")
    after = await director.profile(profile_name())
    right_after = fastest_arm(after, _RPS, _MIN_GAIN)
    await director.until(f"{right_after} runs", lambda: settled(right_after), _TIMEOUT_S)
    await scene.photographed("board", "service")
    return TextChange(
        changed_s,
        left_s,
        measured_s,
        (_prompt_tokens(before), _prompt_tokens(after)),
        (right_before, right_after),
        (running_before, running()),
    )


async def _when(director: Director, what: str, happened: Callable[[], bool]) -> float:
    """Wall clock at which something was first seen to have happened."""
    await director.until(what, happened, CALIBRATION_TIMEOUT_S)
    return time.time()


def _prompt_tokens(profile: Profile) -> float:
    """Mean prompt length that a profile was measured at."""
    return float(profile.arm(NO_SPECULATION).lengths.prompt_tokens or 0.0)


def judge(seen: TextChange, words: Sequence[str]) -> list[Check]:
    """Whether everything happened that the change of text asks for.

    Args:
        seen: before and after.
        words: reasons of the service's events since the text changed, in order of time.
    """
    noticed = [word for word in words if word in NOTICED]
    lengths = " and then ".join(f"{tokens:.0f}" for tokens in seen.prompt_tokens)
    return [
        Check(
            f"{seen.right[0]} ran while the text was the one that was measured",
            seen.running[0] == seen.right[0].name and seen.right[0].k > 0,
            seen.running[0],
        ),
        Check(
            "the change was noticed, and a reason word says so",
            bool(noticed),
            ", ".join(dict.fromkeys(noticed)) or "no word",
        ),
        Check(
            "the arm was left on measured latency, before another calibration",
            seen.left_s < seen.measured_s,
            f"left {seen.left_s - seen.changed_s:.0f} s after the change, another profile {seen.measured_s - seen.changed_s:.0f} s after it",
        ),
        Check(
            "another calibration used the new lengths",
            abs(seen.prompt_tokens[1] / _LONG_PROMPT_TOKENS - 1.0) < _ALIKE,
            f"prompts of {lengths} tokens",
        ),
        Check(
            "the arm that is right for the new text runs",
            seen.running[1] == seen.right[1].name,
            f"{seen.running[1]}, {seen.right[1]} expected",
        ),
    ]
