"""Calibrations that people start, stop and spoil: each ends with its own word and leaves nothing behind."""

from fakes.notes import memory_of
from operatorcluster import manifests
from operatorcluster.stage import SECLUDED, SECLUDED_IMAGE, condition
from operatorcluster.waiting import until

# Product files whose change runs these tests at the next landing.
COVERS = ("operator/breakeven_operator/calibration/",)

OURS = ("job", "calrun", "specprof", "cronjob")
# So long the scheduler and the node agent may take to say what is wrong with a pod; a deadline before that has another word.
SHORT_WAIT = {"pendingDeadlineSeconds": 15}
ADMITTED = {"Starting", "Measuring", "Fitting", "Succeeded"}


def only_run(place):
    runs = place.all("calrun")
    return runs[0] if len(runs) == 1 else {}


def until_run(place, what, holds):
    """The service's only run, once its status is like that."""

    def look():
        run = only_run(place)
        return run if run and holds(run.get("status") or {}) else None

    return until(what, look, seen=lambda: (only_run(place).get("status"), place.told("chat")))


def until_admitted(place):
    """The service's only run, once it has begun: how far it has come since is the machine's affair."""
    return until_run(place, "a run is admitted", lambda status: status.get("phase") in ADMITTED)


def pods_of_runs(place):
    return [pod for pod in place.all("pod") if "breakeven.dev/run" in pod["metadata"].get("labels", {})]


def fails_and_leaves_nothing(place, reason):
    run = until_run(place, f"the run failed for {reason}", lambda status: status.get("phase") == "Failed")
    assert run["status"]["reason"] == reason, run["status"]
    until("Jobs and pods of the run are gone", lambda: not place.all("job") and not pods_of_runs(place))
    place.until_service(
        "the failure is counted", lambda status: (status.get("calibration") or {}).get("failures") == 1
    )
    calibrated = condition(place.get("specsvc", "chat"), "Calibrated")
    assert (calibrated["status"], calibrated["reason"]) == ("False", reason)
    assert (
        f"run {run['metadata']['name']} failed: {reason}: {run['status']['message'][:60]}"
        in calibrated["message"]
    )
    assert place.all("specprof") == []
    assert place.writes() == []
    return run["status"]["message"]


def test_a_calibration_pod_without_a_free_gpu_ends_the_run_as_unschedulable(place):
    # The only GPU of its class is the target's.
    place.apply(manifests.target(gpu="NVIDIA-L4"), manifests.service(calibration=SHORT_WAIT))
    assert "nvidia.com/gpu" in fails_and_leaves_nothing(place, "Unschedulable")


def test_a_calibration_pod_whose_image_cannot_be_pulled_ends_the_run_as_that(place):
    # The image is on the target's node only; that node's GPU is taken, and the other node of its class lacks the image.
    target = manifests.target(gpu=SECLUDED.product)
    manifests.engine(target)["image"] = SECLUDED_IMAGE
    target["spec"]["template"]["spec"]["nodeName"] = SECLUDED.name
    place.apply(target, manifests.service(calibration=SHORT_WAIT))
    assert SECLUDED_IMAGE in fails_and_leaves_nothing(place, "ImagePullFailed")


