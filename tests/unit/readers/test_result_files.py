"""GuideLLM reports and vllm bench results: what they mean, and refusals by JSON path."""

import copy
import json
from typing import Any

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.points.point import LoadMode
from breakeven.points.quality import reason_against
from breakeven.readers.reading import grouped, matching, one_setting, read_text
from breakeven.reasons import Reason

BENCH: dict[str, Any] = {
    "request_rate": 4.0,
    "burstiness": 1.0,
    "max_concurrency": None,
    "completed": 40,
    "failed": 0,
    "total_input_tokens": 2560,
    "total_output_tokens": 2560,
    "request_throughput": 3.97,
    "mean_ttft_ms": 12.4,
    "mean_tpot_ms": 1.2,
    "mean_e2el_ms": 82.2,
    "p99_e2el_ms": 129.0,
    "model_id": "tiny",
}
COUNTERS = {
    "spec_decode_num_drafts": 622,
    "spec_decode_draft_tokens": 1826,
    "spec_decode_accepted_tokens": 1826,
    "spec_decode_per_position_acceptance_rates": [1.0, 1.0, 0.9356],
}


def summary(mean: float, total: float | None = None, deviation: float = 0.0) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "successful": {"mean": mean, "std_dev": deviation, "percentiles": {"p50": mean, "p95": mean}}
    }
    return parts | ({"total": {"mean": total}} if total is not None else {})


METRICS = {
    "request_totals": {"successful": 150, "errored": 0},
    "requests_per_second": summary(25.0),
    "request_concurrency": summary(9.9, 10.2),
    "request_latency": summary(0.4),
    "time_to_first_token_ms": summary(54.0),
    "time_per_output_token_ms": summary(6.2),
    "inter_token_latency_ms": summary(5.4),
    "prompt_token_count": summary(0.0),
    "output_token_count": summary(64.0, deviation=3.0),
}


def version2(strategy: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"version": 2},
        "benchmarks": [{"config": {"strategy": strategy}, "metrics": METRICS}],
    }


def older(strategy: dict[str, Any]) -> dict[str, Any]:
    metrics = {name: value for name, value in METRICS.items() if name != "request_totals"}
    stats = {"requests_made": {"successful": 150, "errored": 2}}
    return {"benchmarks": [{"args": {"strategy": strategy}, "run_stats": stats, "metrics": metrics}]}


def read(document: object, arm: Arm | None = NO_SPECULATION) -> Any:
    (point,) = read_text(json.dumps(document), "r.json", arm)
    return point


def test_a_bench_result_is_an_open_loop_with_times_in_seconds() -> None:
    point = read(BENCH)
    assert (point.load_mode, point.request_rate_rps, point.achieved_rps) == (LoadMode.POISSON, 4.0, 3.97)
    assert point.mean_latency_s == pytest.approx(0.0822)
    assert (point.prompt_tokens, point.output_tokens, point.requests) == (64.0, 64.0, 40.0)


def test_tpot_of_a_bench_result_is_the_ratio_of_sums() -> None:
    point = read(BENCH)
    assert point.ttft_mean_s + (point.output_tokens - 1) * point.tpot_mean_s == pytest.approx(
        point.mean_latency_s
    )


def test_clients_without_a_rate_are_a_closed_loop() -> None:
    point = read(BENCH | {"request_rate": "inf", "max_concurrency": 8})
    assert (point.load_mode, point.concurrency) == (LoadMode.CLOSED, 8.0)


