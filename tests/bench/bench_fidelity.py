"""How faithful the simulated engine is: against its own fitted law, and against published tables.

Law: seven loads of a Poisson sweep are fitted; the law's prediction at loads between them is compared with the engine.
Tables: costs are fitted (non-negative least squares, relative weights) to one part of a published throughput table; the
simulated engine, driven like the benchmark (C clients, as many requests), is compared with all of it.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from breakeven.arm import NO_SPECULATION, Arm
from breakeven_sim.engine.configuration import DraftLengths, EngineConfig, engine_config
from breakeven_sim.engine.costs import EngineCosts, default_document
from breakeven_sim.engine.drafting import TextSource
from breakeven_sim.engine.requests import Request
from breakeven_sim.replay.fleet_arms import CostArms
from breakeven_sim.replay.loops import closed_loop, open_loop
from breakeven_sim.replay.measured import measured_profile

MEASURED = Path(__file__).parents[3] / "shared" / "data" / "measured"


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def against_own_law() -> None:
    arms = CostArms(default_document().for_gpu("NVIDIA-H100-80GB-HBM3", "defaults"), seed=5)
    wanted = [NO_SPECULATION, Arm("eagle3", 1), Arm("eagle3", 3), Arm("eagle3", 7), Arm("ngram", 4)]
    random = np.random.default_rng(5)
    prompts, outputs = random.integers(100, 900, 500), random.integers(50, 350, 500)
    profile = measured_profile(arms, wanted, prompts, outputs, seed=5)
    say("own law (fitted to 7 loads; compared at 6 loads between them, 3,000 requests each)")
    for arm in wanted:
        fit = profile.arm(arm)
        assert fit.c1_s is not None
        assert fit.c2_s is not None
        errors = []
        for share in (0.1, 0.28, 0.42, 0.55, 0.65, 0.75):
            rps = share / fit.c2_s
            arrivals = np.cumsum(random.exponential(1 / rps, 3000))
            chosen = random.integers(0, 500, 3000)
            requests = [
                Request(i, float(arrivals[i]), int(prompts[j]), int(outputs[j])) for i, j in enumerate(chosen)
            ]
            open_loop(arms, arm, requests)
            latency = np.mean([r.finished_s - r.arrival_s for r in requests[300:]])
            rate = 2700 / (arrivals[-1] - arrivals[300])
            errors.append(float(fit.c1_s / (1 - rate * fit.c2_s) / latency - 1))
        say(f"  {arm.name:9}  mean {np.abs(errors).mean():.1%}  worst {max(errors, key=abs):+.1%}")


@dataclass(frozen=True)
class Cell:
    """One cell of a throughput table: E tokens per step at `clients`, k; `survival` per position."""

    k: int
    clients: int
    requests: int
    tokens_per_step: float
    tokens_per_s: float
    used: bool


@dataclass
class TableArms:
    """Arms with fitted costs and the table's own acceptance."""

    costs: EngineCosts
    survival: dict[int, tuple[float, ...]]

    def config(self, arm: Arm) -> EngineConfig:
        return engine_config(self.costs, "eagle3" if arm.k else None, DraftLengths(arm.k))

    def texts(self, arm: Arm) -> TextSource | None:
        return TextSource(self.costs.method("eagle3").text, 3, self.survival[arm.k]) if arm.k else None


def fitted_costs(
    cells: list[Cell],
    prompt: float,
    output: float,
    step_s: dict[Cell, float],
    results: dict[Cell, tuple[float, float]],
) -> EngineCosts:
    """Costs that give the cells that may be used these step times with as many requests in flight."""
    rows, steps = [], []
    for cell in (c for c in cells if c.used):
        n = results[cell][1]
        steps.append(step_s[cell])
        context, prefill = n * (prompt + output / 2), n * cell.tokens_per_step * prompt / output
        rows.append([1.0, n * (cell.k + 1), context, prefill, float(cell.k > 0), float(cell.k)])
    design, measured = np.array(rows), np.array(steps)
    (base, token, kv, prefill, flat, position), _ = nnls(design / measured[:, None], np.ones(len(measured)))
    document = default_document().for_gpu("NVIDIA-H100-80GB-HBM3", "defaults").model_dump()
    document["step"] = {
        "base_s": base,
        "per_token_s": token,
        "per_kv_token_s": kv,
        "per_prefill_token_s": prefill,
    }
    document["methods"]["eagle3"]["draft"] = {"flat_s": flat, "per_position_s": position}
    return EngineCosts.model_validate(document)


def driven(cell: Cell, arms: TableArms, prompt: int, lengths: np.ndarray) -> tuple[float, float]:
    """Tokens per second and mean number in flight of the simulated engine, driven like the cell."""
    drawn = [int(lengths[i % len(lengths)]) for i in range(cell.requests)]
    requests = [Request(i, 0.0, prompt, drawn[i]) for i in range(cell.requests)]
    engine = closed_loop(arms, Arm("eagle3", cell.k) if cell.k else NO_SPECULATION, requests, cell.clients)
    flying = sum(r.finished_s - r.arrival_s for r in requests) / engine.clock_s
    return sum(drawn) / engine.clock_s, flying


