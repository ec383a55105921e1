"""Results of other tools than GuideLLM and `vllm bench serve`: what they mean, and which are refused by name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.points.point import LoadMode
from breakeven.points.quality import reason_against
from breakeven.readers.reading import read_text
from fuzzing import (
    AIPERF,
    AIPERF_METRICS,
    BENCH,
    EVALSCOPE,
    EVALSCOPE_NEW,
    GENAI_BENCH,
    GUIDELLM,
    INFERENCE_PERF,
    LLMD,
    SGLANG,
    metric,
)

EAGLE = Arm("eagle3", 3)
GENAI_PERF = AIPERF_METRICS | {
    "input_config": {"model_names": ["org/model"], "perf_analyzer": {"stimulus": {"concurrency": 8}}}
}


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with the value at a path of names separated by slashes."""
    first, _, rest = path.partition("/")
    return document | {first: changed(document.get(first, {}), rest, value) if rest else value}


def read(document: object, arm: Arm = NO_SPECULATION) -> Any:
    (point,) = read_text(json.dumps(document), "r.json", arm)
    return point


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(SGLANG),
        json.dumps(AIPERF),
        json.dumps({"records": AIPERF_METRICS, "input_config": AIPERF["input_config"]}),
        json.dumps(GENAI_PERF),
        json.dumps(LLMD),
        yaml.safe_dump(LLMD),
        yaml.safe_dump(LLMD).replace("concurrency: 8", "concurrency: 8.0"),
        json.dumps(INFERENCE_PERF),
        json.dumps(GENAI_BENCH),
        json.dumps(EVALSCOPE),
        json.dumps(EVALSCOPE_NEW),
    ],
    ids=[
        *("SGLang", "AIPerf", "AIPerf 0.1", "GenAI-Perf", "llm-d JSON", "llm-d YAML", "llm-d float"),
        *("inference-perf", "genai-bench", "EvalScope", "EvalScope, new names"),
    ],
)
def test_one_closed_loop_is_the_same_point_whichever_tool_measured_it(text: str) -> None:
    (point,) = read_text(text, "result", NO_SPECULATION)
    assert (point.load_mode, point.concurrency, point.flags) == (LoadMode.CLOSED, 8.0, ())
    assert (point.mean_latency_s, point.achieved_rps, point.requests) == (pytest.approx(2.0), 4.0, 200.0)
    if point.origin.tool != "EvalScope":
        assert (point.p50_latency_s, point.p99_latency_s) == (pytest.approx(1.95), pytest.approx(2.6))
    assert (point.prompt_tokens, point.output_tokens) == (512.0, 256.0)
    assert point.ttft_mean_s == pytest.approx(0.1)
    assert point.model == ("org/model" if "org/model" in text else None)
    assert reason_against(point) is None


CLOSED, POISSON, CONSTANT = LoadMode.CLOSED, LoadMode.POISSON, LoadMode.CONSTANT


def aiperf(load: dict[str, Any]) -> Any:
    return changed(AIPERF, "input_config/loadgen", load)