def test_requests_that_all_came_at_once_are_beyond_saturation() -> None:
    point = read(BENCH | {"request_rate": "inf"})
    assert (point.load_mode, point.flags) == (LoadMode.CLOSED, ("SaturatedPoint",))


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({"num_prompts": 40, "failed": None}, ()),
        ({"num_prompts": 50, "failed": None}, ("RequestsFailed",)),
        # Where the version counts them, a data set shorter than asked for is no failure.
        ({"num_prompts": 50, "failed": 0}, ()),
        ({"num_prompts": 50, "failed": 10}, ("RequestsFailed",)),
        ({"num_prompts": 50, "failed": None, "errors": ["", "", "refused"]}, ("RequestsFailed",)),
        ({"num_prompts": 50, "failed": None, "errors": ["", ""]}, ()),
        # A ramp has no steady state, and its rate is "inf" whatever the clients do.
        ({"ramp_up_strategy": "linear", "request_rate": "inf", "max_concurrency": 80}, ("NotSteady",)),
    ],
)
def test_failures_and_ramps_of_every_version_are_flagged(given: dict[str, Any], flags: Any) -> None:
    assert read(BENCH | given).flags == flags


@pytest.mark.parametrize(
    ("latency_ms", "flags"), [(1800.0, ()), (1801.0, ("SaturatedPoint",)), (2000.0, ("SaturatedPoint",))]
)
def test_a_rate_that_keeps_more_than_nine_clients_in_ten_busy_is_saturated(
    latency_ms: float, flags: tuple[str, ...]
) -> None:
    clients = {"max_concurrency": 8, "request_throughput": 4.0}
    assert read(BENCH | clients | {"mean_e2el_ms": latency_ms}).flags == flags


def test_tokens_per_step_counts_steps_without_a_match() -> None:
    point = read(BENCH | COUNTERS, Arm("ngram", 3))
    # 2520 decoded tokens less 1826 accepted are 694 steps, 72 more than drafts; per draft it would be 3.94. Each of
    # the 40 requests ended in a step that overshot its last token by 1.4 on average.
    assert point.tokens_per_step == pytest.approx(2520 / (694 + 40 * 1.433), rel=1e-3)
    assert point.drafted_per_step == pytest.approx(1826 / (694 + 40 * 1.433), rel=1e-3)
    assert point.accept == (1.0, 1.0, 0.9356)


# Request-steps on the /metrics pages of two real vLLM 0.32 servers with n-gram, k = 3: the count of
# inter_token_latency_seconds. Decoded less accepted tokens say 112 and 4998.
@pytest.mark.parametrize(
    ("decoded", "accepted", "drafts", "requests", "shares", "steps"),
    [
        (392, 280, 96, 8, (1.0, 1.0, 0.9167), 127),
        (19200, 14202, 5599, 657, (0.8839, 0.8839, 0.7687), 6250),
    ],
)
def test_drafts_accepted_beyond_the_last_token_are_reckoned(
    decoded: int, accepted: int, drafts: int, requests: int, shares: tuple[float, ...], steps: int
) -> None:
    result = BENCH | {
        "completed": requests,
        "total_output_tokens": decoded + requests,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_draft_tokens": 3 * drafts,
        "spec_decode_num_drafts": drafts,
        "spec_decode_per_position_acceptance_rates": list(shares),
    }
    point = read(result, Arm("ngram", 3))
    assert decoded / point.tokens_per_step == pytest.approx(steps, rel=0.06)


def test_there_are_never_fewer_steps_than_drafts() -> None:
    point = read(BENCH | COUNTERS | {"spec_decode_num_drafts": 1000}, Arm("eagle3", 3))
    assert point.tokens_per_step == pytest.approx(2520 / 1000)


WITHOUT_E2EL = {key: value for key, value in BENCH.items() if "e2el" not in key}


def test_the_mean_is_rebuilt_from_pooled_gaps_never_from_a_mean_of_ratios() -> None:
    point = read(WITHOUT_E2EL | {"mean_itl_ms": 1.1})
    # 2560 tokens of 40 requests have 2520 gaps.
    assert point.mean_latency_s == pytest.approx(0.0124 + 63 * 0.0011)
    assert point.flags == ()
    ratios = read(WITHOUT_E2EL)
    assert ratios.flags == ("LatencyUnknown",)
    assert reason_against(ratios) == Reason.LATENCY_UNKNOWN


