"""One made-up result per tool and odd feature: no wrong number comes out without a word.

Each is a good closed loop of 8 clients but for one thing. `None`: it stays usable, as it was.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.errors import ForeignFileError, InputError
from breakeven.fitting import fit_points
from breakeven.points.quality import reason_against
from breakeven.readers.reading import distinct, read_text
from fuzzing import AIPERF, BENCH, LLMD, SGLANG, metric

NAN, INF = float("nan"), float("inf")
ABSENT = object()
VLLM = {name: value for name, value in BENCH.items() if not name.startswith("spec_decode")} | {
    "completed": 400,
    "failed": 0,
    "duration": 42.55,
    "total_input_tokens": 25600,
    "total_output_tokens": 25600,
    "output_throughput": 601.6,
}
_BENCHMARK: dict[str, Any] = {
    "type_": "generative_benchmark",
    "config": {"strategy": {"type_": "concurrent", "streams": 8}},
    "metrics": {
        "request_totals": {"successful": 400, "errored": 0, "incomplete": 8, "total": 408},
        "request_latency": {"successful": {"mean": 2.0}},
        "requests_per_second": {"successful": {"mean": 4.0}},
        "request_concurrency": {"total": {"mean": 8.0}},
    },
    "requests": {"successful": [], "errored": [], "incomplete": []},
}
GUIDELLM = {"metadata": {"version": 2, "guidellm_version": "0.8.1"}, "benchmarks": [_BENCHMARK]}
TOOLS = {"vllm": VLLM, "sglang": SGLANG, "guidellm": GUIDELLM, "aiperf": AIPERF, "llmd": LLMD}
STRATEGY, TOTALS = "benchmarks/0/config/strategy", "benchmarks/0/metrics/request_totals"
LOADGEN, RESULTS = "input_config/loadgen", "results/request_performance/aggregate"
LOAD = "scenario/load/standardized"


def changed(document: Any, path: str, value: Any) -> Any:
    found = node = copy.deepcopy(document)
    *way, last = path.split("/")
    for step in way:
        node = node[int(step)] if isinstance(node, list) else node.setdefault(step, {})
    if value is ABSENT:
        node.pop(last, None)
    else:
        node[last] = value
    return found


def outcome(text: str) -> str | None:
    """The reason against the one point, or the refusal."""
    passed: list[ForeignFileError] = []
    try:
        points = read_text(text, "r.json", NO_SPECULATION, passed_over=passed)
    except InputError as refused:
        return str(refused)
    if passed:
        return f"passed over: {passed[0]}"
    (point,) = points
    return reason_against(point)


@pytest.mark.parametrize("tool", TOOLS)
def test_without_anything_odd_it_is_used(tool: str) -> None:
    assert outcome(json.dumps(TOOLS[tool])) is None


@pytest.mark.parametrize(
    ("tool", "path", "value", "expected"),
    [
        # How requests arrived.
        ("vllm", "ramp_up_strategy", "linear", "NotSteady"),
        ("vllm", "rps_change_events", [{"rps": 2}], "NotSteady"),
        ("vllm", "max_concurrency", None, "SaturatedPoint"),
        ("vllm", "request_rate", 12.0, "SaturatedPoint"),
        ("vllm", "request_rate", "4.0", "request_rate: is '4.0'; expected a number"),
        ("vllm", "max_concurrency", "8", "max_concurrency: is '8'; expected a number"),
        ("vllm", "max_concurrency", 0, "max_concurrency: 0 is out of range"),
        ("guidellm", f"{STRATEGY}/rampup_duration", 9.0, "NotSteady"),
        ("guidellm", STRATEGY, {"type_": "throughput"}, "SaturatedPoint"),
        ("guidellm", STRATEGY, {"type_": "constant", "rate": 4.0, "max_concurrency": 8}, "SaturatedPoint"),
        ("guidellm", STRATEGY, {"type_": "poisson", "rate": "4"}, "config.strategy.rate: is '4'"),
        ("guidellm", STRATEGY, {"type_": "sweep"}, "passed over: r.json: benchmarks[0].config.strategy.type_"),
        ("aiperf", f"{LOADGEN}/request_rate_ramp_duration", 9.0, "NotSteady"),
        ("aiperf", f"{LOADGEN}/prefill_concurrency", 1, "ArrivalsUnknown"),
        ("aiperf", f"{LOADGEN}/concurrency", [8, 16], "input_config.loadgen.concurrency: is a list"),
        ("aiperf", LOADGEN, ABSENT, "passed over: r.json: a summary that does not say how requests arrived"),
        ("llmd", LOAD, {"tool": "t"}, "passed over: r.json: a report that does not say how requests arrived"),
        ("llmd", f"{LOAD}/concurrency", INF, "SaturatedPoint"),
        # Which were answered.
        ("vllm", "failed", 3, "RequestsFailed"),
        ("vllm", "failed", "3", "failed: is '3'; expected a number"),
        ("vllm", "completed", 0, "passed over: r.json: a run in which no request was answered"),
        ("vllm", "total_output_tokens", 0, "RequestsFailed"),
        ("guidellm", f"{TOTALS}/errored", 3, "RequestsFailed"),
        ("guidellm", f"{TOTALS}/incomplete", 101, "PointTooShort"),
        ("guidellm", f"{TOTALS}/incomplete", 100, None),
        ("guidellm", f"{TOTALS}/successful", 0, "passed over: r.json: benchmarks[0]: a benchmark in which no"),
        ("guidellm", "benchmarks/0/requests/errored", [{}], "RequestsFailed"),
        ("guidellm", "benchmarks/0/request_totals", {"errored": 7}, None),
        ("aiperf", "error_request_count", metric("requests", 4.0), "RequestsFailed"),
        ("aiperf", "error_summary", [{"count": 4}], "RequestsFailed"),
        ("aiperf", "was_cancelled", True, "RequestsFailed"),
        ("aiperf", f"{LOADGEN}/request_cancellation_rate", 20.0, "RequestsFailed"),
        ("aiperf", "request_count/avg", 0.0, "passed over: r.json: a run in which no request was answered"),
        ("llmd", f"{RESULTS}/requests/failures", 4, "RequestsFailed"),
        ("llmd", f"{RESULTS}/requests/incomplete", 60, "PointTooShort"),
        ("llmd", f"{RESULTS}/requests/total", 0, "passed over: r.json: a report of a run in which no"),
        ("llmd", f"{RESULTS}/requests/total", 3, "passed over: r.json: a report of a run in which no"),
        # Figures that cannot all be true.
        ("vllm", "request_throughput", 40.0, "NotSteady"),
        ("vllm", "concurrency", 3.0, "NotSteady"),
        ("vllm", "mean_e2el_ms", 0.85, "p95_e2el_ms: 0.947 cannot belong to mean_latency_s = 0.00085"),
        ("guidellm", f"{STRATEGY}/streams", 3, "NotSteady"),
        ("aiperf", "request_throughput/avg", 400.0, "NotSteady"),
        ("llmd", f"{RESULTS}/throughput/requests_rate/mean", 40.0, "NotSteady"),
        # Values that are no number, or in another unit.
        ("vllm", "mean_e2el_ms", NAN, "mean_e2el_ms: is nan; expected a finite number"),
        ("vllm", "mean_e2el_ms", "850", "mean_e2el_ms: is '850'; expected a number"),
        ("vllm", "mean_e2el_ms", None, "LatencyUnknown"),
        ("guidellm", "benchmarks/0/metrics/request_latency/successful/mean", 0.0, "mean: is 0.0; expected above 0"),
        ("aiperf", "request_latency/unit", "sec", "request_latency.unit: is 'sec'"),
        ("aiperf", "time_to_first_token/unit", "sec", "time_to_first_token.unit: is 'sec'"),
        ("aiperf", "request_throughput/unit", "requests/min", "request_throughput.unit: is 'requests/min'"),
        ("aiperf", "request_latency/avg", None, "request_latency.avg: is missing"),
        ("llmd", f"{RESULTS}/throughput/requests_rate/units", "queries/min", "requests_rate.units: is 'queries/min'"),
        ("llmd", f"{RESULTS}/latency/request_latency/units", "s/token", "request_latency.units: is 's/token'"),
        ("vllm", "request_throughput", NAN, "request_throughput: is nan; expected a finite number"),
        ("vllm", "failed", NAN, "failed: is nan"),
        ("vllm", "max_concurrency", NAN, "max_concurrency: is nan"),
        ("vllm", "p99_tpot_ms", INF, "p99_tpot_ms: is inf"),
        ("aiperf", f"{LOADGEN}/concurrency", NAN, "concurrency: is nan"),
        ("llmd", f"{RESULTS}/requests/failures", NAN, "failures: is nan"),
        # NaN in a figure that nobody needs.
        ("vllm", "mean_ttft_ms", NAN, None),
        ("vllm", "mean_tpot_ms", NAN, None),
        ("vllm", "p99_itl_ms", NAN, None),
        ("vllm", "output_throughput", NAN, None),
        ("vllm", "ttfts", [0.1, NAN], None),
        ("vllm", "itls", [[0.1], [NAN, 0.2]], None),
        ("guidellm", "benchmarks/0/metrics/request_latency/successful/percentiles", {"p99": NAN}, None),
        ("aiperf", "time_to_first_token/avg", NAN, None),
        ("aiperf", "output_sequence_length/std", NAN, None),
        ("llmd", f"{RESULTS}/latency/request_latency/p99", NAN, None),
        # Values that change nothing.
        ("vllm", "request_goodput", 2.0, None),
        ("vllm", "duration", 0.0, None),
        ("vllm", "duration", 10.0, None),
        ("vllm", "request_throughput", 0.0, None),
        ("aiperf", "goodput", metric("requests/sec", 2.0), None),
        ("aiperf", "warmup_metrics", {}, None),
        ("llmd", f"{LOAD}/stage", 3, None),
    ],
)  # fmt: skip
def test_one_odd_thing(tool: str, path: str, value: Any, expected: str | None) -> None:
    found = outcome(json.dumps(changed(TOOLS[tool], path, value)))
    if expected is None or found is None:
        assert found is expected
    else:
        assert expected in found


def test_an_open_loop_of_conversations_is_not_poissons() -> None:
    report = changed(GUIDELLM, STRATEGY, {"type_": "poisson", "rate": 4.0})
    assert outcome(json.dumps(report)) is None
    assert outcome(json.dumps(changed(report, "config/spec/data", [{"turns": 5}]))) == "ArrivalsUnknown"
    summary = changed(AIPERF, LOADGEN, {"request_rate": 4.0})
    assert outcome(json.dumps(summary)) is None
    turns = changed(summary, "input_config/input/conversation/turn/mean", 5)
    assert outcome(json.dumps(turns)) == "ArrivalsUnknown"


def test_a_list_that_is_longer_than_the_answers_has_failures() -> None:
    lists = {"failed": None, "mean_e2el_ms": None, "p95_e2el_ms": None, "latencies": [0.85] * 420}
    assert outcome(json.dumps(VLLM | lists)) == "RequestsFailed"


def test_a_throughput_that_is_not_there_follows_from_the_duration() -> None:
    (point,) = read_text(json.dumps(VLLM | {"request_throughput": 0.0}), "r.json", NO_SPECULATION)
    assert point.achieved_rps == pytest.approx(400 / 42.55)


def test_a_result_without_a_word_about_its_load_is_passed_over() -> None:
    silent = {name: value for name, value in VLLM.items() if name not in ("request_rate", "max_concurrency")}
    assert "does not say how requests arrived" in (outcome(json.dumps(silent)) or "")


def test_a_report_schema_that_is_newer_is_named() -> None:
    (point,) = read_text(json.dumps(changed(GUIDELLM, "metadata/version", 3)), "r.json", NO_SPECULATION)
    assert (point.unknown, point.origin.tool) == (("metadata.version",), "GuideLLM 0.8.1")


def test_a_summary_of_a_sweep_repeats_its_runs() -> None:
    run, summary = VLLM, [VLLM | {"run_number": 0, "bench": "x"}]
    points = [
        point
        for document in (run, summary)
        for point in read_text(json.dumps(document), "r.json", NO_SPECULATION)
    ]
    kept, repeated = distinct(points)
    assert (len(kept), len(repeated)) == (1, 1)


def test_replicas_are_said() -> None:
    report = changed(LLMD, "scenario/stack/0/standardized/replicas", 2)
    warnings = fit_points(read_text(json.dumps(report), "r.json", NO_SPECULATION)).warnings
    assert any("rows of 2 replicas together" in line for line in warnings)
