"""Hostile input for every reader: what must hold whatever the bytes are, and how to make the bytes.

A reader either returns what it promises (checked points, a profile, a trace, what lint says) or raises BreakevenError with
one line. Mutations start from valid files, since random bytes never get past the first check.
"""

from __future__ import annotations

import copy
import json
import math
import random
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from click.testing import CliRunner

from breakeven.arm import Arm
from breakeven.cli import lint
from breakeven.cli.acceptance import read_log
from breakeven.errors import BreakevenError
from breakeven.fitting import fit_points
from breakeven.load_driver.counters import between, read_counters
from breakeven.profile import Profile
from breakeven.readers.reading import read_text
from breakeven.serving.growths import Growths
from breakeven.serving.shell_script import shell_script
from breakeven_sim.replay.trace_files import read_trace
from sweeps import closed, csv_of

_Found = TypeVar("_Found")
ARM = Arm("ngram", 3)

POINTS = csv_of(
    closed("none", 0, 1.2, 0.07, output_tokens=200.0, requests=500.0)
    + closed("eagle3", 3, 0.8, 0.085, output_tokens=200.0, tokens_per_step=2.5, ttft_mean_s=0.05)
)
BENCH: dict[str, Any] = {
    "request_rate": "inf",
    "max_concurrency": 8,
    "burstiness": 1.0,
    "completed": 48,
    "request_throughput": 9.4,
    "total_input_tokens": 3072,
    "total_output_tokens": 3072,
    "output_lens": [64, 64],
    "mean_e2el_ms": 850.0,
    "mean_ttft_ms": 59.0,
    "mean_tpot_ms": 12.5,
    "p95_e2el_ms": 947.0,
    "spec_decode_num_drafts": 622,
    "spec_decode_draft_tokens": 1826,
    "spec_decode_accepted_tokens": 1200,
    "spec_decode_per_position_acceptance_rates": [0.9, 0.6, 0.4],
    "model_id": "m",
}
_SUMMARY = {
    "successful": {"mean": 3.0, "std_dev": 0.1, "percentiles": {"p50": 3.0, "p95": 3.1}},
    "total": {"mean": 3.1},
}
GUIDELLM: dict[str, Any] = {
    "benchmarks": [
        {
            "config": {"strategy": {"type_": kind, "rate": 2.0, "max_concurrency": 8}},
            "run_stats": {"requests_made": {"successful": 9, "errored": 0}},
            "metrics": dict.fromkeys(
                ("request_latency", "request_concurrency", "requests_per_second", "output_token_count"),
                _SUMMARY,
            ),
        }
        for kind in ("synchronous", "concurrent", "throughput", "constant", "poisson")
    ]
}
# Figures of one closed loop, as each tool writes them: 8 clients, 200 requests, 2.0 s, 512 and 256 tokens.
SGLANG: dict[str, Any] = {
    "tag": None,
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": float("inf"),
    "max_concurrency": 8,
    "duration": 50.0,
    "completed": 200,
    "total_input_tokens": 102400,
    "total_output_tokens": 51200,
    "request_throughput": 4.0,
    "mean_e2e_latency_ms": 2000.0,
    "median_e2e_latency_ms": 1950.0,
    "p99_e2e_latency_ms": 2600.0,
    "mean_ttft_ms": 100.0,
    "mean_tpot_ms": 9.0,
    "mean_itl_ms": 7.45,
    "concurrency": 8.0,
    "accept_length": None,
}


def metric(unit: str, avg: float, **others: float) -> dict[str, Any]:
    return {"unit": unit, "avg": avg} | others


