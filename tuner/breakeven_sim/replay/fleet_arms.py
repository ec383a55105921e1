"""Arms of a replayed fleet: with an engine's costs, or with the laws of a fitted profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.planning.draft_schedule import schedule
from breakeven.profile import Conditions, Profile
from breakeven.tiers import Schedule
from breakeven_sim.engine.configuration import DraftLengths, EngineConfig, LawClock, engine_config
from breakeven_sim.engine.costs import EngineCosts, Text
from breakeven_sim.engine.drafting import TextSource, mean_tokens_per_step
from breakeven_sim.replay.fleet import Texts
from breakeven_sim.replay.recorded_texts import recorded_for

_UNLIMITED = 10**9
_SCHEDULED_BATCHES = 256


@dataclass(slots=True)
class CostArms:
    """Arms of an engine with given costs.

    Attributes:
        costs: costs of the engine.
        seed: of drawn texts.
        recorded: recorded texts per method, in place of drawn ones.
        alpha: i.i.d. acceptance in place of the costs' texts.
        schedules: schedules by the arm that stands for them.
    """

    costs: EngineCosts
    seed: int = 0
    recorded: Mapping[str, list[list[int]]] | None = None
    alpha: float | None = None
    schedules: dict[Arm, Schedule] = field(default_factory=dict)
    _configs: dict[Arm, EngineConfig] = field(default_factory=dict)
    _texts: dict[str, Texts] = field(default_factory=dict)

    def config(self, arm: Arm) -> EngineConfig:
        """The engine under this arm."""
        if arm not in self._configs:
            tiers = self.schedules[arm].tiers if arm in self.schedules else ()
            method = None if arm == NO_SPECULATION else arm.method
            drafts = DraftLengths(arm.k, tiers, adaptive=arm.adaptive)
            self._configs[arm] = engine_config(self.costs, method, drafts)
        return self._configs[arm]

    def texts(self, arm: Arm) -> Texts | None:
        """Recorded, imposed or drawn texts."""
        if arm == NO_SPECULATION:
            return None
        if arm.method not in self._texts:
            text = self.text(arm.method)
            self._texts[arm.method] = (
                recorded_for(self.recorded, arm.method, text.hard_match, self.seed)
                if self.recorded is not None
                else TextSource(text, self.seed)
            )
        return self._texts[arm.method]

    def text(self, method: str) -> Text:
        """The mixture of a method."""
        if self.alpha is None:
            return self.costs.method(method).text
        return Text(easy_rate=self.alpha, hard_rate=self.alpha, easy_share=1.0)

    def distinct_arms(self, k: int) -> list[Arm]:
        """One arm per method whose costs differ from all before it."""
        seen: list[object] = []
        arms = []
        for name, method in self.costs.methods.items():
            if method not in seen and ":" not in name:
                seen.append(method)
                arms.append(Arm(name, k))
        return arms

    def add_schedule(self, method: str, draft_lengths: Sequence[int], context_tokens: float) -> Arm:
        """Make the schedule with the highest goodput per batch size and return the arm that stands for it.

        Args:
            method: what drafts.
            draft_lengths: to choose from; 0 is added.
            context_tokens: mean context of a request.
        """
        lengths = sorted({0, *draft_lengths})
        text = self.text(method)
        e = np.array([mean_tokens_per_step(text, k) for k in lengths])
        drafting = text.easy_share * text.easy_match + (1 - text.easy_share) * text.hard_match
        times = engine_config(self.costs, method, DraftLengths(lengths[-1])).times
        step_s = [
            [times.seconds(k, b, round(b * k * drafting), round(b * context_tokens), 0) for k in lengths]
            for b in range(1, _SCHEDULED_BATCHES + 1)
        ]
        arm = Arm(method, lengths[-1], scheduled=True)
        self.schedules[arm] = schedule(step_s, e, lengths)
        return arm


@dataclass(slots=True)
class LawArms:
    """Arms of a fitted profile: each replica follows its arm's law exactly, in proportion to a request's tokens.

    Attributes:
        profile: the fits.
        tokens: output tokens per request to which the laws belong.
        tokens_per_step: E in place of the measured one, per speculative arm; absent: as measured.
        schedules: schedules by the arm that stands for them.
    """

    profile: Profile
    tokens: float
    tokens_per_step: Mapping[Arm, float] = field(default_factory=dict)
    schedules: dict[Arm, Schedule] = field(default_factory=dict)
    _tiers: dict[Arm, dict[int, tuple[float, float]]] = field(default_factory=dict)
    _laws: dict[Arm, tuple[float, float]] = field(default_factory=dict)

    def law(self, arm: Arm) -> tuple[float, float]:
        """C1 and C2 (s) of an arm.

        Raises:
            BreakevenError: the profile holds no law for it.
        """
        if arm not in self._laws:
            line = self.profile.curve(arm, Conditions(tokens_per_step=self.tokens_per_step.get(arm))).line
            self._laws[arm] = line.c1_s, line.c2_s
        return self._laws[arm]

    def config(self, arm: Arm) -> EngineConfig:
        """An engine without limits that follows the law."""
        if arm in self.schedules:
            drafts = DraftLengths(arm.k, self.schedules[arm].tiers)
            clock = LawClock(self._tiers[arm], self.tokens)
        else:
            drafts = DraftLengths(arm.k)
            clock = LawClock({arm.k: self.law(arm)}, self.tokens)
        return EngineConfig(clock, drafts, _UNLIMITED, _UNLIMITED, _UNLIMITED)

    def texts(self, arm: Arm) -> Texts | None:  # noqa: ARG002  # the protocol's
        """Acceptance is part of the law."""
        return None

    def schedule_of(self, family: str, zero_drafts_overhead: float) -> tuple[Arm, Schedule]:
        """The schedule of a drafter that the profile holds, else the best one of the draft lengths that were measured.

        Args:
            family: method or candidate.
            zero_drafts_overhead: by how much drafting nothing inside the engine is slower than no speculation.

        Raises:
            InputError: the profile holds no law of the drafter.
        """
        fits = [
            fit
            for fit in self.profile.arms
            if fit.arm.family == family and fit.measurements and not fit.arm.adaptive
        ]
        for fit in fits:
            if fit.schedule is not None:
                return fit.arm, Schedule.parse(fit.schedule, fit.arm.name)
        if not fits:
            raise InputError(f"schedule of {family}", "no measured arm", "a method of the profile")
        measured = {fit.k: fit.arm for fit in sorted(fits, key=lambda fit: fit.k)}
        laws = [
            self._tier(0, NO_SPECULATION, zero_drafts_overhead),
            *(self.law(arm) for arm in measured.values()),
        ]
        others = np.arange(_SCHEDULED_BATCHES)
        # Equal requests: the time of a whole request stands for the time of a step, and E for the same one output.
        step_s = np.stack([c1_s + c2_s * others for c1_s, c2_s in laws], axis=1)
        table = schedule(step_s, np.ones(len(laws)), [0, *measured])
        return replace(measured[max(measured)], scheduled=True), table

    def add_schedule(self, arm: Arm, table: Schedule, zero_drafts_overhead: float) -> None:
        """Let an arm that stands for a schedule be run, in the laws of its tiers.

        Raises:
            BreakevenError: the profile holds no law for one of them.
        """
        self.schedules[arm] = table
        self._tiers[arm] = {k: self._tier(k, arm, zero_drafts_overhead) for _, k in table.tiers}

    def last_tier(self, arm: Arm) -> tuple[float, float]:
        """C1 and C2 (s) in the largest batches of a schedule that was added."""
        return self._tiers[arm][self.schedules[arm].last]

    def _tier(self, k: int, of: Arm, zero_drafts_overhead: float) -> tuple[float, float]:
        c1_s, c2_s = self.law(replace(of, k=k, scheduled=False) if k else NO_SPECULATION)
        slower = 1.0 if k else 1.0 + zero_drafts_overhead
        return c1_s * slower, c2_s * slower