def test_with_speculation_a_gap_is_a_step() -> None:
    point = read(WITHOUT_E2EL | COUNTERS | {"mean_itl_ms": 3.0}, Arm("ngram", 3))
    steps = 2520 / point.tokens_per_step
    assert point.mean_latency_s == pytest.approx(0.0124 + steps / 40 * 0.003)
    # Without counters nobody knows how many gaps there were.
    assert read(WITHOUT_E2EL | {"mean_itl_ms": 3.0}, Arm("ngram", 3)).flags == ("LatencyUnknown",)


def test_more_in_flight_than_clients_is_no_steady_state() -> None:
    closed = BENCH | {"request_rate": "inf", "max_concurrency": 8}
    # By its own rate and latency 12.3 of 8 clients had a request in flight.
    point = read(closed | {"request_throughput": 16.4, "mean_e2el_ms": 747.0})
    assert reason_against(point) == Reason.NOT_STEADY
    assert reason_against(read(closed | {"request_throughput": 10.4, "mean_e2el_ms": 747.0})) is None


@pytest.mark.parametrize(
    ("burstiness", "mode", "flags"),
    [
        (None, LoadMode.POISSON, ()),
        (1.0, LoadMode.POISSON, ()),
        (100.0, LoadMode.CONSTANT, ()),
        (10.0, LoadMode.CONSTANT, ()),
        (9.9, LoadMode.POISSON, ("ArrivalsUnknown",)),
        (0.5, LoadMode.POISSON, ("ArrivalsUnknown",)),
    ],
)
def test_arrivals_are_poisson_only_where_the_file_does_not_say_otherwise(
    burstiness: float | None, mode: LoadMode, flags: Any
) -> None:
    point = read(BENCH | {"burstiness": burstiness})
    assert (point.load_mode, point.flags) == (mode, flags)


def test_the_mean_is_rebuilt_from_single_requests_where_only_first_tokens_and_gaps_were_saved() -> None:
    lists = {"completed": 2, "ttfts": [0.01, 0.03], "itls": [[0.1], [0.2, 0.2]]}
    point = read({key: value for key, value in BENCH.items() if "e2el" not in key} | lists)
    assert point.mean_latency_s == pytest.approx((0.11 + 0.43) / 2)


LISTS: dict[str, Any] = {
    "completed": 3,
    "total_output_tokens": 36,
    "ttfts": [0.01, 0.03, 0.02],
    "latencies": [0.11, 0.43, 0.22],
    "output_lens": [11, 21, 6],
    "p99_e2el_ms": 450.0,
}


def quantiles(point: Any, form: str) -> list[float | None]:
    return [getattr(point, form.format(percent)) for percent in (50, 95, 99)]


def test_quantiles_of_vllm_bench_are_those_the_file_states() -> None:
    stated = {
        "median_ttft_ms": 12.0,
        "p95_ttft_ms": 20.0,
        "p99_ttft_ms": 25.0,
        "median_tpot_ms": 1.1,
        "p95_tpot_ms": 1.4,
    }
    point = read(BENCH | LISTS | stated)
    assert quantiles(point, "ttft_p{}_s") == pytest.approx([0.012, 0.020, 0.025])
    assert quantiles(point, "tpot_p{}_s")[:2] == pytest.approx([0.0011, 0.0014])
    assert point.p99_latency_s == pytest.approx(0.45)


def test_quantiles_that_vllm_bench_does_not_state_come_from_its_single_requests() -> None:
    point = read(BENCH | LISTS)
    assert point.ttft_p50_s == pytest.approx(0.02)
    assert point.ttft_p95_s == pytest.approx(0.029)
    # (latency - TTFT) over tokens after the first: 10, 20 and 40 ms, however many gaps the tokens came in.
    assert quantiles(point, "tpot_p{}_s") == pytest.approx([0.020, 0.038, 0.0396])
    assert point.p95_latency_s == pytest.approx(0.409)
    without = {key: value for key, value in LISTS.items() if key != "latencies"}
    gaps = read(BENCH | without | {"itls": [[0.1], [0.2, 0.2], [0.2]]})
    assert gaps.tpot_p50_s == pytest.approx(0.020)


