"""GuideLLM's measurement of the simulated engine gives the law that the engine's costs imply.

data/guidellm_0.8.1_engine_sim.json was written by GuideLLM 0.8.1 (Python 3.11, Linux) against

    BREAKEVEN_SIM_GPU=NVIDIA-H100-80GB-HBM3 breakeven engine-sim demo --port 18471 \
        --sim-costs examples/engine-costs/demo.json

with

    GUIDELLM__MAX_WORKER_PROCESSES=1 HF_HUB_OFFLINE=1 guidellm run \
        --backend kind=openai_http,target=http://127.0.0.1:18471,model=demo \
        --profile kind=sweep,sweep_size=6,max_concurrency=32,warmup.percent=0.2 \
        --constraint kind=max_duration,seconds=12 --tokenizer kind=hf_auto,model=./tiny \
        --data kind=synthetic_text,prompt_tokens=62,output_tokens=32 \
        --metrics kind=generative,sample_size=0 --output kind=json,path=sweep.json --disable-progress

`./tiny` is a byte-level BPE of 3000 tokens, trained on made-up text. In place of torch stood a module of 30 lines with
the data loader, which is all that such a run uses of it. Left out of the report: all but the first request of each
list, the confidence intervals, the platform, and the metrics of texts by themselves, images, videos, sounds and tool
calls; `fit` gives the same document for the whole file and for this one. data/guidellm_0.8.1_throughput_8.json is a run of
the profile throughput with max_concurrency=8 against the same engine, cut likewise.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.points.point import LoadMode
from breakeven.readers.reading import read_file
from breakeven_sim.engine.costs import parse_costs
from golden.documents import DATA, breakeven

REPORT = DATA / "guidellm_0.8.1_engine_sim.json"
COSTS = Path(__file__).parents[2] / "examples" / "engine-costs" / "demo.json"

# `breakeven calibrate --method none --loads 6 --prompt-tokens 64 --output-tokens 32 --point-seconds 12
# --warmup-seconds 3 --max-concurrency 32` on the same engine directly after, then `breakeven fit`.
CALIBRATED_C1_S, CALIBRATED_C2_S = 0.688, 0.0413

# The sweep of GuideLLM sends at a constant rate, where a request of equal length meets one other less than with Poisson
# arrivals (L*rate - 1 and not L*rate); taken for Poisson, C1 would be 1.8 % and C2 7.6 % too low.
C1_WITHIN, C2_WITHIN = 0.03, 0.04


def test_every_benchmark_is_a_point_with_the_lengths_that_were_asked_for() -> None:
    points = read_file(REPORT, NO_SPECULATION)
    assert [one.load_mode for one in points] == [LoadMode.CLOSED] * 2 + [LoadMode.CONSTANT] * 4
    # Its throughput run let 32 through at a time: a closed loop of as many clients.
    assert [one.concurrency for one in points[:2]] == [1, 32]
    assert [one.flags for one in points] == [()] * 6
    assert [one.requests for one in points] == [14, 153, 50, 85, 119, 148]
    for one in points:
        assert one.output_tokens == 32
        assert one.prompt_tokens == pytest.approx(57, abs=1)
        assert one.ttft_mean_s + (one.output_tokens - 1) * one.tpot_mean_s == pytest.approx(
            one.mean_latency_s, rel=0.01
        )


def test_the_fit_agrees_with_what_calibrate_measures(tmp_path: Path) -> None:
    done = breakeven(
        "fit", REPORT.name, "--method", "none", "--k", "0", "-o", str(tmp_path / "p.json"), "--json"
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (arm,) = document["arms"]
    assert (arm["points"], arm["excluded"]) == (6, [])
    assert arm["max_relative_error"] < 0.06
    assert arm["c1_s"] == pytest.approx(CALIBRATED_C1_S, rel=C1_WITHIN)
    assert arm["c2_s"] == pytest.approx(CALIBRATED_C2_S, rel=C2_WITHIN)
    assert any("constant rate" in warning for warning in document["warnings"])


@pytest.mark.parametrize("report", [REPORT, DATA / "guidellm_0.8.1_throughput_8.json"])
def test_latency_follows_the_requests_in_flight_at_the_costs_the_engine_was_given(report: Path) -> None:
    engine = parse_costs(COSTS.read_text(encoding="utf-8"), "NVIDIA-H100-80GB-HBM3", COSTS.name)
    for one in read_file(report, NO_SPECULATION):
        assert not one.flags
        prompt_s = one.prompt_tokens * engine.step.per_prefill_token_s
        c1_s = one.output_tokens * (engine.step.base_s + engine.step.per_token_s) + prompt_s
        c2_s = one.output_tokens * engine.step.per_token_s + prompt_s
        # Over a run of constant arrivals, as in a closed loop, the others in flight are all but the request itself.
        expected_s = c1_s + max(0.0, one.mean_inflight - 1) * c2_s
        assert one.mean_latency_s == pytest.approx(expected_s, rel=0.03), one.origin
