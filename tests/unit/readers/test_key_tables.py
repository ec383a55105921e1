"""Every key that docs/result-files.md lists is used: another value there gives another point, or a refusal."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.points.table import document as columns_of
from breakeven.readers.foreign import tables
from breakeven.readers.reading import read_text
from fuzzing import (
    AIPERF,
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

PLAIN = {name: value for name, value in BENCH.items() if not name.startswith("spec_decode")}
LISTS = {
    "completed": 3,
    "total_output_tokens": 30,
    "mean_ttft_ms": None,
    "ttfts": [0.01, 0.02, 0.03],
    "itls": [[0.01] * 9] * 3,
    "output_lens": [10, 10, 10],
    "errors": [],
}
# Long enough to have a steady middle.
LONG = PLAIN | {
    "completed": 400,
    "start_times": [n // 8 * 0.85 for n in range(400)],
    "latencies": [0.85] * 400,
    "total_output_tokens": 3600,
    "mean_ttft_ms": None,
    "mean_tpot_ms": None,
    "p95_e2el_ms": None,
}
# Its times make sense in s and in ms.
BRIEF = json.loads(json.dumps(LLMD).replace("100.0", "0.01"))
# In which of them a key matters depends on what else is there.
SAMPLES: dict[str, list[dict[str, Any]]] = {
    "vllm bench serve": [
        PLAIN,
        BENCH,
        PLAIN | {"request_rate": 4.0, "max_concurrency": None},
        {name: value for name, value in PLAIN.items() if "e2el" not in name and name != "mean_tpot_ms"},
        {name: value for name, value in PLAIN.items() if "e2el" not in name} | LISTS,
        LONG,
        PLAIN | {"request_throughput": 0.0},
        SGLANG,
    ],
    "AIPerf": [
        AIPERF,
        AIPERF | {"input_config": {"loadgen": {"request_rate": 4.0, "arrival_pattern": "gamma"}}},
        AIPERF | {"input_config": {"loadgen": {"request_rate": 4.0}}},
        AIPERF | {"input_config": {}},
        AIPERF
        | {
            "total_spec_decode_steps": metric("count", 1000.0),
            "total_accepted_draft_tokens": metric("count", 1500.0),
            "total_draft_tokens": metric("count", 2500.0),
        },
    ],
    "llm-d-benchmark": [
        LLMD,
        BRIEF,
        LLMD
        | {
            "scenario": {
                "load": {
                    "standardized": {"rate_qps": 4.0},
                    "native": {"config": {"load": {"type": "constant"}}},
                }
            }
        },
        LLMD | {"scenario": {"load": {"standardized": {"rate_qps": 4.0}}}},
    ],
    "GuideLLM": [{"benchmarks": [benchmark]} for benchmark in GUIDELLM["benchmarks"]]
    + [{"benchmarks": [{"metrics": GUIDELLM["benchmarks"][0]["metrics"], "config": {}}]}],
}
SAMPLES |= {
    "inference-perf": [
        INFERENCE_PERF,
        INFERENCE_PERF | {"load_summary": {"requested_rate": 4.0}},
        json.loads(json.dumps(INFERENCE_PERF).replace('"prompt_len"', '"prompt_tokens"')),
    ],
    "genai-bench": [
        GENAI_BENCH,
        GENAI_BENCH | {"_time_unit": "s"},
        {"aggregated_metrics": GENAI_BENCH["aggregated_metrics"] | {"iteration_type": "request_rate"}, "_time_unit": "ms"},
    ],
    "EvalScope": [EVALSCOPE, EVALSCOPE_NEW],
}  # fmt: skip
# With any other value, or any at all, the file is refused: test_other_tools.py, test_odd_results.py.
ONE_VALUE = re.compile(
    r"accept_length|(records\.)?(request_\w+|\w+_latency|time_to_first_token)\.unit|.*rate\.units"
)
SPECULATING = re.compile("spec_decode|draft_tokens|accept_length$")
ABSENT = object()
VALUES: tuple[Any, ...] = (
    ABSENT, True, 7.5, 0.5, 3, 1900.0, 2.2, 2200.0, "poisson", "s", "ms", "multi_turn", "request_rate", "concurrent", "synchronous", "vllm", False, ["model"], ["failed"], [7.5] * 3,
    [[7.5]] * 3, [[0.5]] * 3, [9, 10, 11], [0.9, 0.2, 0.1], [{"standardized": {"model": {"name": "m"}}}],
    [{"name": "m"}], [{"type": "concurrency", "concurrency": 4}], [{"type": "poisson", "rate": 4.0}], LONG["start_times"],
)  # fmt: skip


def outcome(sample: dict[str, Any], arm: Arm) -> Any:
    try:
        return [
            columns_of(point) | {"tool": point.origin.tool, "remark": point.origin.remark}
            for point in read_text(json.dumps(sample), "r.json", arm)
        ]
    except InputError as refusal:
        return str(refusal)


def with_value(sample: dict[str, Any], keys: list[str], at: str, value: Any) -> dict[str, Any]:
    """The sample with a value at one of a field's keys, and nothing at the field's others."""
    # A copy in which nothing is shared.
    changed = json.loads(json.dumps(sample))
    root = changed["benchmarks"][0] if "benchmarks" in changed else changed
    for key in keys:
        node, *way = root, *key.split(".")
        for step in way[:-1]:
            node = node.setdefault(step, {}) if key == at else node.get(step, {})
            if not isinstance(node, dict):
                return sample
        node.pop(way[-1], None)
        if key == at and value is not ABSENT:
            node[way[-1]] = value
    return changed


def listed() -> list[Any]:
    return [
        pytest.param(tool, [*row.places], key, id=f"{tool}-{key}")
        for tool in SAMPLES
        for row in tables()[tool].values()
        for key in row.places
    ]


@pytest.mark.parametrize(("tool", "keys", "key"), listed())
def test_a_listed_key_is_used(tool: str, keys: list[str], key: str) -> None:
    for sample in SAMPLES[tool]:
        speculates = SPECULATING.search(json.dumps(sample) + key)
        arm = Arm("ngram", 3) if speculates else NO_SPECULATION
        found = (outcome(with_value(sample, keys, key, value), arm) for value in VALUES)
        # A refusal for its type alone shows no use.
        points = (json.dumps(one) for one in found if isinstance(one, list))
        first = next(points, None)
        if ONE_VALUE.fullmatch(key) or any(other != first for other in points):
            return
    pytest.fail(f"{key}: no value makes a difference")
