"""Which profile is in force, and when a run is asked for."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from breakeven.profile import Profile
from breakeven_operator.calibration.active_profile import calibrated
from breakeven_operator.case import FleetReading, ServiceObservation
from breakeven_operator.kinds import RECALIBRATE_ANNOTATION, NamespacedName
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.resources import CalibrationRun, SpeculativeService
from breakeven_operator.resources.updatepolicy import PRODUCTION, Timing
from breakeven_operator.step import ProfileEntry
from breakeven_operator.workloads.fingerprint import Identity
from fakes.fleet_world import GPU, SERVICE, profile_json
from fakes.notes import notes_of

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
IDENTITY = Identity("f1", "org/model", "chat", "sha256:x", GPU, 1)


def service(edit=lambda _: None, *, status=None, annotations=None):
    manifest = copy.deepcopy(SERVICE)
    manifest["metadata"] |= {"uid": "u1", "annotations": annotations or {}}
    manifest["status"] = status or {}
    edit(manifest["spec"])
    return SpeculativeService.read(manifest, "service")


def entry(name="p1", fingerprint="f1", age_s=60.0, arms=("none", "eagle/3"), **changes):
    fields = {
        "name": name,
        "uid": name,
        "service": NamespacedName("llm", "chat"),
        "fingerprint": fingerprint,
        "gpu_product": GPU,
        "created": NOW - timedelta(seconds=age_s),
        "arms": frozenset(arms),
        "profile": Profile.from_json(profile_json()),
    } | changes
    return ProfileEntry(**fields)


def run(name="r1", phase=None, finished=None, reason=None, message=None, **spec):
    told = (("phase", phase), ("finishedTime", finished), ("reason", reason), ("message", message))
    status = {key: value for key, value in told if value}
    return CalibrationRun.read(
        {
            "apiVersion": "breakeven.dev/v1alpha1",
            "kind": "CalibrationRun",
            "metadata": {"name": name, "namespace": "llm", "uid": name},
            "spec": {"serviceRef": {"name": "chat"}, **spec},
            "status": status,
        },
        "run",
    )


def state(profiles=(), runs=(), of=None, identity=IDENTITY, now=NOW, failures=(), timing=PRODUCTION):
    around = ServiceObservation(
        None,
        None,
        FleetReading({}, frozenset()),
        frozenset(),
        profiles,
        runs,
        failures=failures,
        timing=timing,
    )
    return calibrated(of or service(), around, identity, 20.0, now)


def trigger(**arguments):
    found = state(**arguments)
    return str(found.trigger) if found.create is not None else None


def test_the_newest_profile_of_this_fingerprint_is_in_force():
    found = state([entry("old", age_s=900), entry("new"), entry("other", "f2", age_s=1)])
    assert found.entry is not None
    assert (found.entry.name, found.reason, found.create) == ("new", "ProfileInForce", None)


@pytest.mark.parametrize(
    ("profiles", "reason", "why"),
    [
        ([], "CalibrationRunning", "Initial"),
        ([entry(fingerprint="f2")], "CalibrationRunning", "FingerprintChanged"),
        ([entry(age_s=40 * 86400)], "CalibrationRunning", "ProfileExpired"),
        ([entry(profile=None, problem="damaged")], "CalibrationRunning", "ProfileUnreadable"),
    ],
)
def test_without_a_usable_profile_nothing_is_in_force_and_a_run_is_created(profiles, reason, why):
    found = state(profiles)
    assert found.entry is None
    assert (found.reason, trigger(profiles=profiles)) == (reason, why)


def test_a_new_candidate_is_measured_while_the_old_profile_stays_in_force():
    found = state([entry(arms=("none",))])
    assert found.entry is not None
    assert (found.reason, trigger(profiles=[entry(arms=("none",))])) == (
        "CandidatesChanged",
        "CandidatesChanged",
    )


def test_profiles_that_this_release_never_can_read_are_not_measured_without_end():
    just_now = service(status={"calibration": {"lastRunTime": "2026-11-21T11:59:00Z"}})
    assert trigger(profiles=[entry(profile=None, problem="damaged")], of=just_now) is None


def test_a_run_under_way_is_waited_for():
    found = state(runs=[run(phase="Measuring")])
    assert (found.reason, found.create) == ("CalibrationRunning", None)
    assert found.status.run == "r1"


def test_no_run_while_paused_disabled_or_without_serving_pods():
    assert trigger(of=service(lambda spec: spec.update(paused=True))) is None
    assert trigger(of=service(lambda spec: spec["updatePolicy"].update(mode="Disabled"))) is None
    assert trigger(identity=None) is None
    for unknown in (None, replace(IDENTITY, gpu_product=None)):
        found = state(of=service(annotations={RECALIBRATE_ANNOTATION: "now"}), identity=unknown)
        assert found.create is None
        assert "no run starts before a serving pod tells the GPU class" in found.message


def test_a_request_is_answered_once_and_in_mode_disabled_too():
    asked = service(
        lambda spec: spec["updatePolicy"].update(mode="Disabled"),
        annotations={"breakeven.dev/recalibrate": "1"},
    )
    found = state([entry()], of=asked)
    assert (str(found.trigger), found.recalibrate) == ("Requested", "1")
    answered = service(
        annotations={"breakeven.dev/recalibrate": "1"},
        status={"workings": {"notes": notes_of({"recalibrate": "1"})}},
    )
    assert trigger(profiles=[entry()], of=answered) is None


def test_a_repeated_cycle_creates_the_same_run():
    assert state().create == state().create
    assert state().create != state(identity=Identity("f2", None, None, "", GPU, 1)).create


def test_failures_double_the_pause_and_a_request_does_not_wait():
    ended = "2026-11-21T11:00:00Z"
    status = {"calibration": {"lastRunTime": ended, "failures": 2}}
    timing = Timing(calibration_interval_seconds=1800)
    held = service(status=status)
    assert trigger(of=held, timing=timing) is None, "1800 s x 4 are not over after an hour"
    assert trigger(of=held, timing=timing, now=NOW + timedelta(hours=1, seconds=1)) == "Initial"
    often = {"calibration": {"lastRunTime": ended, "failures": 50}}
    hopeless = service(status=often)
    assert trigger(of=hopeless, timing=timing, now=NOW + timedelta(hours=6, minutes=59)) is None
    assert trigger(of=hopeless, timing=timing, now=NOW + timedelta(hours=7)) == "Initial", (
        "sixteen times and no more"
    )
    asked = held.model_copy(
        update={
            "metadata": held.metadata.model_copy(update={"annotations": {"breakeven.dev/recalibrate": "x"}})
        }
    )
    assert trigger(of=asked) == "Requested"


def test_an_ended_run_is_counted_once():
    failed = run("r1", "Failed", "2026-11-21T11:59:00Z")
    found = state(runs=[failed])
    assert found.status.failures == 1
    assert [r.metadata.name for r in found.ended] == ["r1"]
    again = state(runs=[failed], of=service(status={"calibration": found.status.to_json_object()}))
    assert again.status.failures == 1, "the mark that takes it out of the list may come a cycle later"
    succeeded = run("r2", "Succeeded", "2026-11-21T11:59:30Z")
    cured = state([entry()], [succeeded], service(status={"calibration": found.status.to_json_object()}))
    assert cured.status.failures == 0


def after(runs, **arguments):
    """The state one cycle later, with nothing but the status left of the runs."""
    found = state(runs=runs, **arguments)
    return state(of=service(status={"calibration": found.status.to_json_object()}), **arguments)


def test_why_the_last_run_failed_is_said_until_another_one_succeeds():
    failed = run(
        "chat-1",
        "Failed",
        "2026-11-21T11:59:00Z",
        "EngineOutOfMemory",
        "none: free memory on device is 2 GiB",
    )
    for found in (state(runs=[failed]), after([failed])):
        assert (found.entry, found.create, found.reason) == (None, None, "EngineOutOfMemory")
        assert found.message.startswith("no calibration has succeeded yet; run chat-1")
        assert "run chat-1 failed: EngineOutOfMemory: none: free memory on device is 2 GiB" in found.message
        assert "the next run starts at 2026-11-21T13:59:00Z (1 failed in a row)" in found.message
    measuring = state(
        runs=[run("chat-2", "Measuring")],
        of=service(status={"calibration": after([failed]).status.to_json_object()}),
    )
    assert measuring.reason == "CalibrationRunning"
    assert "run chat-1 failed" in measuring.message
    in_force = after([failed], profiles=[entry()])
    assert in_force.reason == "ProfileInForce"
    assert "run chat-1 failed: EngineOutOfMemory" in in_force.message
    cured = state(
        [entry()],
        [run("chat-2", "Succeeded", "2026-11-21T11:59:30Z", "CalibrationSucceeded")],
        service(status={"calibration": after([failed]).status.to_json_object()}),
    )
    assert "failed" not in cured.message


def changed(name="r1", **spec):
    return run(name, "Superseded", "2026-11-21T11:59:00Z", "FingerprintChanged", **spec)


def test_a_run_whose_target_changed_is_made_once_more_as_it_was():
    asked = {
        "trigger": "Manual",
        "arms": ["eagle/3"],
        "budget": {"maxGpuSeconds": 900, "maxDurationSeconds": 800},
    }
    # A profile is in force and no pod serves: nothing else would ask for this run, and it waits by itself.
    found = state([entry()], [changed(**asked)], identity=None)
    spec = found.create.body["spec"]
    assert {key: spec[key] for key in asked} == asked
    assert found.create.body["metadata"]["name"] != "r1"
    assert state([entry()], [changed(**asked)], identity=None).create == found.create, (
        "after a crash the same one"
    )
    assert state([entry()], [changed(**asked), run("r2", "Pending")]).create is None
    assert state([entry()], [run("r1", "Superseded", "2026-11-21T11:59:00Z", "Superseded")]).create is None


def test_the_gpu_seconds_of_a_run_whose_target_changed_are_counted_once_and_its_successor_waits_for_nothing():
    ended = changed()
    ended = ended.replace(status=ended.status.replace(gpu_seconds_used=1800.0))
    found = state([entry()], [ended])
    assert (found.status.total_gpu_seconds, found.status.failures) == (1800.0, 0)
    assert found.create is not None
    later = state([entry()], [ended], service(status={"calibration": found.status.to_json_object()}))
    assert later.status.total_gpu_seconds == 1800.0
    assert later.create is not None


def test_runs_that_end_in_one_cycle_all_count_in_the_order_of_their_ends():
    """A run named earlier in the alphabet that ended last hid the failure of the other one."""
    late = changed("a").replace(status=changed().status.replace(gpu_seconds_used=1800.0))
    failed = run("b", "Failed", "2026-11-21T11:58:00Z", "EngineOutOfMemory")
    failed = failed.replace(status=failed.status.replace(gpu_seconds_used=600.0))
    found = state([entry()], [late, failed]).status
    assert (found.total_gpu_seconds, found.failures, found.last_run) == (2400.0, 1, "b")
    assert found.last_run_time == late.status.finished_time


@pytest.mark.parametrize(("why", "again"), [("Initial", False), ("Schedule", True), ("Requested", True)])
def test_disabled_only_a_run_that_was_asked_for_is_made_once_more(why, again):
    disabled = service(lambda spec: spec["updatePolicy"].update(mode="Disabled"))
    found = state([entry()], [changed(trigger=why)], disabled)
    assert (found.create is not None) == again


def test_a_name_that_a_superseded_run_used_up_is_not_asked_for_again():
    """The target changed and changed back: the same question needs another run."""
    first = state()
    name = first.create.body["metadata"]["name"]
    later = state(of=service(status={"calibration": first.status.to_json_object()}))
    assert later.create is not None
    assert later.create.body["metadata"]["name"] != name


def test_an_arm_that_was_tried_in_vain_is_named_and_not_tried_again():
    found = state([entry(failed={"eagle/3": "EngineOutOfMemory"})])
    assert (found.reason, found.create) == ("ProfileInForce", None)
    assert "without eagle/3 (EngineOutOfMemory)" in found.message


def test_the_longest_start_up_is_remembered():
    assert state().status.startup_seconds == 20.0
    slower = service(status={"calibration": {"startupSeconds": "90"}})
    assert state(of=slower).status.startup_seconds == 90.0


def test_a_run_that_was_refused_waits_for_its_next_attempt():
    of = service(annotations={RECALIBRATE_ANNOTATION: "please"})
    asked = state(of=of)
    assert (asked.reason, asked.create is not None) == ("CalibrationRunning", True)
    until = NOW + timedelta(seconds=60)
    refusal = RefusedWrite(
        "u1", asked.create, refused=True, words="no runs", attempts=1, since=NOW, until=until
    )
    waiting = state(of=of, failures=[refusal])
    assert (waiting.reason, waiting.create, waiting.status.run) == ("WriteRefused", None, None)
    assert "no runs" in waiting.message
    assert state(of=of, failures=[refusal], now=until).create is not None


H100 = "NVIDIA-H100-80GB-HBM3"


@pytest.mark.parametrize(
    ("profiles", "identity", "former"),
    [
        ([entry("old", "f2", 900), entry("new", "f3")], IDENTITY, "new"),
        ([entry("expired", age_s=40 * 86400)], IDENTITY, "expired"),
        ([entry("damaged", "f2", profile=None, problem="damaged"), entry("older", "f2", 900)], IDENTITY, "older"),
        ([entry("theirs", "f2", model="org/another")], IDENTITY, None),
        ([entry("ours", "f2", model="org/model")], IDENTITY, "ours"),
        ([entry("elsewhere", "f2", gpu_product=H100)], IDENTITY, None),
        ([entry("labelled", gpu_product=H100)], Identity("f9", "org/model", "chat", "x", None, 1), "labelled"),
        ([entry("unknown", "f2")], None, None),
        ([entry("in-force"), entry("newer", "f2", 1)], IDENTITY, None),
        ([], IDENTITY, None),
    ],
)  # fmt: skip
def test_the_profile_of_before_is_one_of_the_same_model_and_gpu(profiles, identity, former):
    found = state(profiles, identity=identity)
    assert (found.former.name if found.former is not None else None) == former


def test_a_target_without_a_gpu_class_says_so_and_nothing_is_measured():
    found = state([entry()], identity=Identity("f9", "org/model", "chat", "x", None, 1))
    assert (found.entry, found.create, found.reason) == (None, None, "GpuClassUnknown")


@pytest.mark.parametrize(
    "changes",
    [{"model": "org/v2"}, {"model": "org/head@main"}, {"options": {"quantization": "fp8"}}, {"options": {"max_model_len": 2048}}, {"method": "eagle"}],
    ids=str,
)  # fmt: skip
def test_an_arm_with_another_drafter_is_not_measured_and_its_answers_are_not_known(changes):
    method = service().spec.candidates.methods[0]
    profile = Profile.from_json(profile_json())
    answered = replace(profile, arms=tuple(replace(fit, answers="AnswersAgree") for fit in profile.arms))
    measured = [entry(profile=answered, drafters={"eagle/3": method.drafter})]
    assert (trigger(profiles=measured), len(state(measured).status.answers)) == (None, 2)
    changed = service(lambda spec: spec["candidates"]["methods"][0].update(changes))
    found = state(measured, of=changed)
    assert (str(found.trigger), found.reason) == ("CandidatesChanged", "CandidatesChanged")
    assert [one.arm for one in found.status.answers] == ["none"]
    assert trigger(profiles=[entry()], of=changed) is None, "a profile that names arms alone counts by name"
