"""Runs the play: waits for what must happen, changes the load, and writes down what was seen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from breakeven.profile import Profile
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.packed import whole
from demo.record import EndedRoll, Happening, PhaseResult, Record, Sample, ServiceRecord, Speedup
from demo.sight import Object, Sight
from demo.story import Phase
from demo.traffic import Traffic, mean_latency_s
from demo.view import View

# A point of four seconds on a machine that does something else besides may be off; production measures for minutes.
ATTEMPTS = 3
# Answers of the last seconds make the latency on the screen.
_LATENCY_WINDOW_S = 5.0


class StoryError(Exception):
    """Something that must happen did not; the text says what and how long was waited."""


@dataclass(slots=True)
class Player:
    """One service of the demo: its record and the users it has."""

    record: ServiceRecord
    traffic: Traffic
    selector: Mapping[str, str]
    port: int
    replicas: int
    status: Object

    @property
    def rolls(self) -> bool:
        """Whether the operator may change what runs."""
        return self.record.mode == "RollingUpdate"


class Director:
    """Holds the players and the one loop that looks at the cluster once a second."""

    def __init__(self, sight: Sight, record: Record, players: Mapping[str, Player], view: View) -> None:
        self._sight = sight
        self._record = record
        self._players = players
        self._view = view
        self._looked = asyncio.Condition()
        self._runs: list[Object] = []

    async def watch(self) -> None:
        """Sample everything once a second until cancelled."""
        while True:
            started = time.monotonic()
            await self._look()
            self._view.refresh()
            async with self._looked:
                self._looked.notify_all()
            await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - started)))

    async def _look(self) -> None:
        services, runs, alerting, events = await asyncio.gather(
            self._sight.custom("speculativeservices"),
            self._sight.custom("calibrationruns"),
            self._sight.alerting(),
            self._sight.events(),
        )
        for service in services:
            player = self._players.get(service["metadata"]["name"])
            if player is not None:
                player.status = whole(service.get("status") or {})
        for player in self._players.values():
            player.traffic.endpoints.learn(await self._sight.ready_pods(player.selector, player.port))
        self._runs = runs
        now = time.time()
        for name, player in self._players.items():
            player.record.rolls = ended_rolls(player.status)
            player.record.samples.append(_sample(player, _progress(runs, name), name in alerting, now))
        known = {(event.at_s, event.service, event.reason, event.message) for event in self._record.events}
        self._record.events += [
            Happening(at_s, service, kind, reason, message)
            for at_s, service, kind, reason, message in events
            if (at_s, service, reason, message) not in known
        ]

    async def until(self, what: str, condition: Callable[[], bool], timeout_s: float) -> None:
        """Return after the first look for which the condition holds.

        Raises:
            StoryError: it did not hold in time.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise StoryError(f"{what}: not within {timeout_s:.0f} s")
            async with self._looked:
                await self._looked.wait()

    async def calibrated(
        self, timeout_s: float, again: Callable[[str, int], Awaitable[None]]
    ) -> dict[str, Profile]:
        """Wait for a profile in force for every player, and read it.

        Args:
            timeout_s: for all of them.
            again: asks for another calibration of a service; its argument is the number of the attempt.

        Raises:
            StoryError: not in time, or a calibration failed for what another would not mend.
        """
        found: dict[str, Profile] = {}
        seen: dict[str, list[str]] = {name: [] for name in self._players}

        def failure() -> tuple[str, Object] | None:
            """The first failed run that was not seen yet, and its service."""
            failed = ((name, run) for name in seen for run in failed_runs(self._runs, name))
            return next(
                ((name, run) for name, run in failed if run["metadata"]["name"] not in seen[name]), None
            )

        def all_in_force() -> bool:
            return all((p.status.get("calibration") or {}).get("profile") for p in self._players.values())

        while True:
            await self.until(
                "a profile in force for every service",
                lambda: all_in_force() or failure() is not None,
                timeout_s,
            )
            if (news := failure()) is None:
                break
            name, run = news
            seen[name].append(run["metadata"]["name"])
            account = f"{name}: {run['status'].get('reason')}: {run['status'].get('message')}"
            if run["status"].get("reason") != ClusterReason.FIT_REJECTED or len(seen[name]) >= ATTEMPTS:
                raise StoryError(account)
            self._view.step(f"{account}; measured again")
            await again(name, len(seen[name]) + 1)
        for name, player in self._players.items():
            found[name] = await self.profile(player.status["calibration"]["profile"])
        return found

    async def profile(self, name: str) -> Profile:
        """The fit in a SpeculationProfile.

        Raises:
            StoryError: there is none of that name.
        """
        for item in await self._sight.custom("speculationprofiles"):
            if item["metadata"]["name"] == name:
                return Profile.from_json(item["spec"]["profile"], f"specprof/{name}")
        raise StoryError(f"SpeculationProfile {name}: not there")

    async def play(self, phases: Mapping[str, Phase], *, timeout_s: float, measure_s: float) -> None:
        """Run one phase on every player until each has settled and has been measured, or the time is over."""
        started = time.time()
        for name, phase in phases.items():
            player = self._players[name]
            player.traffic.set_rate(phase.rps * player.replicas)
        results = await asyncio.gather(
            *(
                self._play_one(
                    self._players[name],
                    phase,
                    started,
                    timeout_s,
                    measure_s,
                )
                for name, phase in phases.items()
            )
        )
        for name, result in zip(phases, results, strict=True):
            self._players[name].record.phases.append(result)

    async def _play_one(
        self,
        player: Player,
        phase: Phase,
        started_s: float,
        timeout_s: float,
        measure_s: float,
    ) -> PhaseResult:
        settled_s: float | None = None
        try:
            await self.until(
                f"{player.record.name} at {phase.name} load",
                lambda: self._settled(player, phase, started_s),
                timeout_s,
            )
            settled_s = time.time()
            await self.until("measuring", lambda: time.time() > (settled_s or 0) + measure_s, timeout_s)
        except StoryError:
            # Told in the summary: the result then has no settling time.
            pass
        ended_s = time.time()
        begun_s = settled_s or started_s
        measured = mean_latency_s(player.traffic.outcomes, begun_s, ended_s)
        requests = measured[1] if measured else 0
        last = player.record.samples[-1]
        return PhaseResult(
            phase,
            started_s,
            ended_s,
            settled_s,
            measured[0] if measured else None,
            requests,
            requests / max(ended_s - begun_s, 1.0) / player.replicas,
            last.arm,
            last.recommended,
            last.reason,
            last.alert,
        )

    def _settled(self, player: Player, phase: Phase, started_s: float) -> bool:
        """Whether the service is where the measured laws say it should be at this load, and the verdict of its roll is in."""
        last = player.record.samples[-1]
        if player.rolls:
            return last.arm in phase.acceptable and not player.status.get("rollout")
        # A recommendation counts once it was made on this phase's load, and the alert has followed it.
        decided = str((player.status.get("decision") or {}).get("time", ""))
        fresh = bool(decided) and _timestamp(decided) > started_s
        runs_speculation = last.arm not in {"", "none"}
        alert_due = runs_speculation and phase.best.k == 0
        return fresh and last.recommended in phase.acceptable and last.alert == alert_due


