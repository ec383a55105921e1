"""Past of the demo's first service: two hours of the same simulated engine, as Prometheus would have stored them.

An hour without speculation, then one with somebody's try of a drafter. It is served by the event clock, before the cluster is up.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.serving.promql import COUNTED, DRAFTED, PREFIX, RUNNING, WAITING
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.costs import parse_costs
from breakeven_sim.engine.exposition import CacheInfo, EngineMetrics
from breakeven_sim.engine.requests import Request
from breakeven_sim.replay.fleet_arms import CostArms
from demo.installation import NAMESPACE, OUTPUT_TOKENS, PROMPT_TOKENS

TRIED = Arm("eagle3", 3)
# Prometheus of the demo looks back for five seconds.
SCRAPE_S = 4
WINDOW_S, _WINDOWS = 600, 6
# Of what a lone request would allow: a past has quiet and busy hours, and none in which the pods were saturated.
_LOADS = (2.0, 0.3, 1.0, 3.0, 4.0, 5.0)
_STORED = frozenset(
    {PREFIX + one.name for one in (*COUNTED.values(), DRAFTED)} | {PREFIX + RUNNING, PREFIX + WAITING}
)


def past_of(costs: Path, product: str, deployment: str, model: str, end_s: int) -> str:
    """Samples in the form of which promtool makes blocks.

    Args:
        costs: of the simulated engine.
        product: GPU class whose costs count.
        deployment: beginning of the pods' names.
        model: name that is served.
        end_s: Unix time; a multiple of ten minutes.
    """
    arms = CostArms(parse_costs(costs.read_text(), product, str(costs)), seed=7)
    lines: dict[str, list[str]] = {}
    begin_s = end_s - 2 * _WINDOWS * WINDOW_S
    for arm, pod in (
        (NO_SPECULATION, f"{deployment}-7d9f8b6c5d-bbbbb"),
        (TRIED, f"{deployment}-64bd5fcf9-ccccc"),
    ):
        own = f'namespace="{NAMESPACE}",pod="{pod}"'
        for time_s, metrics in _served(arms, arm, model):
            for family in metrics.collect():
                for sample in family.samples:
                    if sample.name not in _STORED:
                        continue
                    more = "".join(f',{label}="{value}"' for label, value in sample.labels.items())
                    line = f"{sample.name}{{{own}{more}}} {sample.value:.10g} {begin_s + time_s}"
                    lines.setdefault(sample.name, []).append(line)
        begin_s += _WINDOWS * WINDOW_S
    found = []
    for name, samples in lines.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        # A family's samples stand together, series by series.
        samples.sort(key=lambda line: line.partition("}")[0])
        found += [f"# TYPE {name.removesuffix('_total')} {kind}", *samples]
    return "\n".join([*found, "# EOF", ""])


def _served(arms: CostArms, arm: Arm, model: str) -> Iterator[tuple[int, EngineMetrics]]:
    """An hour of one pod: the metrics at each scrape, s after its begin."""
    engine, texts = Engine(arms.config(arm)), arms.texts(arm)
    metrics = EngineMetrics(engine, model, CacheInfo(16, 10**6, 1.0, 0.9, 4096, None), 0.0)
    random = np.random.default_rng(11)
    lone_s = _lone_s(arms)
    coming_s, number = 0.0, 0
    for time_s in range(SCRAPE_S, _WINDOWS * WINDOW_S + 1, SCRAPE_S):
        rps = _LOADS[min((time_s - 1) // WINDOW_S, _WINDOWS - 1)] / lone_s
        while coming_s < time_s:
            text = texts.draw(number, OUTPUT_TOKENS, PROMPT_TOKENS) if texts is not None else None
            engine.submit(Request(number, coming_s, PROMPT_TOKENS, OUTPUT_TOKENS, text))
            coming_s, number = coming_s + float(random.exponential(1.0 / rps)), number + 1
        while engine.outstanding and engine.next_end_s() <= time_s:
            _count(engine, metrics)
        yield time_s, metrics


def _count(engine: Engine, metrics: EngineMetrics) -> None:
    report = engine.step()
    metrics.record_step(report)
    for gain in report.progress:
        gain.request.last_token_s = report.end_s
    for request in report.finished:
        metrics.record_finished(request, "length", OUTPUT_TOKENS)


def _lone_s(arms: CostArms) -> float:
    """Latency of a lone request without speculation."""
    engine = Engine(arms.config(NO_SPECULATION))
    engine.submit(Request(0, 0.0, PROMPT_TOKENS, OUTPUT_TOKENS))
    return engine.advance(float("inf"))[0].finished_s
