"""The last act of the demo: an arm that waits for a rollout of its owner's own, judged by what was seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from demo import day, installation
from demo.director import StoryError
from demo.record import Sample
from demo.story import Phase

EAGLE = Arm("eagle3", 3, "eagle")
HIGH = Phase("high", 9.0, NO_SPECULATION, frozenset({"none"}), EAGLE, 1.0, 1.4)


def sample(arm: str, reason: str, at_s: float = 30.0) -> Sample:
    return Sample(at_s, 9.0, 0.5, arm, "none", "No", "0.80 expected", reason, False, "")


def acted(monkeypatch: pytest.MonkeyPatch, awaited: Sample, after: Sample) -> tuple[list[Any], list[str]]:
    """The checks of the act, and what was asked of the cluster; `after` is what is seen after the restart."""
    done: list[str] = []
    rates: list[float] = []
    samples = [sample("eagle/3", "BelowBreakEven", 1.0)]
    monkeypatch.setattr(installation, "set_mode", lambda _, name, mode: done.append(f"{name} {mode}"))
    monkeypatch.setattr(installation, "restart", lambda _, name: done.append(f"restart {name}"))

    async def until(what: str, condition: Callable[[], bool], timeout_s: float) -> None:
        samples.append(after if done[-1].startswith("restart") else awaited)
        if not condition():
            raise StoryError(f"{what}: not within {timeout_s:.0f} s")

    traffic = SimpleNamespace(set_rate=rates.append)
    player = SimpleNamespace(record=SimpleNamespace(samples=samples), traffic=traffic, replicas=2)
    scene: Any = SimpleNamespace(
        players={"chat": player},
        cluster=None,
        view=SimpleNamespace(step=lambda _: None),
        director=SimpleNamespace(until=until),
    )
    checks = asyncio.run(day.owners_rollout(scene, HIGH))
    assert rates == [18.0]
    return checks, done


def test_the_arm_waits_and_a_restart_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, done = acted(monkeypatch, sample("eagle/3", "AwaitsRollout"), sample("none", "AlreadyBest"))
    assert [check.ok for check in checks] == [True, True]
    assert "eagle/3 still ran" in checks[0].detail
    assert done == ["chat NextRollout", "restart chat-vllm"]


@pytest.mark.parametrize(
    ("awaited", "after", "failed"),
    [
        (sample("eagle/3", "AwaitsRollout", 9.0), sample("none", ""), "a person's own rollout"),
        (sample("none", "AwaitsRollout"), sample("none", "AlreadyBest"), "nothing restarts"),
        (sample("eagle/3", "Saturated"), sample("none", ""), "a person's own rollout"),
        (sample("eagle/3", "AwaitsRollout"), sample("eagle/3", "AwaitsRollout"), "a person's own rollout"),
    ],
)
def test_whatever_did_not_happen_fails_its_check(
    monkeypatch: pytest.MonkeyPatch, awaited: Sample, after: Sample, failed: str
) -> None:
    checks, _ = acted(monkeypatch, awaited, after)
    assert [check.what for check in checks if not check.ok and failed in check.what]
