"""Strangers' words made fit for people: engines, servers and manifests may say what moves a terminal's cursor."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text without control characters, and without those that turn the direction of reading.

    Line ends and tabs become blanks: what is said in a status, an event or a line of the log is one line.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " if letter.isspace() else "" for letter in text)


def one_line(text: str) -> str:
    """The printable text with single blanks."""
    return " ".join(printable(text).split())
