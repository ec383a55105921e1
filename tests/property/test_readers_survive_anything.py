"""Whatever a file holds: points, or one line that refuses it. Never a traceback, never a warning."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draws import draws, seeds_of_law
from fuzzing import PROFILE, REFUSING, SEEDS, campaign, digest

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("kind", sorted(SEEDS))
def test_the_unspoiled_file_is_read(kind: str) -> None:
    assert digest(kind, SEEDS[kind].encode()) == "read"


@pytest.mark.parametrize("kind", sorted(SEEDS))
def test_spoiled_files_are_read_or_refused(kind: str) -> None:
    tries = max(60, len(seeds_of_law(150)))
    outcomes = campaign(kind, random.Random(7), lambda count: count < tries)
    # Both happen, else the mutations are too weak or too strong to mean anything.
    assert outcomes.get("refused", 0) > (tries / 5 if kind in REFUSING else -1)
    assert outcomes.get("read", 0) > (0 if tries >= 150 else -1)


@given(st.binary(max_size=300))
@draws(60)
def test_any_bytes(data: bytes) -> None:
    for kind in SEEDS:
        digest(kind, data)


@given(st.lists(st.lists(st.text(max_size=6), max_size=5), max_size=5), st.sampled_from(",;\t"))
@draws(60)
def test_any_table_below_a_good_header(rows: list[list[str]], delimiter: str) -> None:
    header = ["method", "k", "concurrency", "mean_latency_s", "accept_1"]
    text = "\n".join(delimiter.join(row) for row in [header, *rows])
    digest("points", text.encode(errors="surrogatepass"))


@given(json_values, st.sampled_from(sorted(PROFILE)))
@draws(60)
def test_any_value_in_a_profile(value: object, key: str) -> None:
    digest("profile", json.dumps(PROFILE | {key: value}).encode(errors="surrogatepass"))
