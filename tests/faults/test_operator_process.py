"""The operator's process is killed, frozen and overtaken; nothing is done twice, and nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from faults.conftest import repeats
from operatorcluster import manifests
from operatorcluster.beside import beside
from operatorcluster.stage import HOME, OPERATOR, Place
from operatorcluster.waiting import until

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases/breakeven"


def kill(stage):
    """Kills the process; its pod too where the kubelet would wait ever longer before it starts the container again."""
    home = Place(stage, HOME)
    os.kill(stage.operator_pid(), signal.SIGKILL)
    for pod in home.all("pod"):
        if any(one["restartCount"] >= 2 for one in pod["status"].get("containerStatuses", ())):
            home.kubectl(
                "delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0", "--wait=false"
            )


@pytest.mark.always
def test_killed_at_random_moments_of_rolls(place, stage, facing):
    times = repeats(2)
    place.managed(updatePolicy={"pinnedArm": "none"})
    place.until_settled("none")
    draw = random.Random(26)
    with facing(
        place, "operator SIGKILLed in a roll", "the roll ends, once, and no second one begins", times=times
    ) as row:
        for index in range(times):
            arm = ("eagle/3", "none")[index % 2]
            place.pin(arm)
            # Any moment: before the decision, between intent and write, while pods start, while the word is awaited.
            time.sleep(draw.uniform(0.0, 6.0))
            pid = stage.running_operator()
            kill(stage)
            row.over()
            row.writes += 1
            stage.running_operator(other_than=pid)
            place.until_settled(arm)
            row.recovered()
        row.seen = f"{times} rolls ended where they were to, with {row.writes} writes"


def test_killed_at_random_moments_of_a_calibration(place, stage, facing):
    times = repeats(1)
    place.apply(manifests.target(), manifests.service(updatePolicy={"mode": "Recommend"}))
    draw = random.Random(27)
    place.until_service("it serves", lambda status: (status.get("target") or {}).get("readyReplicas"))
    with facing(
        place,
        "operator SIGKILLed in a calibration",
        "points that were measured are kept; one profile, one Job per start",
        times=times,
    ) as row:
        until("a run has begun", lambda: place.all("calrun"))
        for _ in range(times):
            time.sleep(draw.uniform(0.0, 4.0))
            pid = stage.running_operator()
            kill(stage)
            stage.running_operator(other_than=pid)
        row.over()
        place.until_calibrated()
        row.recovered()
        jobs = [event.name for event in place.writes("jobs") if event.verb == "create"]
        (run,) = place.all("calrun")
        assert len(jobs) == len(set(jobs)) == len(run["status"]["plan"]["arms"]), jobs
        assert len(place.all("specprof")) == 1
        row.seen = f"{len(jobs)} Jobs, 1 profile"


def test_frozen_beyond_its_lease_with_a_second_replica_waiting(place, stage, facing):
    place.managed(updatePolicy={"pinnedArm": "none"})
    place.until_settled("none")
    home = Place(stage, HOME)
    with facing(
        place,
        "leader SIGSTOPped past its lease, a second replica waits",
        "the other one leads and rolls; the first writes nothing when it wakes",
    ) as row:
        home.kubectl("scale", "deployment/breakeven", "--replicas=2")
        until(
            "two replicas are ready",
            lambda: (home.get("deployment", "breakeven")["status"].get("readyReplicas") or 0) == 2,
        )
        holder = stage.api.json(LEASE)["spec"]["holderIdentity"]
        leader = next(pid for name, pid in processes(stage).items() if holder.startswith(name))
        os.kill(leader, signal.SIGSTOP)
        try:
            place.pin("eagle/3")
            row.writes = 1
            until(
                "another replica leads",
                lambda: stage.api.json(LEASE)["spec"]["holderIdentity"] != holder,
            )
            place.until_settled("eagle/3")
        finally:
            row.over()
            if alive(leader):
                os.kill(leader, signal.SIGCONT)
        until(
            "both replicas are ready again",
            lambda: (home.get("deployment", "breakeven")["status"].get("readyReplicas") or 0) == 2,
        )
        row.recovered()
        writers = {event.user for event in place.writes()}
        assert writers == {OPERATOR}
        row.seen = "taken over, rolled once"
    home.kubectl("scale", "deployment/breakeven", "--replicas=1")
    until("one replica is left", lambda: len(home.all("pod")) == 1)


def processes(stage):
    """The operator's processes by the name of their pod."""
    found = {}
    for pod in Place(stage, HOME).all("pod"):
        wanted = f"BREAKEVEN_POD_NAME={pod['metadata']['name']}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (process / "cmdline").read_bytes().split(b"\0")
                if wanted in (process / "environ").read_bytes().split(b"\0") and b"run" in command:
                    found[pod["metadata"]["name"]] = int(process.name)
    return found


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.table
def test_its_token_is_refused_until_a_new_one_is_there(place, stage, facing):
    """An account that was deleted and made again: the API server answers 401 to every token from before."""
    place.managed(updatePolicy={"pinnedArm": "none"})
    place.until_settled("none")
    home = Place(stage, HOME)
    with facing(
        place, "operator's token expired (401)", "no write; the roll ends once the new token is there"
    ) as row:
        before = place.writes()
        with remade_account(home):
            # The API server answers by what it remembers of a token for ten seconds.
            until("it is refused", lambda: any("401" in json.dumps(line) for line in stage.log()))
            place.pin("eagle/3")
            answered = row.users.answered
            until("users are answered meanwhile", lambda: row.users.answered > answered + 20)
            assert place.writes() == before
            (pod,) = home.all("pod")
            bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod['metadata']['name']}")
            token = home.kubectl("create", "token", "breakeven", "--duration=1h", *bound).strip()
            with renewed(stage, pod, token):
                row.writes = 1
                row.over()
                place.until_settled("eagle/3")
                row.recovered()
                row.seen = "rolled once, by the new token"


@contextlib.contextmanager
def remade_account(home):
    """The operator's account is another one of the same name and rights; at the end so is its pod."""
    account = home.get("serviceaccount", "breakeven")
    home.kubectl("delete", "serviceaccount/breakeven")
    kept = {name: account["metadata"].get(name) or {} for name in ("labels", "annotations")}
    again = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "breakeven", **kept}}
    home.kubectl("create", "--filename=-", stdin=json.dumps(again))
    try:
        yield
    finally:
        # A new pod's kubelet has a token of its own.
        home.kubectl("delete", "pod", "--all")
        home.kubectl("rollout", "status", "deployment/breakeven", "--timeout=180s")


@contextlib.contextmanager
def renewed(stage, pod, token):
    """A token where the pod reads it. Its kubelet holds the one from before for good, and puts that back now and then."""
    volume = f"nodes/*/pods/*/{pod['metadata']['uid']}/volumes/kube-api-access-*/token"
    (file,) = stage.cluster.state_dir.glob(volume)

    def keep(ended):
        while not ended.wait(0.02):
            with contextlib.suppress(OSError):
                if file.read_text() != token:
                    file.write_text(token)

    with beside(keep):
        yield