def test_an_answer_of_one_token_has_no_tpot() -> None:
    point = read(BENCH | LISTS | {"total_output_tokens": 18, "output_lens": [11, 1, 6]})
    assert quantiles(point, "tpot_p{}_s") == [None, None, None]
    assert point.ttft_p50_s == pytest.approx(0.02)


def test_lists_that_were_cut_or_hold_failed_requests_give_no_wrong_quantile() -> None:
    assert quantiles(read(BENCH | LISTS | {"completed": 4}), "ttft_p{}_s") == [None, None, None]
    failed = {
        "ttfts": [0.01, 0.0, 0.03, 0.02],
        "latencies": [0.11, 0.0, 0.43, 0.22],
        "output_lens": [11, 0, 21, 6],
    }
    assert read(BENCH | LISTS | failed).tpot_p50_s == pytest.approx(0.020)


def scheduler(strategy: dict[str, Any]) -> dict[str, Any]:
    (benchmark,) = older(strategy)["benchmarks"]
    return {"benchmarks": [benchmark | {"args": {}, "scheduler": {"strategy": strategy}}]}


def test_guidellm_names_its_model_in_every_version() -> None:
    report = version2({"type_": "synchronous"})
    report["benchmarks"][0]["config"]["backend"] = {"model": "org/model"}
    assert read(report).model == "org/model"
    assert read(older({"type_": "synchronous"}) | {"args": {"model": "org/model"}}).model == "org/model"
    oldest = older({"type_": "synchronous"})
    oldest["benchmarks"][0]["worker"] = {"backend_model": "org/model"}
    assert read(oldest).model == "org/model"


@pytest.mark.parametrize("schema", [version2, older, scheduler])
def test_every_guidellm_schema_reads_alike(schema: Any) -> None:
    point = read(schema({"type_": "constant", "rate": 26.7}))
    assert (point.load_mode, point.request_rate_rps, point.requests) == (LoadMode.CONSTANT, 26.7, 150.0)
    assert (point.mean_latency_s, point.mean_inflight) == (0.4, 10.2)
    assert point.tpot_mean_s == pytest.approx(0.0054)
    assert (point.p95_latency_s, point.ttft_p50_s) == (0.4, pytest.approx(0.054))
    assert (point.tpot_p95_s, point.tpot_p99_s) == (pytest.approx(0.0054), None)
    assert (point.prompt_tokens, point.output_tokens_sq) == (None, 64.0**2 + 3.0**2)
    assert point.flags == (() if schema is version2 else ("RequestsFailed",))


@pytest.mark.parametrize(
    ("strategy", "concurrency", "flags"),
    [
        ({"type_": "synchronous"}, 1.0, ()),
        ({"type_": "concurrent", "streams": 16}, 16.0, ()),
        ({"type_": "concurrent", "streams": 16, "rampup_duration": 0.0}, 16.0, ()),
        ({"type_": "concurrent", "streams": 16, "rampup_duration": 60.0}, 16.0, ("NotSteady",)),
        ({"type_": "throughput"}, 10.2, ("SaturatedPoint",)),
        ({"type_": "throughput", "max_concurrency": 512}, 10.2, ("SaturatedPoint",)),
        ({"type_": "throughput", "max_concurrency": 16}, 16.0, ()),
    ],
)
def test_guidellm_closed_loops(strategy: dict[str, Any], concurrency: float, flags: tuple[str, ...]) -> None:
    point = read(version2(strategy))
    assert (point.load_mode, point.concurrency, point.flags) == (LoadMode.CLOSED, concurrency, flags)


def test_guidellm_without_a_limit_on_an_engine_that_is_hardly_busy_is_one_client() -> None:
    document = version2({"type_": "throughput"})
    document["benchmarks"][0]["metrics"] = METRICS | {"request_concurrency": summary(0.4)}
    assert read(document).concurrency == 1.0


def without(document: dict[str, Any], *path: Any) -> dict[str, Any]:
    edited = copy.deepcopy(document)
    node: Any = edited
    for key in path[:-1]:
        node = node[key]
    del node[path[-1]]
    return edited


