"""Which changes of a CRD take something from users, by schemas made for it."""

from __future__ import annotations

import copy

import pytest
import yaml

import crd_compatibility as check


def crd(schema, **changed):
    """A CustomResourceDefinition of the kind Cup with that schema below `spec`."""
    version = {
        "name": "v1",
        "served": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": schema}}},
    }
    names = {"kind": "Cup", "plural": "cups"}
    return {"spec": {"group": "g", "scope": "Namespaced", "names": names, "versions": [version | changed]}}


def lines(old, new):
    return check.narrowed(crd(old), crd(new))


def one(**field):
    return {"type": "object", "properties": {"a": field}}


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
RULE = {"rule": "self.size() > 1", "message": "m"}


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (one(**TEXT), {"type": "object"}, "spec.a: field removed"),
        (one(**TEXT), one(**NUMBER), "spec.a: type string became integer"),
        (one(type="number"), one(**NUMBER), "spec.a: type number became integer"),
        (one(**TEXT), {**one(**TEXT), "required": ["a"]}, "spec: a is now required"),
        (one(**TEXT, enum=["x", "y"]), one(**TEXT, enum=["x"]), "spec.a: value y removed"),
        (one(**TEXT), one(**TEXT, enum=["x", "y"]), "spec.a: now one of x, y"),
        (one(**NUMBER, minimum=1), one(**NUMBER, minimum=2), "spec.a: minimum 1 became 2"),
        (one(**NUMBER), one(**NUMBER, minimum=0), "spec.a: minimum -inf became 0"),
        (one(**NUMBER, maximum=9), one(**NUMBER, maximum=8), "spec.a: maximum 9 became 8"),
        (one(**TEXT), one(**TEXT, maxLength=8), "spec.a: maxLength inf became 8"),
        (one(**TEXT), one(**TEXT, minLength=1), "spec.a: minLength 0 became 1"),
        (one(type="array", items=TEXT), one(type="array", items=NUMBER), "spec.a[]: type string became integer"),
        (one(type="array", maxItems=3), one(type="array", maxItems=2), "spec.a: maxItems 3 became 2"),
        (one(**TEXT), one(**TEXT, pattern="^x"), "spec.a: pattern is new or different"),
        (one(**TEXT, pattern="^x"), one(**TEXT, pattern="^y"), "spec.a: pattern is new or different"),
        (one(**TEXT), one(**TEXT, format="date"), "spec.a: format is new or different"),
        (one(**TEXT), one(**TEXT, **{"x-kubernetes-validations": [RULE]}), f"spec.a: new rule: {RULE['rule']}"),
        (
            one(**TEXT, **{"x-kubernetes-validations": [RULE]}),
            one(**TEXT, **{"x-kubernetes-validations": [{"rule": f"{RULE['rule']} && self != ''"}]}),
            f"spec.a: new rule: {RULE['rule']} && self != ''",
        ),
        (one(**TEXT, nullable=True), one(**TEXT), "spec.a: nullable is gone"),
        (one(**TEXT, default="x"), one(**TEXT, default="y"), "spec.a: default x became y"),
        (one(**TEXT, default="x"), one(**TEXT), "spec.a: default x became None"),
        (
            one(type="array"),
            one(type="array", **{"x-kubernetes-list-type": "set"}),
            "spec.a: x-kubernetes-list-type atomic became set",
        ),
        (
            one(type="object", **{"x-kubernetes-preserve-unknown-fields": True}),
            one(type="object", properties={"b": TEXT}, **{"x-kubernetes-preserve-unknown-fields": True}),
            "spec.a: b, free until now, has a schema",
        ),
        (
            one(type="object", additionalProperties=TEXT),
            one(type="object", additionalProperties=NUMBER),
            "spec.a.*: type string became integer",
        ),
        (
            one(type="object", additionalProperties=TEXT),
            one(type="object"),
            "spec.a: further keys are held to something else",
        ),
    ],
)  # fmt: skip
def test_what_was_accepted_and_is_not_any_more_is_named(old, new, line):
    assert lines(old, new) == [f"Cup v1 {line}"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (one(**TEXT), {"type": "object", "properties": {"a": TEXT, "b": TEXT}}),
        ({**one(**TEXT), "required": ["a"]}, one(**TEXT)),
        (one(**TEXT), {**one(**TEXT, default="x"), "required": ["a"]}),
        (one(**TEXT, enum=["x"]), one(**TEXT, enum=["x", "y"])),
        (one(**TEXT, enum=["x"]), one(**TEXT)),
        (one(**NUMBER, minimum=2, maximum=5), one(**NUMBER, minimum=1, maximum=6)),
        (one(**NUMBER, minimum=2, maximum=5), one(**NUMBER)),
        (one(**NUMBER), one(type="number")),
        (one(**TEXT, pattern="^x"), one(**TEXT)),
        (one(**TEXT, pattern="^x$"), one(**TEXT, pattern="^x$|^y$")),
        (
            one(**TEXT, **{"x-kubernetes-validations": [RULE]}),
            one(**TEXT, **{"x-kubernetes-validations": [{"rule": f"{RULE['rule']} || self == ''"}]}),
        ),
        (one(**TEXT), one(**TEXT, minLength=0)),
        (one(**TEXT, **{"x-kubernetes-validations": [RULE]}), one(**TEXT)),
        (one(**TEXT, description="old"), one(**TEXT, description="new")),
        (one(type="object", additionalProperties=TEXT), one(type="object", additionalProperties=True)),
    ],
)
def test_what_is_wider_or_only_says_more_is_no_matter(old, new):
    assert lines(old, new) == []


def test_a_version_or_a_subresource_that_goes_is_named():
    old = crd(TEXT)
    assert check.narrowed(old, crd(TEXT, name="v2")) == ["Cup v1: version removed or no longer served"]
    assert check.narrowed(old, crd(TEXT, served=False)) == ["Cup v1: version removed or no longer served"]
    assert check.narrowed(old, crd(TEXT, subresources={})) == ["Cup v1: subresource status removed"]
    moved = copy.deepcopy(old)
    moved["spec"]["scope"] = "Cluster"
    assert check.narrowed(old, moved) == ["Cup: scope changed"]


def test_the_command_names_what_is_narrower_until_it_is_stored(tmp_path, capsys):
    today, stored = tmp_path / "today", tmp_path / "stored"
    today.mkdir()
    for name in ("cups", "pots"):
        (today / f"{name}.yaml").write_text(yaml.safe_dump(crd(one(**TEXT))))
    folders = [f"--today={today}", f"--stored={stored}"]
    assert check.main([*folders, "--store"]) == 0
    assert check.main(folders) == 0
    (today / "cups.yaml").write_text(yaml.safe_dump(crd({"type": "object"})))
    (today / "pots.yaml").unlink()
    assert check.main(folders) == 1
    assert capsys.readouterr().err.splitlines() == [
        "Cup v1 spec.a: field removed",
        "pots.yaml: removed",
        "narrower than what users have, or a rule that only reading can judge; meant? `make crds-baseline`, and say it in CHANGELOG.md",
    ]
    assert check.main([*folders, "--store"]) == 0
    assert check.main(folders) == 0


def test_every_kind_is_stored():
    assert {file.name for file in check.STORED.iterdir()} == {
        file.name for file in check.TODAY.glob("*.yaml")
    }
