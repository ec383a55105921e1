"""The name under which this process holds the Lease; a successor in the same pod can prove that the name is free.

A process that was killed cannot give its Lease up. Its successor must wait until the Lease has run out, unless it
knows that the holder is dead. The kernel knows: a file lock ends with the process that holds it, however that ends.
So the identity is a token in a locked file. The process with the lock is the only living one of that identity. A
record under that identity is its own or that of a dead process. The file lies in the pod's own emptyDir, which a
restarted container finds again and no other pod sees.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import tempfile
from pathlib import Path

_LOG = logging.getLogger(__name__)
_TOKEN_BYTES = 8


class LeaseIdentity:
    """A name and a token. Keep the object as long as the process acts, because the lock ends with it.

    Args:
        name: of this replica, shown to people: the pod's name.
        lease: namespace and name of the Lease; each has a lock of its own.
        folder: where the lock lies; None: TMPDIR.

    Attributes:
        text: the Lease's holderIdentity; never that of another living process.
    """

    def __init__(self, name: str, lease: str, folder: Path | None = None) -> None:
        self._file: int | None = None
        token = secrets.token_hex(_TOKEN_BYTES)
        path = (folder or Path(tempfile.gettempdir())) / f"breakeven-{lease.replace('/', '.')}.lock"
        try:
            # Python opens files close-on-exec, so a child that outlives this process does not keep the lock.
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            known = os.pread(self._file, 2 * _TOKEN_BYTES, 0).decode("ascii", "replace")
            if len(known) == 2 * _TOKEN_BYTES and known.isalnum():
                token = known
            else:
                os.pwrite(self._file, token.encode("ascii"), 0)
        except OSError as error:
            # Another process lives under that token, or there is nowhere to write: a token of our own, and no short cut.
            _LOG.info(
                "lock %s: %s; a Lease held from here must run out before a successor takes it", path, error
            )
            self.release()
        self.text = f"{name}_{token}"

    def release(self) -> None:
        """Let a successor have the token; only after the last action under it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
