"""The examples of gates name what is there: options of both commands, fields of the run, and the exit status that stops a pipeline."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from breakeven.cli.gate import command
from breakeven_operator.plugin.plugin_commands import gate
from breakeven_operator.resources.calibrationrun import CalibrationRun

EXAMPLES = Path(__file__).parents[3] / "examples" / "gate"
_KUBECTL = """#!/bin/sh
printf '%s\\n' "$*" >> "{folder}/asked"
exit {status}
"""


def read(name):
    return yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8"))


def test_the_run_is_one_that_the_operator_reads():
    manifest = read("calibrationrun.yaml")
    manifest["metadata"]["namespace"] = "llm"
    spec = CalibrationRun.read(manifest, "the example").spec
    assert spec.gate is not None
    assert len(set(spec.gate)) == 2


def test_the_analysis_runs_the_command_with_options_that_it_has():
    spec = read("analysistemplate.yaml")["spec"]
    (metric,) = spec["metrics"]
    job = metric["provider"]["job"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    assert container["command"] == ["breakeven"]
    name, *words = container["args"]
    assert name == command.name
    given = [
        word.replace("{{args.from-url}}", "http://a:1").replace("{{args.to-url}}", "http://b:1")
        for word in words
    ]
    context = command.make_context(name, given)
    assert (context.params["from_url"], context.params["to_url"]) == ("http://a:1", "http://b:1")
    assert context.params["max_seconds"] < job["activeDeadlineSeconds"]
    assert job["backoffLimit"] == metric["failureLimit"] == 0, (
        "a loss is no failure of the Job that is tried again"
    )
    assert {one["name"] for one in spec["args"]} == set(re.findall(r"{{args\.([a-z-]+)}}", " ".join(words)))


def step(name):
    """The script of a step of the workflow, and its variables."""
    (job,) = read("github-workflow.yaml")["jobs"].values()
    return next(one for one in job["steps"] if one.get("name") == name)


@pytest.fixture(params=["", '"', "'"])
def repository(request, tmp_path, monkeypatch):
    """A pull request that changes the engine's image, and a kubectl that notes what it is asked."""
    for key, value in (("NAME", "a"), ("EMAIL", "a@b.c")):
        monkeypatch.setenv(f"GIT_AUTHOR_{key}", value)
        monkeypatch.setenv(f"GIT_COMMITTER_{key}", value)
    here, quote = tmp_path / "repository", request.param
    (here / "deploy").mkdir(parents=True)

    def git(*words):
        subprocess.run(["git", *words], cwd=here, check=True, capture_output=True)

    def commit(version):
        image = f"{quote}vllm/vllm-openai:{version}{quote}{'  # pinned' if quote else ''}"
        (here / "deploy" / "chat.yaml").write_text(f"containers:\n  - image: {image}\n")
        git("add", ".")
        git("commit", "-m", version)

    git("init", "-b", "main")
    commit("v0.31.0")
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    return here, commit, tmp_path


def run(here, folder, status):
    program = folder / "kubectl"
    program.write_text(_KUBECTL.format(folder=folder, status=status))
    program.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "GITHUB_BASE_REF": "main"}
    # As GitHub runs a step whose shell is bash.
    words = [
        str(shutil.which("bash")),
        "--noprofile",
        "--norc",
        "-eo",
        "pipefail",
        "-c",
        step("compare both images")["run"],
    ]
    done = subprocess.run(words, cwd=here, env=env, capture_output=True, text=True, check=False)
    asked = folder / "asked"
    return done.returncode, asked.read_text().splitlines() if asked.exists() else []


@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_workflow_compares_the_image_of_the_base_with_the_image_of_the_pull_request(repository, status):
    here, commit, folder = repository
    commit("v0.32.0")
    ended, (asked,) = run(here, folder, status)
    assert ended == status, "a loss stops the pull request"
    first, name, *words = asked.split()
    assert (first, name) == ("breakeven", gate.name)
    given = gate.make_context(name, words).params
    assert (given["service"], given["before"], given["after"], given["wait"]) == (
        "chat",
        "vllm/vllm-openai:v0.31.0",
        "vllm/vllm-openai:v0.32.0",
        True,
    )


def test_a_pull_request_with_the_same_image_asks_for_nothing(repository):
    here, _, folder = repository
    assert run(here, folder, 1) == (0, [])


def test_images_are_compared_on_a_cluster_and_the_library_s_command_names_the_verb():
    done = CliRunner().invoke(command, ["--from", "vllm:1", "--to", "vllm:2"])
    assert done.exit_code == 2
    assert "kubectl breakeven gate SERVICE --from IMAGE --to IMAGE" in done.output
