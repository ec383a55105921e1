"""Facts of one engine as a trial measured them, and the report of two engines compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from breakeven.answering.answer import JudgedSet
from breakeven.points.point import Point


class UpgradeWord(StrEnum):
    """The outcome of an upgrade, or of one thing that was compared; the gravest stands first."""

    DOES_NOT_START = "DoesNotStart"
    REFUSED = "Refused"
    ANSWERS_DIFFER = "AnswersDiffer"
    CACHE_LOST = "CacheLost"
    ACCEPTANCE_LOST = "AcceptanceLost"
    SLOWER = "Slower"
    UNDECIDED = "Undecided"
    FASTER = "Faster"
    SAME = "Same"

    @property
    def status(self) -> int:
        """The command's exit status: 0 if nothing is lost, 1 for a loss, 2 if undecided."""
        if self in {UpgradeWord.SAME, UpgradeWord.FASTER}:
            return 0
        return 2 if self is UpgradeWord.UNDECIDED else 1


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """Facts of one engine; what was not measured is empty or None.

    Attributes:
        windows: at each load, with the number of the pair as `replicate`: both engines had the same prompts and arrivals in it.
        prefix_hits: share of prompt tokens found in the prefix cache, by round; prompts of one round begin alike.
        answers: judged by the other engine.
        own: the same answers, judged by the engine itself.
        accepted, refused: names of the service's fields that were tried, and prompts of a length that only one engine takes.
        start_s: from the start of the process to the first answer.
        kv_tokens: tokens of context that fit in the KV cache.
        errors: how often each error ended a request of the load.
        lacking_s: seconds by which the time left for windows was too short for the first pairs; None if it was long enough.
        failure: why the engine does not answer, in one line; None if it does.
    """

    version: str | None = None
    windows: tuple[Point, ...] = ()
    prefix_hits: tuple[float, ...] = ()
    answers: JudgedSet | None = None
    own: JudgedSet | None = None
    accepted: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    start_s: float | None = None
    kv_tokens: int | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    lacking_s: float | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class UpgradeFinding:
    """One thing that was compared.

    Attributes:
        figure: its name with its unit, such as `tpot_s at 8 clients`.
        before, after: of the two engines; None if not measured.
        ratio: `after` over `before` from pairs of windows; None if not known.
        interval: of the ratio, 90 %; a word of loss asks for more.
        word: None for what is only shown.
        sentence: without anything of a prompt or an answer.
    """

    figure: str
    before: float | None
    after: float | None
    ratio: float | None
    interval: tuple[float, float] | None
    word: UpgradeWord | None
    sentence: str


@dataclass(frozen=True, slots=True)
class UpgradeReport:
    """The word for an upgrade.

    Attributes:
        needs: what a decision would take; None unless undecided.
        arm: name of the arm that both engines run.
        versions: as the engines state them, by `before` and `after`.
    """

    word: UpgradeWord
    findings: tuple[UpgradeFinding, ...] = ()
    needs: str | None = None
    arm: str | None = None
    versions: Mapping[str, str | None] = field(default_factory=dict)
