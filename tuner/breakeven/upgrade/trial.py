"""The trial of an upgrade: two engines that nobody else uses are asked in turns, and their records compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from breakeven.arm import Arm
from breakeven.load_driver.client import Endpoint
from breakeven.load_driver.sent_workload import SentWorkload
from breakeven.points.point import ImposedLoad, LoadMode
from breakeven.upgrade.record import UpgradeReport

LOADS = (ImposedLoad(LoadMode.CLOSED, 1), ImposedLoad(LoadMode.CLOSED, 8))


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """The requests of a trial and its times.

    Attributes:
        arm: that both engines run; None takes whatever they run.
        workload: prompts and lengths; its dataset also gives the prompts whose answers are compared.
        loads: of the windows, a low and a high one.
        max_seconds: for all of the trial after both engines answer; windows are as long as fits.
        start_timeout_s: until an engine must answer.
        start_s: seconds that the engines took to start, before and after; None where the caller does not know.
    """

    arm: Arm | None = None
    workload: SentWorkload = field(default_factory=SentWorkload)
    loads: tuple[ImposedLoad, ...] = LOADS
    max_seconds: float = 900.0
    start_timeout_s: float = 30.0
    start_s: tuple[float | None, float | None] = (None, None)


async def try_upgrade(
    before: Endpoint, after: Endpoint, plan: UpgradePlan, say: Callable[[str], None]
) -> UpgradeReport:
    """Ask both engines and compare them; `say` gets lines of progress without any text of prompts and answers.

    An engine `after` that does not answer is a result (`DoesNotStart`).

    Raises:
        EngineError: the engine `before` does not answer, or the arm is not what it runs.
    """
    raise NotImplementedError
