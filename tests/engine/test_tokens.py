"""Text to ids and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from breakeven_sim.engine.tokens import count_tokens, detokenize, made_up_text, tokenize
from draws import draws


@draws(50)
@given(st.text())
def test_ids_turn_back_into_the_words_and_are_as_many_as_counted(text: str) -> None:
    tokens = tokenize(text)
    assert len(tokens) == count_tokens(text)
    assert detokenize(number for number, _ in tokens).split() == text.split()


def test_the_first_ids_of_a_text_are_a_shorter_text() -> None:
    # `vllm bench serve` does this if the server counts more tokens than its own tokenizer.
    ids = [number for number, _ in tokenize("speculative decoding w17 pays")]
    assert detokenize(ids[:3]) == "speculative decodi"
    assert count_tokens(detokenize(ids[:3])) == 3
    assert ids[4] == 17


@draws(50)
@given(st.lists(st.integers(-(2**40), 2**40), min_size=1))
def test_any_ids_have_a_text(ids: list[int]) -> None:
    assert detokenize(ids)


def test_the_made_up_text_is_one_token_a_word() -> None:
    assert count_tokens(made_up_text(995, 12)) == 12
