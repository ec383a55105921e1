"""`kubectl breakeven gate` with a kubectl that notes what it is given: the run that it makes, its outcome and its exit status."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from breakeven_operator.plugin import plugin_commands
from breakeven_operator.plugin.gate_run import gate_text
from breakeven_operator.plugin.plugin_commands import root
from breakeven_operator.resources.calibrationrun import CalibrationRun

_KUBECTL = """#!/bin/sh
printf '%s\\n' "$*" >> "{folder}/asked"
case "$*" in
create*) cat > "{folder}/given"; cat "{folder}/created";;
"get calibrationruns"*)
  n=$(($(cat "{folder}/looks" 2>/dev/null || echo 0) + 1)); echo $n > "{folder}/looks"
  if [ $n -le $(cat "{folder}/silent" 2>/dev/null || echo 0) ]; then echo 'connection refused' >&2; exit 1; fi
  if [ $n -lt 3 ]; then cat "{folder}/goes"; else cat "{folder}/ended"; fi;;
*"speculativeservices.breakeven.dev nobody"*) echo 'Error from server (NotFound): specsvc "nobody" not found' >&2; exit 1;;
*speculativeservices*) cat "{folder}/service";;
esac
"""
PAGE = Path(__file__).parents[3] / "docs" / "kubectl.md"
IMAGES = ["--from", "vllm/vllm-openai:v0.31.0", "--to", "vllm/vllm-openai:v0.32.0"]
META = {"namespace": "llm", "name": "chat-gate-x"}
SPEC = {"serviceRef": {"name": "chat"}, "gate": IMAGES[1::2]}


def run(phase=None, reason="", message="", findings=()):
    status = {"phase": phase, "reason": reason, "message": message, "findings": list(findings)}
    if phase in {"Succeeded", "Failed", "Superseded"}:
        status["finishedTime"] = "2026-11-30T12:00:00Z"
    return {"metadata": META, "spec": SPEC, "status": status}


def found(word, sentence="20 ms before, 25 ms after"):
    return [
        {"figure": "upgrade", "word": word, "message": sentence},
        {"figure": "tpot_s at 8 clients", "word": word, "message": sentence},
    ]


class Verb:
    """Runs the verb with a kubectl whose files lie in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, *words, ended=None):
        if ended is not None:
            self.put("ended", ended)
        return CliRunner().invoke(root, ["gate", *words])

    def put(self, name, content):
        (self.folder / name).write_text(json.dumps(content, default=str))

    def given(self):
        return json.loads((self.folder / "given").read_text())

    def asked(self):
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def verb(tmp_path, monkeypatch, recommending):
    program = tmp_path / "kubectl"
    program.write_text(_KUBECTL.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(plugin_commands, "LOOK_S", 0.0)
    files = {
        "service": recommending.service,
        "created": {"metadata": META, "spec": SPEC},
        "goes": run("Measuring", "CalibrationRunning", "both engines are asked"),
        "ended": run("Succeeded", "Same", "nothing lost", found("Same")),
    }

    verb = Verb(tmp_path)
    for name, content in files.items():
        verb.put(name, content)
    return verb


def test_the_run_names_both_images_and_the_arm(verb):
    done = verb("chat", *IMAGES, "--arm", "eagle/3", "-n", "llm")
    assert (done.exit_code, done.stdout) == (0, "calibrationrun/chat-gate-x created\n")
    made = verb.given()
    assert made["spec"] == {"serviceRef": {"name": "chat"}, "gate": IMAGES[1::2], "arms": ["eagle/3"]}
    assert (
        "create --namespace=llm --field-manager=kubectl-breakeven --filename=- --output=json"
        in verb.asked()[-1]
    )
    made["metadata"] |= {"namespace": "llm", "name": "x"}
    assert CalibrationRun.read(made, "the run").spec.gate == tuple(IMAGES[1::2])


@pytest.mark.parametrize(
    ("ended", "status", "last"),
    [
        (run("Succeeded", "Same", "nothing lost", found("Same")), 0, "Same: nothing lost"),
        (run("Failed", "Slower", "Slower: 25 ms after", found("Slower")), 1, "Slower: 25 ms after"),
        (run("Failed", "DoesNotStart", "DoesNotStart: ValueError: no"), 1, "DoesNotStart: ValueError: no"),
        (run("Failed", "Undecided", "Undecided: more time", found("Undecided")), 2, "Undecided: more time"),
        (run("Failed", "ImagePullFailed", "ImagePullFailed: not found"), 2, "ImagePullFailed: not found"),
        (run("Superseded", "Superseded", "the target is gone"), 2, "Superseded: the target is gone"),
    ],
    ids=lambda one: one.split(":")[0] if isinstance(one, str) else "",
)
def test_with_wait_the_exit_status_is_the_word_s(verb, ended, status, last):
    done = verb("chat", *IMAGES, "--wait", ended=ended)
    assert done.exit_code == status, done.output
    assert done.stdout.splitlines()[-1] == last
    assert done.stderr.splitlines() == [
        "calibrationrun/chat-gate-x created",
        "Measuring: both engines are asked",
    ]


@pytest.mark.parametrize(("silent", "status"), [(2, 0), (20, 2)])
def test_an_api_server_that_does_not_answer_for_a_while_is_no_loss(verb, silent, status):
    verb.put("silent", silent)
    done = verb("chat", *IMAGES, "--wait")
    assert done.exit_code == status, done.output
    assert "connection refused" in done.stderr


def test_the_page_shows_what_is_printed():
    command = f"gate chat {' '.join(IMAGES)} --wait"
    sentence = "24.9 ms before, 35.3 ms after: 1.418 times (1.390 to 1.446)"
    rows = [
        {"figure": "upgrade", "word": "Slower", "message": sentence},
        {"figure": "time per output token at 8 clients", "word": "Slower", "message": sentence},
        {
            "figure": "prefix-cache hits",
            "word": "Same",
            "message": "79 % before, 79 % after: 1.000 times (0.982 to 1.018)",
        },
    ]
    printed = "\n".join(gate_text(run("Failed", "Slower", f"Slower: {sentence}", rows)))
    assert f"$ kubectl breakeven {command}\n{printed}\n```" in PAGE.read_text(encoding="utf-8")


def test_as_json_the_outcome_is_one_document(verb):
    done = verb(
        "chat", *IMAGES, "--wait", "--json", ended=run("Failed", "Slower", "Slower: 25 ms", found("Slower"))
    )
    assert json.loads(done.stdout) == {
        "word": "Slower",
        "message": "Slower: 25 ms",
        "images": {"before": IMAGES[1], "after": IMAGES[3]},
        "findings": [
            {"figure": "tpot_s at 8 clients", "word": "Slower", "sentence": "20 ms before, 25 ms after"}
        ],
        "run": "llm/chat-gate-x",
    }
    assert done.exit_code == 1


def test_a_service_that_is_not_there_is_refused_before_a_run_is_made(verb):
    done = verb("nobody", *IMAGES)
    assert "nobody" in str(done.exception)
    assert not any(line.startswith("create") for line in verb.asked())
    waiting = verb("nobody", *IMAGES, "--wait")
    assert (waiting.exit_code, waiting.stdout) == (2, ""), "status 1 is a loss"
    assert "nobody" in waiting.stderr
