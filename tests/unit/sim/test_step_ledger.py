"""The books of coming steps balance, however plans are changed and pages turned."""

from __future__ import annotations

from breakeven_sim.engine.requests import Request
from breakeven_sim.engine.step_ledger import Books


def test_a_plan_renewed_with_the_same_end_is_moved_once_when_the_page_turns():
    books = Books()
    books.turn(10)
    request = Request(0, 0.0, 100, 40)
    books.enter(request, 0)
    books.withdraw(request)
    books.enter(request, 0)

    books.enter(Request(1, 0.0, 100, 20_000), 0)  # more steps than the page has left

    assert (request.plan_start, request.plan_end) == (books.at, books.at + 40)
    assert books.steps_to_next_end() == 40
    books.withdraw(request)
    assert int(books.gain[books.at : books.at + 40].sum()) == 40
