"""`stage` for the session, `place` for each test; tests/cluster/conftest.py makes them known."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from operatorcluster.stage import Place, Stage, standing


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with standing(tmp_path_factory.mktemp("stage")) as stage:
        yield stage


@pytest.fixture
def place(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Place]:
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_")).strip("-")
    with stage.place(words) as place:
        yield place
