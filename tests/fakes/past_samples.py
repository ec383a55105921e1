"""Samples of made-up pasts as text, for a real Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from validation.pasts import MODEL, MadePast
from validation.second_engine import Floats


def openmetrics(pasts: Mapping[str, MadePast]) -> str:
    """The samples of pasts by namespace, in the form of which promtool makes blocks."""
    lines: dict[str, list[str]] = {}
    for namespace, pod in ((name, pod) for name, past in pasts.items() for pod in past.pods):
        own = f'namespace="{namespace}",pod="{pod.name}",model_name="{MODEL}",engine="0"'
        for name, values in pod.values.items():
            more = ',finished_reason="stop"' if name == "request_success_total" else ""
            _write(lines.setdefault(name, []), f"vllm:{name}{{{own}{more}}}", pod.times_s, values)
        name = "spec_decode_num_accepted_tokens_per_pos_total"
        for position, values in pod.accepted.items():
            head = f'vllm:{name}{{{own},position="{position}"}}'
            _write(lines.setdefault(name, []), head, pod.times_s, values)
    found = []
    for name, samples in lines.items():
        # Of a histogram promtool wants all parts; each of those that are asked for does as well alone.
        kind = "counter" if name.endswith("_total") else "gauge"
        found += [f"# TYPE vllm:{name.removesuffix('_total')} {kind}", *samples]
    return "\n".join([*found, "# EOF", ""])


def _write(lines: list[str], head: str, times_s: Floats, values: Floats) -> None:
    lines += [f"{head} {value:.10g} {time_s:.0f}" for time_s, value in zip(times_s, values, strict=True)]
