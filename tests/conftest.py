"""Settings of all tests."""

from __future__ import annotations

import signal

from draws import choose_profile

choose_profile()

# A shell ignores SIGINT for what it starts in the background, and children inherit that: tests of Ctrl-C would find
# commands that cannot be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
