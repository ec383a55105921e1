"""Points of an arm whose draft length follows the batch size."""

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.points.table import cells, read, written

HEADER = "method,k,candidate,concurrency,mean_latency_s,schedule\n"


def test_a_row_with_a_schedule_is_an_arm_of_its_own():
    text = HEADER + 'eagle3,5,,8,1.2,"1-8:5,9-32:2,33-:0"\neagle3,5,,8,1.1,\n'
    scheduled, static = read(text, "p.csv")
    assert scheduled.arm == Arm("eagle3", 5, scheduled=True)
    assert static.arm == Arm("eagle3", 5)
    assert scheduled.arm != static.arm
    assert scheduled.arm.family == static.arm.family
    assert (scheduled.arm.name, static.arm.name) == ("eagle3/schedule", "eagle3/5")


def test_a_schedule_of_a_named_drafter_carries_the_drafters_name():
    (point,) = read(HEADER + 'eagle3,5,small,8,1.2,"1-8:5,9-:0"\n', "p.csv")
    assert point.arm.name == "small/schedule"


def test_a_schedule_is_written_in_one_spelling_and_read_back():
    (point,) = read(HEADER + 'eagle3,5,,8,1.2,"1-4:5, 5-8:5, 12-64:0"\n', "p.csv")
    assert point.schedule == "1-11:5,12-:0"
    assert read(written([cells(point)]), "p.csv")[0].arm == point.arm


def test_a_file_without_schedules_has_no_such_column():
    (point,) = read(HEADER + "eagle3,5,,8,1.2,\n", "p.csv")
    assert "schedule" not in cells(point)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('none,0,,8,1.2,"1-:0"', "with method none"),
        ('eagle3,3,,8,1.2,"1-8:5,9-:0"', "a draft length of 5 with k = 3"),
        ('eagle3,3,,8,1.2,"2-8:3"', "begins at batch size 2"),
        ('eagle3,3,,8,1.2,"yes"', "no range of batch sizes"),
    ],
)
def test_a_schedule_that_no_engine_can_run_is_refused_where_it_stands(row, problem):
    with pytest.raises(InputError, match=problem) as refused:
        read(HEADER + row + "\n", "p.csv")
    assert "row 1 (line 2), column schedule" in str(refused.value)


def test_adaptive_verification_is_an_arm_beside_the_schedule_of_its_family():
    text = HEADER + 'eagle3,7,,8,1.2,adaptive\neagle3,7,,8,1.1,"1-8:7,9-:0"\n'
    adaptive, scheduled = read(text, "p.csv")
    assert adaptive.arm == Arm("eagle3", 7, scheduled=True, adaptive=True)
    assert (adaptive.arm.name, scheduled.arm.name) == ("eagle3/adaptive", "eagle3/schedule")
    assert read(written([cells(adaptive)]), "p.csv")[0].arm == adaptive.arm


def test_adaptive_verification_without_a_load_that_it_follows_is_no_arm():
    with pytest.raises(ValueError, match="a kind of schedule"):
        Arm("eagle3", 7, adaptive=True)


def test_no_speculation_has_no_schedule():
    with pytest.raises(ValueError, match="no schedule"):
        Arm("none", 0, scheduled=True)
    assert NO_SPECULATION.name == "none"