def compare(
    cells: list[Cell], survival: dict[int, tuple[float, ...]], prompt: int, lengths: np.ndarray
) -> None:
    # Ramp, drain and prompts in the way are the simulation's own business: the step times aimed at are corrected by
    # what the fitted cells come out at.
    step_s = {cell: cell.clients * cell.tokens_per_step / cell.tokens_per_s for cell in cells}
    results = {cell: (cell.tokens_per_s, float(cell.clients)) for cell in cells}
    for _ in range(4):
        arms = TableArms(fitted_costs(cells, prompt, float(lengths.mean()), step_s, results), survival)
        results = {cell: driven(cell, arms, prompt, lengths) for cell in cells}
        step_s = {cell: step_s[cell] * results[cell][0] / cell.tokens_per_s for cell in cells}
    step, draft = arms.costs.step, arms.costs.method("eagle3").draft
    say(
        f"  costs: base {step.base_s * 1e3:.2f} ms, token {step.per_token_s * 1e6:.1f} us, "
        f"context token {step.per_kv_token_s * 1e9:.1f} ns, prompt token {step.per_prefill_token_s * 1e6:.1f} us, "
        f"drafter {draft.flat_s * 1e3:.2f} + {draft.per_position_s * 1e3:.2f} k ms"
    )
    errors: dict[bool, list[float]] = {True: [], False: []}
    for cell, (rate, in_flight) in results.items():
        error = rate / cell.tokens_per_s - 1
        errors[cell.used].append(error)
        mark = "  (fitted)" if cell.used else ""
        say(
            f"  k={cell.k} C={cell.clients:3d} ({in_flight:5.1f} in flight)  {cell.tokens_per_s:7.0f} tok/s  {error:+6.1%}{mark}"
        )
    for used, name in ((True, "fitted cells"), (False, "other cells")):
        worst = max(errors[used], key=abs)
        say(f"  {name}: mean {np.abs(errors[used]).mean():.1%}, worst {worst:+.1%} of {len(errors[used])}")


def against_apertus() -> None:
    say(
        "Apertus-8B, EAGLE k=1,3,7, one GH200, closed loop of 1..256 clients; costs from C = 1, 32, 256 of plain, k=1, k=7"
    )
    cells = []
    for row in csv.DictReader((MEASURED / "apertus_8b_gh200_levels.csv").open()):
        k, clients = int(row["k"]), int(row["concurrency"])
        e = float(row["mean_acceptance_length"] or 1.0)
        used = k != 3 and clients in {1, 32, 256}
        cells.append(Cell(k, clients, int(row["requests"]), e, float(row["output_tok_s"]), used))
    survival: dict[int, tuple[float, ...]] = {1: (0.8549,)}
    for row in csv.DictReader((MEASURED / "apertus_8b_gh200_c64_per_position.csv").open()):
        k = int(row["k"])
        if k:
            survival[k] = tuple(float(row[f"cum_accept_pos{i}"]) for i in range(k))
    # Median and 95th percentile of a lone request are 0.91 and 2.13 times the mean, 482 tokens: a gamma distribution of
    # shape 2 that ends at 1,024 tokens.
    drawn = np.random.default_rng(1).gamma(2.0, 1.0, 1024)
    scale = next(s for s in np.arange(200.0, 400.0) if np.minimum(drawn * s, 1024).mean() >= 482)
    lengths = np.maximum(1, np.minimum(drawn * scale, 1024)).astype(int)
    compare(cells, survival, 563, lengths)


def against_llama() -> None:
    say(
        "Llama-3.1-8B + EAGLE-3, one H100, offline batches of 8 and 32, mean of three workloads; costs from batch 32, k = 0, 1, 4 and batch 8, k = 0, 5"
    )
    table: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for row in csv.DictReader((MEASURED / "llama8b_eagle3_h100_batch_k.csv").open()):
        key = int(row["k"]), int(row["effective_batch"])
        table.setdefault(key, []).append((float(row["tokens_per_step"] or 1.0), float(row["tok_s"])))
    cells, survival = [], {}
    for (k, batch), rows in sorted(table.items()):
        e, rate = (float(np.mean(column)) for column in zip(*rows, strict=True))
        used = (batch, k) in {(32, 0), (32, 1), (32, 4), (8, 0), (8, 5)}
        cells.append(Cell(k, batch, batch, e, rate, used))
        # Only E is published: geometric acceptance with that E.
        alpha = (
            next(a for a in np.linspace(0, 1, 10001) if sum(a**i for i in range(k + 1)) >= e) if k else 0.0
        )
        survival[k] = tuple(float(alpha**i) for i in range(1, k + 1))
    compare(cells, survival, 1, np.array([128]))


def main() -> int:
    against_own_law()
    if not MEASURED.is_dir():
        say(f"skipped: published tables ({MEASURED} is absent)")
        return 0
    against_apertus()
    against_llama()
    return 0


if __name__ == "__main__":
    sys.exit(main())
