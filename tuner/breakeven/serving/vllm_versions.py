"""What the vLLM of an image knows, refuses, and leaves aside while it speculates.

The table `vllm_speculation.json` was read from vLLM's own packages by `tests/realvllm/speculation.py`. The rows of
`engine_refusals.json` are what has to be known where no vLLM is installed, and what vLLM checks only once it loads weights or
answers: `lint --engine` asks vLLM itself for the rest. A row names its places in vLLM's packages, which
`tests/realvllm/limits.py` looks up where a vLLM is installed. What is said of a draft length per batch size was read in vLLM
0.33's source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from breakeven.arm import Arm
from breakeven.errors import InputError
from breakeven.intake import shipped_json
from breakeven.methods import (
    ADAPTIVE_KEY,
    LOOKUP_METHODS,
    PROFILED_CONTEXT,
    PROFILED_CONTEXT_TOKENS,
    SCHEDULED_METHODS,
    draft_length_of,
    method_of,
)
from breakeven.serving.command_line import SPECULATIVE_CONFIG, GivenFlag, cut, flag_number
from breakeven.serving.findings import said
from breakeven.tiers import Schedule

_TAG = re.compile(r"v?([01])\.(\d{1,3})(?![\d])(?:\.\d+)?(?:\.?(?:post|rc|dev)\d+)?(?:[-_.+].*)?")
# Images that are called after vLLM and count versions of their own.
_OTHERS = re.compile(r"(?:^|/)(?:lmcache|ai-dynamo|opea)/|vllm-(?:runtime|gaudi)|scaler-vllm")
_INSIDE = re.compile(r"(?:^|[-_.])vllm[-_]?v?([01])\.(\d{1,3})(?!\d)")


class VllmVersion(NamedTuple):
    """Major and minor version."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def of(cls, text: str) -> VllmVersion:
        """The version that `0.32` or `0.32.1` says."""
        major, minor = text.split(".")[:2]
        return cls(int(major), int(minor))


@dataclass(frozen=True, slots=True)
class Span:
    """The versions that know a word; an end is None if the oldest or the newest version of the table knows it too."""

    first: VllmVersion | None
    last: VllmVersion | None

    @classmethod
    def of(cls, ends: Iterable[str | None]) -> Span:
        """The span between two versions in words; None where it is open."""
        return cls(*(VllmVersion.of(end) if end is not None else None for end in ends))

    def holds(self, version: VllmVersion) -> bool:
        """Whether a version knows the word."""
        return (self.first is None or version >= self.first) and (self.last is None or version <= self.last)


SHUTDOWN_TIMEOUT = VllmVersion(0, 18)
"""The first version with `--shutdown-timeout`."""
OLDEST = VllmVersion(0, 14)
"""The oldest supported version: older ones answer some requests otherwise than asked while they speculate."""


def version_of(image: str) -> VllmVersion | None:
    """The version of vLLM that an image's tag names; None if it names none.

    A tag counts only of an image that is called after vLLM, because others have versions of their own. A calendar
    (`25.09-py3`, `2025-05-27-v1`) is no vLLM version.
    """
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    if inside := _INSIDE.search(tag):
        return VllmVersion(int(inside[1]), int(inside[2]))
    own = "vllm" in name.lower() and not _OTHERS.search(image.partition("@")[0].lower())
    found = _TAG.fullmatch(tag) if own else None
    return VllmVersion(int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True, slots=True)
class Known:
    """The table: versions that were read, and the words of `--speculative-config` and flags that each knows."""

    oldest: VllmVersion
    newest: VllmVersion
    methods: dict[str, Span]
    keys: dict[str, Span]
    flags: dict[str, Span]
    verification: dict[str, Span]


@cache
def known() -> Known:
    """The table."""
    table = shipped_json("vllm_speculation.json")
    read = [VllmVersion.of(version) for version in table["read"]]
    return Known(
        min(read),
        max(read),
        *(
            {word: Span.of(ends) for word, ends in table[part].items()}
            for part in ("methods", "keys", "flags", "rejection_sample_method")
        ),
    )


FILLED_SINCE = {
    "ngram": VllmVersion(0, 32),
    "ngram_gpu": VllmVersion(0, 32),
    "suffix": VllmVersion(0, 34),
}
"""First versions whose model runner V2 looks drafts up on the GPU, and fills up what it does not find.

Before, a step that finds nothing drafts nothing, and vLLM counts no draft.
"""


def acceptance_differs(method: str, one: str | None, other: str | None) -> str | None:
    """A sentence if two images, or versions, count the drafts of a method differently; None if not, or if one is not known."""
    since = FILLED_SINCE.get(method)
    known_as = [
        (text, version_of(text) or version_of(f"vllm:{text}")) for text in (one, other) if text is not None
    ]
    before = {version < since for _, version in known_as if since is not None and version is not None}
    if len(before) < 2:
        return None
    named = " and ".join(text for text, _ in known_as)
    return (
        f"E and acceptance of {method} are not compared between {named}: vLLM before {since} counts no draft for a step that finds "
        f"nothing, {since} and newer always drafts the whole length"
    )


