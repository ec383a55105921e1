"""Objects that the stored CRDs accept must be accepted by those of today: `python -m crd_compatibility`, in `make check`.

`tests/golden/crds/` holds the CRDs that users have. A field that went or became narrower breaks their manifests, their stored
objects, or a rollback. Where that is meant, `make crds-baseline` stores today's CRDs, and the changelog says what to change.
What cannot be compared (patterns, CEL rules) counts as narrower when it is new.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[1]
TODAY: Final = ROOT / "crds"
STORED: Final = ROOT / "tests" / "golden" / "crds"
Json = Mapping[str, Any]

# Limits: narrower when they rise (floors) or fall (ceilings), or are new.
_FLOORS: Final = ("minimum", "minLength", "minItems", "minProperties")
_CEILINGS: Final = ("maximum", "maxLength", "maxItems", "maxProperties")
# A rule in other words counts as narrower, because nobody can compare them; a rule that is gone counts as wider.
_OPAQUE: Final = ("pattern", "format", "multipleOf", "exclusiveMinimum", "exclusiveMaximum", "uniqueItems")
_COMBINED: Final = ("allOf", "anyOf", "oneOf", "not")
# Any change shows in what objects become: values that are filled in, and how two appliers' lists are merged.
_MEANING: Final = ("default", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type")
_IMPLIED: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("minLength", "minItems", "minProperties"), 0),
    "x-kubernetes-list-type": "atomic",
    "x-kubernetes-map-type": "granular",
}
# Only where they are said is more accepted.
_OPENING: Final = ("nullable", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string")


def narrowed(old: Json, new: Json) -> list[str]:
    """Values that the new CustomResourceDefinition no longer accepts; each line says where and what."""
    kind = old["spec"]["names"]["kind"]
    found = [
        f"{kind}: {key} changed" for key, read in _NAMES.items() if read(old["spec"]) != read(new["spec"])
    ]
    versions = {
        version["name"]: version for version in new["spec"]["versions"] if version.get("served", True)
    }
    for version in old["spec"]["versions"]:
        where = f"{kind} {version['name']}"
        today = versions.get(version["name"])
        if today is None:
            found.append(f"{where}: version removed or no longer served")
            continue
        gone = version.get("subresources", {}).keys() - today.get("subresources", {}).keys()
        found += [f"{where}: subresource {name} removed" for name in sorted(gone)]
        found += _schema(version["schema"]["openAPIV3Schema"], today["schema"]["openAPIV3Schema"], where, "")
    return found


_NAMES: Final[Mapping[str, Callable[[Json], Any]]] = {
    "group": lambda spec: spec["group"],
    "scope": lambda spec: spec["scope"],
    "kind": lambda spec: spec["names"]["kind"],
    "plural": lambda spec: spec["names"]["plural"],
}


def _schema(old: Json, new: Json, where: str, path: str) -> Iterator[str]:
    at = f"{where} {path or '(the object)'}"
    yield from (f"{at}: {line}" for line in _here(old, new))
    fields, today = old.get("properties", {}), new.get("properties", {})
    for name, field in fields.items():
        inside = f"{path}.{name}".removeprefix(".")
        if name in today:
            yield from _schema(field, today[name], where, inside)
        else:
            yield f"{where} {inside}: field removed"
    if old.get("x-kubernetes-preserve-unknown-fields"):
        yield from (f"{at}: {name}, free until now, has a schema" for name in today if name not in fields)
    if "items" in old and "items" in new:
        yield from _schema(old["items"], new["items"], where, f"{path}[]")
    values, values_now = old.get("additionalProperties"), new.get("additionalProperties")
    if isinstance(values, Mapping) and isinstance(values_now, Mapping):
        yield from _schema(values, values_now, where, f"{path}.*")
    elif values and values_now is not True and values != values_now:
        yield f"{at}: further keys are held to something else"


def _here(old: Json, new: Json) -> Iterator[str]:
    """Values that one schema no longer accepts by itself, its fields and items left aside."""
    before, after = old.get("type"), new.get("type")
    if before != after and (before, after) != ("integer", "number"):
        yield f"type {before} became {after}"
    today = new.get("properties", {})
    yield from _values(old, new)
    # A field with a default is filled in before it is missed.
    must = (name for name in new.get("required", ()) if "default" not in today.get(name, {}))
    yield from (f"{name} is now required" for name in must if name not in old.get("required", ()))
    for key in (*_OPAQUE, *_COMBINED):
        if new.get(key) and new[key] != old.get(key) and not _alternative(old.get(key), new[key], "|"):
            yield f"{key} is new or different"
    for key in _MEANING:
        was, now = old.get(key, _IMPLIED.get(key)), new.get(key, _IMPLIED.get(key))
        if was != now and was is not None:
            yield f"{key} {was} became {now}"
    yield from (f"{key} is gone" for key in _OPENING if old.get(key) and not new.get(key))
    rules = {rule["rule"] for rule in old.get("x-kubernetes-validations", ())}
    for rule in new.get("x-kubernetes-validations", ()):
        if not any(rule["rule"] == told or _alternative(told, rule["rule"], " || ") for told in rules):
            yield f"new rule: {rule['rule']}"


def _alternative(old: object, new: object, either: str) -> bool:
    """Whether a pattern or a rule is the old one or something else: that much anybody can tell.

    `|` binds weaker than anything in a pattern; in a rule only `?` binds weaker than `||`.
    """
    if not isinstance(old, str) or not isinstance(new, str):
        return False
    return new.startswith(f"{old}{either}") and (either == "|" or "?" not in old)


def _values(old: Json, new: Json) -> Iterator[str]:
    """Values that were allowed."""
    if "enum" in new:
        if "enum" not in old:
            yield f"now one of {', '.join(map(str, new['enum']))}"
        yield from (f"value {value} removed" for value in old.get("enum", ()) if value not in new["enum"])
    for keys, sign in ((_FLOORS, 1), (_CEILINGS, -1)):
        for key in keys:
            implied = _IMPLIED.get(key, -sign * math.inf)
            if sign * new.get(key, implied) > sign * old.get(key, implied):
                yield f"{key} {old.get(key, implied)} became {new[key]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, or store today's CRDs; exit 1 if something is narrower."""
    parser = argparse.ArgumentParser(prog="python -m crd_compatibility", description=__doc__)
    parser.add_argument("--store", action="store_true", help="take today's CRDs as those that users have")
    parser.add_argument("--today", type=Path, default=TODAY, help="folder of today's CRDs")
    parser.add_argument("--stored", type=Path, default=STORED, help="folder of those that users have")
    options = parser.parse_args(arguments)
    if options.store:
        shutil.rmtree(options.stored, ignore_errors=True)
        shutil.copytree(
            options.today,
            options.stored,
            ignore=lambda _, names: [n for n in names if not n.endswith(".yaml")],
        )
        return 0
    found: list[str] = []
    for file in sorted(options.stored.glob("*.yaml")):
        today = options.today / file.name
        if today.exists():
            found += narrowed(yaml.safe_load(file.read_text()), yaml.safe_load(today.read_text()))
        else:
            found.append(f"{file.name}: removed")
    for line in found:
        sys.stderr.write(f"{line}\n")
    if found:
        sys.stderr.write(
            "narrower than what users have, or a rule that only reading can judge; meant? `make crds-baseline`, "
            "and say it in CHANGELOG.md\n"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
