"""The table of kinds in docs/targets.md: made of what cluster tests showed, by tests that exist, on controllers of today's versions."""

from __future__ import annotations

from pathlib import Path

import pytest

import kind_facts
from breakeven_operator.workloads.known import KINDS

TEST = "tests/cluster/test_operator_deployments.py::test_an_arm_that_does_not_start_is_undone"


def test_the_page_has_the_table_of_what_was_shown() -> None:
    text = kind_facts.PAGE.read_text()
    assert text == kind_facts.page_with(text, kind_facts.table(kind_facts.all_stored())), "make test-stacks"


def test_every_kind_that_is_rolled_was_shown_to_be() -> None:
    found = {one.kind: one for one in kind_facts.all_stored()}
    assert {resource.kind for resource in KINDS} <= found.keys()
    for resource in KINDS:
        assert found[resource.kind].shown.keys() == kind_facts.FACTS.keys(), resource.kind
        assert found[resource.kind].lost == 0


def test_it_was_shown_by_tests_that_exist_on_the_pinned_controllers() -> None:
    found = kind_facts.all_stored()
    assert kind_facts.unknown_tests(found) == []
    assert [one.version for one in found] == [kind_facts.version_of(one.controller) for one in found]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kind_facts, "STORED", tmp_path)
    monkeypatch.setattr(kind_facts, "ROOT", tmp_path)
    return tmp_path


def test_a_test_that_shows_what_is_not_stored_fails_until_it_is_stored(folder: Path) -> None:
    with pytest.raises(kind_facts.KindFactError, match="make test-stacks"):
        kind_facts.note("Deployment", kind_facts.PLAYED, TEST, ["undone"], None, store=False)
    kind_facts.note("Deployment", kind_facts.PLAYED, TEST, ["undone"], None, store=True)
    kind_facts.note("Deployment", kind_facts.PLAYED, TEST, ["undone"], None, store=False)
    kind_facts.note("Deployment", kind_facts.PLAYED, TEST, ["rolled"], (40, 0), store=True)
    (found,) = kind_facts.all_stored()
    assert (found.shown, found.requests, found.lost) == ({"undone": TEST, "rolled": TEST}, 40, 0)
    with pytest.raises(kind_facts.KindFactError, match="with 1 requests lost"):
        kind_facts.note("Deployment", kind_facts.PLAYED, TEST, ["rolled"], (40, 1), store=False)


def test_another_controller_begins_anew(folder: Path) -> None:
    kind_facts.note("Deployment", kind_facts.PLAYED, TEST, ["undone"], None, store=True)
    kind_facts.note("Deployment", "kube-controller-manager", TEST, ["rolled"], (3, 0), store=True)
    (found,) = kind_facts.all_stored()
    assert (found.controller, found.shown) == ("kube-controller-manager", {"rolled": TEST})
    row = kind_facts.table([found]).splitlines()[-1]
    assert (
        row == f"| Deployment | kube-controller-manager {found.version} | no | no | yes | no | no | 0 of 3 |"
    )


def test_a_page_without_a_place_for_it_is_refused() -> None:
    with pytest.raises(ValueError, match="before"):
        kind_facts.page_with("text", "table")


def test_a_test_that_is_gone_is_named() -> None:
    one = kind_facts.KindFacts("Deployment", kind_facts.PLAYED, shown={"undone": f"{TEST}_no_more"})
    assert kind_facts.unknown_tests([one]) == [f"{TEST}_no_more"]
