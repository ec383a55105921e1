"""`$(VAR)` references as the Kubernetes API describes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.nodeagent.variables import expand, expand_all

VARIABLES = {"A": "1", "B": "$(A)", "EMPTY": "", "JSON": '{"k": 3}'}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("--config=$(JSON)", '--config={"k": 3}'),
        ("$(EMPTY)", ""),
        ("$(A)$(A)x", "11x"),
        # Undefined stays literal, and so does everything that is no reference.
        ("$(MISSING)", "$(MISSING)"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        # An escaped dollar never begins a reference.
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$$", "$"),
        # Values are not expanded again, and a name ends at the first bracket.
        ("$(B)", "$(A)"),
        ("$($(A))", "$($(A))"),
        ("$(A\n)", "$(A\n)"),
    ],
)
def test_expansion_follows_kubernetes(text, expected):
    assert expand(text, VARIABLES) == expected


def test_items_of_a_command_line_stay_items():
    assert expand_all(["a $(X)", "$(X)"], {"X": "1 2"}) == ["a 1 2", "1 2"]


@given(st.text())
def test_doubled_dollars_give_the_text_back_whatever_is_defined(text):
    assert expand(text.replace("$", "$$"), VARIABLES) == text


@given(st.text(alphabet="$()AB x"), st.dictionaries(st.text("AB", min_size=1), st.text("$(AB)")))
def test_without_references_to_defined_names_only_escapes_change(text, variables):
    result = expand(text, variables)
    if not any(f"$({name})" in text for name in variables):
        assert result == expand(text, {})
    assert expand(text, {}).count("$") >= text.count("$") / 2


@given(st.text("AB_", min_size=1), st.text(), st.text("xyz "), st.text("xyz "))
def test_a_defined_reference_is_replaced_where_it_stands(name, value, before, after):
    assert expand(f"{before}$({name}){after}", {name: value}) == f"{before}{value}{after}"