def _sample(player: Player, calibration: str, alert: bool, now: float) -> Sample:
    display = (player.status.get("workings") or {}).get("display") or {}
    seen = [
        o.latency_s
        for o in player.traffic.outcomes[-400:]
        if o.error is None and o.sent_s + o.latency_s > now - _LATENCY_WINDOW_S
    ]
    return Sample(
        at_s=now,
        offered_rps=player.traffic.rate_rps / player.replicas,
        latency_s=sum(seen) / len(seen) if seen else None,
        arm=str(display.get("arm", "")),
        recommended=str(display.get("recommended", "")),
        pays=str(display.get("pays", "")),
        speedup=str(display.get("speedup", "")),
        reason=str(display.get("reason", "")),
        alert=alert,
        calibration=calibration,
    )


def ended_rolls(status: Object) -> list[EndedRoll]:
    """The changes of arm in a status, oldest first."""
    return [
        EndedRoll(
            at_s=_timestamp(str(entry["time"])),
            from_arm=str(entry.get("fromArm", "")),
            to_arm=str(entry.get("toArm", "")),
            result=str(entry["result"]),
            promised=_speedup(entry, "predicted"),
            measured=_speedup(entry, "measured"),
            requests=int(entry.get("measuredRequests", 0)),
        )
        for entry in reversed(status.get("history") or ())
    ]


def _speedup(entry: Object, which: str) -> Speedup | None:
    value, *bounds = (entry.get(f"{which}Speedup{end}") for end in ("", "Lower", "Upper"))
    if value is None:
        return None
    return Speedup(float(value), *(None if bound is None else float(bound) for bound in bounds))


def failed_runs(runs: Sequence[Object], service: str) -> list[Object]:
    """The calibrations of a service that failed."""
    return [
        run
        for run in runs
        if ((run.get("spec") or {}).get("serviceRef") or {}).get("name") == service
        and (run.get("status") or {}).get("phase") == "Failed"
    ]


def _progress(runs: list[Object], service: str) -> str:
    for run in runs:
        status: Mapping[str, Any] = run.get("status") or {}
        owner = ((run.get("spec") or {}).get("serviceRef") or {}).get("name")
        if owner == service and status.get("phase") not in {None, "Succeeded", "Failed"}:
            display = status.get("display") or {}
            points, left = display.get("points", "-"), display.get("left", "-")
            return f"calibrating {display.get('arm', '')} {points} points, {left} left"
    return ""


def _timestamp(text: str) -> float:
    from datetime import datetime  # noqa: PLC0415 - used here only

    return datetime.fromisoformat(text).timestamp()