@pytest.mark.parametrize(
    ("document", "mode", "rate", "reason"),
    [
        (SGLANG | {"request_rate": 4.0, "max_concurrency": None}, POISSON, 4.0, None),
        (SGLANG | {"max_concurrency": None}, CLOSED, None, "SaturatedPoint"),
        (SGLANG | {"request_rate": "trace"}, CLOSED, None, "NotSteady"),
        (SGLANG | {"request_rate": 4.0}, POISSON, 4.0, "SaturatedPoint"),
        (aiperf({"request_rate": 4.0, "arrival_pattern": "poisson"}), POISSON, 4.0, None),
        (aiperf({"request_rate": 4.0}), CONSTANT, 4.0, None),
        (
            aiperf({"request_rate": 4.0, "arrival_pattern": "gamma", "arrival_smoothness": 0.5}),
            POISSON,
            4.0,
            "ArrivalsUnknown",
        ),
        (aiperf({"request_rate": 4.0, "request_rate_ramp_duration": 30}), CONSTANT, 4.0, "NotSteady"),
        (aiperf({"user_centric_rate": 4.0, "request_rate": 4.0}), POISSON, 4.0, "ArrivalsUnknown"),
        (
            changed(
                AIPERF, "input_config", {"loadgen": {"concurrency": 8}, "input": {"fixed_schedule": True}}
            ),
            CLOSED,
            None,
            "NotSteady",
        ),
        (AIPERF | {"error_request_count": metric("requests", 3.0)}, CLOSED, None, "RequestsFailed"),
        (AIPERF | {"was_cancelled": True}, CLOSED, None, "RequestsFailed"),
        (AIPERF | {"request_count": metric("requests", 2.0)}, CLOSED, None, "PointTooShort"),
        (
            changed(LLMD, "scenario/load", {"standardized": {"rate_qps": 4.0, "concurrency": float("inf")}}),
            POISSON,
            4.0,
            "ArrivalsUnknown",
        ),
        (
            changed(
                LLMD,
                "scenario/load",
                {"standardized": {"rate_qps": 4.0}, "native": {"config": {"load": {"type": "constant"}}}},
            ),
            CONSTANT,
            4.0,
            None,
        ),
        (
            changed(LLMD, "results/request_performance/aggregate/requests/failures", 5),
            CLOSED,
            None,
            "RequestsFailed",
        ),
        (changed(INFERENCE_PERF, "load_summary", {"requested_rate": 4.0}), POISSON, 4.0, "ArrivalsUnknown"),
        (changed(INFERENCE_PERF, "failures/count", 2), CLOSED, None, "RequestsFailed"),
        (changed(INFERENCE_PERF, "load_summary/concurrency", 4), CLOSED, None, "NotSteady"),
        (
            changed(GENAI_BENCH, "aggregated_metrics/iteration_type", "request_rate"),
            POISSON,
            8.0,
            "ArrivalsUnknown",
        ),
        (changed(GENAI_BENCH, "aggregated_metrics/num_error_requests", 1), CLOSED, None, "RequestsFailed"),
        (EVALSCOPE | {"Failed requests": 3}, CLOSED, None, "RequestsFailed"),
        (EVALSCOPE | {"Request rate (req/s)": 4.0, "Number of concurrency": 64}, POISSON, 4.0, None),
        (EVALSCOPE_NEW | {"Request Rate (req/s)": 4.0}, POISSON, 4.0, "SaturatedPoint"),
        (EVALSCOPE_NEW | {"Success Requests": 3}, CLOSED, None, "PointTooShort"),
    ],
)
def test_how_requests_arrived_and_what_speaks_against_a_run(
    document: object, mode: LoadMode, rate: float | None, reason: str | None
) -> None:
    point = read(document)
    assert (point.load_mode, point.request_rate_rps) == (mode, rate)
    assert reason_against(point) == reason


def test_sglangs_accept_length_says_that_the_engine_speculates_and_is_not_of_this_run() -> None:
    with pytest.raises(InputError, match="accept_length: counters of a speculating engine"):
        read(SGLANG | {"accept_length": 2.9})
    assert read(SGLANG | {"accept_length": 2.9}, EAGLE).tokens_per_step is None


MULTI_TURN: dict[str, Any] = {
    name: value for name, value in BENCH.items() if name not in {"request_rate", "max_concurrency"} and "spec" not in name
} | {"mode": "multi_turn", "multi_turn_concurrency": 8, "inter_turn_delay_ms": 0, "turns_per_conversation": 8}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"inter_turn_delay_ms": 500, "request_throughput": 4.0}, None),
        ({"multi_turn_concurrency": 64}, "PointTooShort"),
        ({"multi_turn_concurrency": 2}, "NotSteady"),
        ({"failed": 3, "conversations_failed": 1}, "RequestsFailed"),
        ({"completed": 4, "output_lens": []}, "PointTooShort"),
    ],
)
def test_conversations_are_a_closed_loop_of_as_many_clients(
    change: dict[str, Any], reason: str | None
) -> None:
    point = read(MULTI_TURN | change)
    assert (point.load_mode, point.concurrency) == (
        LoadMode.CLOSED,
        (MULTI_TURN | change)["multi_turn_concurrency"],
    )
    assert reason_against(point) == reason
    assert "prompts grow from turn to turn" in point.origin.remark
    assert not point.unknown


