"""A table of draft lengths per batch size: one function, one value, one text."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.errors import InputError
from breakeven.tiers import LARGEST_BATCH, Schedule
from draws import draws


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any schedule."""
    firsts = sorted({1, *draw(st.lists(st.integers(2, 2000), max_size=8))})
    lengths = draw(st.lists(st.integers(0, 12), min_size=len(firsts), max_size=len(firsts)))
    return Schedule.of_ranges(
        ((first, None if after is None else after - 1, k)
         for (first, after), k in zip(itertools.zip_longest(firsts, firsts[1:]), lengths, strict=True)),
        "drawn",
    )  # fmt: skip


@draws(100)
@given(schedules())
def test_a_schedule_survives_being_written(table):
    assert Schedule.parse(str(table), "text") == table


@draws(100)
@given(schedules(), st.integers(1, 2500))
def test_vllms_form_says_the_same_at_every_batch_size(table, largest):
    ranges = table.ranges(largest)
    assert ranges[0][0] == 1
    assert ranges[-1][1] == largest
    assert all(after[0] == before[1] + 1 for before, after in itertools.pairwise(ranges))
    read = Schedule.of_ranges(ranges, "vLLM's form")
    assert all(read.at(batch) == table.at(batch) for batch in {1, largest, *(low for low, _, _ in ranges)})
    assert table.num_speculative_tokens >= read.num_speculative_tokens


@draws(100)
@given(st.text("0123456789-:, ", max_size=30))
def test_any_text_is_read_or_refused_in_one_line(text):
    refused, table = "", None
    try:
        table = Schedule.parse(text, "p.csv: row 1 (line 2), column schedule")
    except InputError as error:
        refused = str(error)
    assert table is None or table.at(LARGEST_BATCH) == table.last
    assert table is not None or ("column schedule" in refused and "\n" not in refused)


def test_a_gap_goes_on_with_the_draft_length_before_it_as_in_vllm():
    table = Schedule.parse("1-4:3, 9-16:1", "text")
    assert [table.at(batch) for batch in (1, 4, 5, 8, 9, 16, 17, 500)] == [3, 3, 3, 3, 1, 1, 1, 1]
    assert str(table) == "1-8:3,9-:1"


def test_what_never_drafts_says_so():
    table = Schedule.parse("1-:0", "text")
    assert (table.num_speculative_tokens, table.speculates, table.last) == (0, False, 0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no range of batch sizes"),
        ("2-4:1", "begins at batch size 2"),
        ("1-4:1,4-8:0", "overlap at batch size 4"),
        ("1-:1,4-8:0", "overlap at batch size 4"),
        ("1-8:1,9-4:0", "range 9-4:0"),
        ("1-8:-1", "no range of batch sizes"),
        ("1-8:1;9-:0", "no range of batch sizes"),
    ],
)
def test_tables_that_vllm_would_refuse_are_refused(text, problem):
    with pytest.raises(InputError, match=problem):
        Schedule.parse(text, "text")


@pytest.mark.parametrize("tiers", [(), ((2, 1),), ((1, 1), (1, 0)), ((1, 2), (5, 2)), ((1, -1),)])
def test_tiers_that_are_no_function_of_the_batch_size_cannot_be_made(tiers):
    with pytest.raises(ValueError, match="tiers"):
        Schedule(tiers)


def test_a_schedule_has_a_draft_length_at_real_batch_sizes_only():
    with pytest.raises(ValueError, match="below 1"):
        Schedule.parse("1-:3", "text").at(0)
