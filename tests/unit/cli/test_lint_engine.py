"""`breakeven lint --engine`: what the judge is asked and how its answers are shown; a script stands in for the Python that has vLLM."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from breakeven.cli.lint import command
from breakeven.errors import BreakevenError
from breakeven.serving import examination

ACCEPTED = {"outcome": "accepted", "sentence": "", "vllm": "0.32.0", "unjudged": [], "resolved": {"block_size": 16, "prefix_caching": True}}  # fmt: skip
REFUSED = {**ACCEPTED, "outcome": "refused", "sentence": "argument --max-num-seqs: invalid int value: 'many'"}
ANNOTATED = {"breakeven.dev/speculative-config": '{"method":"ngram","num_speculative_tokens":3}'}


def manifest(folder: Path, *args: str, annotations: dict[str, str] | None = None, **engine: Any) -> Path:
    one = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": ["org/model", *args], **engine}
    template = {"metadata": {"annotations": annotations or {}}, "spec": {"containers": [one]}}
    document = {"kind": "Deployment", "metadata": {"name": "chat"}, "spec": {"template": template}}
    file = folder / "m.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


def judge(folder: Path, answer: Any, *, lines: str = "") -> Path:
    """A program that keeps its question and environment beside it, and gives every question the same answer."""
    python = folder / "python-judge"
    python.write_text(
        f"#!{sys.executable}\nimport json, os, sys, time\nfrom pathlib import Path\nasked = json.load(sys.stdin)\n"
        f"Path({str(folder / 'asked.json')!r}).write_text(json.dumps([asked, dict(os.environ)]))\n{lines}\n"
        f"for number in range(len(asked['questions'])):\n"
        f"    Path(sys.argv[2], f'{{number}}.json').write_text({json.dumps(answer)!r})\n"
    )
    python.chmod(0o755)
    return python


def run(file: Path, *options: str) -> tuple[str, str]:
    """Standard output, and the refusal (empty without one)."""
    result = CliRunner().invoke(command, [str(file), *options])
    assert result.exception is None or isinstance(result.exception, BreakevenError), result.exception
    return result.stdout, str(result.exception or "")


def test_the_engine_is_asked_about_the_words_variables_and_gpus_of_the_manifest(tmp_path):
    file = manifest(
        tmp_path, "--speculative-config=$(BREAKEVEN_SPECULATIVE_CONFIG)", "--config", "/etc/vllm.yaml",
        annotations=ANNOTATED, resources={"limits": {"nvidia.com/gpu": 2}},
        env=[{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}, {"name": "VLLM_CACHE_ROOT", "value": "/data"}, {"name": "OTHER", "value": "1"}],
    )  # fmt: skip
    said, refusal = run(file, "--engine", str(judge(tmp_path, ACCEPTED)))
    asked, environment = json.loads((tmp_path / "asked.json").read_text())
    arm = ANNOTATED["breakeven.dev/speculative-config"]
    assert asked == {
        "gpus": 2,
        "configs": "",
        "questions": [{"program": "serve", "words": ["org/model", f"--speculative-config={arm}"]}],
    }
    assert (environment["VLLM_USE_V2_MODEL_RUNNER"], environment["HF_HUB_OFFLINE"]) == ("0", "1")
    assert environment["VLLM_CACHE_ROOT"] != "/data"
    assert "OTHER" not in environment
    assert not refusal
    assert (
        "  engine    accepted in part by vLLM 0.32.0 as on NVIDIA H100 80GB HBM3: block_size 16, prefix_caching on; not judged: "
        "the file /etc/vllm.yaml of --config (it is not here)\n"
    ) in said


def test_a_module_and_an_engine_on_cpu_are_asked_about_as_such(tmp_path):
    file = manifest(tmp_path, image="vllm/vllm-openai-cpu:v0.33.0", command=["python3", "-m", "vllm.entrypoints.openai.api_server"])  # fmt: skip
    said, _ = run(file, "--engine", str(judge(tmp_path, ACCEPTED)), "--model-config", str(tmp_path))
    asked, _ = json.loads((tmp_path / "asked.json").read_text())
    assert (asked["gpus"], asked["configs"]) == (0, str(tmp_path))
    assert asked["questions"] == [{"program": "api_server", "words": ["org/model"]}]
    assert "accepted by vLLM 0.32.0 (the image's tag says 0.33) as on CPU" in said


def test_a_refusal_is_vllms_own_sentence_and_status_1_and_stands_in_the_document(tmp_path):
    file = manifest(tmp_path, "--max-num-seqs", "many")
    python = str(judge(tmp_path, REFUSED))
    said, refusal = run(file, "--engine", python)
    assert "  engine    refused by vLLM 0.32.0: argument --max-num-seqs: invalid int value: 'many'\n" in said
    assert refusal == f"{file}: vLLM refuses Deployment/chat (vllm) (see above)"
    (one,) = json.loads(run(file, "--engine", python, "--json")[0])["deployments"]
    assert (one["engine"]["outcome"], one["engine"]["sentence"]) == ("refused", REFUSED["sentence"])
    assert "engine" not in json.loads(run(file, "--json")[0])["deployments"][0]


def test_a_value_that_kubernetes_puts_in_is_no_refusal(tmp_path):
    answer = {**REFUSED, "sentence": "argument --port: invalid int value: '$(PORT)'"}
    said, refusal = run(manifest(tmp_path, "--port=$(PORT)"), "--engine", str(judge(tmp_path, answer)))
    assert "not judged: the value of a variable is not in the file" in said
    assert refusal.endswith("vLLM did not judge Deployment/chat (vllm) (see above)")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("sys.exit('Segmentation fault')", "not judged: vLLM's process ended (Segmentation fault)"),
        ("os.kill(os.getpid(), 9)", "not judged: vLLM's process ended (without a word)"),
        ("time.sleep(600)", "not judged: vLLM did not answer within 2 s"),
    ],
)
def test_an_engine_that_does_not_answer_is_said_so_in_one_line(lines, said, tmp_path, monkeypatch):
    monkeypatch.setattr(examination, "IMPORT_S", 1)
    monkeypatch.setattr(examination, "EACH_S", 1)
    shown, refusal = run(manifest(tmp_path), "--engine", str(judge(tmp_path, ACCEPTED, lines=lines)))
    assert said in shown
    assert refusal.endswith("vLLM did not judge Deployment/chat (vllm) (see above)")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine"], f"{sys.executable} has no vLLM; pip install 'breakeven[vllm]', or name a Python that has it"),
        (["--engine", "python9"], "--engine: python9; expected a Python that has vLLM"),
        (["--engine", sys.executable, "--model-config", "/nowhere"], "--model-config: /nowhere is no folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_in_one_line(options, said, tmp_path):
    assert run(manifest(tmp_path), *options)[1].startswith(said)


def test_a_manifest_may_follow_the_option(tmp_path):
    file = manifest(tmp_path)
    result = CliRunner().invoke(command, ["--engine", str(file)])
    assert "has no vLLM" in str(result.exception)
    assert CliRunner().invoke(command, [str(file), "--model-config", "."]).exit_code == 2