@pytest.mark.parametrize(
    ("document", "arm", "where"),
    [
        (BENCH, None, "r.json"),
        (BENCH | {"completed": "many"}, NO_SPECULATION, "completed"),
        (BENCH | {"mean_e2el_ms": [1]}, NO_SPECULATION, "mean_e2el_ms"),
        # Whether or not this result needs them.
        (
            BENCH | {"request_rate": "inf", "max_concurrency": 8, "burstiness": "none"},
            NO_SPECULATION,
            "burstiness",
        ),
        (BENCH | {"itls": [[0.1], [0.1, "x"]]}, NO_SPECULATION, "itls[1][1]"),
        (
            version2({"type_": "synchronous", "rate": "fast"}),
            NO_SPECULATION,
            "benchmarks[0].config.strategy.rate",
        ),
        (older({"type_": "constant"}), NO_SPECULATION, "benchmarks[0].args.strategy.rate"),
        (BENCH | COUNTERS, NO_SPECULATION, "spec_decode_accepted_tokens"),
        (
            BENCH | COUNTERS | {"spec_decode_per_position_acceptance_rates": [0.5, 0.9]},
            Arm("ngram", 3),
            "spec_decode_per_position_acceptance_rates[1]",
        ),
        (version2({"type_": "magic"}), NO_SPECULATION, "benchmarks[0].config.strategy.type_"),
        (version2({"type_": "constant"}), NO_SPECULATION, "benchmarks[0].config.strategy.rate"),
        (
            without(version2({"type_": "synchronous"}), "benchmarks", 0, "metrics", "request_latency"),
            NO_SPECULATION,
            "benchmarks[0].metrics.request_latency.successful.mean",
        ),
        ({"benchmarks": []}, NO_SPECULATION, "benchmarks"),
        ({"benchmarks": [3]}, NO_SPECULATION, "benchmarks[0]"),
        ({"hello": 1}, NO_SPECULATION, "r.json"),
        ([], NO_SPECULATION, "r.json"),
    ],
)
def test_a_wrong_result_names_its_json_path(document: object, arm: Arm | None, where: str) -> None:
    with pytest.raises(InputError) as refused:
        read(document, arm)
    assert where in refused.value.where


def test_text_that_is_not_json_names_line_and_column() -> None:
    with pytest.raises(InputError, match="line 1, column 14"):
        read_text('{"benchmarks"', "r.json", NO_SPECULATION)


CSV = "method,k,concurrency,mean_latency_s,workload\nnone,0,1,1,chat\nnone,0,8,2,code\n"


def test_rows_of_two_workloads_need_a_word() -> None:
    points = read_text(CSV, "p.csv")
    with pytest.raises(InputError, match="--where workload=chat"):
        one_setting(points)
    one_setting(matching(points, [("workload", "code")]))
    assert list(grouped(points, "workload")) == ["chat", "code"]


def test_where_compares_numbers_as_numbers_and_names_what_there_is() -> None:
    points = read_text(CSV, "p.csv")
    assert len(matching(points, [("concurrency", "8.0")])) == 1
    with pytest.raises(InputError, match="chat, code"):
        matching(points, [("workload", "maths")])


def test_appended_results_and_lists_of_results_are_rows_of_one_file() -> None:
    second = BENCH | {"request_rate": 8.0, "mean_e2el_ms": 95.0}
    appended = json.dumps(BENCH) + "\n" + json.dumps(second) + "\n"
    for text in (appended, json.dumps([BENCH, second])):
        points = read_text(text, "r.json", NO_SPECULATION)
        assert [(one.origin.row, one.request_rate_rps) for one in points] == [(1, 4.0), (2, 8.0)]
    with pytest.raises(InputError, match=r"r\.json: line 2\.completed"):
        read_text(
            appended.replace('"completed": 40', '"completed": "x"').replace('"x"', "40", 1),
            "r.json",
            NO_SPECULATION,
        )