def test_a_multi_turn_run_without_its_load_is_refused() -> None:
    with pytest.raises(
        InputError, match="does not say how requests arrived; expected multi_turn_concurrency"
    ):
        read({name: value for name, value in MULTI_TURN.items() if name != "multi_turn_concurrency"})


def test_a_steady_state_without_a_mean_latency_is_named_and_not_used() -> None:
    steady = {"window": {"start_s": 3.0}, "request_throughput": 9.9, "mean_ttft_ms": 40.0}
    assert "steady_state is not used" in read(SGLANG | {"steady_state": steady}).origin.remark
    assert read(SGLANG | {"steady_state": None}).origin.remark == ""


@pytest.mark.parametrize("document", [AIPERF, LLMD])
def test_a_single_mean_of_ratios_is_not_taken_for_tpot(document: object) -> None:
    point = read(document)
    if point.tpot_mean_s is not None:
        assert point.ttft_mean_s + 255 * point.tpot_mean_s == pytest.approx(point.mean_latency_s)


@pytest.mark.parametrize(
    ("document", "refusal"),
    [
        (LLMD | {"version": "0.1"}, "llm-d-benchmark 0.1, which does not say how requests arrived"),
        (changed(AIPERF, "request_latency", {"unit": "ns", "avg": 2e9}), "request_latency.unit: is 'ns'"),
        (
            {"input_config": {}, "error_request_count": metric("requests", 5.0)},
            "request_latency.unit: is missing",
        ),
        (AIPERF | {"input_config": {"phases": {}}}, "does not say how requests arrived"),
        (
            changed(LLMD, "scenario/load", {"standardized": {"tool": "t"}}),
            "does not say how requests arrived",
        ),
        (
            {"avg_latency": 1.0, "latencies": [1.0], "percentiles": {}},
            "vllm bench latency, which is not read",
        ),
        ({"elapsed_time": 1.0, "num_requests": 9, "requests_per_second": 9.0}, "vllm bench throughput"),
        (
            changed(INFERENCE_PERF, "load_summary", {"count": 200}),
            "inference-perf that does not say how requests arrived; expected stage_N_lifecycle_metrics.json",
        ),
        (changed(INFERENCE_PERF, "successes", {"count": 0, "latency": {}}), "no request was answered"),
        (
            changed(INFERENCE_PERF, "successes/latency/request_latency", None),
            "request_latency.mean: nothing there",
        ),
        (
            changed(GENAI_BENCH, "aggregated_metrics/iteration_type", "batch_size"),
            "does not say how requests",
        ),
        (GENAI_BENCH | {"_time_unit": "min"}, "_time_unit: is 'min'"),
        (EVALSCOPE | {"Succeed requests": 0, "Average latency (s)": -1}, "no request was answered"),
        (EVALSCOPE | {"Average latency (s)": -1}, "Average latency (s): -1 is out of range"),
        (
            {"aggregation_type": "sweep", "per_combination_metrics": [], "metadata": {}},
            "AIPerf's sweep, which",
        ),
        ({"engine": {}, "performance": {}, "request_info": {}}, "trtllm-bench, which is not read"),
        (
            {"hw": "h200", "conc": 8, "tput_per_gpu": 250.1, "tp": 8},
            "InferenceX's aggregate, which is not read",
        ),
        ({"root_group": {}, "metrics": {}}, "a result of k6, which is not read"),
        ({"type": "Point", "metric": "http_reqs", "data": {}}, "k6's stream"),
        ({"aggregate": {}, "intermediate": []}, "Artillery"),
        ({"name": "/v1", "num_requests": 9, "num_none_requests": 0}, "Locust"),
        ({"latencies": {}, "bytes_in": {}, "rate": 4.0}, "Vegeta"),
        ({"summary": {}, "rps": {}, "latencyPercentiles": {}}, "oha"),
        ({"build_commit": "a", "n_prompt": 512, "avg_ts": 9.0}, "llama-bench"),
        ({"experiments": [], "service_kind": "openai"}, "profile_export_genai_perf.json beside it"),
        ({"results_end_to_end_latency_s_mean": 2.0}, "LLMPerf"),
        ({"some": "thing"}, "JSON of no known kind"),
    ],
)
def test_what_is_not_read_is_refused_by_name(document: object, refusal: str) -> None:
    with pytest.raises(InputError) as refused:
        read(document)
    assert refusal in str(refused.value)


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("Type,Name,Request Count,Failure Count,Median Response Time\nPOST,/v1,9,0,1\n", "Locust"),
        ("Timestamp,User Count,Type,Name,Requests/s\n1,1,POST,/v1,1\n", "Locust"),
        ("Method,Name,Error,Occurrences\n", "Locust"),
        ("Count,Message,Traceback,Nodes\n", "Locust"),
        ("Type,Run Id,Id,Name,Start Time\nsweep,a,b,c,1\n", "GuideLLM as CSV"),
        ("Run Info,Run Info,Benchmark\nID,Start,Strategy\n", "GuideLLM as CSV"),
        (
            "model,isl,osl,concurrency,request_rate,bs,ttft,tpot,tokens/s,tokens/s/user\n",
            "AIConfigurator's prediction",
        ),
        ("\ufeff====\nMLPerf Results Summary\n====\nScenario : Server\n", "MLPerf"),
        (":::MLLOG {}\n", "MLPerf"),
        ("Concurrency,Inferences/Second,Client Send\n", "Perf Analyzer as CSV"),
        ("metric_name,timestamp,metric_value,check\n", "k6 as CSV"),
        ("timeStamp,elapsed,label,responseCode\n", "JMeter"),
        (
            "INFO start\nNamespace(a=1)\n============ Serving Benchmark Result ============\nSuccessful requests: 9\n",
            "a benchmark as it is printed",
        ),
        ("Running 30s test @ http://a:8000/v1\n  8 threads\n", "wrk"),
        ("This is ApacheBench, Version 2.3\n", "ApacheBench"),
        ("\nSummary:\n  Total:\t2.1 secs\n", "hey"),
        ("response-time,DNS+dialup,DNS,Request-write\n", "hey as CSV"),
    ],
)
def test_tables_of_other_tools_are_refused_by_their_names(text: str, tool: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"a result of {tool}, which is not read")):
        read_text(text, "r.csv", NO_SPECULATION)


