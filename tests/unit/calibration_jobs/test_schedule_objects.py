"""The CronJob of a service, the account of its drivers, and what the CronJob's Job asks for."""

from __future__ import annotations

import pytest

from breakeven.errors import InputError
from breakeven_operator.calibration import cronjob_name, schedule_job, trial_access
from breakeven_operator.request_run import request, requested_run
from breakeven_operator.resources.calibrationrun import CalibrationRun, Trigger


def test_the_cronjob_asks_for_a_run_and_holds_no_gpu(world, settings):
    cronjob = schedule_job(world.service, settings)
    assert cronjob["metadata"]["name"] == cronjob_name("chat") == "breakeven-chat"
    assert cronjob["metadata"]["namespace"] == "llm", "a dependent elsewhere is deleted within seconds"
    (owner,) = cronjob["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["blockOwnerDeletion"]) == (
        "SpeculativeService",
        "service-uid",
        False,
    )
    assert cronjob["spec"]["schedule"] == "0 3 * * 0"
    assert cronjob["spec"]["concurrencyPolicy"] == "Forbid"
    pod = cronjob["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (container["command"], container["args"]) == (["breakeven-operator"], ["request-run"])
    assert "nvidia.com/gpu" not in str(pod)
    assert pod["serviceAccountName"] == "breakeven-chat"


def test_no_schedule_no_cronjob(world, settings):
    del world.service["spec"]["calibration"]["schedule"]
    assert schedule_job(world.service, settings) is None


def test_a_time_zone_and_a_pause_reach_the_cronjob(world, settings):
    world.service["spec"]["calibration"]["timeZone"] = "Europe/Berlin"
    world.service["spec"]["paused"] = True
    spec = schedule_job(world.service, settings)["spec"]
    assert (spec["timeZone"], spec["suspend"]) == ("Europe/Berlin", True)


def test_the_drivers_account_may_do_what_one_cluster_role_says(world):
    account, binding = trial_access(world.service, "breakeven-trial")
    assert account["metadata"]["name"] == binding["subjects"][0]["name"] == "breakeven-chat"
    assert account["automountServiceAccountToken"] is False
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "breakeven-trial",
    }
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in (account, binding)} == {"service-uid"}


ENV = {"BREAKEVEN_NAMESPACE": "llm", "BREAKEVEN_SERVICE": "chat", "BREAKEVEN_SERVICE_UID": "service-uid"}


def test_the_request_is_a_valid_run_of_the_service(world, settings):
    cronjob = schedule_job(world.service, settings)
    (container,) = cronjob["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    given = {entry["name"]: entry.get("value", "llm") for entry in container["env"]}
    body = requested_run(given)
    assert body["metadata"]["generateName"] == "chat-"
    assert body["metadata"]["ownerReferences"][0]["uid"] == "service-uid"
    named = {**body, "metadata": {**body["metadata"], "name": "chat-x"}}
    named["metadata"].pop("generateName")
    run = CalibrationRun.read(named, "run")
    assert run.spec.trigger is Trigger.SCHEDULE
    assert run.spec.service_ref.name == "chat"


async def test_the_created_runs_name_is_told():
    class Cluster:
        async def create(self, resource, body):
            return {"metadata": {"name": "chat-h7w2k"}}

    assert await request(ENV, Cluster()) == "chat-h7w2k"


@pytest.mark.parametrize("missing", sorted(ENV))
def test_a_missing_variable_is_named(missing):
    with pytest.raises(InputError, match=missing):
        requested_run({name: value for name, value in ENV.items() if name != missing})
