"""A fit refuses two engines if a file names one, and unknown keys are named with their tool."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.cli import root
from breakeven.errors import InputError
from breakeven.fitting import fit_points
from breakeven.points.point import LoadMode, Point
from breakeven.points.quality import reason_against
from breakeven.readers.reading import one_setting, read_text
from fuzzing import AIPERF, BENCH, GUIDELLM, LLMD, SGLANG, metric

PLAIN = {name: value for name, value in BENCH.items() if not name.startswith("spec_decode")}
CLOSED = GUIDELLM["benchmarks"][0]
ENGINE = {
    "kind": "inference_engine",
    "tool": "vllm",
    "tool_version": "0.32",
    "replicas": 1,
    "accelerator": {"model": "H100", "count": 1, "parallelism": {"tp": 1}},
    "model": {"name": "m"},
}


def read(document: object, arm: Arm = NO_SPECULATION) -> Point:
    (point,) = read_text(json.dumps(document), "r.json", arm)
    return point


def guidellm(**config: Any) -> dict[str, Any]:
    return {"benchmarks": [CLOSED | {"config": CLOSED["config"] | config}]}


def aiperf(config: dict[str, Any]) -> dict[str, Any]:
    return AIPERF | {"input_config": AIPERF["input_config"] | config}


def phased(*phases: dict[str, Any], **config: Any) -> dict[str, Any]:
    return AIPERF | {"aiperf_version": "0.13.0", "input_config": {"phases": list(phases), **config}}


def stack(**engine: Any) -> dict[str, Any]:
    return LLMD | {"scenario": LLMD["scenario"] | {"stack": [{"standardized": ENGINE | engine}]}}


def load(**standardized: Any) -> dict[str, Any]:
    return LLMD | {"scenario": {"load": {"standardized": {"concurrency": 8, **standardized}}}}


@pytest.mark.parametrize(
    ("one", "other", "column"),
    [
        (PLAIN | {"backend": "vllm"}, SGLANG, "engine"),
        (PLAIN | {"backend": "vllm-chat"}, PLAIN | {"backend": "sglang-oai-chat"}, "engine"),
        (PLAIN | {"tokenizer_id": "a"}, PLAIN | {"tokenizer_id": "b"}, "tokenizer"),
        (PLAIN, PLAIN | {"model_id": "other"}, "model"),
        (guidellm(backend={"model": "a"}), guidellm(backend={"model": "b"}), "model"),
        (
            guidellm() | {"config": {"spec": {"tokenizer": {"model": "a"}}}},
            guidellm() | {"config": {"spec": {"tokenizer": {"model": "b"}}}},
            "tokenizer",
        ),
        (aiperf({"tokenizer": {"name": "a"}}), aiperf({"tokenizer": {"name": "b"}}), "tokenizer"),
        (AIPERF, aiperf({"endpoint": {"model_names": ["b"]}}), "model"),
        (
            phased({"type": "concurrency", "concurrency": 8}, models={"items": [{"name": "a"}]}),
            phased({"type": "concurrency", "concurrency": 8}, models={"items": [{"name": "b"}]}),
            "model",
        ),
        (stack(), stack(tool_version="0.33"), "engine"),
        (stack(), stack(replicas=2), "engine"),
        (stack(), stack(accelerator={"model": "L4", "count": 1}), "gpu"),
        (stack(), stack(model={"name": "b"}), "model"),
    ],
)
def test_two_engines_are_refused_by_the_column_that_tells_them_apart(
    one: object, other: object, column: str
) -> None:
    points = (read(one), read(other))
    with pytest.raises(InputError, match=rf"column {column}: 2 values.*--group-by {column}"):
        one_setting(points)


def test_looked_up_drafts_of_two_ways_of_counting_are_refused_and_a_drafters_are_not() -> None:
    point = read(PLAIN | {"vllm_version": "0.33.0"})
    suffix, eagle = (
        [replace(point, method=method, k=4, engine_version=one) for one in ("0.33.0", "0.34.0")]
        for method in ("suffix", "eagle3")
    )
    with pytest.raises(
        InputError, match=r"E and acceptance of suffix are not compared between 0\.33\.0 and 0\.34"
    ):
        fit_points(suffix)
    assert any("2 engine versions" in line for line in fit_points(eagle).warnings)


@pytest.mark.parametrize("backend", ["openai", "openai-chat", None])
def test_a_kind_of_request_names_no_engine(backend: str | None) -> None:
    one_setting((read(PLAIN | {"backend": backend}), read(PLAIN | {"backend": "vllm"})))


@pytest.mark.parametrize(
    ("one", "other", "warning"),
    [
        (guidellm(backend={"target": "http://a"}), guidellm(backend={"target": "http://b"}), "2 addresses"),
        (aiperf({"endpoint": {"urls": ["a"]}}), aiperf({"endpoint": {"urls": ["b"]}}), "2 addresses"),
        (PLAIN | {"base_url": "a"}, PLAIN | {"base_url": "b"}, "2 addresses (a, b)"),
        (PLAIN | {"endpoint_type": "openai"}, PLAIN | {"endpoint_type": "openai-chat"}, "2 kinds of request"),
        (PLAIN | {"vllm_version": "0.31"}, PLAIN | {"engine_version": "0.32"}, "2 engine versions"),
        (PLAIN, PLAIN | {"max_concurrency": 4}, "no file names the engine"),
    ],
)
def test_what_may_be_two_engines_is_said(one: object, other: object, warning: str) -> None:
    assert any(warning in line for line in fit_points((read(one), read(other))).warnings)


def test_nothing_is_said_of_files_that_name_one_engine() -> None:
    points = [read(PLAIN | {"backend": "vllm", "max_concurrency": count}) for count in (2, 8)]
    assert not any("engine" in line for line in fit_points(points).warnings)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (PLAIN | {"cache": "warm"}, "vllm bench serve: keys without a known meaning, not used: cache"),
        (SGLANG | {"plan": 3}, "SGLang's bench_serving: keys without a known meaning, not used: plan"),
        (
            {
                "metadata": {"guidellm_version": "0.8.1"},
                **guidellm(strategy={"type_": "synchronous", "jitter": 0.5}),
            },
            "GuideLLM 0.8.1: keys without a known meaning, not used: config.strategy.jitter",
        ),
        (
            aiperf({"loadgen": {"concurrency": 8, "think_time": 2.0}}) | {"aiperf_version": "0.2.0"},
            "AIPerf 0.2.0: keys without a known meaning, not used: input_config.loadgen.think_time",
        ),
        (
            phased({"type": "concurrency", "concurrency": 8, "control_variable": "rate", "requests": 9}),
            "AIPerf 0.13.0: keys without a known meaning, not used: input_config.phases[].control_variable",
        ),
        (
            load(think_time={"mean": 2.0}, source="random"),
            "llm-d-benchmark's report 0.2: keys without a known meaning, not used: scenario.load.standardized.think_time",
        ),
    ],
)
def test_an_unknown_key_is_named_once_with_its_tool_and_version(
    tmp_path: Any, document: dict[str, Any], said: str
) -> None:
    (tmp_path / "list.json").write_text(json.dumps([document, document | {"note": {}}]))
    words = [
        "fit",
        str(tmp_path / "list.json"),
        "--method",
        "none",
        "--k",
        "0",
        "-o",
        str(tmp_path / "p.json"),
    ]
    done = CliRunner().invoke(root, words)
    assert [line for line in done.stderr.splitlines() if "without a known meaning" in line] == [
        f"breakeven: {said}"
    ]


@pytest.mark.parametrize(
    ("phases", "mode", "value", "reason"),
    [
        ([{"type": "concurrency", "concurrency": 8}], LoadMode.CLOSED, 8.0, None),
        (
            [
                {"name": "warmup", "type": "concurrency", "concurrency": 1},
                {"name": "profiling", "type": "poisson", "rate": 4.0},
            ],
            LoadMode.POISSON,
            4.0,
            None,
        ),
        (
            [
                {"name": "first", "kind": "warmup", "type": "poisson", "rate": 1.0},
                {"type": "constant", "rate": 4.0},
            ],
            LoadMode.CONSTANT,
            4.0,
            None,
        ),
        ([{"type": "gamma", "rate": 4.0, "smoothness": 20.0}], LoadMode.CONSTANT, 4.0, None),
        ([{"type": "gamma", "rate": 4.0, "smoothness": 0.3}], LoadMode.POISSON, 4.0, "ArrivalsUnknown"),
        ([{"type": "gamma", "rate": 4.0}], LoadMode.POISSON, 4.0, "ArrivalsUnknown"),
        ([{"type": "user_centric", "rate": 4.0, "users": 9}], LoadMode.POISSON, 4.0, "ArrivalsUnknown"),
        ([{"type": "poisson", "rate": 4.0, "concurrency": 8}], LoadMode.POISSON, 4.0, "SaturatedPoint"),
        (
            [{"type": "poisson", "rate": 4.0, "rate_ramp": {"duration": 9.0}}],
            LoadMode.POISSON,
            4.0,
            "NotSteady",
        ),
        (
            [{"type": "concurrency", "concurrency": 8, "concurrency_ramp": {"duration": 9.0}}],
            LoadMode.CLOSED,
            8.0,
            "NotSteady",
        ),
        (
            [{"type": "concurrency", "concurrency": 8, "prefill_concurrency": 1}],
            LoadMode.CLOSED,
            8.0,
            "ArrivalsUnknown",
        ),
        (
            [{"type": "concurrency", "concurrency": 8, "cancellation": {"rate": 10.0}}],
            LoadMode.CLOSED,
            8.0,
            "RequestsFailed",
        ),
    ],
)
def test_the_load_of_aiperfs_second_configuration_is_read(
    phases: list[dict[str, Any]], mode: LoadMode, value: float, reason: str | None
) -> None:
    point = read(phased(*phases))
    assert (point.load_mode, point.load.value) == (mode, value)
    assert reason_against(point) == reason


@pytest.mark.parametrize(
    ("phases", "refusal"),
    [
        (
            [{"type": "constant", "rate": 1.0}, {"type": "constant", "rate": 2.0}],
            "input_config.phases: figures of 2 phases together",
        ),
        ([{"name": "warmup", "type": "constant", "rate": 1.0}], "input_config.phases: figures of 0 phases"),
        ([{"type": "fixed_schedule"}], "input_config.phases[0].type: a phase of type 'fixed_schedule'"),
        ([{"type": "constant", "rate_series": {}, "rate": 4.0}], "input_config.phases[0].type: a phase"),
        ([{"type": "concurrency"}], "input_config.phases[0].concurrency: a phase that does not say"),
        ([{"type": "constant", "concurrency": 8}], "input_config.phases[0].rate: a phase that does not say"),
        ([{"rate": 4.0}], "input_config.phases[0].type: is missing"),
        ([7], "input_config.phases[0]: 7; expected an object"),
        ([{"type": "constant", "rate": "4"}], "input_config.phases[0].rate"),
    ],
)
def test_a_load_of_aiperf_that_is_no_fixed_one_is_refused_by_its_key(
    phases: list[dict[str, Any]], refusal: str
) -> None:
    with pytest.raises(InputError) as refused:
        read(phased(*phases))
    assert refusal in str(refused.value)


def test_aiperfs_counters_of_speculation_tell_the_arm_and_its_steps() -> None:
    counters = {
        "total_spec_decode_steps": metric("count", 1000.0),
        "total_accepted_draft_tokens": metric("count", 1500.0),
        "total_draft_tokens": metric("count", 3000.0),
    }
    with pytest.raises(InputError, match=r"total_spec_decode_steps\.avg: counters of a speculating engine"):
        read(AIPERF | counters)
    point = read(AIPERF | counters, Arm("eagle3", 3))
    assert (point.tokens_per_step, point.drafted_per_step, point.drafts) == (2.5, 3.0, 1000.0)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (load(parallelism=2), "ArrivalsUnknown"),
        (load(multi_turn={"enabled": True}), None),
        (
            LLMD
            | {
                "scenario": {
                    "load": {"standardized": {"concurrency": 8}, "metadata": {"concurrent_with": ["mixed"]}}
                }
            },
            "ArrivalsUnknown",
        ),
        (guidellm(strategy={"type_": "constant", "rate": 2.0, "max_concurrency": 3}), "SaturatedPoint"),
        (guidellm(strategy={"type_": "concurrent", "streams": 3, "startup_duration": 9.0}), "NotSteady"),
        (AIPERF | {"is_complete": False}, "RequestsFailed"),
        (PLAIN | {"sent_requests": 60}, "RequestsFailed"),
    ],
)
def test_a_load_that_is_not_what_it_seems_is_left_out(document: object, reason: str | None) -> None:
    assert reason_against(read(document)) == reason


@pytest.mark.parametrize(
    ("document", "refusal"),
    [
        (PLAIN | {"backend": "openai-embeddings"}, "a run of openai-embeddings"),
        (PLAIN | {"endpoint_type": "vllm-pooling"}, "a run of vllm-pooling"),
        (guidellm(strategy={"type_": "replay"}), "config.strategy.type_: a benchmark with the load 'replay'"),
        ({"timeslices": [], "input_config": {}}, "AIPerf's time slices"),
    ],
)
def test_what_holds_no_law_is_passed_over_by_name(document: object, refusal: str) -> None:
    passed: list[Any] = []
    assert read_text(json.dumps(document), "r.json", NO_SPECULATION, passed_over=passed) == ()
    assert refusal in str(passed[0])


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (
            "Metric,avg,min,max\nRequest Latency (ms),3,1,2\n",
            "AIPerf or GenAI-Perf as CSV, which is not read",
        ),
        (
            "Run Info,Run Info,Benchmark\nID,Start,Strategy\n",
            "GuideLLM as CSV, which is not read; expected its JSON",
        ),
        ("metadata:\n  version: 2\nbenchmarks:\n- a: 1\n", "GuideLLM as YAML, which is not read"),
        ("run,request_throughput,method\n1,2,none\n", "a sweep of vLLM's as CSV, which is not read"),
        ('{"schema_version": "1.0", "metadata": {}, "metrics": {}}', "AIPerf's figures of several runs"),
        ('{"error": null, "metadata": {}, "metrics": {}}', "AIPerf's records"),
    ],
)
def test_texts_of_load_generators_that_are_not_read_are_passed_over_by_name(text: str, refusal: str) -> None:
    passed: list[Any] = []
    assert read_text(text, "r.csv", NO_SPECULATION, passed_over=passed) == ()
    assert refusal in str(passed[0])


def test_the_rate_of_llm_d_stands_under_either_name() -> None:
    performance = json.loads(json.dumps(LLMD).replace("requests_rate", "request_rate"))
    assert read(performance).achieved_rps == read(LLMD).achieved_rps == 4.0


@pytest.mark.parametrize("key", ["request_latency.p99", "time_to_first_token.mean"])
def test_a_refused_time_names_its_own_path_whatever_its_unit(key: str) -> None:
    metric_name, statistic = key.split(".")
    changed = json.loads(json.dumps(LLMD))
    changed["results"]["request_performance"]["aggregate"]["latency"][metric_name][statistic] = -1.0
    with pytest.raises(InputError, match=rf"aggregate\.latency\.{re.escape(key)}: -"):
        read(changed)
