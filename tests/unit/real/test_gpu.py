"""The run on a GPU as command lines: every arm of the issue, each engine on loopback, and one folder for what comes out."""

from __future__ import annotations

import importlib
import json
import shlex
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

import real.__main__ as program
from breakeven.cli import COMMANDS
from breakeven.serving import command_line
from breakeven_operator.calibration.sending import SYNTHETIC_ACCEPTANCE
from breakeven_sim.engine.speculative_config import speculation
from localcluster import LocalClusterError
from real import gpu

FOLDER = Path("/results/gpu")
PLAN = gpu.plan(FOLDER, "vllm", "breakeven", "NVIDIA-H100", 8123)


def test_no_speculation_comes_first_then_every_method_at_every_draft_length():
    assert [arm.name for arm in PLAN.arms] == [
        "none", "eagle3, k = 2", "eagle3, k = 5", "ngram, k = 2", "ngram, k = 5",
    ]  # fmt: skip


def test_every_engine_is_on_loopback_with_dummy_weights_and_reads_as_its_arm():
    for arm in PLAN.arms:
        words = list(arm.serve)
        assert "--host=127.0.0.1" in words
        assert "--load-format=dummy" in words
        config = command_line.speculation(words[2:]).config
        method = arm.name.partition(",")[0]
        if method == "none":
            assert config is None
            continue
        k = int(arm.name[-1])
        assert config["rejection_sample_method"] == "synthetic"
        assert config["synthetic_acceptance_rates"] == list(gpu.SURVIVAL[:k])
        read = speculation(config)
        assert (read.method, read.drafts.longest) == (method, k)


def test_shares_of_accepted_drafts_are_what_vllm_takes():
    """Unconditional, falling, one per draft (vLLM 0.32)."""
    assert len(gpu.SURVIVAL) == max(gpu.DRAFT_LENGTHS)
    assert list(gpu.SURVIVAL) == sorted(gpu.SURVIVAL, reverse=True)
    assert all(0 < share < 1 for share in gpu.SURVIVAL)


@pytest.mark.parametrize(
    "command", [*(arm.calibrate for arm in PLAN.arms), *PLAN.after], ids=lambda c: " ".join(c[1:3])
)
def test_our_own_commands_exist_with_these_options(command):
    """Click refuses an unknown option before it looks at anything else."""
    module = importlib.import_module(COMMANDS[command[1]].module)
    answer = CliRunner().invoke(module.command, [*command[2:], "--no-such-option"])
    assert answer.output.count("No such option") == 1
    assert "--no-such-option" in answer.output


def test_points_name_the_text_as_the_operator_does():
    assert all(f"--text={SYNTHETIC_ACCEPTANCE}" in arm.calibrate for arm in PLAN.arms)


def test_everything_that_is_written_is_in_one_folder():
    for command in (*(arm.calibrate for arm in PLAN.arms), *PLAN.after):
        outputs = [word for word in command if word.startswith("--output=")]
        assert all(word.startswith(f"--output={FOLDER}/") for word in outputs)
    assert {str(FOLDER / name) for name in ("points.csv", "profile.json", "report.html")} == {
        word.removeprefix("--output=")
        for line in PLAN.lines()
        for word in shlex.split(line)
        if word.startswith("--output=")
    }


def test_head_and_target_have_one_tokenizer_and_fitting_sizes(tmp_path):
    gpu.write_models(tmp_path)
    target, head = (tmp_path / "models" / name for name in ("target", "eagle3"))
    assert (target / "tokenizer.json").read_bytes() == (head / "tokenizer.json").read_bytes()
    vocabulary = json.loads((target / "tokenizer.json").read_text())["model"]["vocab"]
    config = json.loads((target / "config.json").read_text())
    assert config["vocab_size"] == len(vocabulary) == max(vocabulary.values()) + 1
    drafts = json.loads((head / "config.json").read_text())
    assert drafts["hidden_size"] == config["hidden_size"]
    assert drafts["max_position_embeddings"] >= 4096  # as long as the engine takes: see --max-model-len
    assert drafts["draft_vocab_size"] < drafts["vocab_size"] == config["vocab_size"]


def test_the_gpu_is_named_as_a_label_would():
    assert gpu.gpu_product("NVIDIA H100 80GB HBM3\nNVIDIA H100 80GB HBM3\n") == "NVIDIA-H100-80GB-HBM3"
    with pytest.raises(LocalClusterError, match="lists no GPU"):
        gpu.gpu_product("\n")
    with pytest.raises(LocalClusterError, match="lists A100, H100; expected GPUs of one product"):
        gpu.gpu_product("H100\nA100\n")


@pytest.fixture
def answering():
    """The address of a server that answers: which engine does is not what is tested."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_sweep_that_breaks_off_leaves_the_other_arms_and_what_is_made_of_their_points(tmp_path, answering):
    points = tmp_path / "points.csv"

    def arm(name, serve, calibrate):
        return gpu.SweptArm(name, ("sh", "-c", serve), answering, ("sh", "-c", calibrate))

    plan = gpu.SweepPlan(
        (
            arm("none", "exec sleep 60", f"echo none >> {points}"),
            arm("ngram, k = 2", "exec sleep 60", "exit 3"),
            arm("ngram, k = 5", "exec sleep 60", f"echo five >> {points}"),
        ),
        (("sh", "-c", "exit 4"), ("sh", "-c", f"echo fitted >> {points}")),
    )
    said: list[str] = []
    broken = gpu.sweep(plan, tmp_path, said.append)
    assert points.read_text().split() == ["none", "five", "fitted"]
    assert [line.partition(" ended")[0] for line in broken] == ["ngram, k = 2: sh -c", "sh -c"]
    assert said == ["1 of 3: none", "2 of 3: ngram, k = 2", "3 of 3: ngram, k = 5"]


def test_a_dry_run_prints_what_would_run_and_runs_nothing(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(program, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["real", "--engine", "gpu", "--dry-run"])
    assert program.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("vllm serve ") for line in lines) == len(PLAN.arms)
    assert sum(line.startswith("breakeven calibrate ") for line in lines) == len(PLAN.arms)
    assert lines[-1] == "real: exit status 0: nothing was run"
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ((), "there is no nvidia-smi"),
        (("nvidia-smi",), "there is no vllm on PATH"),
        (("nvidia-smi", "vllm"), "nvidia-smi --query-gpu=name ended with exit status 9"),
    ],
)
def test_a_machine_without_gpu_or_vllm_is_one_line(capsys, monkeypatch, tmp_path, there, words):
    for name in there:
        (tmp_path / name).write_text("#!/bin/sh\nexit 9\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(program, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["real", "--engine", "gpu"])
    assert program.main() == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"real: exit status 1: {words}")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--dry-run"], "--dry-run (DRY_RUN=1) needs --engine gpu (ENGINE=gpu)"),
        (["--engine", "gpu", "--likeness"], "are for --engine cpu"),
        (["--engine", "gpu", "--install-only"], "are for --engine cpu"),
    ],
)
def test_an_option_of_the_other_engine_is_refused_before_anything_begins(
    words, complaint, capsys, monkeypatch
):
    monkeypatch.setattr(sys, "argv", ["real", *words])
    with pytest.raises(SystemExit, match="2"):
        program.main()
    assert capsys.readouterr().err.splitlines()[-1].endswith(complaint)
