"""`stage` for the session, `place` and `shows` for each test; tests/cluster/conftest.py makes them known."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Protocol

import pytest

import kind_facts
from operatorcluster.stage import Place, Stage, standing
from operatorcluster.there_and_back import ThereAndBack


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with standing(tmp_path_factory.mktemp("stage")) as stage:
        yield stage


@pytest.fixture
def place(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Place]:
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_")).strip("-")
    with stage.place(words) as place:
        yield place


class Shows(Protocol):
    """Says what a test has shown of a kind; see `kind_facts`."""

    def __call__(
        self, kind: str, controller: str, *facts: str, users: ThereAndBack | None = None
    ) -> None: ...


@pytest.fixture
def shows(request: pytest.FixtureRequest) -> Shows:
    def say(kind: str, controller: str, *facts: str, users: ThereAndBack | None = None) -> None:
        store = os.environ.get(kind_facts.STORE) == "store"
        counted = (users.asked, len(users.lost)) if users is not None else None
        kind_facts.note(kind, controller, request.node.nodeid, facts, counted, store=store)

    return say
