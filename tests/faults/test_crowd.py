"""Hundreds of services are made and deleted again and again; memory and descriptors of the operator come back."""

from __future__ import annotations

from pathlib import Path

from faults.conftest import repeats
from operatorcluster import manifests
from operatorcluster.waiting import until

SERVICES = 200


def resident_mb(pid):
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def descriptors(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_two_hundred_services_come_and_go(stage, place, facing):
    rounds = repeats(1) + 1
    place.managed(updatePolicy={"pinnedArm": "none"})
    place.until_settled("none")
    crowd = [manifests.service(f"crowd-{index:03}", f"absent-{index:03}") for index in range(SERVICES)]
    for member in crowd:
        member["metadata"]["labels"] = {"crowd": "yes"}
    pid = stage.operator_pid()

    def seen():
        return stage.query(f'count(breakeven_decision_info{{specsvc_namespace="{place.name}"}})')

    def counted():
        found = seen()
        return int(float(found[0]["value"][1])) if found else 0

    with facing(
        place,
        f"{SERVICES} services made and deleted",
        "memory grows by less than 30 MB after the first time, descriptors by less than 10",
        times=rounds,
    ) as row:
        after = []
        for _ in range(rounds):
            place.apply(*crowd)
            until("all are decided about", lambda: counted() >= SERVICES, seen=counted)
            place.kubectl("delete", "specsvc", "--selector=crowd=yes", "--wait=false")
            until("all are forgotten", lambda: counted() <= 1, seen=counted)
            after.append((resident_mb(pid), descriptors(pid)))
        assert stage.operator_pid() == pid
        (first_mb, first_open), (last_mb, last_open) = after[0], after[-1]
        assert last_mb < first_mb + 30, after
        assert last_open < first_open + 10, after
        row.seen = f"{first_mb:.0f} then {last_mb:.0f} MB, {first_open} then {last_open} descriptors"
