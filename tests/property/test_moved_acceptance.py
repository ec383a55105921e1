"""Laws of carrying acceptance to other draft lengths."""

from functools import cache

import numpy as np
import pytest

from breakeven.laws.mixture import TwoPointMixture, default_decay
from breakeven.laws.moved_acceptance import SeenAt, carried
from breakeven_sim.engine.costs import Text
from breakeven_sim.engine.drafting import TextSource, plan_steps

CHAT = Text(easy_rate=1.0, hard_rate=0.583, easy_share=0.144, depth_decay=0.02)


@cache
def seen(text: Text, k: int, seed: int) -> SeenAt:
    """Acceptance as the engine of the event clock shows it over 300 requests."""
    source = TextSource(text, seed)
    accepted = np.concatenate([plan_steps(source.draw(i, 256), 1, 256, k).accepted for i in range(300)])
    survival = tuple(float(np.mean(accepted >= i)) for i in range(1, k + 1))
    return SeenAt(k, 1.0 + sum(survival), survival)


@pytest.mark.parametrize("told", [True, False], ids=["positions seen", "only E seen"])
@pytest.mark.parametrize(("live_k", "wanted_k"), [(7, 2), (5, 3), (2, 5)])
@pytest.mark.parametrize("changed", [{"hard_rate": 0.4}, {"easy_share": 0.02}, {"easy_share": 0.3}])
def test_live_acceptance_moves_between_draft_lengths_as_text_does(
    changed: dict[str, float], live_k: int, wanted_k: int, told: bool
) -> None:
    """In proportion it was off by up to 15 % (k = 7 seen, 2 wanted)."""
    text = CHAT.model_copy(update=changed)
    live = seen(text, live_k, 1)
    before, wanted = seen(CHAT, live_k, 2), seen(CHAT, wanted_k, 2)
    truth = seen(text, wanted_k, 1).tokens_per_step
    if not told:
        live = SeenAt(live.k, live.tokens_per_step)
    found = carried("eagle3", live, before, wanted)
    assert found.lower <= found.value <= found.upper
    assert found.value == pytest.approx(truth, rel=0.02 if told else 0.07)


def test_unchanged_acceptance_is_the_calibrated_one() -> None:
    before, wanted = seen(CHAT, 7, 2), seen(CHAT, 2, 2)
    assert carried("eagle3", before, before, wanted).value == pytest.approx(wanted.tokens_per_step)
    assert carried("eagle3", SeenAt(7, 1.0), SeenAt(7, 3.0), SeenAt(2, 2.2)).value == pytest.approx(
        1.0, abs=0.35
    )


@pytest.mark.parametrize("easy_share", [0.1, 0.3, 0.6])
@pytest.mark.parametrize(("live_k", "wanted_k"), [(7, 2), (3, 6)])
def test_other_shares_of_the_same_two_kinds_of_text_are_found_from_e_alone(
    easy_share: float, live_k: int, wanted_k: int
) -> None:
    decay = default_decay("eagle3")
    calibrated = TwoPointMixture((0.5, 0.95), (0.6, 0.4), decay)
    text = TwoPointMixture(calibrated.rates, (1.0 - easy_share, easy_share), decay)
    before, wanted = (
        SeenAt(k, float(calibrated.tokens_per_step(k)), tuple(calibrated.survival(k)))
        for k in (live_k, wanted_k)
    )
    found = carried("eagle3", SeenAt(live_k, float(text.tokens_per_step(live_k))), before, wanted)
    assert found.value == pytest.approx(float(text.tokens_per_step(wanted_k)), rel=1e-3)
