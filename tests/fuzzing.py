"""Hostile input for every reader: what must hold whatever the bytes are, and how to make the bytes.

A reader either returns checked points (or a profile) or raises BreakevenError with one line. Mutations start from
valid files, since random bytes never get past the first check.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from breakeven.arm import Arm
from breakeven.errors import BreakevenError
from breakeven.fitting import fit_points
from breakeven.profile import Profile
from breakeven.readers.reading import read_text
from sweeps import closed, csv_of

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
            {"metadata": {"kind": "inference_engine"}, "standardized": {"model": {"name": "org/model"}}},
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
_MATRIX = {
    "status": "success",
    "data": {"resultType": "matrix", "result": [{"metric": {}, "values": [[0, "1.5"], [60, "NaN"]]}]},
}
PROMETHEUS: dict[str, Any] = {"request_rate_rps": _MATRIX, "mean_latency_s": _MATRIX}
PROFILE: dict[str, Any] = json.loads(fit_points(closed("none", 0, 1.2, 0.07, noise=0.01)).to_json())

SEEDS: dict[str, str] = {
    "points": POINTS,
    "bench": json.dumps(BENCH),
    "guidellm": json.dumps(GUIDELLM),
    "sglang": json.dumps(SGLANG),
    "aiperf": json.dumps(AIPERF),
    "llmd": json.dumps(LLMD),
    "prometheus": json.dumps(PROMETHEUS),
    "profile": json.dumps(PROFILE),
}

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
        if kind == "profile":
            profile = Profile.from_json(text, "fuzz")
            for fit in profile.arms:
                profile.predict(fit.arm, rps=1.0)
        else:
            fit_points(read_text(text, "fuzz", ARM))
    except BreakevenError as refusal:
        line = str(refusal)
    else:
        return "read"
    if not line or "\n" in line:
        raise AssertionError(f"a refusal that is not one line: {line!r}")
    return "refused"


def mutated(kind: str, rng: random.Random) -> bytes:
    """Spoil a valid file of a kind: values of a JSON tree, cells of a table, or bytes."""
    seed = SEEDS[kind]
    if kind != "points" and rng.random() < 0.7:
        document = json.loads(seed)
        for _ in range(rng.randint(1, 3)):
            _spoil_tree(document, rng)
        return json.dumps(document).encode(errors="surrogatepass")
    if kind == "points" and rng.random() < 0.6:
        return _spoil_table(seed, rng).encode(errors="surrogatepass")
    data = bytearray(seed.encode())
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.choice((0, 1, 5, 60))] = rng.choice(_FRAGMENTS)
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
