"""Is the simulated engine like the real one? Flags, the metrics page and answers, compared; pure.

What is compared is what a client, a scraper or a manifest can see: names, types, labels and buckets of metrics, names and
kinds of flags, status and body of answers. Identifiers, times and generated text differ by nature.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

_CHANCE = (
    (r'"id":"[^"]*"', '"id":"ID"'),
    (r'"created":\d+', '"created":0'),
    (r'"(text|content)":"[^"]+"', r'"\1":"words"'),
    (r'"system_fingerprint":"[^"]*"', '"system_fingerprint":"F"'),
    (r'"tokens":\[[\d,]+\]', '"tokens":[]'),
    (r'"token_strs":\[[^\]]+\]', '"token_strs":["words"]'),
    (r'"prompt":"[^"]+"', '"prompt":"words"'),
)
# Of the prose, and short: the simulated engine counts long words as several tokens.
_THREE_WORDS = "a box of"


def without_chance(text: str) -> str:
    """An answer without what differs from one to the next: identifiers, times, generated text, token ids and words.

    Nor how many pieces a stream came in: a front end that is behind sends two tokens of a request as one.
    """
    for pattern, same in _CHANCE:
        text = re.sub(pattern, same, text)
    events = text.split("\n\n")
    if len(events) == 1:
        return text
    pieces = [re.sub(r'"(completion|total)_tokens":\d+', r'"\1_tokens":0', event) for event in events[:-3]]
    return "\n\n".join([*(event for event, _ in groupby(pieces)), *events[-3:]])


def page_shape(page: str) -> dict[str, dict[str, object]]:
    """Type, names of labels and bounds of buckets of every family on a metrics page."""
    found: dict[str, dict[str, object]] = {}
    for family in text_string_to_metric_families(page):
        labels = sorted({key for sample in family.samples for key in sample.labels if key != "le"})
        bounds = list(dict.fromkeys(s.labels["le"] for s in family.samples if "le" in s.labels))
        found[family.name] = {"type": family.type, "labels": labels}
        if bounds:
            found[family.name]["le"] = " ".join(bounds)
    return found


def page_differences(real: str, simulated: str) -> list[str]:
    """Families that differ between two pages, a line each."""
    return _differences(page_shape(real), page_shape(simulated), "on the metrics page")


def flag_differences(real: Mapping[str, Any], simulated: Mapping[str, Any]) -> list[str]:
    """Flags that differ between two tables as `tests/realvllm/flags.py` writes them, a line each."""

    def by_name(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        return {" ".join(flag["names"]): flag for flag in table["flags"]}

    return _differences(by_name(real), by_name(simulated), "of the command line")


def answer_differences(
    real: Sequence[Mapping[str, Any]], simulated: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Requests that two servers answered differently, a line each.

    Args:
        real: answers as `tests/realvllm/answers.py` gives them.
        simulated: answers to the same requests in the same order.
    """
    lines = []
    for one, other in zip(real, simulated, strict=True):
        asked = f"{one['method']} {one['path']} {str(one.get('json', one.get('raw', '')))[:80]}".rstrip()
        lines += [
            f"{asked}: {key} {one[key]} from vLLM, {other[key]} simulated"
            for key in ("status", "type")
            if one[key] != other[key]
        ]
        said, other_said = without_chance(one["text"]), without_chance(other["text"])
        if said != other_said:
            # From a little before the place where they part.
            alike = takewhile(lambda pair: pair[0] == pair[1], zip(said, other_said, strict=False))
            at = max(0, sum(1 for _ in alike) - 20)
            lines.append(f"{asked}: {said[at:][:80]!r} from vLLM, {other_said[at:][:80]!r} simulated")
    return lines


def _differences(real: Mapping[str, Any], simulated: Mapping[str, Any], where: str) -> list[str]:
    lines = [f"{name} {where}: vLLM has it, the simulated engine has not" for name in real.keys() - simulated]
    lines += [
        f"{name} {where}: the simulated engine has it, vLLM has not" for name in simulated.keys() - real
    ]
    lines += [
        f"{name} {where}: {real[name]} in vLLM, {simulated[name]} simulated"
        for name in real.keys() & simulated.keys()
        if real[name] != simulated[name]
    ]
    return sorted(lines)


def asked_of(table: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The stored table's requests, asked of a model of another name and in words of the prose that it knows."""

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: renamed(one) for key, one in value.items()}
        if isinstance(value, list):
            return [renamed(one) for one in value]
        if value == "tiny":
            return model
        return _THREE_WORDS if value == "w1 w2 w3" else value

    rows = []
    for row in table["answers"]:
        asked = {key: row[key] for key in ("method", "path", "raw", "json") if key in row}
        if "json" in asked:
            asked["json"] = renamed(asked["json"])
            if "completions" in asked["path"] and row["status"] == 200:
                # Whether greedy words come upon the end of a text is a matter of the weights.
                asked["json"]["ignore_eos"] = True
        rows.append(asked | {"path": asked["path"].replace("/tiny", f"/{model}")})
    return {"answers": rows}
