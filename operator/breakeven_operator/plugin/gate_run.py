"""`kubectl breakeven gate`: the CalibrationRun that compares two images, and what came out of it as text, JSON and exit status."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from breakeven_operator.kinds import RUNS
from breakeven_operator.plugin.kubectl_process import RUN, Kubectl, KubectlError
from breakeven_operator.plugin.service_table import text_of

_LOST, UNDECIDED = 1, 2
# A gate takes up to an hour; an API server that restarts meanwhile is no loss.
_MOST_FAILED = 12
_UPGRADE, _DOES_NOT_START = "upgrade", "DoesNotStart"


def gate_manifest(service: str, images: tuple[str, str], arm: str | None) -> dict[str, Any]:
    """The run to create; the API server completes its name."""
    spec = {"serviceRef": {"name": service}, "gate": list(images)} | ({"arms": [arm]} if arm else {})
    return {
        "apiVersion": RUNS.api_version,
        "kind": RUNS.kind,
        "metadata": {"generateName": f"{service}-gate-"},
        "spec": spec,
    }


def followed(
    asked: Kubectl, name: str, pause: Callable[[], object], say: Callable[[str], object]
) -> Mapping[str, Any]:
    """The run once it has ended; each new message on its way is said, and that the API server does not answer for a while.

    Raises:
        KubectlError: the run cannot be read several times in a row.
    """
    said, failed = "", 0
    while True:
        try:
            run = asked.get(RUN, name)
        except KubectlError as error:
            if (failed := failed + 1) > _MOST_FAILED:
                raise
            say(str(error))
            pause()
            continue
        failed = 0
        status = run.get("status") or {}
        if status.get("finishedTime"):
            return run
        message = (
            f"{status.get('phase', 'Pending')}: {status.get('message', 'the operator has not seen it yet')}"
        )
        if message != said:
            say(message)
            said = message
        pause()


def gate_document(run: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome as JSON: keys as of `breakeven gate`, and the run beside them."""
    status, meta = run.get("status") or {}, run["metadata"]
    before, after = run["spec"]["gate"]
    return {
        "word": status.get("reason"),
        "message": status.get("message"),
        "images": {"before": before, "after": after},
        "findings": [
            {"figure": one["figure"], "word": one.get("word"), "sentence": one.get("message")}
            for one in status.get("findings") or ()
            if one["figure"] != _UPGRADE
        ],
        "run": f"{meta['namespace']}/{meta['name']}",
    }


def gate_text(run: Mapping[str, Any]) -> Iterator[str]:
    """The outcome in lines, the word last."""
    found = gate_document(run)
    rows = [(one["word"] or "-", one["figure"], one["sentence"] or "") for one in found["findings"]]
    if rows:
        yield text_of([("WORD", "FIGURE", "FOUND"), *rows])
    yield f"{found['word']}: {str(found['message']).removeprefix(str(found['word']) + ': ')}"


def gate_status(run: Mapping[str, Any]) -> int:
    """Exit status: 0 if nothing is lost, 1 for a loss, 2 if that was not decided."""
    status = run.get("status") or {}
    if status.get("phase") == "Succeeded":
        return 0
    words = {one.get("word") for one in status.get("findings") or () if one["figure"] == _UPGRADE}
    lost = status.get("reason") in (words | {_DOES_NOT_START}) - {"Undecided"}
    return _LOST if lost else UNDECIDED
