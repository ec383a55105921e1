"""A schedule from its measurement to the arm that runs: in one run with the arms it is made from, and as one candidate among them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.readers.reading import read_text
from breakeven.tiers import Schedule
from breakeven_operator.actions import FitOutcome
from breakeven_operator.calibration.jobs import TrialPlan
from breakeven_operator.calibration.transition import stored
from breakeven_operator.kinds import JOBS, PROFILES, RUNS
from fakes.fleet_world import EAGLE, LAWS, FleetWorld, fleet_profile_json
from fakes.lawful_profile import lawful_points

SCHEDULED = Arm("eagle3", 3, "eagle", scheduled=True)
TABLE, ANOTHER = "1-8:3,9-:0", "1-20:3,21-:0"


class LibraryFits:
    """The `Fitter` port: the library's fit in this process.

    Attributes:
        asked: the points files, in their order.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def fit(self, points_csv: str, arguments: Sequence[str]) -> FitOutcome:
        self.asked.append(points_csv)
        return FitOutcome(fit_points(read_text(points_csv, "points")).to_json(), None)


def scheduled(pinned: str | None = None, schedule: str = "Auto") -> FleetWorld:
    """A world whose method may have a schedule."""

    def edit(spec):
        spec["candidates"]["methods"][0]["schedule"] = schedule
        # A Job whose answers wait for their judge would stand beside that of the next arm.
        spec.setdefault("calibration", {})["answers"] = {"check": "Disabled"}
        if pinned is not None:
            spec["updatePolicy"]["pinnedArm"] = pinned

    world = FleetWorld(edit)
    world.load(3.0)
    return world


def fits_of(world: FleetWorld) -> LibraryFits:
    """From now on the library fits."""
    fits = LibraryFits()
    world.fits = fits  # type: ignore[assignment] # as a test's own port
    world.restart()
    return fits


def only_run(world: FleetWorld):
    (run,) = world.cluster.of(RUNS)
    return run["status"]


def phases(world: FleetWorld) -> dict[str, str]:
    return {arm["arm"]: arm.get("phase") for arm in only_run(world)["armStatuses"]}


async def measured(world: FleetWorld, law: tuple[float, float]) -> str:
    """The trial of the only Job ends with points of a law; returns the arm."""
    await world.until(lambda: len(world.cluster.of(JOBS)) == 1)
    (job,) = world.cluster.of(JOBS)
    (driver,) = job["spec"]["template"]["spec"]["containers"]
    env = {entry["name"]: entry.get("value") for entry in driver["env"]}
    trial = TrialPlan.read(json.loads(env["BREAKEVEN_TRIAL"]), "trial")
    planned = trial.arm
    table = trial.drafts
    arm = Arm(planned.method, planned.k, planned.candidate, scheduled=planned.scheduled)
    points = lawful_points(
        arm, law, 2.0 if arm.k else 1.0, prompt_tokens=64.0, output_tokens=32.0, schedule=table
    )
    start = planned.arm if planned.second_start else None
    await world.cluster.apply(
        RUNS,
        {
            "metadata": {"namespace": "llm", "name": trial.run},
            "status": {
                # The fake's lists have one owner: the driver of an arm applies those of the arms before it as well.
                "points": only_run(world).get("points", [])
                + [
                    stored(
                        planned.arm, index, replace(point, start=start), world.clock.now()
                    ).to_json_object()
                    for index, point in enumerate(points)
                ]
            },
        },
        force=True,
        subresource="status",
        manager="breakeven-trial",
    )
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    world.cluster.put(JOBS, job)
    await world.cycle()
    return planned.arm


async def test_a_run_measures_the_schedule_it_has_made_and_every_arm_s_end_stands_in_it():
    world = scheduled()
    fits = fits_of(world)
    assert await measured(world, LAWS[NO_SPECULATION]) == "none"
    assert await measured(world, LAWS[EAGLE]) == "eagle/3"
    # In one cycle: the fit, and the table it gives; the Job is the next one's.
    assert len(fits.asked) == 1
    status = next(arm for arm in only_run(world)["armStatuses"] if arm["arm"] == "eagle/schedule")
    table = Schedule.parse(status["schedule"], "status")
    assert (table.at(1), table.at(256)) == (3, 0)
    assert phases(world)["eagle/schedule"] == "Waiting"
    assert world.cluster.of(JOBS) == []
    world.restart()
    fits.asked.clear()
    assert await measured(world, (0.5, 0.055)) == "eagle/schedule"
    assert await measured(world, LAWS[EAGLE]) == "eagle/3/again"
    assert await measured(world, LAWS[NO_SPECULATION]) == "none/again"
    assert only_run(world)["phase"] == "Succeeded"
    turns = ("none", "eagle/3", "eagle/schedule", "eagle/3/again", "none/again")
    assert phases(world) == dict.fromkeys(turns, "Done")
    assert len(fits.asked) == 1, "a table that is written is not made again"
    (profile,) = world.cluster.of(PROFILES)
    shown = {arm["arm"]: arm.get("schedule") for arm in profile["spec"]["arms"]}
    assert shown == {"none": None, "eagle/3": None, "eagle/schedule": str(table)}


