"""API server and etcd go away in the middle of a roll; what was begun is finished, once."""

from __future__ import annotations

import pytest

from localcluster.plainhttp import Reader
from operatorcluster.waiting import until


@pytest.mark.always
@pytest.mark.parametrize("process", ["kube-apiserver", "etcd"])
def test_stopped_in_a_roll(place, stage, facing, process):
    place.managed(updatePolicy={"pinnedArm": "none"})
    place.until_settled("none")
    cluster = stage.cluster
    api = Reader(cluster.api_url, cluster.state_dir / "pki")
    with facing(
        place, f"{process} stopped in a roll", "the roll ends, once, when it is back; users notice nothing"
    ) as row:
        # Users find the pods through the API server: without it a new user finds none.
        until("users are answered", lambda: row.users.answered)
        place.patch("specsvc", "chat", {"spec": {"updatePolicy": {"pinnedArm": "eagle/3"}}})
        row.writes = 1
        place.until_service("a roll is under way", lambda status: (status.get("rollout") or {}).get("phase"))
        cluster.stop_process(process)
        try:
            answered = row.users.answered
            until("30 requests are answered meanwhile", lambda: row.users.answered >= answered + 30)
        finally:
            cluster.restart_process(process)
        row.over()
        until("the API server is ready", lambda: api.get("/readyz"))
        place.until_settled("eagle/3")
        row.recovered()
        row.seen = "the roll ended, once"
