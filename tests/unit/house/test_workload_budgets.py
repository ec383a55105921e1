"""The cost of a new kind of target, counted. No file may join these."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OPERATOR = ROOT / "operator/breakeven_operator"
# Its address and the CRD's word for it.
NAMES_A_KIND = {"kinds.py", "resources/speculativeservice.py"}
# All of a kind is known there.
KNOWS_THE_KIND = {"workloads/known.py"}
READS_FLAGS = {"workloads/served_engine.py"}
READS_A_TEMPLATE = {"workloads/served_engine.py"}


def files_with(pattern: str) -> set[str]:
    return {
        file.relative_to(OPERATOR).as_posix()
        for file in OPERATOR.rglob("*.py")
        if re.search(pattern, file.read_text(encoding="utf-8"))
    }


@pytest.mark.parametrize(
    "words",
    [
        "Deployment|DEPLOYMENT",
        "StatefulSet|STATEFUL_?SET",
        "LeaderWorkerSet|LEADER_",
        "Argo R|Argo's|ARGO_|argoproj",
        "LLMInferenceService|LLM_INFERENCE|LLM_SERVICES",
        r"\bInferenceService|\bINFERENCE_",
    ],
)
def test_files_that_name_a_kind(words):
    assert files_with(words) <= NAMES_A_KIND | KNOWS_THE_KIND


def test_files_that_read_flags():
    assert files_with(r"\b(flag_value|flag_number|model_of|engine_start)\(") <= READS_FLAGS


def test_files_that_read_a_pod_template():
    assert files_with(r"\b(opt_in_of|drain|engine_container|devices_of)\(") <= READS_A_TEMPLATE
