"""The CronJob of a service, the account of its drivers, and what the CronJob's Job asks for."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from breakeven_operator.__main__ import requested_run, root
from breakeven_operator.calibration import made_name, schedule_job, trial_access
from breakeven_operator.cluster.kubernetes import KubernetesCluster
from breakeven_operator.resources.calibrationrun import CalibrationRun, Trigger


def test_the_cronjob_asks_for_a_run_and_holds_no_gpu(world, settings):
    cronjob = schedule_job(world.service, settings)
    assert cronjob["metadata"]["name"] == made_name("chat") == "breakeven-chat"
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


def told(world, settings):
    """The environment of the CronJob's container as Kubernetes makes it."""
    (container,) = schedule_job(world.service, settings)["spec"]["jobTemplate"]["spec"]["template"]["spec"][
        "containers"
    ]
    return {entry["name"]: entry.get("value", "llm") for entry in container["env"]}


def test_the_request_is_a_valid_run_of_the_service():
    body = requested_run("llm", "chat", "service-uid", Trigger.SCHEDULE)
    assert body["metadata"]["generateName"] == "chat-"
    assert body["metadata"]["ownerReferences"][0]["uid"] == "service-uid"
    assert "ownerReferences" not in requested_run("llm", "chat", "", Trigger.MANUAL)["metadata"]
    named = {**body, "metadata": {**body["metadata"], "name": "chat-x"}}
    named["metadata"].pop("generateName")
    run = CalibrationRun.read(named, "run")
    assert run.spec.trigger is Trigger.SCHEDULE
    assert run.spec.service_ref.name == "chat"


def test_the_cronjob_s_environment_is_all_that_the_command_needs(world, settings, monkeypatch):
    asked = []

    class Cluster:
        async def create(self, resource, body):
            asked.append(body)
            return {"metadata": {"name": "chat-h7w2k"}}

        async def close(self):
            asked.append("closed")

    async def connect(_kubeconfig):
        return Cluster()

    monkeypatch.setattr(KubernetesCluster, "connect", connect)
    result = CliRunner().invoke(root, ["request-run"], env=told(world, settings))
    assert (result.exit_code, result.output) == (0, "chat-h7w2k\n")
    assert asked == [requested_run("llm", "chat", "service-uid", Trigger.SCHEDULE), "closed"]


@pytest.mark.parametrize("missing", ["BREAKEVEN_NAMESPACE", "BREAKEVEN_SERVICE"])
def test_a_missing_variable_is_named(world, settings, missing):
    result = CliRunner().invoke(root, ["request-run"], env={**told(world, settings), missing: None})
    assert result.exit_code == 2
    assert f"--{missing.removeprefix('BREAKEVEN_').lower()}" in result.output