def test_a_target_rolled_by_somebody_during_its_calibration_is_measured_anew(place):
    """Arms of two templates never meet in one profile, nor does a Job copy what its run was not planned for."""
    place.apply(manifests.target(), manifests.service())
    first = until_run(place, "a point is measured", lambda status: status.get("points"))["metadata"]["name"]
    target = manifests.target()
    manifests.engine(target)["args"].append("--max-num-seqs=7")
    with place.stage.operator_stopped():
        assert place.get("calrun", first)["status"]["phase"] == "Measuring"
        place.apply(target)

    def ended():
        run = place.get("calrun", first)
        return run if run["status"]["phase"] not in {"Starting", "Measuring"} else None

    run = until("the run of the old template has ended", ended, seen=lambda: place.told("chat"))
    assert (run["status"]["phase"], run["status"]["reason"]) == ("Superseded", "FingerprintChanged")
    place.until_calibrated()
    runs = {run["metadata"]["name"]: run["status"] for run in place.all("calrun")}
    (second,) = runs.keys() - {first}
    assert runs[first]["plan"]["fingerprint"] != runs[second]["plan"]["fingerprint"]
    copied = [
        (job.body["metadata"]["labels"]["breakeven.dev/run"], "--max-num-seqs=7" in sidecar["args"])
        for job in place.writes("jobs")
        if job.verb == "create"
        for sidecar in job.body["spec"]["template"]["spec"]["initContainers"]
    ]
    assert set(copied) == {(first, False), (second, True)}
    (profile,) = place.all("specprof")
    assert profile["spec"]["fingerprint"] == runs[second]["plan"]["fingerprint"]
    assert place.writes() == []


def test_with_places_and_gpus_for_all_arms_they_are_measured_at_the_same_time_on_two_starts(place):
    place.apply(manifests.target(), manifests.service())
    run = until_run(place, "each first start has a point", lambda status: len(arms_with_points(status)) == 2)
    name, plan = run["metadata"]["name"], run["status"]["plan"]
    assert "side by side, each in two starts" in " ".join(
        event.get("message") or event.get("note") or ""
        for event in place.all("event")
        if event.get("reason") == "CalibrationRunning"
    )
    assert plan["podsAtOnce"] == 2
    place.until_calibrated()
    status = place.get("calrun", name)["status"]
    starts: dict[str, dict] = {}
    for point in status["points"]:
        arm, _, machine = point["start"].partition(" on ")
        # The second start's points, or the first's, at its own lengths.
        starts.setdefault(arm, {})[(point.get("concurrency"), point.get("requestRateRps"))] = machine
    first, again = ({arm for arm in starts if arm.endswith("/again") == wanted} for wanted in (False, True))
    assert {f"{arm}/again" for arm in first} == again
    assert len({machine for own in starts.values() for machine in own.values()}) == 1, "one node has all GPUs"
    for some in (first, again):
        one, other = (set(starts[arm]) for arm in sorted(some))
        assert len(one & other) >= 2, "both at the same loads"
    assert place.writes() == []


def arms_with_points(status):
    return {point["arm"] for point in status.get("points", ())}


def test_a_target_deleted_during_its_calibration_frees_the_gpu_and_is_measured_anew_when_it_is_back(place):
    place.apply(manifests.target(), manifests.service())
    first = until_run(place, "a point is measured", lambda status: status.get("points"))["metadata"]["name"]
    with place.stage.operator_stopped():
        assert place.get("calrun", first)["status"]["phase"] == "Measuring"
        place.kubectl("delete", "deployment", manifests.TARGET)

    def ended():
        run = place.get("calrun", first)
        return run if run["status"]["phase"] not in {"Starting", "Measuring"} else None

    run = until("the run has ended", ended, seen=lambda: place.told("chat"))
    assert (run["status"]["phase"], run["status"]["reason"]) == ("Superseded", "TargetNotFound")
    until("Jobs and pods of the run are gone", lambda: not place.all("job") and not pods_of_runs(place))
    place.until_decided("TargetNotFound")

    def waiting():
        others = [item for item in place.all("calrun") if item["metadata"]["name"] != first]
        return others[0] if others and (others[0].get("status") or {}).get("phase") == "Pending" else None

    second = until("another run waits for the target", waiting, seen=lambda: place.told("chat"))
    place.apply(manifests.target())
    found = place.until_calibrated()
    assert found["status"]["calibration"]["run"] == second["metadata"]["name"]
    created = {
        job.body["metadata"]["labels"]["breakeven.dev/run"]
        for job in place.writes("jobs")
        if job.verb == "create"
    }
    assert created == {first, second["metadata"]["name"]}