async def test_the_last_arm_s_end_stands_in_a_run_that_succeeded():
    world = scheduled(schedule="Never")
    fits_of(world)
    await measured(world, LAWS[NO_SPECULATION])
    await measured(world, LAWS[EAGLE])
    await measured(world, LAWS[NO_SPECULATION])
    assert only_run(world)["phase"] == "Succeeded"
    assert phases(world) == dict.fromkeys(("none", "eagle/3", "none/again"), "Done")


async def test_a_schedule_that_is_no_arm_of_its_own_ends_with_a_word_and_is_not_asked_for_again():
    world = scheduled()
    fits = fits_of(world)
    await measured(world, LAWS[NO_SPECULATION])
    for law in ((0.5, 0.02), (0.5, 0.02), LAWS[NO_SPECULATION]):
        await measured(world, law)
    assert only_run(world)["phase"] == "Succeeded"
    ends = dict.fromkeys(("none", "eagle/3", "eagle/3/again", "none/again"), "Done")
    assert phases(world) == ends | {"eagle/schedule": "Skipped"}
    assert len(fits.asked) == 2
    for _ in range(10):
        await world.cycle(60.0)
    assert len(world.cluster.of(RUNS)) == 1
    assert "eagle/schedule (ArmSkipped)" in world.condition("Calibrated")["message"]


def profile_json(law: tuple[float, float] = (0.5, 0.055), table: str = TABLE) -> str:
    """A profile of LAWS and of a schedule with a higher saturation than eagle/3 and the same speed alone."""
    laws = {**LAWS, SCHEDULED: law}
    return fleet_profile_json(laws, schedules={SCHEDULED: table})


def table_of(value: str | None) -> list[list[int]]:
    found: list[list[int]] = json.loads(value or "{}").get("num_speculative_tokens_per_batch_size")
    return found


async def test_a_schedule_that_was_measured_competes_like_any_other_arm_and_runs_with_its_table():
    world = scheduled()
    world.calibrate(profile=profile_json())
    await world.until(lambda: world.value not in {None, "null"})
    assert world.decision["arm"] == "eagle/schedule"
    assert table_of(world.value) == [[1, 8, 3], [9, 1024, 0]]
    await world.until(lambda: world.phase == "Confirming")
    world.load(3.0)
    # The acceptance of a mix of tiers, far from that of three drafts.
    world.prometheus.traffic.tokens_per_step = 1.3
    await world.until(lambda: world.phase is None)
    for _ in range(4):
        await world.cycle()
    current = world.whole["current"]
    assert (current["arm"], current["schedule"]) == ("eagle/schedule", TABLE)
    assert current["podsByArm"] == [{"arm": "eagle/schedule", "pods": 2}]
    assert (world.decision["action"], world.decision["arm"]) == ("Stay", "eagle/schedule")
    assert float(world.decision["tokensPerStep"]) == 1.3, "it is shown"
    assert "seen" not in world.memory, "and says nothing of three drafts"
    assert len(world.rolls) == 1


async def test_another_table_than_the_measured_one_is_changed_for_it():
    world = scheduled()
    world.calibrate(profile=profile_json())
    await world.until(lambda: world.phase == "Confirming")
    world.load(3.0)
    await world.until(lambda: world.phase is None)
    world.clock.advance(1200.0)
    world.calibrate(name="chat-p2", profile=profile_json(table=ANOTHER))
    world.load(3.0)
    await world.until(lambda: table_of(world.value) == [[1, 20, 3], [21, 1024, 0]])
    assert (world.decision["action"], world.reason) == ("Switch", "ArmUnmeasured")
    assert f"runs the schedule {TABLE} and another one was measured" in world.decision["message"]
    await world.until(
        lambda: (world.whole["current"].get("schedule"), world.phase) == (ANOTHER, "Confirming")
    )
    world.load(3.0)
    for _ in range(6):
        await world.cycle()
    assert len(world.rolls) == 2


async def test_a_table_that_nobody_has_measured_is_left_alone_and_named():
    world = scheduled()
    world.calibrate(profile=profile_json())
    await world.until(lambda: world.phase == "Confirming")
    world.clock.advance(1200.0)
    world.calibrate(name="chat-p2")  # none and eagle/3 only
    world.load(3.0)
    await world.until(lambda: world.reason == "ArmUnmeasured")
    assert world.decision["action"] == "Hold"
    assert len(world.rolls) == 1


async def test_a_pinned_schedule_waits_until_it_was_measured():
    world = scheduled(pinned="eagle/schedule")
    world.calibrate()
    await world.cycle()
    assert (world.decision["action"], world.reason) == ("Hold", "ArmUnmeasured")
    assert "pinnedArm asks for eagle/schedule" in world.decision["message"]
    world.clock.advance(30.0)
    world.calibrate(name="chat-p2", profile=profile_json())
    world.load(3.0)
    await world.until(lambda: table_of(world.value) is not None)
    assert world.reason == "Pinned"


async def test_a_profile_of_before_stays_in_force_and_asks_for_nothing():
    """An upgrade must not measure every fleet again: its owner would lose GPUs that nobody asked for."""
    world = scheduled()
    world.calibrate()
    for _ in range(5):
        await world.cycle(60.0)
    assert world.cluster.of(RUNS) == []
    calibrated = world.condition("Calibrated")
    assert calibrated["reason"] == "ProfileInForce"
    assert calibrated["message"].endswith("; eagle/schedule is measured with the next calibration")
