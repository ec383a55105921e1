"""The table of kinds in docs/targets.md, from what cluster tests showed: `python -m kind_facts`, in `make test-stacks`.

Each cluster test of a kind says at its end what it has shown of that kind (the fixture `shows`). What was shown last stands in
`tests/golden/kinds/`, one file per kind. A test that shows something else fails; `make test-stacks` stores it. The table in
docs/targets.md is made of these files, and `make check` compares.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from localcluster.catalog import PROGRAMS

ROOT: Final = Path(__file__).parents[1]
STORED: Final = ROOT / "tests" / "golden" / "kinds"
PAGE: Final = ROOT / "docs" / "targets.md"
BEGIN, END = "<!-- kinds: python -m kind_facts --write -->", "<!-- end of kinds -->"
PLAYED: Final = "played"
FACTS: Final = {
    "looked at": "its load, latency and arm are read",
    "calibrated": "a copy of its pods is measured",
    "rolled": "to an arm and back, under load",
    "operator killed": "in the middle of the roll, by SIGKILL",
    "undone": "an arm that does not start is taken back",
}
"""The columns, and what each means."""
STORE: Final = "BREAKEVEN_KINDS"
"""The variable that is `store` where facts are to be stored."""


class KindFactError(AssertionError):
    """A test has shown something else than what is stored."""


@dataclass
class KindFacts:
    """The facts that cluster tests showed of one kind.

    Attributes:
        kind: its name.
        controller: a program of the one-machine cluster that makes its pods, or `played`.
        version: of that program; empty of a played one.
        shown: the test that showed it, by fact.
        requests: that users sent while it was rolled. lost: of these, failed.
    """

    kind: str
    controller: str
    version: str = ""
    shown: dict[str, str] = field(default_factory=dict)
    requests: int = 0
    lost: int | None = None


def version_of(controller: str) -> str:
    """The pinned version of a controller; empty of a played one."""
    return PROGRAMS[controller].bundle.version() if controller != PLAYED else ""


def stored(kind: str) -> KindFacts | None:
    """The stored facts of a kind; None if there are none."""
    file = STORED / f"{kind}.json"
    return KindFacts(**json.loads(file.read_text())) if file.is_file() else None


def note(
    kind: str, controller: str, test: str, facts: Sequence[str], users: tuple[int, int] | None, *, store: bool
) -> None:
    """Store what a test has shown of a kind, or compare it with what is stored.

    Args:
        kind: its name. controller: a program, or `played`.
        test: that showed it.
        facts: of `FACTS`.
        users: requests that were sent, and lost, while it was rolled; None if the test is about no roll.
        store: whether it is stored.

    Raises:
        KindFactError: something else is stored.
    """
    known = stored(kind)
    if known is None or (known.controller, known.version) != (controller, version_of(controller)):
        known = KindFacts(kind, controller, version_of(controller))
    new = dict.fromkeys(facts, test)
    lost = users[1] if users is not None else known.lost
    if store:
        requests = users[0] if users is not None else known.requests
        facts_now = KindFacts(
            kind, controller, version_of(controller), {**known.shown, **new}, requests, lost
        )
        STORED.mkdir(exist_ok=True)
        (STORED / f"{kind}.json").write_text(json.dumps(asdict(facts_now), indent=2, sort_keys=True) + "\n")
    elif any(known.shown.get(fact) != by for fact, by in new.items()) or lost != known.lost:
        raise KindFactError(
            f"{kind} on {controller}: {test} shows {', '.join(facts)} with {lost} requests lost, which is not what "
            f"{STORED.relative_to(ROOT)} has: make test-stacks stores it"
        )


def table(found: Sequence[KindFacts]) -> str:
    """The table as Markdown."""
    heads = ["kind", "controller", *FACTS, "requests lost"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for one in found:
        controller = f"{one.controller} {one.version}".strip()
        lost = "" if one.lost is None else f"{one.lost} of {one.requests}"
        cells = [one.kind, controller, *("yes" if fact in one.shown else "no" for fact in FACTS), lost]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def all_stored() -> list[KindFacts]:
    """All stored facts, real controllers first."""
    found = [KindFacts(**json.loads(file.read_text())) for file in sorted(STORED.glob("*.json"))]
    return sorted(found, key=lambda one: (one.controller == PLAYED, one.kind))


def page_with(text: str, made: str) -> str:
    """The page with another table in it.

    Raises:
        ValueError: it has no place for one.
    """
    before, _, rest = text.partition(f"{BEGIN}\n")
    _, _, after = rest.partition(END)
    if not rest or END not in rest:
        raise ValueError(f"{PAGE.name} has no {BEGIN} before {END}")
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def unknown_tests(found: Sequence[KindFacts]) -> list[str]:
    """Tests that are said to have shown something, and are no more."""
    texts: Mapping[str, str] = {
        file.relative_to(ROOT).as_posix(): file.read_text()
        for file in (ROOT / "tests" / "cluster").glob("test_*.py")
    }
    tests = {test for one in found for test in one.shown.values()}
    split = {test: test.partition("::") for test in tests}
    return sorted(
        test
        for test, (file, _, name) in split.items()
        if f"def {name.partition('[')[0]}(" not in texts.get(file, "")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, write it into the page, or say that the page has another one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write it into docs/targets.md")
    asked = parser.parse_args(arguments)
    made = table(all_stored())
    sys.stdout.write(f"{made}\n")
    text = PAGE.read_text()
    if asked.write:
        PAGE.write_text(page_with(text, made))
    return 0 if page_with(PAGE.read_text(), made) == PAGE.read_text() else 1


if __name__ == "__main__":
    sys.exit(main())
