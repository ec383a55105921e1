"""Settings of an engine with which nothing can be measured, or with which it does not start once it speculates.

The rows of `engine_refusals.json` are what has to be known where no vLLM is installed, and what vLLM checks only once it loads
weights or answers: `lint --engine` asks vLLM itself for the rest. A row names its places in vLLM's packages, which
`tests/realvllm/limits.py` looks up where a vLLM is installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from breakeven.methods import LOOKUP_METHODS, method_of
from breakeven.serving.command_line import SPECULATIVE_CONFIG, GivenFlag, cut, flag_number
from breakeven.serving.dynamic_speculation import KEY as SCHEDULE_KEY
from breakeven.serving.vllm_versions import Known, Span, VllmVersion, known

_HEADLESS = "--headless"
# A first rank without the flag above means the hybrid balancer.
_OWN_SERVER = {
    "--data-parallel-hybrid-lb",
    "--data-parallel-external-lb",
    "--data-parallel-multi-port-external-lb",
    "--data-parallel-rank",
    "--data-parallel-start-rank",
}
TRANSFER_FLAG = "--kv-transfer-config"
# Connectors that move an engine's own caches to memory or disk.
_OFFLOADING = ("LMCacheConnectorV1", "LMCacheMPConnector", "OffloadingConnector")
_LONGEST_NUMBER = 12
_DRAFTER_CONTEXT = "max_model_len"


@dataclass(frozen=True, slots=True)
class Limit:
    """A row: settings that vLLM refuses, or with which it does something else than asked. Every condition that is given must hold.

    Attributes:
        what: the settings, in words.
        say: the line for a person.
        sources: words in vLLM's package, by file; versions put them in different places.
        versions: that have it.
        flag: that must be given. above: its number must be. contains: text of any flag.
        methods: of which one must run; a method that is not known may be any of them.
        key: of the speculative configuration that must be true, or a whole number. at_most: of that number. beside: key that must be
            true as well. lacks: key that must be missing.
        context: whether the drafter's context is `longer` or `shorter` than the target's context.
    """

    what: str
    say: str
    sources: Mapping[str, tuple[str, ...]]
    versions: Span = field(default_factory=lambda: Span(None, None))
    flag: str = ""
    above: int | None = None
    contains: str = ""
    methods: tuple[str, ...] = ()
    key: str = ""
    at_most: int | None = None
    beside: str = ""
    lacks: str = ""
    context: str = ""

    def line(self, words: Sequence[str], config: Mapping[str, Any] | None) -> str | None:
        """The line if the settings are these; None if not."""
        given, flag = config or {}, self._flag(words)
        method = method_of(given)
        drafter, target = _contexts(words, given)
        if not (
            (flag or not (self.flag or self.contains))
            and (method in self.methods or not self.methods or (config is None and not self.key))
            and (self._holds(given) or not self.key)
            and self.context in {"", _compared(drafter, target)}
        ):
            return None
        return self.say.format(
            flag=flag,
            method=method or " or ".join(self.methods),
            key=self.key,
            value=given.get(self.key),
            context=_said_context(drafter),
            target=target,
        )

    def _holds(self, config: Mapping[str, Any]) -> bool:
        """Whether the speculative configuration says what the row is about."""
        value = config.get(self.key)
        if self.at_most is None and not self.lacks:
            return value is True and (not self.beside or config.get(self.beside) is True)
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        return value <= self.at_most if self.at_most is not None else not config.get(self.lacks)

    def _flag(self, words: Sequence[str]) -> str:
        """The flag as the command line has it; empty if it has none, or one with a number that is small."""
        given = [one for one in cut(words) if one.name]
        if self.contains:
            return next((said for one in given if self.contains in (said := " ".join(one.items))), "")
        name = next((one.items[0].partition("=")[0] for one in given if one.name == self.flag), "")
        if self.above is None or not name:
            return name
        number = flag_number(words, self.flag) or 0
        return f"{name} {number}" if number > self.above else ""


@cache
def limits() -> tuple[Limit, ...]:
    """The rows."""
    rows = json.loads(
        files("breakeven.serving").joinpath("engine_refusals.json").read_text(encoding="utf-8")
    )["rows"]
    tuples: list[dict[str, Any]] = [
        {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
        for row in rows
    ]
    return tuple(Limit(**row | {"versions": Span.of(row.get("versions", (None, None)))}) for row in tuples)


def hindrances(
    words: Sequence[str], config: Mapping[str, Any] | None = None, version: VllmVersion | None = None
) -> list[str]:
    """A line for each, with what to change."""
    found = [
        line
        for limit in limits()
        if (version is None or limit.versions.holds(version))
        and (line := limit.line(words, config)) is not None
    ]
    if "vllm.entrypoints.api_server" in words:
        found.append(
            "vllm.entrypoints.api_server: vLLM's server for demonstrations has no metrics page, so that nothing can be "
            "measured or decided; use vllm serve, or vllm.entrypoints.openai.api_server"
        )
    if (flag := _handing_on(words)) is not None:
        found.append(
            f"{flag.items[0].partition('=')[0]}: the operator decides about no engine that hands KV caches on or takes them (TargetRefused)"
        )
    return found


def arm_hindrances(words: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """Lines about settings with which vLLM does not start an arm, whatever its version."""
    return [line for limit in limits() if limit.key and (line := limit.line(words, config)) is not None]


def unknown_words(
    words: Sequence[str], config: Mapping[str, Any] | None, version: VllmVersion | None
) -> list[str]:
    """Words about speculation that the image's version does not know, each as a line with the versions that do.

    Of a version that was not read nothing is said.
    """
    table = known()
    found: list[str] = []
    if version is not None and not table.oldest <= version <= table.newest:
        return found
    if version is not None:
        found += [
            f"{flag.items[0].partition('=')[0]}: {_since(table.flags[flag.head], version)}"
            for flag in cut(words)
            if flag.head in table.flags and not table.flags[flag.head].holds(version)
        ]
    if config is None:
        return found
    for key, spans in (("method", table.methods), ("rejection_sample_method", table.verification)):
        word = config.get(key)
        if isinstance(word, str) and word not in spans and key == "method":
            found.append(f"{key} {word}: {_never(table)}")
        elif (
            version is not None and isinstance(word, str) and word in spans and not spans[word].holds(version)
        ):
            found.append(f"{key} {word}: {_since(spans[word], version)}")
    for key in config:
        if key not in table.keys:
            found.append(f"{key} of {SPECULATIVE_CONFIG}: {_never(table)}")
        elif version is not None and key != SCHEDULE_KEY and not table.keys[key].holds(version):
            found.append(f"{key} of {SPECULATIVE_CONFIG}: {_since(table.keys[key], version)}")
    return found


def _never(table: Known) -> str:
    return f"no vLLM from {table.oldest} to {table.newest} knows it, and none of them starts"


def _since(span: Span, version: VllmVersion) -> str:
    if span.first is not None and version < span.first:
        return f"vLLM {version} does not know it ({span.first} and newer does), and does not start"
    return f"vLLM {version} does not know it any more ({span.last} was the last), and does not start"


def hands_caches_on(words: Sequence[str]) -> bool:
    """Whether an engine hands KV caches to others or takes theirs: prefill or decode, not an offload of its own."""
    return _handing_on(words) is not None


def _handing_on(words: Sequence[str]) -> GivenFlag | None:
    flags = [flag for flag in cut(words) if flag.name == TRANSFER_FLAG]
    return next((flag for flag in flags if not _keeps_its_caches(flag)), None)


def serves_for_itself(words: Sequence[str]) -> str | None:
    """The flag by which a pod of a data-parallel group has an API server of its own; None if it has none, or shares one."""
    names = [flag.name for flag in cut(words)]
    return None if _HEADLESS in names else next((name for name in names if name in _OWN_SERVER), None)


def _keeps_its_caches(flag: GivenFlag) -> bool:
    try:
        said = json.loads(flag.values[0]) if flag.values and not flag.path else None
    except ValueError:
        return False
    if not isinstance(said, dict):
        return False
    several: list[object] = [said]
    if said.get("kv_connector") == "MultiConnector" and said.get("kv_role") == "kv_both":
        extra = said.get("kv_connector_extra_config")
        found = extra.get("connectors") if isinstance(extra, dict) else None
        several = found if isinstance(found, list) and found else several
    return all(
        isinstance(one, dict)
        and one.get("kv_connector") in _OFFLOADING
        and one.get("kv_role", "kv_both") == "kv_both"
        for one in several
    )


def unknown_context(words: Sequence[str], config: Mapping[str, Any] | None) -> str | None:
    """A line about a drafter's context that cannot be compared; None if there is nothing to compare, or both are known."""
    drafter, target = _contexts(words, config or {})
    if drafter is None or target is not None:
        return None
    return (
        f"{_said_context(drafter)}: no --max-model-len is given here, so the target's context is that of its model, which "
        "lint does not see; if that is longer, see to it that requests stay below"
    )


def _contexts(words: Sequence[str], config: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The contexts that are said of drafter and target, in tokens; None if none is said, or the engine chooses it."""
    drafter = config.get(_DRAFTER_CONTEXT)
    if isinstance(drafter, str) and drafter.isdecimal() and len(drafter) < _LONGEST_NUMBER:
        drafter = int(drafter)
    named = isinstance(drafter, int) and not isinstance(drafter, bool) and drafter > 0
    # A method without a drafter looks its drafts up, however long the request is.
    if not named or method_of(config) in LOOKUP_METHODS:
        return None, None
    return drafter, flag_number(words, "--max-model-len") or None


def _compared(drafter: int | None, target: int | None) -> str:
    if drafter is None or target is None or drafter == target:
        return "not comparable"
    return "longer" if drafter > target else "shorter"


def _said_context(drafter: int | None) -> str:
    return f"{_DRAFTER_CONTEXT} {drafter} of {SPECULATIVE_CONFIG}"
