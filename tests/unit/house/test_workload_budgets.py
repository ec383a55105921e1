"""The cost of a new kind of target, counted. No file may join these."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OPERATOR = ROOT / "operator/breakeven_operator"
# Its address and the CRD's word for it, beside the file of the kind itself.
NAMES_A_KIND = {"kinds.py", "resources/speculativeservice.py"}
# All of a kind is known by the kind itself and by the table of kinds.
KNOWS_THE_KIND = {"workloads/known.py"}
# A kind whose controller makes objects of another kind names that one.
MADE_OF_IT = {"workloads/kserve.py"}
READS_FLAGS = {"workloads/served_engine.py"}
READS_A_TEMPLATE = {"workloads/served_engine.py"}


def files_with(pattern: str) -> set[str]:
    return {
        file.relative_to(OPERATOR).as_posix()
        for file in OPERATOR.rglob("*.py")
        if re.search(pattern, file.read_text(encoding="utf-8"))
    }


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("Deployment|DEPLOYMENT", "workloads/deployment.py"),
        ("StatefulSet|STATEFUL_?SET", "workloads/stateful_set.py"),
        ("LeaderWorkerSet|LEADER_", "workloads/leader_worker_set.py"),
        ("Argo R|Argo's|ARGO_|argoproj", "workloads/argo_rollout.py"),
        ("LLMInferenceService|LLM_INFERENCE|LLM_SERVICES", "workloads/kserve.py"),
        (r"\bInferenceService|\bINFERENCE_", "workloads/kserve.py"),
    ],
)
def test_files_that_name_a_kind(words, file):
    assert files_with(words) - KNOWS_THE_KIND - MADE_OF_IT <= NAMES_A_KIND | {file}


def test_files_that_import_a_kind():
    assert (
        files_with(
            r"from breakeven_operator\.workloads\.(deployment|stateful_set|leader_worker_set|argo_rollout|kserve) import"
        )
        <= KNOWS_THE_KIND | MADE_OF_IT
    )


def test_files_that_read_flags():
    assert files_with(r"\b(flag_value|flag_number|model_of|engine_start)\(") <= READS_FLAGS


def test_files_that_read_a_pod_template():
    assert files_with(r"\b(opt_in_of|drain|engine_container|devices_of)\(") <= READS_A_TEMPLATE
