"""`breakeven lint` refuses in one line what no API server would have taken."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from breakeven.cli.lint import command
from breakeven.errors import BreakevenError

MANIFEST = Path(__file__).parents[3] / "examples" / "vllm-a100.yaml"
DEPLOYMENT = next(iter(yaml.safe_load_all(MANIFEST.read_text())))


def paths(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, item in items:
        yield from paths(item, (*path, key))


def with_value(path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    document = copy.deepcopy(DEPLOYMENT)
    node = document
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return document


@pytest.mark.parametrize("value", [None, 3, "text", [1], {"a": 1}], ids=str)
def test_any_part_may_be_of_any_type(value: Any, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    runner = CliRunner()
    for path in paths(DEPLOYMENT):
        # JSON is YAML, and quicker to write.
        file.write_text(json.dumps(with_value(path, value)))
        result = runner.invoke(command, [str(file)])
        if result.exception is not None:
            assert isinstance(result.exception, BreakevenError), (path, value, result.exception)
            assert "\n" not in str(result.exception)


def test_the_field_is_named(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(yaml.safe_dump(with_value(("spec", "template", "spec", "containers"), 5)))
    refused = CliRunner().invoke(command, [str(file)]).exception
    assert str(refused).endswith("document 1: spec.template.spec.containers: 5; expected a list")


def test_null_is_absent_as_in_kubernetes(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(
        yaml.safe_dump(with_value(("spec", "template", "spec", "terminationGracePeriodSeconds"), None))
    )
    result = CliRunner().invoke(command, [str(file)])
    assert result.exit_code == 0
    assert "terminationGracePeriodSeconds" in result.output


@pytest.mark.parametrize(
    ("args", "warned"), [(["--config=/etc/vllm.yaml"], True), (["--config", "/x"], False)]
)
def test_a_configuration_file_that_vllm_ignores_is_a_warning(
    args: list[str], warned: bool, tmp_path: Path
) -> None:
    container = ("spec", "template", "spec", "containers", 0, "args")
    given = DEPLOYMENT["spec"]["template"]["spec"]["containers"][0]["args"]
    file = tmp_path / "m.yaml"
    file.write_text(json.dumps(with_value(container, [*given, *args])))
    result = CliRunner().invoke(command, [str(file), "--json"])
    (finding,) = json.loads(result.output)["deployments"]
    assert any("--config=/etc/vllm.yaml" in warning for warning in finding["warnings"]) is warned
    assert finding["ok"] is not warned
