"""Tokens without a tokenizer: a client can count them beforehand, and ids turn back into their text.

Every word (between white space) is one token per six characters begun. The made-up text that the engine answers with
consists of words that are one token each.
"""

from __future__ import annotations

from collections.abc import Iterable

_PIECE_CHARACTERS = 6
VOCABULARY_SIZE = 1000
"""Words of the made-up text; their ids are the first numbers."""

_VOCABULARY = tuple(f"w{i}" for i in range(VOCABULARY_SIZE))
_IDS = {word: number for number, word in enumerate(_VOCABULARY)}
_WITH_BLANK = tuple(f" {word}" for word in _VOCABULARY)
# Any other piece is its own id: a marker byte that also keeps it above the vocabulary, then its UTF-8.
_BEGINS_WORD, _GOES_ON = b"\x10", b"\x11"


def count_tokens(text: str) -> int:
    """Tokens of a text: per word one for every six characters begun."""
    return sum(-(-len(word) // _PIECE_CHARACTERS) for word in text.split())


def tokenize(text: str) -> list[tuple[int, str]]:
    """Id and text of every token; there are `count_tokens(text)` of them."""
    tokens = []
    for word in text.split():
        if word in _IDS:
            tokens.append((_IDS[word], word))
            continue
        for start in range(0, len(word), _PIECE_CHARACTERS):
            piece = word[start : start + _PIECE_CHARACTERS]
            marker = _GOES_ON if start else _BEGINS_WORD
            tokens.append((int.from_bytes(marker + piece.encode("utf-8", "surrogatepass")), piece))
    return tokens


def detokenize(ids: Iterable[int]) -> str:
    """The text of ids: words apart by one blank, pieces of one word joined.

    An id that `tokenize` never gives stands for a word of the made-up text, so that any prompt of ids has a text.
    """
    return continued(ids).lstrip(" ")


def continued(ids: Iterable[int]) -> str:
    """The text of ids that follow others: a word begins with the blank before it."""
    return "".join(_text(number) for number in ids)


def made_up_text(start: int, tokens: int) -> str:
    """`tokens` words of the made-up text, from place `start` on; needs no escaping in JSON."""
    size = len(_WITH_BLANK)
    return "".join([_WITH_BLANK[(start + i) % size] for i in range(tokens)])


def _text(number: int) -> str:
    raw = abs(number).to_bytes((abs(number).bit_length() + 7) // 8 or 1)
    if raw[:1] in {_BEGINS_WORD, _GOES_ON} and len(raw) > 1:
        try:
            piece = raw[1:].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            pass
        else:
            return piece if raw[:1] == _GOES_ON else f" {piece}"
    return _WITH_BLANK[number % len(_WITH_BLANK)]
