"""Readers of traces and of recorded acceptance."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

from breakeven.errors import InputError
from breakeven_sim.engine.drafting import plan_steps
from breakeven_sim.replay.recorded_texts import read_recorded, recorded_for
from breakeven_sim.replay.trace_files import read_trace
from breakeven_sim.replay.traces import RateTrace, RequestTrace


@pytest.fixture
def write(tmp_path):
    def make(text, name="trace.csv"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return make


@pytest.mark.parametrize(
    "text",
    [
        "timestamp_s,prompt_tokens,output_tokens\n10,5,7\n11.5,6,8\n",
        "timestamp_ms,input_length,output_length,blocks\n10000,5,7,1\n11500,6,8,1\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,5,7\n2023-11-16 18:15:48.1805900,6,8\n",
        "\ufefftimestamp_s,prompt_tokens,output_tokens\n11.5,6,8\n\n10,5,7\n",
        # Azure 2024: an offset, and a fraction where it is not zero.
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:01+00:00,5,7\n2024-05-10 02:00:02.500000+02:00,6,8\n",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,5,7,12,API log\n6.5,GPT-4,6,8,14,API log\n",
        (
            '{"timestamp": 27482, "input_length": 5, "output_length": 7, "hash_ids": [1]}\n'
            '{"timestamp": 28982, "input_length": 6, "output_length": 8, "hash_ids": [1, 2]}\n'
        ),
        (
            '{"timestamp": "2023-04-09T00:02:53+00:00", "prompt_tokens": 5, "completion_tokens": 7}\n\n'
            '{"completion_tokens": 8, "timestamp": "2023-04-09T00:02:54.5Z", "prompt_tokens": 6}\n'
        ),
        "arrived_at,num_prefill_tokens,num_decode_tokens\n1700000000000,5,7\n1700000001500,6,8\n",
        (
            '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.0, "input_length": 5, "output_length": 7, "turn": 1, "hash_ids": [1]}\n'
            '{"chat_id": 2, "parent_chat_id": 1, "timestamp": 62.5, "input_length": 6, "output_length": 8, "turn": 2, "hash_ids": [1]}\n'
        ),
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n0,2,0,3.0,1,5,7\n1,2,0,4.5,1,6,8\n",
        "TIMESTAMP;NumImages;ContextTokens;GeneratedTokens\n2024-10-08 00:00:00.5;1;5;7\n2024-10-08 00:00:02;0;6;8\n",
        "start_time_ns\tISL\tOSL\n1700000000000000000\t5\t7\n1700000001500000000\t6\t8\n",
        '{"tstamp": 1682351591.5, "prompt_tokens": 5, "completion_tokens": 7}\n{"tstamp": 1682351593.0, "prompt_tokens": 6, "completion_tokens": 8}\n',
    ],
    ids=[
        "ours",
        "Mooncake CSV",
        "Azure 2023",
        "BOM, out of order",
        "Azure 2024",
        "BurstGPT",
        "Mooncake",
        "JSON lines",
        "epoch ms",
        "Bailian",
        "Splitwise",
        "semicolons",
        "tabs, ns",
        "Chatbot Arena's times",
    ],
)
def test_requests_in_every_known_format(write, text):
    trace = read_trace(write(text))
    assert isinstance(trace, RequestTrace)
    assert trace.arrival_s == pytest.approx([0.0, 1.5])
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([5, 6], [7, 8])
    assert trace.faster(3.0).arrival_s == pytest.approx([0.0, 0.5])


def test_a_request_without_an_answer_is_left_out_and_counted(write):
    header = "Timestamp,Model,Request tokens,Response tokens\n"
    trace = read_trace(write(f"{header}1,m,5,0\n4,m,5,7\n5,m,0,9\n"))
    assert trace.arrival_s.tolist() == [0.0, 1.0]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([5, 1], [7, 9])
    assert trace.notes == (
        "1 request without an answer is left out",
        "1 request without a prompt counts one token",
    )
    with pytest.raises(InputError, match="no request has an answer"):
        read_trace(write(f"{header}1,m,5,0\n"))


def test_a_unit_that_names_leave_open_is_said(write):
    rows = '{"timestamp": 0, "input_length": 5, "output_length": 7}\n{"timestamp": 1500, "input_length": 6, "output_length": 8}\n'
    trace = read_trace(write(rows))
    assert trace.arrival_s.tolist() == [0.0, 1500.0]
    assert "timestamp is read in seconds; if it is in ms" in trace.notes[0]
    assert read_trace(write(rows.replace("1500", "1.5"))).notes == ()
    assert read_trace(write(rows.replace("timestamp", "timestamp_ms"))).arrival_s.tolist() == [0.0, 1.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("timestamp_s,prompt_tokens,output_tokens\n0,1e308,5\n1,5,5\n", "row 2, column prompt_tokens: '1e308'; expected a value from 0 to 1e+09 tokens"),
        ("timestamp_s,prompt_tokens,output_tokens\n1e300,5,5\n1,5,5\n", "column timestamp_s: '1e300'; expected a value from 0 to 1e+12 s"),
        ("window_start_s,rate_rps\n0,1e300\n1,1\n", "column rate_rps: '1e300'; expected a value from 0 to 1e+09 rps"),
        ('[{"timestamp": 0}]', "row 1: a JSON list; expected one object per line"),
    ],
)  # fmt: skip
def test_what_no_trace_holds_is_refused_by_row_and_column(write, text, message):
    with pytest.raises(InputError) as refusal:
        read_trace(write(text))
    assert message in str(refusal.value)


def test_a_date_without_a_zone_leaps_in_no_night(write, monkeypatch):
    """At two in that night clocks of Berlin went back by an hour."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        dates = "2023-10-29 01:30:00,1,1\n2023-10-29 03:30:00,1,1\n"
        trace = read_trace(write(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{dates}"))
        assert trace.arrival_s.tolist() == [0.0, 7200.0]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_rows_are_held_as_numbers_while_they_are_read(write):
    path = write("timestamp_s,prompt_tokens,output_tokens\n" + "1.5,512,256\n" * 50_000)
    tracemalloc.start()
    try:
        read_trace(path)
        assert tracemalloc.get_traced_memory()[1] < 50_000 * 150
    finally:
        tracemalloc.stop()


def test_arrivals_without_lengths_need_them(write):
    path = write("Timestamp\n0.0\n4.25\n")
    trace = read_trace(path, prompt_tokens=100, output_tokens=50)
    assert trace.prompt_tokens.tolist() == [100, 100]
    assert "output_tokens 50" in " ".join(trace.notes)
    with pytest.raises(InputError, match="no column of prompt_tokens; expected one, or --prompt-tokens"):
        read_trace(path)


def test_rates_and_what_a_zero_means(write):
    ours = read_trace(write("window_start_s,rate_rps\n600,2\n1200,0\n1800,4\n"))
    theirs = read_trace(write("window_start_s,total_rate_rps,active_clients\n600,2,1\n1200,0,0\n1800,4,1\n"))
    assert isinstance(ours, RateTrace)
    assert isinstance(theirs, RateTrace)
    assert (ours.start_s.tolist(), ours.length_s.tolist()) == ([0, 600, 1200], [600] * 3)
    assert ours.requests == 3600
    assert theirs.start_s.tolist() == [0, 1200]
    assert theirs.notes == ("1 of 3 windows with rate 0 are missing data and left out",)


@pytest.mark.parametrize(
    ("header", "cells"),
    [
        ("window_start_s,rate_rps", ("2", "3")),
        ("Time,requests/s", ("2", "3")),
        ("Time;req/s", ("2", "3")),
        ("time\tQPS", ("2", "3")),
        ("Time,req_per_s", ("2 req/s", "3.0 req/s")),
        ("timestamp,Value", ("2", "3")),
        ("Time,rps,errors", ("2,0", "3,1")),
        ("datetime,Requests per minute", ("120", "180")),
        ("Time,rpm", ("120", "180")),
        ("Time,request_rate", ("2.0rps", "3.0rps")),
    ],
)
def test_a_time_and_a_rate_are_windows_whatever_the_columns_are_called(write, header, cells):
    sign = ";" if ";" in header else "\t" if "\t" in header else ","
    trace = read_trace(write(f"{header}\n1762000000{sign}{cells[0]}\n1762000060{sign}{cells[1]}\n"))
    assert isinstance(trace, RateTrace)
    assert (trace.start_s.tolist(), trace.length_s.tolist()) == ([0, 60], [60, 60])
    assert trace.rate_rps.tolist() == pytest.approx([2.0, 3.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Time,chat\n2026-11-01 00:00:00,3\n2026-11-01 00:01:00,4\n2026-11-01 00:02:00,5\n", "column chat: numbers beside a time"),
        ("Time,{deployment='chat'}\n0.01,3\n59.98,4\n120.02,5\n240.01,4\n300,4\n360.03,5\n", "column {deployment='chat'}: numbers"),
        ("Time,chat\n120,3\n60,4\n0,5\n", "column chat: numbers beside a time"),
        ("Time,pod-a,pod-b\n0,,3\n60,,4\n120,5,5\n", "column pod-a: numbers beside a time"),
        ("Time,request count\n0,180\n61,190\n119,200\n", "column request count: numbers"),
        ("Time,throughput\n0,180 req/s\n61,190 req/s\n", "column throughput: numbers"),
        ("time_s,rps,prompt_tokens,output_tokens\n0,3,512,256\n60,4,512,256\n120,5,512,256\n", "row 1, column rps: numbers at even times: a column of rates?; expected window_start_s,rate_rps"),
        ("Time,rps,qps\n0,3,3\n60,4,4\n", "2 columns of rates (rps, qps); expected window_start_s,rate_rps"),
        ('{"time": 0, "active_users": 3}\n{"time": 61, "active_users": 4}\n', "column active_users: numbers"),
    ],
)  # fmt: skip
def test_numbers_that_look_like_a_load_are_never_dropped(write, text, message):
    for lengths in ({}, {"prompt_tokens": 512, "output_tokens": 256}):
        with pytest.raises(InputError) as refused:
            read_trace(write(text), **lengths)
        assert message in str(refused.value)
        assert "window_start_s,rate_rps" in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "Timestamp,status,latency_s\n0.5,200,1.5\n4.25,200,2.5\n4.5,429,0.1\n",
        "Timestamp,status\n0.0,200\n0.4,200\n2.9,200\n",
        "Timestamp,user_id\n0,17\n1,18\n2,17\n",
        "Timestamp,model\n0,gpt\n1,gpt\n2,gpt\n",
        ",Timestamp\n0,0.5\n1,4.25\n2,4.5\n",
        "Timestamp\n0\n1\n2\n",
    ],
)
def test_what_is_no_load_beside_times_is_ignored(write, text):
    assert len(read_trace(write(text), prompt_tokens=100, output_tokens=50)) == 3


