"""Free options of vLLM: schema and model hold the same bounds, and no JSON ends otherwise than taken or refused in one line."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.errors import InputError
from breakeven.serving.command_line import arm_json
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.candidates import (
    LONGEST,
    LONGEST_TEXT,
    MOST_ITEMS,
    MOST_MEMBERS,
    OWN_FIELDS,
    SpeculativeMethod,
)
from draws import draws
from shipping.generate.definitions import structural

METHODS = structural(SpeculativeService)["properties"]["spec"]["properties"]["candidates"]["properties"][
    "methods"
]
SCHEMA = METHODS["items"]["properties"]["options"]
WIDE = st.sampled_from([MOST_MEMBERS, MOST_MEMBERS + 1, MOST_ITEMS, MOST_ITEMS + 1])
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(-1e9, 1e9),
    st.text(max_size=8),
    st.builds(lambda n: "x" * n, st.sampled_from([LONGEST_TEXT, LONGEST_TEXT + 1])),
    st.builds(lambda n: [0] * n, WIDE),
    st.builds(lambda n: {f"k{i}": 0 for i in range(n)}, WIDE),
)


def grown(values):
    return st.one_of(
        st.lists(values, max_size=3),
        st.dictionaries(st.text(max_size=4), values, max_size=3),
        st.builds(lambda value: [[value]], values),
    )


OPTIONS = st.dictionaries(st.text(max_size=4), st.recursive(LEAVES, grown, max_leaves=4), max_size=4)


def admits(schema, value):
    """Whether the API server takes a value; the keywords that the schema of options uses."""
    if isinstance(value, str):
        return len(value) <= schema["maxLength"]
    if isinstance(value, list):
        return len(value) <= schema["maxItems"] and all(admits(schema["items"], item) for item in value)
    if isinstance(value, dict):
        forbidden = [name for one in schema.get("not", {}).get("anyOf", ()) for name in one["required"]]
        return (
            len(value) <= schema["maxProperties"]
            and not {*forbidden} & value.keys()
            and all(admits(schema["additionalProperties"], member) for member in value.values())
        )
    return value is not None or schema["nullable"]


def read(options):
    """The method with these options, or the line that refuses them."""
    try:
        return SpeculativeMethod.read({"name": "l", "method": "ngram", "options": options}, "method l")
    except InputError as refusal:
        return str(refusal)


@draws(100)
@given(OPTIONS)
def test_the_api_server_and_the_model_take_the_same_options(options):
    found = read(options)
    if isinstance(found, SpeculativeMethod):
        assert admits(SCHEMA, options)
        assert found.options == options
    else:
        assert found.startswith("method l: options")
        assert "\n" not in found
        # The API server cannot count the characters of the whole.
        assert not admits(SCHEMA, options) or len(arm_json(options)) > LONGEST


@pytest.mark.parametrize("name", OWN_FIELDS)
def test_fields_of_the_method_are_no_options(name):
    assert "options repeats method" in read({name: 1})
    assert not admits(SCHEMA, {name: 1})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"a": [[[[]]]]}, None),
        ({"a": [[[1]]]}, None),
        (
            {"a": [[[[1]]]]},
            "options.a[0][0][0]: is nested too deep; expected at most 4 levels of objects and lists",
        ),
        ({"a": {"b": "x" * 2049}}, "options.a.b: is too long; expected at most 2048 characters"),
        ({"a": [0] * 257}, "options.a: has too many items; expected at most 256"),
        ({"a": dict.fromkeys(map(str, range(33)))}, "options.a: has too many members; expected at most 32"),
        (dict.fromkeys(map(str, range(33))), "options: has too many members; expected at most 32"),
        ({"a": ["x" * 2000] * 3}, "options: has 6016 characters as JSON; expected at most 4096"),
    ],
)
def test_the_refusal_says_where_and_what(options, problem):
    method = {"name": "l", "method": "ngram", "options": options}
    if problem is None:
        assert SpeculativeMethod.read(method, "m").options == options
        return
    with pytest.raises(InputError) as caught:
        SpeculativeMethod.read(method, "m")
    assert str(caught.value) == f"m: {problem}"


@pytest.mark.parametrize(
    ("levels", "problem"),
    [
        (150, "m: options.a.a.a.a: is nested too deep; expected at most 4 levels"),
        (250, "m: is JSON that cannot be read (recursion limit exceeded"),
        (50_000, "m: is nested too deep; expected Unicode texts, and at most 200 objects"),
    ],
)
def test_options_of_any_depth_are_refused_in_one_line(levels, problem):
    options: Any = 1
    for _ in range(levels):
        options = {"a": options}
    with pytest.raises(InputError) as caught:
        SpeculativeMethod.read({"name": "l", "method": "ngram", "options": options}, "m")
    assert str(caught.value).startswith(problem)
    assert len(str(caught.value)) < 200


def test_the_longest_options_fit_into_a_plan():
    options = {"a": "x" * 2000, "b": "y" * 2000, "c": "z" * (LONGEST - 4023)}
    method = {"name": "l", "method": "draft_model", "model": "o/" + "m" * 510, "options": options}
    read_whole = SpeculativeMethod.read(method, "m")
    assert len(arm_json(options)) <= LONGEST
    assert len(read_whole.speculative_config(7)) <= 8192
