"""One JSON object per line on stderr; the canonical line of a service's cycle carries its facts as fields."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

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


def configure(level: str, *, text: bool = False) -> None:
    """Send everything to stderr; the framework's narration only from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s") if text else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("kopf", "aiohttp", "urllib3", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
