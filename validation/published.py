"""Published measurements, read and prepared as a user would do it; nothing is fitted here but the ramp share.

The folder is `$BREAKEVEN_DATA`, or `shared/data` beside the repository. It is not part of the distribution.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from breakeven.laws.acceptance_numbers import (
    alpha_from_tokens_per_step,
    interpolate_tokens_per_step,
    tokens_per_step_iid,
)
from breakeven.laws.arrays import FloatArray
from breakeven.points.point import Origin, Point
from breakeven.points.row import point

_PROMPT_TOKENS, _OUTPUT_TOKENS = 563.0, 482.0
_SUMMARY_PROMPT_TOKENS, _SUMMARY_OUTPUT_TOKENS = 2742.0, 214.0


def data_folder() -> Path | None:
    """Find the folder of published data; None where there is none."""
    named = os.environ.get("BREAKEVEN_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    return folder if (folder / "measured").is_dir() else None


def _table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def ramp_share(folder: Path) -> float:
    """Learn rho of F = 1 + rho*(C-1)/requests from the three cells that publish rate and mean latency both."""
    found = []
    for row in _table(folder / "measured" / "apertus_8b_gh200_c64_per_position.csv"):
        inflight = float(row["rps"]) * float(row["e2e_mean_ms"]) / 1e3
        found.append((64.0 / inflight - 1.0) / (63.0 / float(row["requests"])))
    return float(np.mean(found))


def apertus_levels(folder: Path) -> tuple[Point, ...]:
    """Apertus 8B on one GH200: no speculation and EAGLE k = 1, 3, 7 at concurrency 1 to 256, closed loop.

    The table publishes throughput, so latency is C*g/throughput *if* C were in flight all the time; ramp and drain
    make it C/F, and latency is divided by F with it.
    """
    share = ramp_share(folder)
    points = []
    for row_number, row in enumerate(_table(folder / "measured" / "apertus_8b_gh200_levels.csv"), start=2):
        clients, k = float(row["concurrency"]), int(row["k"])
        inflight = clients / (1.0 + share * (clients - 1.0) / float(row["requests"]))
        rps = float(row["output_tok_s"]) / _OUTPUT_TOKENS
        fields: dict[str, str | float] = {
            "method": row["method"],
            "k": float(k),
            "concurrency": clients,
            "mean_inflight": inflight,
            "achieved_rps": rps,
            "mean_latency_s": inflight / rps,
            "p95_latency_s": float(row["e2e_p95_ms"]) / 1e3,
            "ttft_p95_s": float(row["ttft_p95_ms"]) / 1e3,
            "tpot_p95_s": float(row["tpot_p95_ms"]) / 1e3,
            "prompt_tokens": _PROMPT_TOKENS,
            "output_tokens": _OUTPUT_TOKENS,
            "requests": float(row["requests"]),
            "preemptions": float(row["preemptions"]),
        }
        if k:
            fields["tokens_per_step"] = float(row["mean_acceptance_length"])
        points.append(point(fields, Origin("apertus_8b_gh200_levels.csv", row_number)))
    return tuple(points)


def apertus_grid(folder: Path, method: str) -> tuple[Point, ...]:
    """The summarization grid of the same study: k = 1 to 7 of one drafter, published as throughput over plain.

    The plain arm's own throughput is not published for this workload. Its shape is that of the other workload of the same
    model and GPU, scaled to the output length. It cancels in every comparison between draft lengths.
    Acceptance lengths that are not published are interpolated, or come from one rate where only one is.
    """
    plain = {one.concurrency: one for one in apertus_levels(folder) if one.arm.k == 0}
    rows = [
        row
        for row in _table(folder / "measured" / "apertus_8b_gh200_k_grid_ratio.csv")
        if row["method"] == method
    ]
    published = {
        int(row["k"]): float(row["mean_acceptance_length_if_reported"])
        for row in rows
        if row["mean_acceptance_length_if_reported"]
    }
    scale = _SUMMARY_OUTPUT_TOKENS / _OUTPUT_TOKENS
    points = [_summary_point("none", 0, one, one.mean_latency_s * scale, 1.0) for one in plain.values()]
    for row in rows:
        base, k = plain[float(row["concurrency"])], int(row["k"])
        latency_s = base.mean_latency_s * scale / float(row["throughput_ratio_vs_plain"])
        points.append(_summary_point(method, k, base, latency_s, _acceptance(published, k)))
    return tuple(points)


def _acceptance(published: Mapping[int, float], k: int) -> float:
    if k in published:
        return published[k]
    if len(published) > 1:
        return float(interpolate_tokens_per_step(list(published), list(published.values()), k))
    ((known, e),) = published.items()
    return float(tokens_per_step_iid(alpha_from_tokens_per_step(e, known), k))


def _summary_point(method: str, k: int, base: Point, latency_s: float, tokens_per_step: float) -> Point:
    fields: dict[str, str | float] = {
        "method": method,
        "k": float(k),
        "concurrency": float(base.concurrency or 1.0),
        "mean_inflight": float(base.mean_inflight or 1.0),
        "mean_latency_s": latency_s,
        "prompt_tokens": _SUMMARY_PROMPT_TOKENS,
        "output_tokens": _SUMMARY_OUTPUT_TOKENS,
        "tokens_per_step": tokens_per_step,
    }
    return point(fields, Origin("apertus_8b_gh200_k_grid_ratio.csv", base.origin.row))


def dsv4_levels(folder: Path) -> tuple[Point, ...]:
    """DeepSeek-V4 on MI355X: no speculation, fixed and adaptive drafting at concurrency 4 to 32, 512 output tokens."""
    points = []
    for row_number, row in enumerate(_table(folder / "measured" / "dsv4_dspark_mi355x.csv"), start=2):
        clients = float(row["concurrency"])
        rps = float(row["output_tok_s"]) / 512.0
        fields: dict[str, str | float] = {
            "method": row["arm"],
            "k": float(row["k"]),
            "concurrency": clients,
            "mean_latency_s": clients / rps,
            "output_tokens": 512.0,
        }
        points.append(point(fields, Origin("dsv4_dspark_mi355x.csv", row_number)))
    return tuple(points)


@dataclass(frozen=True, slots=True)
class Replay:
    """Decoding steps of every request of a recorded set, replayed at one draft length.

    Attributes:
        tokens: tokens made, per request.
        steps: steps taken, per request.
        survival: share of steps whose first i drafts were all accepted, shape (k,).
    """

    tokens: FloatArray
    steps: FloatArray
    survival: FloatArray

    @property
    def tokens_per_step(self) -> float:
        """E, the ratio of sums."""
        return float(self.tokens.sum() / self.steps.sum())


def recorded(folder: Path, dataset: str, drafter: str) -> list[list[int]]:
    """Read what an unbounded step would yield at each output position, per request; drafter eagle or ngram."""
    with (folder / "acceptance" / f"{dataset}.jsonl").open(encoding="utf-8") as stream:
        return [json.loads(line)[f"acc_{drafter}"] for line in stream]


def replay(sequences: list[list[int]], k: int) -> Replay:
    """Replay draft length k: each step advances by the recorded yield, at most k + 1."""
    tokens, steps, counts = [], [], np.zeros(k + 1)
    for sequence in sequences:
        made, taken = 0, 0
        for gain in _advance(sequence, k):
            made += gain
            taken += 1
            counts[: gain - 1] += 1
        if taken:
            tokens.append(float(made))
            steps.append(float(taken))
    return Replay(np.array(tokens), np.array(steps), counts[:k] / sum(steps))


def _advance(sequence: list[int], k: int) -> Iterator[int]:
    at = 0
    while at < len(sequence):
        gain = min(sequence[at], k + 1)
        yield gain
        at += gain
