"""The engines on which laws are judged: eight kinds, each once to choose rules on and once kept apart."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.tiers import Schedule
from validation.second_engine import Asking, BatchingMachine
from validation.step_clocks import (
    CoreClock,
    DenseClock,
    Drafting,
    ExpertClock,
    KneeClock,
    RegimeClock,
    RooflineClock,
    SimulatedClock,
)


class Half(StrEnum):
    """The two uses of engines: rules are chosen on one half and judged on the other."""

    CHOSEN = "chosen on"
    APART = "kept apart"


_LATE = Schedule(((1, 7), (9, 2), (33, 0)))
_EARLY = Schedule(((1, 5), (5, 2), (17, 0)))
_FEW_CORES = (1, 2, 4, 8, 12, 16)


@dataclass(frozen=True, slots=True)
class JudgedEngine:
    """An engine and its workload.

    Attributes:
        kind: which of the eight.
        half: whether rules are chosen on it.
        machine: the engine.
        asking: what requests ask for while it is calibrated.
        method: of its drafter.
        clients: closed loops of a calibration, ascending from 1.
        schedule: one that is not measured.
    """

    kind: str
    half: Half
    machine: BatchingMachine
    asking: Asking
    method: str = "eagle3"
    clients: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    schedule: Schedule = _LATE

    def arm(self, k: int) -> Arm:
        """Its drafter at a draft length; 0 is no speculation."""
        return Arm(self.method, k) if k else NO_SPECULATION


ENGINES = (
    JudgedEngine(
        "dense", Half.CHOSEN,
        BatchingMachine(DenseClock(0.0010, 0.0060, 6.0e-5, 5.0e-8, Drafting(1.4e-3, 6e-4, 6e-6)), 128, 4096),
        Asking(512, 256, acceptance=0.55),
    ),
    JudgedEngine(
        "cpu", Half.CHOSEN,
        BatchingMachine(CoreClock(0.030, 0.0060, 8, 1.5, 0.0015, 2.0e-6, Drafting(0.002, 0.003, 4e-4)), 32, 2048),
        Asking(96, 64, acceptance=0.75), clients=_FEW_CORES, schedule=_EARLY,
    ),
    JudgedEngine(
        "flat", Half.CHOSEN,
        BatchingMachine(DenseClock(0.0012, 0.0090, 7.0e-5, 6.0e-8, Drafting(0.0030), (0.5, 1.5)), 128, 4096),
        Asking(400, 300, output_cv=0.8, acceptance=0.5), method="dflash",
    ),
    JudgedEngine(
        "prompt-heavy", Half.CHOSEN,
        BatchingMachine(DenseClock(0.0010, 0.0060, 5.0e-5, 5.0e-8, Drafting(6e-4, 8e-4, 4e-6)), 128, 8192),
        Asking(3000, 120, output_cv=0.8, acceptance=0.55),
    ),
    JudgedEngine(
        "roofline", Half.CHOSEN,
        BatchingMachine(RooflineClock(0.0080, 7.0e-5, 4.0e-8, Drafting(1.2e-3, 5e-4, 2e-6)), 128, 4096),
        Asking(512, 256, acceptance=0.45),
    ),
    JudgedEngine(
        "experts", Half.CHOSEN,
        BatchingMachine(ExpertClock(0.0030, 0.0160, 64, 6, 0.4, 3.0e-5, 6.0e-8, Drafting(4e-4, 6e-4, 3e-6)), 128, 4096),
        Asking(512, 256, acceptance=0.45),
    ),
    JudgedEngine(
        "knee", Half.CHOSEN,
        BatchingMachine(KneeClock(0.010, 1.0e-4, 32, 4.0, 0.4, 5.0e-5, 3.0e-8, Drafting(1.2e-3, 8e-4, 5e-6)), 128, 4096),
        Asking(512, 256, acceptance=0.5),
    ),
    JudgedEngine(
        "two regimes", Half.CHOSEN,
        BatchingMachine(RegimeClock(0.0070, 1.5e-5, 64, 0.0025, 6.0e-5, 4.0e-8, Drafting(5e-4, 7e-4, 4e-6)), 128, 4096),
        Asking(512, 256, acceptance=0.5),
    ),
    JudgedEngine(
        "dense", Half.APART,
        BatchingMachine(DenseClock(0.0006, 0.0090, 6.0e-5, 9.0e-8, Drafting(1.0e-3, 6e-4, 8e-6), (0.7, 1.2)), 192, 8192),
        Asking(700, 180, 0.8, 1.3, 0.5, 5.0),
    ),
    JudgedEngine(
        "cpu", Half.APART,
        BatchingMachine(CoreClock(0.045, 0.0045, 8, 1.9, 0.0010, 3.0e-6, Drafting(0.001, 0.004, 2e-4)), 24, 2048),
        Asking(140, 48, 0.4, 0.7, 0.66, 12.0), clients=_FEW_CORES, schedule=_EARLY,
    ),
    JudgedEngine(
        "flat", Half.APART,
        BatchingMachine(DenseClock(0.0020, 0.0060, 7.0e-5, 4.0e-8, Drafting(0.0045, 0.0, 3e-6), (0.4, 1.8)), 128, 4096),
        Asking(300, 400, 0.6, 1.2, 0.5, 6.0), method="dflash",
    ),
    JudgedEngine(
        "prompt-heavy", Half.APART,
        BatchingMachine(DenseClock(0.0008, 0.0080, 6.0e-5, 8.0e-8, Drafting(5e-4, 6e-4, 4e-6), (0.7, 1.25)), 96, 4096),
        Asking(2200, 90, 0.7, 1.0, 0.52, 8.0),
    ),
    JudgedEngine(
        "roofline", Half.APART,
        BatchingMachine(RooflineClock(0.0120, 7.0e-5, 7.0e-8, Drafting(1.5e-3, 7e-4, 5e-6)), 192, 8192),
        Asking(350, 350, 0.5, 1.4, 0.48, 6.0),
    ),
    JudgedEngine(
        "experts", Half.APART,
        BatchingMachine(ExpertClock(0.0045, 0.0120, 128, 8, 0.7, 4.0e-5, 4.0e-8, Drafting(6e-4, 5e-4, 5e-6)), 128, 4096),
        Asking(600, 220, 0.6, 0.9, 0.48, 10.0),
    ),
    JudgedEngine(
        "knee", Half.APART,
        BatchingMachine(KneeClock(0.014, 1.6e-4, 24, 3.0, 0.45, 6.0e-5, 4.0e-8, Drafting(8e-4, 6e-4, 3e-6)), 96, 4096),
        Asking(400, 300, 0.5, 1.2, 0.48, 8.0),
    ),
    JudgedEngine(
        "two regimes", Half.APART,
        BatchingMachine(RegimeClock(0.0095, 2.5e-5, 128, 0.0040, 5.0e-5, 6.0e-8, Drafting(7e-4, 5e-4, 5e-6)), 128, 4096),
        Asking(450, 240, 0.7, 1.1, 0.5, 6.0),
    ),
)  # fmt: skip

TWO_WORKLOADS = (
    JudgedEngine(
        "own H100", Half.CHOSEN,
        BatchingMachine(SimulatedClock("NVIDIA-H100-80GB-HBM3", "eagle3"), 256, 8192),
        Asking(512, 256, 0.3, 0.5),
    ),
    JudgedEngine(
        "dense, two files", Half.APART,
        BatchingMachine(
            DenseClock(0.0008, 0.0075, 5.0e-5, 6.0e-8, Drafting(1.2e-3, 5e-4, 5e-6), (0.65, 1.25)), 160, 8192
        ),
        Asking(512, 256, 0.3, 0.5),
    ),
)  # fmt: skip
"""Engines that are calibrated by files of two workloads, as users have them."""
