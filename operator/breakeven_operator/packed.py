"""One compact string for what the operator notes for itself in a status: a version, and compressed JSON.

`kubectl describe` shows it as one line. Whoever may write a status may write anything there, so both sizes are bounded.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

VERSION: Final = "1"
LONGEST: Final = 262144
"""Characters of the string: what all fields come to at most, compressed by nothing."""
_MOST_BYTES: Final = 1 << 19
_LATER: Final = "later"


def pack(fields: Mapping[str, Any]) -> str:
    """The string of a JSON object: `1:` and base64 of compressed JSON."""
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    return f"{VERSION}:{base64.b64encode(zlib.compress(text)).decode()}"


def unpack(text: object) -> dict[str, Any]:
    """The JSON object of a string.

    Raises:
        ValueError: it is no such string, has another version, or is too large; one line.
    """
    if not isinstance(text, str) or len(text) > LONGEST:
        raise ValueError("is no text of the operator's")
    version, _, packed = text.partition(":")
    if version != VERSION:
        raise ValueError("has another version")
    try:
        opened = zlib.decompressobj()
        # A few kilobytes may be opened to gigabytes.
        content = opened.decompress(base64.b64decode(packed, validate=True), _MOST_BYTES)
        found = json.loads(content) if opened.eof else None
    except (ValueError, zlib.error, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    raise ValueError("cannot be opened")


def split(
    status: Mapping[str, Any], noted: frozenset[str], cut: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """A status as the API server holds it: what people read as fields, and the rest as `workings.notes`.

    `noted` are paths of fields without places in lists. Of a list that is cut the first item is a field, and the others are notes.
    """
    later = {name: status[name][1:] for name in cut if status.get(name, ())[1:]}
    shown, notes = _parted({**status, **{name: status[name][:1] for name in later}}, noted, "")
    notes |= {_LATER: later} if later else {}
    if notes:
        shown["workings"] = {**(shown.get("workings") or {}), "notes": pack(notes)}
    return shown


def joined(status: Mapping[str, Any]) -> dict[str, Any]:
    """The whole status of one that the API server holds.

    Raises:
        ValueError: its notes cannot be read; one line.
    """
    notes = (status.get("workings") or {}).get("notes")
    shown = without_notes(status)
    if notes is None:
        return shown
    fields = unpack(notes)
    later = fields.pop(_LATER, {})
    found: dict[str, Any] = _merged(shown, fields)
    try:
        return found | {name: [*found[name], *items] for name, items in later.items()}
    except (AttributeError, KeyError, TypeError):
        raise ValueError("have other lists") from None


def whole(status: Mapping[str, Any]) -> dict[str, Any]:
    """The whole status of one that the API server holds, as far as it can be read."""
    try:
        return joined(status)
    except ValueError:
        return without_notes(status)


def without_notes(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status as the API server holds it, less its notes."""
    if "workings" not in status:
        return dict(status)
    kept = {name: part for name, part in (status["workings"] or {}).items() if name != "notes"}
    return {**status, "workings": kept}


def _parted(
    part: Mapping[str, Any], noted: frozenset[str], path: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    shown: dict[str, Any] = {}
    notes: dict[str, Any] = {}
    for name, value in part.items():
        place = f"{path}{name}"
        if place in noted:
            notes[name] = value
        elif isinstance(value, Mapping):
            above, below = _parted(value, noted, f"{place}.")
            # An empty object would be a line for nobody, and a leaf that server-side apply takes away with the next write.
            shown |= {name: above} if above else {}
            notes |= {name: below} if below else {}
        elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
            parts = [_parted(one, noted, f"{place}.") for one in value]
            shown[name] = [one for one, _ in parts]
            notes |= {name: [below for _, below in parts]} if any(below for _, below in parts) else {}
        else:
            shown[name] = value
    return shown, notes


def _merged(shown: Any, notes: Any) -> Any:
    """Both together; where they contradict each other, what is shown stands."""
    if isinstance(shown, Mapping) and isinstance(notes, Mapping):
        both = {name: _merged(shown[name], notes[name]) for name in shown if name in notes}
        return {**notes, **shown, **both}
    if isinstance(shown, list) and isinstance(notes, list) and len(shown) == len(notes):
        return [_merged(one, below) for one, below in zip(shown, notes, strict=True)]
    return shown