AIPERF_METRICS: dict[str, Any] = {
    "request_throughput": metric("requests/sec", 4.0),
    "request_latency": metric("ms", 2000.0, p50=1950.0, p99=2600.0),
    "request_count": metric("requests", 200.0),
    "time_to_first_token": metric("ms", 100.0),
    "inter_token_latency": metric("ms", 9.0, p50=7.4),
    "output_sequence_length": metric("tokens", 256.0, std=3.0),
    "input_sequence_length": metric("tokens", 512.0),
}
AIPERF: dict[str, Any] = AIPERF_METRICS | {
    "input_config": {
        "endpoint": {"model_names": ["org/model"]},
        "loadgen": {"concurrency": 8, "request_rate_mode": "concurrency_burst"},
    },
    "was_cancelled": False,
}
LLMD: dict[str, Any] = {
    "version": "0.2",
    "run": {"uid": "1"},
    "scenario": {
        "stack": [
            {
                "metadata": {"label": "vllm-0"},
                "standardized": {
                    "kind": "inference_engine",
                    "tool": "vllm",
                    "tool_version": "0.32",
                    "accelerator": {"model": "NVIDIA-H100-80GB-HBM3", "count": 1},
                    "model": {"name": "org/model"},
                },
            },
            {"metadata": {"kind": "generic"}, "standardized": {"tool": "router"}},
        ],
        "load": {"standardized": {"tool": "vllm-benchmark", "concurrency": 8}},
    },
    "results": {
        "request_performance": {
            "aggregate": {
                "requests": {
                    "total": 203,
                    "failures": 0,
                    "incomplete": 3,
                    "input_length": {"units": "count", "mean": 512.0},
                    "output_length": {"units": "count", "mean": 256.0, "stddev": 3.0},
                },
                "throughput": {"requests_rate": {"units": "queries/s", "mean": 4.0}},
                "latency": {
                    "request_latency": {"units": "s", "mean": 2.0, "p50": 1.95, "p99": 2.6},
                    "time_to_first_token": {"units": "ms", "mean": 100.0},
                },
            }
        }
    },
}
PROFILE: dict[str, Any] = json.loads(fit_points(closed("none", 0, 1.2, 0.07, noise=0.01)).to_json())

_SCRIPT = """\
#!/bin/bash
set -euo pipefail
export HF_HOME=/models
ARGS=(serve org/m --max-model-len ${MAX_LEN:-8192})
if [ -n "${DRAFT:-}" ]; then ARGS+=(--port 8001); fi
SPEC='{"method": "eagle3", "model": "h", "num_speculative_tokens": 3}'
cat > /tmp/a.yaml <<EOF
port: 8000
EOF
ulimit -n 65536 && exec vllm "${ARGS[@]}" --speculative-config "$SPEC" "$@" 2>&1
"""
_ENGINE: dict[str, Any] = {
    "name": "vllm",
    "image": "vllm/vllm-openai:v0.29.0",
    "command": ["vllm", "serve", "org/m"],
    "args": ["--max-model-len=8k", "--speculative-config", '{"method": "eagle3", "model": "h", "num_speculative_tokens": 3}'],
    "env": [{"name": "A", "value": "b"}, {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "sleep 5; sleep 1m"]}}},
    "ports": [{"name": "http", "containerPort": 8000}],
}  # fmt: skip
_POD: dict[str, Any] = {"terminationGracePeriodSeconds": 200, "containers": [_ENGINE]}
_STARTED_BY_SCRIPT = _ENGINE | {
    "command": ["/bin/bash", "/scripts/start.sh"],
    "volumeMounts": [{"name": "s", "mountPath": "/scripts"}],
}
_MANIFESTS: dict[str, list[Any]] = {
    "deployment": [
        {
            "kind": "Deployment",
            "metadata": {"name": "chat", "namespace": "llm"},
            "spec": {"replicas": 2, "template": {"metadata": {"annotations": {"prometheus.io/port": "8000"}}, "spec": _POD}},
        }
    ],
    "scripts": [
        {"kind": "ConfigMap", "metadata": {"name": "start"}, "data": {"start.sh": _SCRIPT}},
        {
            "kind": "Deployment",
            "metadata": {"name": "chat"},
            "spec": {
                "template": {
                    "spec": {
                        "containers": [
                            _STARTED_BY_SCRIPT,
                            _ENGINE | {"name": "two", "command": ["bash", "-lc"], "args": [_SCRIPT]},
                        ],
                        "volumes": [{"name": "s", "configMap": {"name": "start"}}],
                    }
                }
            },
        },
    ],
    "kinds": [
        {
            "kind": "List",
            "items": [
                {"kind": "LeaderWorkerSet", "metadata": {"name": "a"}, "spec": {"leaderWorkerTemplate": {"workerTemplate": {"spec": _POD}}}},
                {"kind": "InferenceService", "metadata": {"name": "b"}, "spec": {"predictor": {"model": {"runtime": "vllm", "args": ["--port=1"]}}}},
                {"kind": "LLMInferenceService", "metadata": {"name": "c"}, "spec": {"model": {"uri": "hf://m"}, "prefill": {"template": _POD}}},
                {"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": {"spec": _POD}}},
            ],
        }
    ],
    "values": [
        {
            "servingEngineSpec": {
                "modelSpec": [
                    {"name": "m", "repository": "vllm/vllm-openai", "tag": "v0.29.0", "modelURL": "org/m",
                     "vllmConfig": {"maxModelLen": 4096, "extraArgs": ["--port", "1"]}, "env": [{"name": "A", "value": "b"}]}
                ]
            }
        }
    ],
}  # fmt: skip
_PAGE = """\
# HELP vllm:generation_tokens_total Number of generation tokens.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 38400.0
vllm:generation_tokens_total{engine="1",model_name="m"} 4.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 1200.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 15900.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 3.53e+02
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 15900.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 31800.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 12700.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 9600.0
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
"""
_LOG = """\
INFO 11-25 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: 2.12, Accepted throughput: 31.20 tokens/s, \
Drafted throughput: 83.10 tokens/s, Accepted: 312 tokens, Drafted: 837 tokens, Per-position acceptance rate: 0.603, 0.332, \
0.183, Avg Draft acceptance rate: 37.3%
INFO something else
SpecDecoding metrics: Draft acceptance rate: 50.0%, Mean acceptance length: 2.50, Accepted: 450 tokens, Drafted: 900 tokens, \
Per-position acceptance rate: 0.800, 0.500, 0.200
"""
_TRACES = {
    "trace": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:00.017335+00:00,2399,6\n2024-05-10 00:00:01+00:00,76,9\n",
    "windows": "window_start_s,total_rate_rps\n0,1.5\n60,0\n120,2.5\n180,1.0\n",
    "lines": '{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1]}\n'
    '{"timestamp": 3052, "input_length": 7319, "output_length": 490, "hash_ids": [0, 2]}\n',
}