SCHEDULE_KEY = "num_speculative_tokens_per_batch_size"
"""The key of `--speculative-config`: a list of [first batch size, last batch size, draft length]."""


def schedule_in(config: Mapping[str, Any]) -> Schedule | None:
    """The draft lengths that vLLM makes of a configuration's table; None if there is no table.

    A draft length above num_speculative_tokens is cut to it, as in vLLM.

    Raises:
        InputError: a table that vLLM refuses.
    """
    given, where = config.get(SCHEDULE_KEY), SPECULATIVE_CONFIG
    if given is None:
        return None
    if method_of(config) == "suffix":
        raise InputError(where, f"{SCHEDULE_KEY} with method suffix", "a method with a settable draft length")
    if not isinstance(given, list) or not given:
        raise InputError(where, f"{SCHEDULE_KEY} is {given!r}", "a list of [first, last, k]")
    longest = draft_length_of(config)
    ranges = []
    for row in given:
        if (
            not isinstance(row, list)
            or len(row) != 3
            or any(isinstance(value, bool) or not isinstance(value, int) for value in row)
        ):
            raise InputError(where, f"{SCHEDULE_KEY} holds {row!r}", "[first, last, k], three integers")
        first, last, k = row
        ranges.append((first, last, min(k, longest) if isinstance(longest, int) else k))
    return Schedule.of_ranges(ranges, f"{where}: {SCHEDULE_KEY}")


def schedule_doubts(config: Mapping[str, Any], words: Sequence[str], image: str = "") -> Iterator[str]:
    """Reasons why an engine of this image would not start with a configuration's table, or would not run it."""
    try:
        table = schedule_in(config)
    except InputError as error:
        yield f"{error}: vLLM refuses to start"
        return
    if table is None:
        return
    longest = draft_length_of(config)
    asked = max(k for _, _, k in config[SCHEDULE_KEY])
    if isinstance(longest, int) and asked > longest:
        yield f"{SCHEDULE_KEY} asks for {asked} drafts, num_speculative_tokens reserves {longest}: vLLM drafts {longest} there"
    if (flag_number(words, "--data-parallel-size") or 1) > 1:
        yield said("parallel schedule", key=SCHEDULE_KEY)
    method = method_of(config)
    if method is not None and method not in SCHEDULED_METHODS:
        known_ones = ", ".join(sorted(SCHEDULED_METHODS))
        yield said("schedule of a method", key=SCHEDULE_KEY, method=method, known=known_ones)
    version, first = version_of(image), known().keys[SCHEDULE_KEY].first
    if version is not None and first is not None and version < first:
        yield f"{SCHEDULE_KEY} with image {image}: vLLM knows it from {first} on, {version} refuses to start"


_STALE = 2.0
"""Ratio of the live contexts to the profile's contexts from which adaptive verification's table of costs is stale."""


def profiled_context(config: Mapping[str, Any] | None, environment: Mapping[str, str | None]) -> int | None:
    """Tokens of context with which adaptive verification's table is made; None without it, or if the variable's value is not known."""
    if (config or {}).get(ADAPTIVE_KEY) is not True:
        return None
    given = environment.get(PROFILED_CONTEXT, str(PROFILED_CONTEXT_TOKENS))
    return (
        int(given)
        if given and given.isascii() and given.isdigit() and len(given) <= _LONGEST_NUMBER
        else None
    )


def stale_table(profiled: int | None, prompt_tokens: float | None, output_tokens: float | None) -> str | None:
    """What to set if live contexts differ from adaptive verification's table of costs; None if they are not, or not known."""
    if not profiled or not prompt_tokens or not output_tokens:
        return None
    live = prompt_tokens + 0.5 * output_tokens
    if 1.0 / _STALE < live / profiled < _STALE:
        return None
    return said("stale table", profiled=profiled, live=live, variable=PROFILED_CONTEXT)


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
        flag: that must be given. above: its number must be. contains: pattern in any flag.
        methods: of which one must run; a method that is not known may be any of them.
        key: of the speculative configuration that must be given and not false, or a whole number. at_most: of that number. beside: key that must be
            true as well. lacks: key that must be missing.
        context: whether the drafter's context is `longer` or `shorter` than the target's context.
        starts: whether vLLM starts all the same, so that no arm is refused for it.
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
    starts: bool = False

    def concerns(self, version: VllmVersion | None) -> bool:
        """Whether a version has it; an unknown one is taken for the newest, so that an arm that it may take is tried."""
        return self.versions.last is None if version is None else self.versions.holds(version)

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
            given = value is not None and value is not False
            return given and (not self.beside or config.get(self.beside) is True)
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        return value <= self.at_most if self.at_most is not None else not config.get(self.lacks)

    def _flag(self, words: Sequence[str]) -> str:
        """The flag as the command line has it; empty if it has none, or one with a number that is small."""
        given = [one for one in cut(words) if one.name]
        if self.contains:
            return next((text for one in given if re.search(self.contains, text := " ".join(one.items))), "")
        name = next((one.items[0].partition("=")[0] for one in given if one.name == self.flag), "")
        if self.above is None or not name:
            return name
        number = flag_number(words, self.flag) or 0
        return f"{name} {number}" if number > self.above else ""


