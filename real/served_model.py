"""Models that a run serves on CPU, with the lengths, loads and times that suit an engine of their speed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.traffic import RequestShape
from real import model


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of a run (s).

    Attributes:
        look_s: between two looks at the cluster.
        block_s, warmup_s: how long a block of a probe sends, and how much of it is not in the mean.
        cycles: how many rounds of four blocks a probe has.
        stay_s: how long an arm that may stay is watched: several windows of the operator.
        choice_s: how long a change of the arm is waited for.
    """

    look_s: float = 1.0
    block_s: float = 16.0
    warmup_s: float = 4.0
    cycles: int = 2
    stay_s: float = 90.0
    choice_s: float = 300.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model and how it is measured.

    Attributes:
        folder: holds `target` and `drafter`.
        speaks: whether it has weights and answers in a language; one of random weights is compared with the simulated engine.
        shape: of the requests of calibration and users.
        max_length: tokens of a request and its answer at most.
        max_batch: requests in a step at most; a calibration measures an arm with so many in flight.
        draft_lengths: of n-gram lookup; with several, a schedule is made of them.
        calibration: `spec.calibration` of the service.
        window_s: over which the operator looks at the load.
        pace: times of the run.
    """

    folder: Path
    speaks: bool
    shape: RequestShape
    max_length: int
    draft_lengths: tuple[int, ...]
    calibration: Mapping[str, Any]
    window_s: int
    max_batch: int = 32
    pace: Pace = Pace()

    @property
    def target(self) -> Path:
        """The model that is served."""
        return self.folder / "target"

    @property
    def drafter(self) -> Path:
        """The model that drafts for it."""
        return self.folder / "drafter"


def random_words(folder: Path) -> ServedModel:
    """The model of random weights, steps of some ten milliseconds; `write_random_words` makes its files."""
    # Times are those of a machine that somebody waits at; loads and lengths are as in production.
    return ServedModel(
        folder,
        speaks=False,
        shape=RequestShape(48, 48),
        max_length=1024,
        # So many drafts as the longer has pay only while few requests are in a step: a schedule is made of that.
        draft_lengths=(3, 8),
        calibration={"loads": 6, "pointSeconds": 15, "warmupSeconds": 3},
        window_s=30,
    )


def language_model(folder: Path) -> ServedModel:
    """SmolLM2, steps of some hundred milliseconds; `smollm2.install` makes its files."""
    return ServedModel(
        folder,
        speaks=True,
        # A point lasts at least four latencies, and one of the drafter takes half a second per token of the answer.
        shape=RequestShape(48, 32),
        max_length=2048,
        draft_lengths=(4,),
        calibration={
            "loads": 4,
            "pointSeconds": 20,
            "warmupSeconds": 5,
            "answers": {"check": "Warn", "outputTokens": 96, "maxSecondsPerArm": 120},
        },
        window_s=60,
        # With 32 in flight the point of a drafter takes six minutes, and the engine has long been saturated.
        max_batch=8,
        pace=Pace(block_s=30.0, warmup_s=8.0, cycles=1, stay_s=120.0, choice_s=420.0),
    )


def write_random_words(served: ServedModel) -> None:
    """Write the files of the model of random weights and of its drafter."""
    for folder, shape in ((served.target, model.TARGET), (served.drafter, model.DRAFTER)):
        model.write(folder, shape, model.prose_words())