def test_the_refusal_of_an_unknown_file_names_every_tool_that_is_read() -> None:
    with pytest.raises(InputError) as refused:
        read({"some": "thing"})
    for tool in (
        "GuideLLM",
        "SGLang",
        "AIPerf",
        "llm-d-benchmark",
        "inference-perf",
        "genai-bench",
        "EvalScope",
    ):
        assert tool in str(refused.value)


def test_a_report_that_is_no_yaml_is_one_line() -> None:
    with pytest.raises(InputError, match="not YAML") as refused:
        read_text("version: '0.2'\nscenario:\n  - {\n", "r.yaml", NO_SPECULATION)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("document", "begun_s"),
    [
        (BENCH | {"date": "20260301-101530", "duration": 30.0}, 1772360100.0),
        (BENCH | {"date": "20260301-101530"}, None),
        (BENCH | {"date": "after lunch", "duration": 30.0}, None),
        (AIPERF | {"start_time": "2026-03-01T10:15:00.25"}, 1772360100.25),
        (AIPERF | {"start_time": "2026-03-01T12:15:00+02:00"}, 1772360100.0),
        (AIPERF | {"start_time": None}, None),
        (changed(LLMD, "run/time", {"start": "2026-03-01T10:15:00Z"}), 1772360100.0),
        (changed(LLMD, "run/time", {"start": ["soon"]}), None),
        ({"benchmarks": [GUIDELLM["benchmarks"][0] | {"start_time": 1772360100.5}]}, 1772360100.5),
        (
            {"benchmarks": [changed(GUIDELLM["benchmarks"][0], "run_stats/start_time", 1772360100.5)]},
            1772360100.5,
        ),
        (SGLANG, None),
    ],
)
def test_when_a_run_began_is_read_where_a_file_says_it(document: object, begun_s: float | None) -> None:
    assert read(document, EAGLE).begun_s == begun_s


def test_the_begin_is_read_from_yaml_too() -> None:
    text = yaml.safe_dump(changed(LLMD, "run/time", {"start": "AT"})).replace("AT", "2026-03-01T10:15:00Z")
    (point,) = read_text(text, "report.yaml", NO_SPECULATION)
    assert point.begun_s == 1772360100.0