@cache
def limits() -> tuple[Limit, ...]:
    """The rows."""
    rows = shipped_json("engine_refusals.json")["rows"]
    return tuple(Limit(**row | {"versions": Span.of(row.get("versions", (None, None)))}) for row in rows)


def hindrances(
    words: Sequence[str], config: Mapping[str, Any] | None = None, version: VllmVersion | None = None
) -> list[str]:
    """A line for each, with what to change."""
    found = _lines(limits(), words, config, version)
    if "vllm.entrypoints.api_server" in words:
        found.append(said("demonstration"))
    if (flag := _handing_on(words)) is not None:
        found.append(said("hands on", flag=flag.items[0].partition("=")[0]))
    return found


def arm_hindrances(words: Sequence[str], config: Mapping[str, Any], version: VllmVersion | None) -> list[str]:
    """Lines about settings with which vLLM does not start an arm; of an unknown version, settings that the newest refuses."""
    refusals = [limit for limit in limits() if limit.key and not limit.starts]
    return _lines(refusals, words, config, version)


def _lines(
    rows: Iterable[Limit], words: Sequence[str], config: Mapping[str, Any] | None, version: VllmVersion | None
) -> list[str]:
    lines = (row.line(words, config) for row in rows if row.concerns(version))
    return [line for line in lines if line is not None]


def unknown_words(
    words: Sequence[str], config: Mapping[str, Any] | None, version: VllmVersion | None
) -> list[str]:
    """Words about speculation that the image's version does not know, each as a line with the versions that do.

    Of a version that was not read nothing is said.
    """
    table = known()
    if version is not None and not table.oldest <= version <= table.newest:
        return []
    asked: list[tuple[str, Span | None]] = [
        (flag.items[0].partition("=")[0], table.flags[flag.head])
        for flag in cut(words)
        if flag.head in table.flags
    ]
    method, verification = ((config or {}).get(key) for key in ("method", "rejection_sample_method"))
    if isinstance(method, str):
        asked.append((f"method {method}", table.methods.get(method)))
    if isinstance(verification, str) and verification in table.verification:
        asked.append((f"rejection_sample_method {verification}", table.verification[verification]))
    # Whether a version knows the schedule is said with the doubts about its table.
    asked += [
        (f"{key} of {SPECULATIVE_CONFIG}", table.keys.get(key)) for key in config or () if key != SCHEDULE_KEY
    ]
    return [f"{word}: {why}" for word, span in asked if (why := _unknown(span, version))]


def _unknown(span: Span | None, version: VllmVersion | None) -> str:
    """Why a version does not start with a word that versions of this span know; empty if it does, or is not known."""
    if span is None:
        table = known()
        return f"no vLLM from {table.oldest} to {table.newest} knows it, and none of them starts"
    if version is None or span.holds(version):
        return ""
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
        given = json.loads(flag.values[0]) if flag.values and not flag.path else None
    except ValueError:
        return False
    if not isinstance(given, dict):
        return False
    several: list[object] = [given]
    if given.get("kv_connector") == "MultiConnector" and given.get("kv_role") == "kv_both":
        extra = given.get("kv_connector_extra_config")
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
    return said("unknown context", context=_said_context(drafter))


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


SENTENCE = "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."
"""The engine's own words, with HTTP 400, or as an error in a stream that began with 200."""
LEAST_MIN_P = 1e-5
"""Up to here `min_p` counts as none."""
LAST_WITH_MIN_TOKENS = VllmVersion(0, 16)
"""The last version that refuses `min_tokens` above 1 as well."""


def refused_note(version: VllmVersion | None) -> str:
    """Say which requests a version refuses; None if it is not known."""
    also = version is not None and version <= LAST_WITH_MIN_TOKENS
    fields = "min_p above 0, min_tokens above 1 or" if also else "min_p above 0 or with"
    return said("refused requests", fields=fields)


def check_min_p(min_p: float | None, arm: Arm) -> None:
    """Refuse a sweep whose every request the engine would refuse: the arm speculates, and requests carry `min_p`."""
    if arm.k > 0 and min_p is not None and min_p > LEAST_MIN_P:
        raise InputError(
            f"min_p {min_p:g} with arm {arm}",
            f"an engine that speculates answers HTTP 400: {SENTENCE}",
            "no min_p: the arms must be measured with requests that each of them answers",
        )
