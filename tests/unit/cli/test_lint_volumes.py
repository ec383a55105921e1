"""`breakeven lint` names a volume that a pod beside the old one cannot get, and the lines that help."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from breakeven.cli.lint import command
from breakeven.errors import BreakevenError

MANIFEST = Path(__file__).parents[3] / "examples" / "vllm-a100.yaml"
DEPLOYMENT = next(iter(yaml.safe_load_all(MANIFEST.read_text())))
LINES = "maxSurge: 0 and maxUnavailable: 1 under spec.strategy.rollingUpdate"


def claim(*modes: str, **meta: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "model", **meta},
        "spec": {"accessModes": list(modes)},
    }


def deployment(**rolling: object) -> dict[str, Any]:
    found = copy.deepcopy(DEPLOYMENT)
    spec = found["spec"]["template"]["spec"]
    spec["volumes"] = [
        {"name": "shm", "emptyDir": {}},
        {"name": "weights", "persistentVolumeClaim": {"claimName": "model"}},
    ]
    if rolling:
        found["spec"]["strategy"] = {"rollingUpdate": rolling}
    return found


def linted(tmp_path: Path, *documents: dict[str, Any], check: bool = True) -> Any:
    file = tmp_path / "m.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return CliRunner().invoke(command, [str(file), *(["--check"] if check else [])])


def warnings(result: Any) -> list[str]:
    return [line for line in result.output.splitlines() if line.startswith("!")]


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteOncePod"])
def test_a_claim_of_one_node_is_a_warning_where_a_roll_adds_a_pod(mode: str, tmp_path: Path) -> None:
    for documents in ((claim(mode), deployment()), ({"kind": "List", "items": [deployment(), claim(mode)]},)):
        result = linted(tmp_path, *documents)
        assert isinstance(result.exception, BreakevenError)
        (said,) = warnings(result)
        assert f"PersistentVolumeClaim model is {mode}" in said
        assert LINES in said


@pytest.mark.parametrize(
    "documents",
    [
        (claim("ReadWriteMany"), deployment()),
        (claim("ReadWriteOnce"), deployment(maxSurge=0, maxUnavailable=1)),
        (claim("ReadWriteOnce"), deployment(maxSurge="0%", maxUnavailable="50%")),
        (claim("ReadWriteOnce"), DEPLOYMENT),
    ],
    ids=["many", "without surge", "zero percent", "not mounted"],
)
def test_what_a_roll_can_do_is_no_warning(documents: tuple[dict[str, Any], ...], tmp_path: Path) -> None:
    result = linted(tmp_path, *documents)
    assert (result.exception, warnings(result)) == (None, [])


@pytest.mark.parametrize("others", [(), (claim("ReadWriteOnce", namespace="elsewhere"),)])
def test_a_claim_that_is_not_in_the_file_is_a_note(others: tuple[Any, ...], tmp_path: Path) -> None:
    result = linted(tmp_path, deployment(), *others)
    assert (result.exception, warnings(result)) == (None, [])
    assert "mounts PersistentVolumeClaim model, which is not in this file" in result.output
    assert LINES in result.output


def test_a_number_of_pods_that_is_none_is_named(tmp_path: Path) -> None:
    result = linted(tmp_path, deployment(maxSurge="some"))
    assert "spec.strategy.rollingUpdate" in str(result.exception)


def test_a_claim_of_another_shape_is_refused_in_a_line(tmp_path: Path) -> None:
    broken = claim() | {"spec": {"accessModes": "ReadWriteOnce"}}
    assert "spec.accessModes" in str(linted(tmp_path, broken, deployment()).exception)
