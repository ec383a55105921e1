"""The one way in which the one-machine cluster refuses or fails: a line that a person can act on."""

from __future__ import annotations


class LocalClusterError(Exception):
    """Its text is one line; the command line prints it and exits 1."""
