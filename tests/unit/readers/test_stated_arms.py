"""No file names the arm that ran, and some count its drafts: a person's word against the counters is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakeven.arm import Arm
from breakeven.errors import InputError
from breakeven.readers.reading import read_text
from fuzzing import AIPERF, BENCH, SGLANG, metric

PLAIN = {name: value for name, value in BENCH.items() if not name.startswith("spec_decode")}


def vllm(drafts: float, drafted: float | None, accepted: float, positions: int = 0) -> dict[str, Any]:
    """A result of `vllm bench serve` with these counters of speculation."""
    counters: dict[str, Any] = {"num_drafts": drafts, "draft_tokens": drafted, "accepted_tokens": accepted}
    if positions:
        counters["per_position_acceptance_rates"] = [0.9 - 0.1 * i for i in range(positions)]
    return PLAIN | {f"spec_decode_{name}": value for name, value in counters.items()}


def aiperf(steps: float, drafted: float, accepted: float) -> dict[str, Any]:
    counters = {
        "total_spec_decode_steps": steps,
        "total_draft_tokens": drafted,
        "total_accepted_draft_tokens": accepted,
    }
    return AIPERF | {name: metric("tokens", value) for name, value in counters.items()}


@pytest.mark.parametrize(
    ("document", "arm", "refusal"),
    [
        (vllm(600, 1800, 900), Arm("eagle3", 5), "spec_decode_draft_tokens: 3 drafted per draft with k = 5; expected --k 3"),
        (vllm(600, 1800, 900), Arm("eagle3", 1), "3 drafted per draft with k = 1; expected --k 3"),
        (vllm(600, 1799, 900), Arm("draft_model", 7), "with k = 7; expected --k 3"),
        (vllm(600, 600, 400), Arm("mtp", 2), "1 drafted per draft with k = 2; expected --k 1"),
        (vllm(600, 2400, 400), Arm("ngram", 10), "4 drafted per draft with k = 10; expected --k 4"),
        (vllm(600, 2220, 400), Arm("suffix", 3), "3.7 drafted per draft with k = 3; expected --k 4"),
        (vllm(600, 3600, 900), Arm("eagle3", 4, scheduled=True), "6 drafted per draft with k = 4"),
        (vllm(600, None, 900), Arm("eagle3", 1), "1.5 accepted per draft with k = 1; expected --k 2 or more"),
        (vllm(600, None, 400, positions=3), Arm("eagle3", 5), "3 drafted per draft with k = 5; expected --k 3"),
        (aiperf(1000, 3000, 1800), Arm("eagle3", 1), "total_draft_tokens.avg: 3 drafted per draft with k = 1"),
        (aiperf(1000, 3000, 1800), Arm("eagle3", 5), "expected --k 3"),
        (SGLANG | {"accept_length": 3.4}, Arm("eagle", 2), "accept_length: 2.4 accepted per draft with k = 2"),
    ],
)  # fmt: skip
def test_a_draft_length_that_the_counters_exclude_is_refused(
    document: object, arm: Arm, refusal: str
) -> None:
    with pytest.raises(InputError) as refused:
        read_text(json.dumps(document), "r.json", arm)
    assert refusal in str(refused.value)


@pytest.mark.parametrize(
    ("document", "arm", "remark"),
    [
        (vllm(600, 1800, 900), Arm("eagle3", 3), ""),
        (vllm(600, 1797, 900), Arm("eagle3", 3), ""),
        (vllm(600, 1800, 900), Arm("eagle3", 5, scheduled=True), ""),
        (vllm(600, 1500, 900), Arm("eagle3", 7, scheduled=True, adaptive=True), ""),
        (vllm(600, 1560, 900), Arm("eagle3", 3), "2.6 drafted per draft with k = 3"),
        (vllm(600, 1560, 900), Arm("ngram", 5), "2.6 drafted per draft with k = 5"),
        (aiperf(1000, 2480, 1800), Arm("eagle3", 3), "2.48 drafted per draft with k = 3"),
        (SGLANG | {"accept_length": 3.4}, Arm("eagle", 3), ""),
        (PLAIN, Arm("eagle3", 5), ""),
    ],
)
def test_shorter_drafts_are_a_remark_and_a_schedule_s_are_none(
    document: object, arm: Arm, remark: str
) -> None:
    (point,) = read_text(json.dumps(document), "r.json", arm)
    assert point.origin.remark.startswith(remark)
    assert bool(point.origin.remark) == bool(remark)