def test_a_service_deleted_during_its_calibration_leaves_nothing_and_its_target_as_it_was(place):
    schedule = {"schedule": "0 3 * * 0"}
    place.apply(manifests.target(), manifests.service(calibration=schedule))
    until_run(place, "a point is measured", lambda status: status.get("points"))
    assert {item["metadata"]["name"] for item in place.all("cronjob")} == {"breakeven-chat"}
    assert "breakeven-chat" in {item["metadata"]["name"] for item in place.all("serviceaccount")}
    before = place.get("deployment", manifests.TARGET)
    (serving,) = [pod for pod in place.all("pod") if pod["metadata"]["labels"].get("app") == manifests.TARGET]
    place.kubectl("delete", "specsvc", "chat")

    def left():
        accounts = [item for item in place.all("serviceaccount") if item["metadata"]["name"] != "default"]
        found = [item for kind in OURS for item in place.all(kind)]
        return [*found, *accounts, *place.all("rolebinding"), *pods_of_runs(place)]

    until("nothing of it is left", lambda: not left(), seen=lambda: [i["metadata"]["name"] for i in left()])
    after = place.get("deployment", manifests.TARGET)
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    (pod,) = place.all("pod")
    assert pod["metadata"]["uid"] == serving["metadata"]["uid"]
    assert [status["restartCount"] for status in pod["status"]["containerStatuses"]] == [0]


def test_paused_nothing_is_measured_until_it_is_unpaused(place):
    place.apply(manifests.target(), manifests.service(paused=True))
    found = place.until_service(
        "its target serves", lambda status: status.get("target", {}).get("readyReplicas") == 1
    )
    assert condition(found, "Ready")["reason"] == "Paused"
    assert place.all("calrun") == []
    place.patch("specsvc", "chat", {"spec": {"paused": False}})
    run = until_admitted(place)
    assert run["spec"]["trigger"] == "Initial"


def test_paused_nothing_is_rolled_until_it_is_unpaused(place):
    place.managed(paused=True, updatePolicy={"pinnedArm": "eagle/3"})
    assert place.until_decided("Paused")["arm"] == "eagle/3"
    assert place.writes() == []
    place.patch("specsvc", "chat", {"spec": {"paused": False}})
    place.until_settled("eagle/3")
    assert place.until_decided("Pinned", "Stay")["arm"] == "eagle/3"
    assert len(place.writes()) == 1


def test_a_new_value_of_the_recalibrate_annotation_asks_for_one_run(place):
    place.managed(updatePolicy={"mode": "Recommend"})
    place.until_service("the profile counts", lambda status: (status.get("calibration") or {}).get("profile"))
    assert place.all("calrun") == []
    place.kubectl("annotate", "specsvc", "chat", "breakeven.dev/recalibrate=once")
    run = until_admitted(place)
    assert run["spec"]["trigger"] == "Requested"
    # The profile stays in force while a new one is measured.
    found = place.get("specsvc", "chat")
    assert condition(found, "Calibrated")["status"] == "True"
    assert memory_of(found["status"])["recalibrate"] == "once"


def test_the_schedule_s_cronjob_asks_for_a_run_under_the_drivers_account(place, stage):
    place.managed(updatePolicy={"mode": "Recommend"}, calibration={"schedule": "0 3 * * 0"})
    until("the CronJob exists", lambda: place.get("cronjob", "breakeven-chat"))
    place.kubectl("create", "job", "now", "--from=cronjob/breakeven-chat")
    run = until_admitted(place)
    assert run["spec"]["trigger"] == "Schedule"
    (asked,) = [
        event
        for event in stage.cluster.audit_events()
        if (event.namespace, event.resource, event.verb) == (place.name, "calibrationruns", "create")
    ]
    assert asked.user == f"system:serviceaccount:{place.name}:breakeven-chat"
