"""A measurement that a fit refused is made again; any other failure ends the demo with its reason."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from breakeven.arm import NO_SPECULATION
from demo.director import ATTEMPTS, Director, Player, StoryError, ended_rolls
from demo.record import Record, ServiceRecord, Speedup
from demo.summary import roll_rows
from demo.traffic import ENDPOINT_LAG_S, Endpoints, RequestShape, Traffic
from fakes.virtual_time import in_virtual_time
from operatorcluster.target_engine import profile_json


class Sight:
    """A cluster whose calibrations fail for the given reasons, one after the other, and then succeed."""

    def __init__(self, *reasons: str) -> None:
        self.reasons = reasons
        self.asked = 0

    async def custom(self, plural: str) -> list[dict]:
        if plural == "calibrationruns":
            return [
                {
                    "metadata": {"name": f"chat-p{number}"},
                    "spec": {"serviceRef": {"name": "chat"}},
                    "status": {"phase": "Failed", "reason": reason, "message": "why"},
                }
                for number, reason in enumerate(self.reasons[: self.asked + 1])
            ]
        if plural == "speculationprofiles":
            return [{"metadata": {"name": "p"}, "spec": {"profile": profile_json()}}]
        calibration = {"profile": "p"} if self.asked >= len(self.reasons) else {}
        return [{"metadata": {"name": "chat"}, "status": {"calibration": calibration}}]

    async def ready_pods(self, selector: dict[str, str], port: int) -> dict[str, str]:
        return {f"{selector['app']}-0": f"http://127.0.0.1:{port}"}

    async def alerting(self) -> set[str]:
        return set()

    async def events(self) -> list[tuple]:
        return []


class View:
    def __init__(self) -> None:
        self.steps: list[str] = []

    def step(self, text: str) -> None:
        self.steps.append(text)

    def refresh(self) -> None: ...


def player(name: str, port: int) -> Player:
    traffic = Traffic(name, RequestShape(1, 1), Endpoints(), seed=1)
    return Player(ServiceRecord(name, "A100", "RollingUpdate"), traffic, {"app": name}, port, 1, {})


def directed(sight: Sight, view: View, *players: Player) -> Director:
    records = {one.record.name: one.record for one in players}
    return Director(sight, Record(0.0, records, shortened=[]), {one.record.name: one for one in players}, view)  # fmt: skip


async def calibrated(sight: Sight, view: View) -> dict:
    director = directed(sight, view, player("chat", 8000))

    async def again(service: str, attempt: int) -> None:
        assert (service, attempt) == ("chat", sight.asked + 2)
        sight.asked += 1

    watching = asyncio.create_task(director.watch())
    try:
        return await director.calibrated(60.0, again)
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


@in_virtual_time
async def test_a_measurement_that_a_fit_refused_is_made_again_and_told():
    view = View()
    found = await calibrated(Sight("FitRejected"), view)
    assert found["chat"].arm(NO_SPECULATION).points
    assert view.steps == ["chat: FitRejected: why; measured again"]


@pytest.mark.parametrize(
    "reasons", [("Unschedulable",), ("FitRejected",) * ATTEMPTS], ids=["other", "always"]
)
@in_virtual_time
async def test_any_other_failure_and_the_last_attempt_end_it_with_the_reason(reasons):
    with pytest.raises(StoryError, match=f"chat: {reasons[0]}: why"):
        await calibrated(Sight(*reasons), View())


@in_virtual_time
async def test_users_follow_the_ready_pods_of_their_own_service():
    chat, docs = player("chat", 8000), player("docs", 8001)
    watching = asyncio.create_task(directed(Sight(), View(), chat, docs).watch())
    await asyncio.sleep(2 * ENDPOINT_LAG_S)
    watching.cancel()
    assert chat.traffic.endpoints.urls == {"chat-0": "http://127.0.0.1:8000"}
    assert docs.traffic.endpoints.urls == {"docs-0": "http://127.0.0.1:8001"}


def test_the_history_of_a_status_is_what_each_roll_promised_and_brought():
    newest = {"time": "2026-11-23T07:00:09Z", "fromArm": "eagle/3", "toArm": "none", "result": "Unmeasured"}
    first = {
        "time": "2026-11-23T07:00:00Z", "fromArm": "none", "toArm": "eagle/3", "result": "Confirmed",
        "predictedSpeedup": "1.72", "measuredSpeedup": "1.83", "measuredSpeedupLower": "1.4",
        "measuredSpeedupUpper": "2.39", "measuredRequests": 908,
    }  # fmt: skip
    confirmed, unmeasured = ended_rolls({"history": [newest, first]})
    assert (confirmed.promised, confirmed.measured) == (Speedup(1.72), Speedup(1.83, 1.4, 2.39))
    assert (unmeasured.promised, unmeasured.measured, unmeasured.requests) == (None, None, 0)
    assert unmeasured.at_s - confirmed.at_s == 9.0
    record = Record(
        0.0, {"chat": ServiceRecord("chat", "A100", "RollingUpdate", rolls=[confirmed, unmeasured])}
    )
    assert roll_rows(record) == [
        ("chat", "no speculation -> eagle/3", "Confirmed", "1.72x", "1.83x (1.40 to 2.39)", "908"),
        ("chat", "eagle/3 -> no speculation", "Unmeasured", "-", "-", "-"),
    ]
