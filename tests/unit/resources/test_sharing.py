"""Equal parts of statuses are held once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from breakeven_operator.loop.service_decisions import sharing
from breakeven_operator.resources.memorystatus import AccountWindow, MemoryStatus, ModelAccount
from breakeven_operator.resources.servicestatus import ServiceWorkings, SpeculativeServiceStatus

BEGIN = datetime(2026, 11, 24, tzinfo=UTC)


def window(number):
    return AccountWindow(
        time=BEGIN + timedelta(minutes=5 * number),
        window_seconds=300.0,
        requests=number,
        observed_seconds=1.0,
        latency_ratio=1.0,
        sampling_error=0.1,
    )


def status(first, *, saved=1.0, profile="p"):
    account = ModelAccount(arm="none", profile=profile, windows=tuple(map(window, range(first, first + 4))))
    memory = MemoryStatus(saved_request_seconds=saved, account=account)
    return SpeculativeServiceStatus(observed_generation=1, workings=ServiceWorkings(memory=memory))


@pytest.mark.parametrize(
    "new", [status(0), status(0, saved=2.0), status(1), status(9), SpeculativeServiceStatus()]
)
def test_what_shares_is_what_was_meant(new):
    shared = sharing(status(0), new)
    assert shared == new
    assert shared.to_json_object() == new.to_json_object()


def test_the_parts_of_the_old_one_are_in_it():
    old = status(0)
    assert sharing(old, status(0)) is old
    moved = sharing(old, status(0, saved=2.0))
    assert moved.memory.account is old.memory.account
    later = sharing(old, status(1)).memory.account.windows
    assert [a is b for a, b in zip(later, old.memory.account.windows[1:], strict=False)] == [True] * 3
    assert later[-1] == window(4)


def test_objects_with_the_same_fields_share_the_names_of_these_and_copies_do_not_spoil_them():
    one, other = (MemoryStatus(saved_request_seconds=saved) for saved in (1.0, 2.0))
    assert one.model_fields_set is other.model_fields_set
    assert MemoryStatus(largest_rps=1.0).model_fields_set == {"largest_rps"}
    changed = one.model_copy(update={"failures": 1})
    assert changed.model_fields_set == {"saved_request_seconds", "failures"}
    assert other.model_fields_set == {"saved_request_seconds"}
