"""Whatever comes from outside and is wrong: one line that names the place, what stands there and what is expected."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from breakeven.errors import InputError
from breakeven.intake import file_text, json_value, wrong_field


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    share: float = Field(gt=0, le=1)


class Outer(BaseModel):
    rows: list[Inner] = Field(min_length=1)
    name: str = "x"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"rows": [{"share": 0}]}, "f: rows[0].share: is 0; expected above 0"),
        ({"rows": [{"share": 0.5}, {"share": 2}]}, "f: rows[1].share: is 2; expected at most 1"),
        ({"rows": [{}]}, "f: rows[0].share: is missing; expected a value"),
        (
            {"rows": [{"share": 1, "z": 1}]},
            "f: rows[0].z: is not a field; expected a field that the page lists",
        ),
        ({"rows": []}, "f: rows: has too few items; expected at least 1"),
        ({"rows": [{"share": 0}], "name": 3}, "f: rows[0].share: is 0 (and 1 more); expected above 0"),
        ({"rows": [{"share": {"a": 1}}]}, "f: rows[0].share: is an object; expected a number"),
        (3, "f: is 3; expected a valid dictionary or instance of Outer"),
    ],
)
def test_the_first_wrong_field_is_named_and_the_others_are_counted(given, line):
    with pytest.raises(ValidationError) as refused:
        Outer.model_validate(given)
    assert str(wrong_field(refused.value, "f", "the page lists")) == line


@given(st.recursive(st.none() | st.booleans() | st.text() | st.integers(), st.lists))
def test_a_refusal_is_one_line_whatever_stands_there(value):
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(dict[str, float]).validate_python(value)
    assert "\n" not in str(wrong_field(refused.value, "f", "there are"))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "No such file or directory; expected a file that can be read: numbers"),
        (b"ab\xff", "byte 2: not UTF-8 text; expected numbers in UTF-8"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path, content, line):
    path = tmp_path / "f"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        file_text(path, "numbers")
    assert str(refused.value) == f"{path}: {line}"


def test_a_byte_order_mark_is_no_content(tmp_path):
    path = tmp_path / "f"
    path.write_text("x", encoding="utf-8-sig")
    assert file_text(path, "text") == "x"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{\n,", "f: line 2, column 1: not JSON (Expecting property name enclosed in double quotes)"),
        ("[" * 100_000, "f: JSON that cannot be read"),
        ("9" * 5000, "f: JSON that cannot be read"),
        (b"\xff\xff", "f: JSON that cannot be read"),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(text, line):
    with pytest.raises(InputError) as refused:
        json_value(text, "f", "a result")
    assert str(refused.value) == f"{line}; expected a result"


def test_json_is_read():
    assert json_value(json.dumps({"a": [1, None]}), "f", "x") == {"a": [1, None]}
