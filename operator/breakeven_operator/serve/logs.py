"""One JSON object per line on stderr; the canonical line of a service's cycle carries its facts as fields."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from breakeven.printable import printable

CYCLE = "breakeven_operator.decision"


class JsonLines(logging.Formatter):
    """Time, level, logger and message; of cycle lines, the facts themselves."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        if record.name == CYCLE and isinstance(record.args, dict):
            return json.dumps({**line, **record.args}, default=str)
        line |= {"logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """Lines for people, on whose terminals nothing but printable words arrives; JSON escapes the others by itself."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """One line, whatever the message holds."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """The lines of a traceback."""
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


def _retried(record: logging.LogRecord) -> bool:
    """Make a request that kopf sends again a warning, because connections end every day."""
    if record.name.startswith("kopf") and "will retry" in record.getMessage():
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
    return record.levelno >= logging.getLogger().level


def configure(level: str, *, text: bool = False) -> None:
    """Send everything to stderr; the framework's narration only from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines("%(asctime)s %(levelname)s %(message)s") if text else JsonLines())
    handler.addFilter(_retried)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("aiohttp", "urllib3", "asyncio", "kopf"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
