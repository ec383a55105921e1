"""Waiting for the world: by looking, with a deadline; what was seen last is in the failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_LOOK_S = 0.2
# Many times what anything here takes on a quiet machine: what comes is not waited for any longer.
PATIENCE_S = 180.0


def until(
    what: str,
    look: Callable[[], T | None],
    *,
    timeout_s: float = PATIENCE_S,
    seen: Callable[[], Any] = lambda: None,
) -> T:
    """Look until the answer is true; return it.

    Args:
        what: is waited for, in words.
        look: the question.
        timeout_s: after this long it is a failure.
        seen: asked for the failure's text.

    Raises:
        AssertionError: it did not come true.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout_s:.0f} s still not: {what}; {seen()}")
        time.sleep(_LOOK_S)