# 8 clients whose requests take 2.0 s: long enough to have a steady middle.
_STARTS = [2.0 * (number // 8) + 0.25 * (number % 8) for number in range(104)]
TIMED_BENCH = {name: value for name, value in BENCH.items() if not name.startswith(("spec_", "p95"))} | {
    "completed": len(_STARTS),
    "request_throughput": 3.8,
    "mean_e2el_ms": 2000.0,
    "total_output_tokens": 64 * len(_STARTS),
    "start_times": _STARTS,
    "ttfts": [0.1] * len(_STARTS),
    "itls": [[1.9]] * len(_STARTS),
    "output_lens": [64] * len(_STARTS),
    "backend": "vllm",
    "tokenizer_id": "m",
}
TIMED_GUIDELLM = {
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "concurrent", "streams": 8}, "backend": {"target": "http://a"}},
            "run_stats": {"requests_made": {"successful": len(_STARTS), "errored": 0}},
            "metrics": {
                "request_latency": {"successful": {"mean": 2.0}},
                "requests_per_second": {"successful": {"mean": 3.8}},
            },
            "requests": {
                "successful": [
                    {
                        "request_start_time": start,
                        "request_end_time": start + 2.0,
                        "output_tokens": 64,
                        "time_to_first_token_ms": 100.0,
                    }
                    for start in _STARTS
                ],
                "incomplete": [{"request_start_time": 26.0, "request_end_time": 27.0}],
            },
        }
    ]
}
# The same closed loop again, as `readers/summaries.py` reads it.
INFERENCE_PERF: dict[str, Any] = {
    "benchmark_time_seconds": 50.0,
    "load_summary": {"count": 200, "requested_rate": 4.0, "achieved_rate": 4.1, "concurrency": 8},
    "successes": {
        "count": 200,
        "latency": {
            "request_latency": {"mean": 2.0, "median": 1.95, "p99": 2.6},
            "time_to_first_token": {"mean": 0.1},
        },
        "throughput": {"requests_per_sec": 4.0, "output_tokens_per_sec": 1024.0},
        "prompt_len": {"mean": 512.0},
        "output_len": {"mean": 256.0},
    },
    "failures": {"count": 0, "request_latency": None},
}
GENAI_BENCH: dict[str, Any] = {
    "aggregated_metrics": {
        "scenario": "D(512,256)",
        "num_concurrency": 8,
        "iteration_type": "num_concurrency",
        "requests_per_second": 4.0,
        "num_error_requests": 0,
        "num_completed_requests": 200,
        "stats": {
            "ttft": {"mean": 100.0},
            "e2e_latency": {"mean": 2000.0, "p50": 1950.0, "p99": 2600.0},
            "num_input_tokens": {"mean": 512.0},
            "num_output_tokens": {"mean": 256.0, "stddev": 0.0},
        },
    },
    "_time_unit": "ms",
}
EVALSCOPE: dict[str, Any] = {
    "Time taken for tests (s)": 50.0,
    "Number of concurrency": 8,
    "Total requests": 200,
    "Succeed requests": 200,
    "Failed requests": 0,
    "Request throughput (req/s)": 4.0,
    "Average latency (s)": 2.0,
    "Average time to first token (s)": 0.1,
    "Average input tokens per request": 512.0,
    "Average output tokens per request": 256.0,
}
EVALSCOPE_NEW: dict[str, Any] = {
    "Test Duration (s)": 50.0,
    "Concurrency": 8,
    "Request Rate (req/s)": -1,
    "Total Requests": 200,
    "Success Requests": 200,
    "Failed Requests": 0,
    "Req Throughput (req/s)": 4.0,
    "Avg Latency (s)": 2.0,
    "TTFT (ms)": 100.0,
    "Avg Input Tokens": 512.0,
    "Avg Output Tokens": 256.0,
}
GENAI_PERF: dict[str, Any] = {"records": AIPERF_METRICS} | {
    "input_config": {"model_names": ["org/model"], "perf_analyzer": {"stimulus": {"concurrency": 8}}}
}
AIPERF_PHASES: dict[str, Any] = AIPERF | {
    "aiperf_version": "0.13.0",
    "input_config": {
        "models": {"items": [{"name": "org/model"}]},
        "endpoint": {"urls": ["http://a"], "type": "chat"},
        "phases": [
            {"name": "warmup", "kind": "warmup", "type": "concurrency", "concurrency": 1},
            {"name": "profiling", "kind": "profiling", "type": "gamma", "rate": 4.0, "smoothness": 1.0},
        ],
    },
    "total_spec_decode_steps": metric("count", 1000.0),
    "total_accepted_draft_tokens": metric("count", 1500.0),
    "total_draft_tokens": metric("count", 3000.0),
}