@pytest.mark.parametrize("empty", ["", "NaN", "null", "-", " ", "N/A"])
def test_an_empty_cell_leaves_its_row_out_and_is_counted(write, empty):
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for row in (f"1,{empty},7", f"1,7,{empty}", f"{empty},7,7"):
        trace = read_trace(write(f"{header}0,5,7\n{row}\n2,6,8\n"))
        assert (trace.arrival_s.tolist(), trace.prompt_tokens.tolist()) == ([0, 2], [5, 6])
        assert trace.notes == ("1 request without a time or a length is left out",)
    rates = read_trace(write(f"Time,rps\n0,3\n60,{empty}\n120,5\n"))
    assert (rates.start_s.tolist(), rates.length_s.tolist()) == ([0, 120], [60, 60])
    assert rates.notes == ("1 of 3 windows without a rate are left out",)


def test_a_row_that_is_cut_and_a_member_that_is_missing_are_empty_cells(write):
    for text in (
        "timestamp_s,prompt_tokens,output_tokens\n1,2,3\n2,2\n",
        '{"timestamp": 1, "input_length": 5, "output_length": 7}\n{"timestamp": 2}\n',
        '{"timestamp": 1, "input_length": 5, "output_length": 7}\n{"timestamp": 2, "input_length": NaN, "output_length": 1}\n',
    ):
        assert read_trace(write(text)).notes[0] == "1 request without a time or a length is left out"


