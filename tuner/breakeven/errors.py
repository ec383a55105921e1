"""Errors that are raised on purpose.

    BreakevenError          one line for a person; the command line prints it and exits 1
    ├── InputError          a file, row, column, option or field says something it may not
    │   └── ForeignFileError    a file of another kind: no measurement is in it
    └── NotIdentifiedError  the data cannot tell what was asked; the data is fine, the question is not

Data problems inside a result (a row that is left out, a prediction beyond the measured range) are values with
a reason word, never exceptions.
"""

from __future__ import annotations


class BreakevenError(Exception):
    """A refusal that a person can act on; its text is one line."""


class InputError(BreakevenError):
    """Input that is wrong in one named place: where a person would look it up, what stands there, and what should."""

    def __init__(self, where: str, problem: str, expected: str) -> None:
        self.where = where
        self.problem = problem
        self.expected = expected
        super().__init__(" ".join(f"{where}: {problem}; expected {expected}".split()))


class ForeignFileError(InputError):
    """A file that holds no measurement that is read: beside others that do, it can be passed over."""


class NotIdentifiedError(BreakevenError):
    """The measured points do not determine the quantity that was asked for."""
