"""Which errors are refusals, and how long a write waits after each failure in a row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from breakeven_operator.actions import Apply, Create, WriteAnnotation, WriteStatus
from breakeven_operator.kinds import CRONJOBS, DEPLOYMENTS, JOBS, SERVICES, Ref
from breakeven_operator.ports import ClusterError, StaleObjectError
from breakeven_operator.refused_writes import RefusedWrites

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
TARGET = Ref(DEPLOYMENTS, "llm", "chat-vllm", "u1")
DENIED = 'admission webhook "guard.example.com" denied the request: no'
HANGS = 'Internal error occurred: failed calling webhook "guard.example.com": context deadline exceeded'


@pytest.mark.parametrize(
    ("status", "said", "refused"),
    [
        (400, "invalid", True),
        (403, "forbidden", True),
        (413, "too large", True),
        (422, "denied request: no", True),
        (409, DENIED, True),
        (429, DENIED, True),
        (503, DENIED, True),
        (500, HANGS, True),
        (0, "TimeoutError", False),
        (401, "Unauthorized", False),
        (404, "not found", False),
        (409, "already exists", False),
        (429, "too many requests", False),
        (500, "etcdserver: request timed out", False),
        (503, "unavailable", False),
    ],
)
def test_a_refusal_is_an_answer_that_stays_the_same(status, said, refused):
    assert ClusterError("PATCH /x", status, said).refused is refused


def test_an_object_that_has_changed_is_no_refusal():
    assert not StaleObjectError("PATCH /x: 409 the object has been modified").refused


def waits_s(error: ClusterError, times: int) -> list[float]:
    failures, now, found = RefusedWrites(), NOW, []
    write = WriteAnnotation(TARGET, "null", 3)
    for _ in range(times):
        failed = failures.failed("uid", write, error, now)
        found.append((failed.until - now).total_seconds())
        assert failures.waiting(write, failed.until - timedelta(seconds=1)) == failed
        assert failures.waiting(write, failed.until) is None
        now = failed.until
    return found


def test_each_refusal_in_a_row_doubles_the_wait_up_to_five_minutes():
    assert waits_s(ClusterError("no", 403), 7) == [15, 30, 60, 120, 240, 300, 300]


def test_a_server_that_fails_is_asked_sooner_than_one_that_does_not_answer():
    assert waits_s(ClusterError("no", 503), 5) == [2, 4, 8, 10, 10]
    assert waits_s(ClusterError("no"), 7) == [2, 4, 8, 16, 32, 60, 60]


def test_a_success_ends_the_wait_and_a_person_hurries_it():
    failures = RefusedWrites()
    write = WriteStatus(Ref(SERVICES, "llm", "chat", "uid"), {"a": 1})
    failures.failed("uid", write, ClusterError("no", 403), NOW)
    failures.hurry("another", NOW)
    assert failures.waiting(write, NOW) is not None
    assert failures.waiting(WriteStatus(write.ref, {"a": 2}), NOW) is not None, (
        "a status is another one each time"
    )
    failures.hurry("uid", NOW)
    assert failures.waiting(write, NOW) is None
    assert failures.failed("uid", write, ClusterError("no", 403), NOW).attempts == 2
    failures.succeeded(write)
    assert failures.about("uid", NOW) == ()
    assert failures.failed("uid", write, ClusterError("no", 403), NOW).attempts == 1


def job(name: str) -> dict:
    return {"metadata": {"namespace": "llm", "name": name, "annotations": {"hash": name}}}


def test_what_differs_in_what_a_server_looks_at_does_not_wait():
    failures = RefusedWrites()
    failures.failed("uid", WriteAnnotation(TARGET, "null", 3), ClusterError("no", 403), NOW)
    assert failures.waiting(WriteAnnotation(TARGET, "null", 4), NOW) is None
    assert failures.waiting(WriteAnnotation(TARGET, None, 3), NOW) is None
    failures.failed("uid", Apply(CRONJOBS, job("a")), ClusterError("no", 403), NOW)
    changed = job("a")
    changed["metadata"]["annotations"]["hash"] = "b"
    assert failures.waiting(Apply(CRONJOBS, job("a")), NOW) is not None
    assert failures.waiting(Apply(CRONJOBS, changed), NOW) is None
    assert failures.waiting(Create(JOBS, job("a")), NOW) is None


def test_a_write_that_nobody_asks_for_any_more_is_forgotten():
    failures = RefusedWrites()
    failed = failures.failed("uid", Create(JOBS, job("a")), ClusterError("no", 403), NOW)
    assert failures.about("uid", failed.until + timedelta(seconds=599)) == (failed,)
    assert failures.about("uid", failed.until + timedelta(seconds=601)) == ()


def test_the_sentence_has_verb_object_and_the_server_s_words():
    failures = RefusedWrites()
    for _ in range(2):
        failed = failures.failed(
            "uid", Create(JOBS, job("a")), ClusterError("POST /x: 403 no", 403, "no"), NOW
        )
    assert failed.sentence == (
        "the API server refuses to create Job/llm/a (2 times in a row; next attempt at 2026-11-21 12:00:30 UTC): no"
    )