def test_finer_windows_hold_the_same_requests():
    trace = RateTrace(np.array([0.0, 600.0]), np.array([600.0, 100.0]), np.array([2.0, 5.0]))
    finer = trace.finer(250.0)
    assert finer.start_s.tolist() == [0, 200, 400, 600]
    assert finer.length_s.tolist() == [200, 200, 200, 100]
    assert finer.rate_rps.tolist() == [2, 2, 2, 5]
    assert finer.requests == trace.requests


def test_rates_of_requests_keep_their_number():
    arrivals = np.array([0.0, 10.0, 59.0, 60.0, 130.0])
    trace = RequestTrace(arrivals, np.ones(5, int), np.ones(5, int))
    rates = trace.rates(60.0)
    assert rates.length_s.tolist() == [60, 60, 10]
    assert (rates.rate_rps * rates.length_s).tolist() == [3, 1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "row 1: columns none"),
        ("day,tokens\n1,2\n", "row 1: columns day, tokens; expected a time and lengths (timestamp_s"),
        ("rate_rps\n1\n", "row 1"),
        ("timestamp_s,prompt_tokens,output_tokens\n", "no rows"),
        ("timestamp_s,prompt_tokens,output_tokens\n1,2\n", "no request has a time and its lengths"),
        ("timestamp_s,prompt_tokens,output_tokens\n1,2,3\n2,x,3\n", "row 3, column prompt_tokens: 'x'"),
        ("timestamp_s,prompt_tokens,output_tokens\n1,-2,3\n", "row 2, column prompt_tokens: '-2'"),
        ("timestamp_s,prompt_tokens,output_tokens\ninf,2,3\n", "row 2, column timestamp_s: 'inf'"),
        ("window_start_s,rate_rps\n0,1\n", "1 windows"),
        ("window_start_s,rate_rps\n0,1\n0,2\n", "row 3, column window_start_s: not after the row before"),
        ("window_start_s,total_rate_rps\n0,0\n600,0\n", "every rate is 0"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "row 2, column TIMESTAMP: 'yesterday'"),
        ('{"timestamp": 1, "input_length": 5, "output_length": 7}\nnot JSON\n', "row 2: no JSON object"),
        ("window_start_s,rate_rps\n0,1\n,2\n", "row 3, column window_start_s: nothing there"),
        ("window_start_s,rate_rps\n0,\n60,NaN\n", "no window has a rate"),
        ('{"timestamp": [1], "input_length": 5, "output_length": 7}\n', "row 1, column timestamp: [1]"),
        ('{"timestamp": {"a": 1}, "input_length": 5, "output_length": 7}\n', "column timestamp: {'a': 1}"),
        ("{" * 100_000, "row 1: no JSON object"),
    ],
)
def test_a_wrong_file_gets_one_line(write, text, message):
    with pytest.raises(InputError) as refused:
        read_trace(write(text))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_trace(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\x00\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        read_trace(tmp_path / "binary.csv")


def test_recorded_acceptance_is_replayed_step_by_step(write):
    path = write(
        '{"id": "1", "acc_eagle": [3, 1, 1, 5, 1, 2]}\n\n{"id": "2", "acc_eagle": [1, 1], "acc_ngram": [1, 4]}\n',
        "a.jsonl",
    )
    texts = read_recorded(path)
    eagle = recorded_for(texts, "eagle3", 1.0, 0)
    plan = plan_steps(eagle.draw(0, 6), 0, 6, 2)
    # i=0 gives 3, i=3 gives min(5, 3): the end.
    assert (plan.advance.tolist(), plan.drafted.tolist()) == ([3, 3], [2, 2])
    assert eagle.draw(1, 5).yields == [1, 1, 1, 1, 1]
    assert eagle.draw(2, 8).yields == [3, 1, 1, 5, 1, 2, 3, 1]
    lookup = recorded_for(texts, "suffix", 0.0, 0).draw(0, 4)
    assert (lookup.yields, lookup.matches) == ([1, 4, 1, 4], [False, True, False, True])
    with pytest.raises(InputError, match="nothing for method draft_model; expected one of: eagle, ngram"):
        recorded_for(texts, "draft_model", 1.0, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "row 1: line 1, column 2: not JSON"),
        ("[1]", "row 1: a list; expected one JSON object"),
        ('{"acc_eagle": [1, 0]}', "row 1, acc_eagle: not a list of whole numbers"),
        ('{"id": 1}', "no recorded text"),
    ],
)
def test_wrong_recordings_get_one_line(write, text, message):
    with pytest.raises(InputError) as refused:
        read_recorded(write(text, "a.jsonl"))
    assert message in str(refused.value)
