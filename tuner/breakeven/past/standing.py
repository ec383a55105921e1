"""Standing of a workload at this moment: its load on the curves that its own past determined. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.past.past_reading import KnownPast
from breakeven.profile import Conditions
from breakeven.profile.comparisons import Comparison
from breakeven.serving.counted_window import Window

_RECENT = 3
"""Windows within which an arm has run just now."""


class ArmNow(NamedTuple):
    """A speculative arm against no speculation at the present load and lengths."""

    arm: Arm
    against_none: Comparison


@dataclass(frozen=True, slots=True)
class Standing:
    """A moment of a workload.

    Attributes:
        window: the present figures.
        running: the arms that run: two while pods of two arms serve, none if they draft and no arm of the past does.
        predicted_s: latency that the past's law of the one that runs gives at this load; None: it has none.
        arms: speculative arms that ran, against no speculation; empty if the past does not know both.
    """

    window: Window
    running: tuple[Arm, ...]
    predicted_s: float | None
    arms: tuple[ArmNow, ...]

    @property
    def of_running(self) -> ArmNow | None:
        """The comparison to show first: of the running arm, else of the arm that is fastest now."""
        own = next((one for one in self.arms if one.arm in self.running), None)
        return own or max(self.arms, key=lambda one: one.against_none.speedup or 0.0, default=None)


def standing(window: Window, past: KnownPast | None, *, speculating: bool) -> Standing:
    """Put the present figures on a past's curves.

    Args:
        window: the present figures of a pod.
        past: what is known; None: nothing.
        speculating: whether the pods count drafts.
    """
    running = _running(past, speculating=speculating)
    if past is None or past.profile is None or not window.requests:
        return Standing(window, running, None, ())
    profile = past.profile
    known = {fit.arm for fit in profile.arms if fit.believable}
    lengths = past.lengths()
    prompt, output = (
        window.prompt_tokens or lengths.prompt_tokens,
        window.output_tokens or lengths.output_tokens,
    )
    # Figures of pods of two arms are those of neither.
    alone, predicted_s = running[0] if len(running) == 1 else None, None
    if alone is not None and alone in known:
        try:
            predicted_s = profile.predict(
                alone, rps=window.rps, conditions=Conditions(prompt_tokens=prompt, output_tokens=output)
            ).latency_s
        except BreakevenError:
            predicted_s = None
    arms = []
    for arm in sorted(known - {NO_SPECULATION}) if NO_SPECULATION in known else ():
        tokens = window.tokens_per_step if arm == alone and not arm.scheduled else None
        try:
            against = profile.compare(
                arm,
                NO_SPECULATION,
                rps=window.rps,
                conditions=Conditions(tokens_per_step=tokens, prompt_tokens=prompt, output_tokens=output),
            )
        except BreakevenError:
            continue
        arms.append(ArmNow(arm, against))
    return Standing(window, running, predicted_s, tuple(arms))


def _running(past: KnownPast | None, *, speculating: bool) -> tuple[Arm, ...]:
    """The arms that run: no speculation without drafts, else those of the past's last windows."""
    if not speculating:
        return (NO_SPECULATION,)
    arms = [one for one in past.arms if one.points] if past is not None else []
    last_s = max((one.windows[-1].end_s for one in arms if one.kind.k), default=0)
    found = [
        one
        for one in arms
        if past is not None and one.windows[-1].end_s > last_s - _RECENT * past.grid.step_s
    ]
    return tuple(one.points[0].arm for one in found) if last_s else ()
