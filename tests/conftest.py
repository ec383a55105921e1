"""Settings of all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# The same examples on every machine: a commit does not fail for what another run happened to draw, nor for how long
# one took there. Look for new ones with HYPOTHESIS_PROFILE=explore, and keep what they find as an example.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", _UNTIMED, derandomize=True)
settings.register_profile("explore", _UNTIMED, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# A shell ignores SIGINT for what it starts in the background, and children inherit that: tests of Ctrl-C would find
# commands that cannot be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
