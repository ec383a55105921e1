"""The memory of a decision that was not written goes on to the next one, unless somebody has written another."""

from __future__ import annotations

import copy

import pytest

from breakeven_operator.loop.service_decisions import with_unwritten
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.memorystatus import MemoryStatus
from fakes.fleet_world import SERVICE
from fakes.notes import notes_of

STORED, LEARNED = MemoryStatus(saved_request_seconds=1.0), MemoryStatus(saved_request_seconds=2.0)


def service(memory):
    body = copy.deepcopy(SERVICE)
    body["metadata"]["uid"] = "u"
    if memory is not None:
        body["status"] = {
            "observedGeneration": 7,
            "workings": {"notes": notes_of(memory.to_json_object()), "display": {"arm": "none"}},
        }
    return SpeculativeService.read(body, "chat")


def test_the_next_decision_begins_with_what_the_last_one_learned():
    found = with_unwritten(service(STORED), (STORED, LEARNED))
    assert found.status.memory == LEARNED
    assert (found.status.observed_generation, found.status.display.arm) == (7, "none")


@pytest.mark.parametrize(
    ("held", "last"),
    [
        (STORED, None),
        (MemoryStatus(saved_request_seconds=3.0), (STORED, LEARNED)),
        (None, (STORED, LEARNED)),
    ],
)
def test_what_was_written_since_counts(held, last):
    assert with_unwritten(service(held), last).status.memory == held