SEEDS: dict[str, str] = {
    "points": POINTS,
    "bench": json.dumps(BENCH),
    "timed bench": json.dumps(TIMED_BENCH),
    "guidellm": json.dumps(GUIDELLM),
    "timed guidellm": json.dumps(TIMED_GUIDELLM),
    "sglang": json.dumps(SGLANG),
    "aiperf": json.dumps(AIPERF),
    "aiperf phases": json.dumps(AIPERF_PHASES),
    "genai-perf": json.dumps(GENAI_PERF),
    "llmd": json.dumps(LLMD),
    "inference-perf": json.dumps(INFERENCE_PERF),
    "genai-bench": json.dumps(GENAI_BENCH),
    "evalscope": json.dumps(EVALSCOPE_NEW),
    "yaml llmd": yaml.safe_dump(LLMD),
    "appended lines": "\n".join(json.dumps(BENCH | {"max_concurrency": count}) for count in (2, 4, 8)),
    "profile": json.dumps(PROFILE),
    "page": _PAGE,
    "script": _SCRIPT,
    "log": _LOG,
    **_TRACES,
    **{f"lint {name}": yaml.safe_dump_all(documents) for name, documents in _MANIFESTS.items()},
}
REFUSING = tuple(kind for kind in sorted(SEEDS) if kind != "page")
"""The kinds whose readers refuse something: whatever a page of metrics does not say is not there."""

_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 1e308, -1e-308, 10**400, "", "NaN", "inf", "1e999", "1,5", " 7 ", "\ud7ff\u0000", [], {}, [[]], "none",
    float("nan"), float("inf"),
)  # fmt: skip
_FRAGMENTS = (
    b",",
    b";",
    b"\n",
    b'"',
    b"\xff",
    b"\x00",
    b"1e999",
    b"nan",
    b"-1",
    b"[",
    b"{",
    b"\xef\xbb\xbf",
    b"none",
    b"9" * 30,
)
_OF_SHELL = (
    b"'", b'"', b"\\", b"$(", b"${", b"}", b"`", b"<<EOF\n", b"&&", b"||", b"|", b"&\n", b";", b"#", b"if ", b"fi\n", b"((",
    b"$@", b"eval ", b"exec ", b"A+=(", b")", b"\xff",
)  # fmt: skip


