"""Results of `vllm bench serve` on the simulated engine give the law that the engine's costs imply.

data/vllm_bench_0.32.0/*.json were written by vLLM 0.32.0 (Python 3.12, Linux) against

    BREAKEVEN_SIM_GPU=NVIDIA-H100-80GB-HBM3 breakeven engine-sim demo --port PORT \
        --sim-costs examples/engine-costs/demo.json [--speculative-config CONFIG]

with CONFIG for eagle3 {"method":"eagle3","model":"head","num_speculative_tokens":3} and for ngram
{"method":"ngram","num_speculative_tokens":3}, by

    vllm bench serve --backend openai --base-url http://127.0.0.1:PORT --model demo --tokenizer ./bpe \
        --dataset-name random --random-input-len 64 --random-output-len 32 --temperature 0 --disable-tqdm \
        --save-result --result-dir bench --result-filename NAME.json [--save-detailed] \
        --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,95,99 LOAD

where LOAD is `--request-rate R --num-prompts N` (files *_poisson_R) or `--max-concurrency C --num-prompts N` (files
*_closed_C); ngram without --save-detailed. `./bpe` is a byte-level BPE of 3000 tokens, trained on made-up text; the
engine counts 44 to 53 tokens where that tokenizer counts 64. Of every list of single requests only the first two
entries are left; `fit` gives the same document for the whole files and for these.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.points.point import LoadMode, Point
from breakeven.readers.reading import read_file
from breakeven_sim.engine.costs import parse_costs
from golden.documents import DATA, breakeven

RESULTS = DATA / "vllm_bench_0.32.0"
COSTS = Path(__file__).parents[2] / "examples" / "engine-costs" / "demo.json"
ENGINE = parse_costs(COSTS.read_text(encoding="utf-8"), "NVIDIA-H100-80GB-HBM3", COSTS.name)
EAGLE3 = Arm("eagle3", 3)


def results(name: str) -> list[str]:
    return sorted(str(path.relative_to(DATA)) for path in RESULTS.glob(f"{name}_*.json"))


def point(name: str, arm: Arm = NO_SPECULATION) -> Point:
    (one,) = read_file(RESULTS / f"{name}.json", arm)
    return one


def fitted(tmp_path: Path, name: str, k: int) -> dict:
    done = breakeven(
        "fit", *results(name), "--method", name, "--k", str(k), "-o", str(tmp_path / "p.json"), "--json"
    )
    assert done.returncode == 0, done.stderr
    (arm,) = json.loads(done.stdout)["arms"]
    return arm


def closed_form(
    tokens_per_step: float, k: int, prompt_tokens: float, output_tokens: int
) -> tuple[float, float]:
    """C1 and C2 in seconds of an engine whose steps cost the same whatever the context."""
    step, prompt_s = ENGINE.step, prompt_tokens * ENGINE.step.per_prefill_token_s
    draft = ENGINE.method("eagle3").draft if k else None
    flat_s = draft.flat_s + k * draft.per_position_s if draft else 0.0
    per_request_s = (k + 1) * step.per_token_s + (k * draft.per_draft_token_s if draft else 0.0)
    # The first token comes with the prompt, in a step that drafts nothing.
    steps = (output_tokens - 1) / tokens_per_step
    first_s = step.base_s + step.per_token_s + prompt_s
    c1_s = first_s + steps * (step.base_s + flat_s + per_request_s)
    return c1_s, step.per_token_s + prompt_s + steps * per_request_s


def test_the_load_and_the_lengths_are_read() -> None:
    rates = {rate: point(f"none_poisson_{rate}") for rate in ("1.5", "3", "6", "9", "12")}
    assert {one.load_mode for one in rates.values()} == {LoadMode.POISSON}
    assert [one.request_rate_rps for one in rates.values()] == [float(rate) for rate in rates]
    clients = [point(f"none_closed_{count}") for count in (1, 4, 8)]
    assert [(one.load_mode, one.concurrency) for one in clients] == [(LoadMode.CLOSED, n) for n in (1, 4, 8)]
    for one in (*rates.values(), *clients):
        assert one.flags == ()
        assert (one.output_tokens, one.output_tokens_sq) == (32, 1024)
        assert 44 < one.prompt_tokens < 53
        assert one.p95_latency_s > one.p50_latency_s > 0


def test_without_speculation_the_fit_finds_the_engine(tmp_path: Path) -> None:
    arm = fitted(tmp_path, "none", 0)
    c1_s, c2_s = closed_form(1.0, 0, 51, 32)
    assert (arm["points"], arm["excluded"]) == (8, [])
    # Measured: 0.684 s for 0.681 and 0.0424 s for 0.0410, on a machine whose cores were all in use.
    assert arm["c1_s"] == pytest.approx(c1_s, rel=0.03)
    assert arm["c2_s"] == pytest.approx(c2_s, rel=0.05)


def test_with_speculation_it_finds_the_engine_and_its_acceptance(tmp_path: Path) -> None:
    points = [point(Path(name).stem, EAGLE3) for name in results("eagle3")]
    for one in points:
        # It drafts at every step, and every step is a chunk: 1578 of each in eagle3_poisson_9, whole.
        assert one.tokens_per_step == pytest.approx(one.requests * 31 / one.drafts, rel=0.02)
        assert one.drafted_per_step == pytest.approx(3.0, rel=0.02)
    arm = fitted(tmp_path, "eagle3", 3)
    c1_s, c2_s = closed_form(arm["tokens_per_step"], 3, 51, 32)
    # Measured: 0.360 s for 0.358 and 0.076 s for 0.071, inside the interval that the fit gives itself.
    assert arm["c1_s"] == pytest.approx(c1_s, rel=0.03)
    assert arm["c2_s"] == pytest.approx(c2_s, rel=0.08)
    assert arm["c2_ci_s"][0] < c2_s < arm["c2_ci_s"][1]


def test_steps_without_a_match_count_as_steps() -> None:
    one = point("ngram_poisson_4", Arm("ngram", 3))
    assert one.drafts == 537
    # Between what the drafts alone would say (1860 tokens less 697 accepted are the steps, as if no request's last
    # step accepted more than it needed) and that all of them did by two.
    assert 1860 / (1860 - 697 + 2 * 60) < one.tokens_per_step < 1860 / (1860 - 697)
