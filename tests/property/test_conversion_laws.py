"""Laws of carrying an arm to other acceptance and lengths, and acceptance to other draft lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.laws.conversion import RequestCosts, Work, latency_parts
from breakeven.laws.moved_acceptance import SeenAt, carried
from breakeven_sim.engine.costs import Text
from breakeven_sim.engine.drafting import TextSource, plan_steps

COSTS = RequestCosts(0.01, 0.01, 2e-4, 3e-5, 5e-8, 640.0)
CHAT = Text(easy_rate=1.0, hard_rate=0.583, easy_share=0.144, depth_decay=0.02)


def work(e: float = 2.5, p: float = 512.0, g: float = 256.0) -> Work:
    return Work(e, p, g, p + g / 2.0)


@given(e=st.floats(1.0, 6.0), more=st.floats(1.0, 3.0), p=st.floats(16.0, 8192.0), g=st.floats(2.0, 2048.0))
def test_acceptance_scales_decoding_and_never_prefill(e: float, more: float, p: float, g: float) -> None:
    """Others' prompts cost alike whatever E is: a law that scaled all of C2 invented break-evens."""
    slow, fast = latency_parts(COSTS, work(e, p, g)), latency_parts(COSTS, work(e * more, p, g))
    prefill_s = COSTS.prefill_token_s * p
    assert slow.each_s - prefill_s == pytest.approx(more * (fast.each_s - prefill_s))
    assert slow.first_s == fast.first_s
    assert slow.alone_s - slow.first_s == pytest.approx(more * (fast.alone_s - fast.first_s))
    assert slow.company_s <= more * fast.company_s * (1 + 1e-9)


@given(p=st.floats(16.0, 8192.0), more=st.floats(1.0, 4.0), g=st.floats(2.0, 2048.0))
def test_longer_prompts_and_answers_are_never_cheaper(p: float, more: float, g: float) -> None:
    base = latency_parts(COSTS, work(p=p, g=g))
    for longer in (work(p=p * more, g=g), work(p=p, g=g * more)):
        found = latency_parts(COSTS, longer)
        assert found.alone_s >= base.alone_s * (1 - 1e-12)
        assert found.each_s >= base.each_s * (1 - 1e-12)


@given(g=st.floats(2.0, 2048.0))
def test_a_request_is_its_first_token_and_its_steps(g: float) -> None:
    found = latency_parts(COSTS, work(2.0, 100.0, g))
    steps = (g - 1.0) / 2.0
    assert found.first_s == pytest.approx(0.01 + 3e-3)
    assert found.alone_s == pytest.approx(found.first_s + steps * (0.01 + 5e-8 * (100.0 + g / 2.0 - 640.0)))
    assert found.first_company_s <= found.company_s


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