def digest(kind: str, data: bytes) -> str:
    """Feed bytes to the reader of a kind; return what came of it.

    Raises:
        AssertionError: a refusal of more than one line.
        Exception: anything but BreakevenError: the fault that is looked for.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "not text"
    try:
        understood = _reader(kind)(text)
    except BreakevenError as refusal:
        line = str(refusal)
    else:
        return "read" if understood else "refused"
    if not line or "\n" in line:
        raise AssertionError(f"a refusal that is not one line: {line!r}")
    return "refused"


def _reader(kind: str) -> Callable[[str], bool]:
    """The reader of a kind: whether it understood the text, or a refusal."""
    if kind in _TRACES:
        return _read_trace
    return _READERS.get(kind, _read_manifest if kind.startswith("lint") else _read_points)


def _read_points(text: str) -> bool:
    fit_points(read_text(text, "fuzz", ARM))
    return True


def _read_profile(text: str) -> bool:
    profile = Profile.from_json(text, "fuzz")
    for fit in profile.arms:
        profile.predict(fit.arm, rps=1.0)
    return True


def _read_page(text: str) -> bool:
    counters = read_counters(text)
    window = between(read_counters(_PAGE), counters)
    figures = (window.tokens_per_step, window.drafted_per_step, window.prefix_hit_ratio, window.queue_s)
    assert all(figure is None or not math.isnan(figure) for figure in figures)
    return counters != Growths({})


def _read_log(text: str) -> bool:
    found = read_log(text.splitlines(), "fuzz")
    assert all(0 <= share <= 1 for share in found.survival)
    return True


def _read_script(text: str) -> bool:
    return shell_script(text, {"A": "b", "DRAFT": None}, ("sh", "one")).complete


def _in_file(text: str, read: Callable[[Path], _Found]) -> _Found:
    with tempfile.NamedTemporaryFile(prefix="breakeven-fuzz-") as file:
        file.write(text.encode(errors="surrogatepass"))
        file.flush()
        return read(Path(file.name))


def _read_trace(text: str) -> bool:
    return _in_file(text, lambda file: read_trace(file) is not None)


def _read_manifest(text: str) -> bool:
    result = _in_file(text, lambda file: CliRunner().invoke(lint.command, [str(file), "--json"]))
    if result.exception is not None:
        raise result.exception
    return bool(json.loads(result.stdout)["deployments"])


_READERS: Mapping[str, Callable[[str], bool]] = {
    "profile": _read_profile,
    "page": _read_page,
    "script": _read_script,
    "log": _read_log,
}


def mutated(kind: str, rng: random.Random) -> bytes:
    """Spoil a valid file of a kind: values of a JSON tree, cells of a table, or bytes."""
    seed = SEEDS[kind]
    if kind.startswith(("lint", "yaml")) and rng.random() < 0.7:
        documents = [*yaml.safe_load_all(seed)]
        for _ in range(rng.randint(1, 3)):
            _spoil_tree(documents, rng)
        return yaml.safe_dump_all(documents, allow_unicode=True).encode(errors="surrogatepass")
    if kind.endswith("lines") and rng.random() < 0.7:
        objects = [json.loads(line) for line in seed.splitlines()]
        _spoil_tree(objects, rng)
        return "\n".join(json.dumps(one) for one in objects).encode(errors="surrogatepass")
    table = kind in {"points", "ratios", "trace", "windows"}
    tree = not (
        table
        or kind.startswith(("lint", "yaml"))
        or kind.endswith("lines")
        or kind in {"page", "script", "log"}
    )
    if tree and rng.random() < 0.7:
        document = json.loads(seed)
        for _ in range(rng.randint(1, 3)):
            _spoil_tree(document, rng)
        return json.dumps(document).encode(errors="surrogatepass")
    if table and rng.random() < 0.6:
        return _spoil_table(seed, rng).encode(errors="surrogatepass")
    fragments = _OF_SHELL if kind in {"script", "lint scripts"} else _FRAGMENTS
    data = bytearray(seed.encode())
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.choice((0, 1, 5, 60))] = rng.choice(fragments)
    return bytes(data)


def _spoil_tree(node: Any, rng: random.Random) -> None:
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        keys: list[Any] = (
            list(value)
            if isinstance(value, dict)
            else list(range(len(value)))
            if isinstance(value, list)
            else []
        )
        for key in keys:
            places.append((value, key))
            walk(value[key])

    walk(node)
    if not places:
        return
    container, key = rng.choice(places)
    if isinstance(container, dict) and rng.random() < 0.3:
        del container[key]
    else:
        container[key] = copy.deepcopy(rng.choice(_VALUES))


def _spoil_table(text: str, rng: random.Random) -> str:
    rows = [line.split(",") for line in text.splitlines()]
    for _ in range(rng.randint(1, 4)):
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = str(rng.choice(_VALUES))
    return "\n".join(",".join(row) for row in rows)


def campaign(kind: str, rng: random.Random, more: Callable[[int], bool]) -> dict[str, int]:
    """Spoil and feed while `more(count)` says so; return how often each outcome came."""
    outcomes: dict[str, int] = {}
    count = 0
    while more(count):
        data = mutated(kind, rng)
        try:
            outcome = digest(kind, data)
        except Exception as fault:
            raise AssertionError(f"{kind}: {type(fault).__name__}: {fault} for {data[:2000]!r}") from fault
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        count += 1
    return outcomes
