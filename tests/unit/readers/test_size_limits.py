"""Input that has no end, no reader's patience or no sense ends in one line, at once."""

from __future__ import annotations

import json
import os
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner

from breakeven.arm import Arm
from breakeven.cli.lint import command
from breakeven.errors import InputError
from breakeven.intake import file_text
from breakeven.load_driver.counters import read_counters
from breakeven.readers.reading import read_text

HEADER = "method,k,mean_latency_s,concurrency\n"


def test_a_device_has_no_end_and_is_refused():
    with pytest.raises(InputError, match="a device"):
        file_text(Path("/dev/zero"), "a points file")


def test_a_pipe_is_read_to_its_end(tmp_path):
    """The shell gives a pipe for `breakeven fit <(zcat points.csv.gz)`."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("text" * 50_000,))
    writer.start()
    assert file_text(tmp_path / "pipe", "a points file") == "text" * 50_000
    writer.join()


def test_a_link_leads_to_the_file_or_to_the_refusal(tmp_path):
    (tmp_path / "points.csv").write_text("text")
    (tmp_path / "good").symlink_to(tmp_path / "points.csv")
    (tmp_path / "bad").symlink_to("/dev/zero")
    assert file_text(tmp_path / "good", "a points file") == "text"
    with pytest.raises(InputError, match="a device"):
        file_text(tmp_path / "bad", "a points file")


def test_the_rows_of_a_points_file_are_counted_before_one_is_read():
    began_s = time.process_time()
    read_text(HEADER + "none,0,1,1\n" * 10_000, "p.csv")
    allowed_s, began_s = time.process_time() - began_s, time.process_time()
    with pytest.raises(InputError, match="at most 10000 rows"):
        read_text(HEADER + "none,0,1,1\n" * 500_000, "p.csv")
    # Fifty times as many rows, of which none is read.
    assert time.process_time() - began_s < 5.0 * allowed_s
    with pytest.raises(InputError, match="at most 10, one"):
        read_text(HEADER + "none,0,1,1\n" * 11, "p.csv", None, 10)
    with pytest.raises(InputError, match="11 results; expected at most 10"):
        read_text("{}\n" * 11, "p.json", Arm("none", 0, None), 10)


def test_one_long_name_over_many_members_takes_the_memory_of_the_text():
    text = json.dumps(
        {"request_throughput": 1, "completed": 1, "x" * 250_000: {f"{n:x}": 1 for n in range(2500)}}
    )
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="mean_e2el_ms"):
            read_text(text, "ConfigMap c, key k", Arm("none", 0, None))
        assert tracemalloc.get_traced_memory()[1] < 10 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}\n" * 100_000, "100000 results; expected at most 1000"),
        ("[" + "{}," * 100_000 + "{}]", "100001 results; expected at most 1000"),
        ("[" + "1," * 100_000 + "1]", "100001 results; expected at most 1000"),
    ],
)
def test_results_are_counted_before_each_becomes_a_document(text, problem):
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=problem):
            read_text(text, "ConfigMap c, key k", Arm("none", 0, None), 1000)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(text)
    finally:
        tracemalloc.stop()


MERGES = "b: &b {" + ",".join(f"k{n}: 1" for n in range(3000)) + "}\n" + "".join(
    f"m{n}: {{<<: *b}}\n" for n in range(8000)
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- " * 30_000, "nested deeper than 200 levels"),
        ("a: " + "[" * 20_000, "nested deeper than 200 levels"),
        (MERGES, "merge keys make more than 100000 members"),
        ("- 1" + ":1" * 100_000, "a number of more than 64 characters"),
        ("- !!bool x", "a value that cannot be read"),
        ("- !!timestamp x", "a value that cannot be read"),
        ('- !!int ""', "a value that cannot be read"),
        ("- 1" + ":1" * 30 + ".5\n- 2001-99-99", "a value that cannot be read"),
    ],
    ids=["lists", "brackets", "merges", "base 60", "boolean", "time", "integer", "date"],
)
def test_yaml_that_would_take_the_process_its_memory_or_its_time_is_refused_in_a_line(
    tmp_path, text, problem
):
    began_s = time.process_time()
    with pytest.raises(InputError, match=problem):
        read_text(f"scenario:\n{text}\n", "ConfigMap c, key k", Arm("none", 0, None))
    file = tmp_path / "m.yaml"
    file.write_text(text)
    said = str(CliRunner().invoke(command, [str(file)]).exception)
    assert problem in said
    assert "\n" not in said
    assert time.process_time() - began_s < 5.0


def test_an_engine_that_tells_of_a_position_far_ahead_makes_no_list_of_it():
    page = (
        "vllm:spec_decode_num_drafts_total 1\n"
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="30000000"} 1\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="64"} 1\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 3\n'
    )
    assert read_counters(page).accepted == {1: 3.0}


def test_a_value_that_is_no_number_is_no_sample():
    assert read_counters("vllm:num_requests_running 1e\nvllm:num_requests_waiting 2.5e1\n") == read_counters(
        "vllm:num_requests_waiting 25\n"
    )
