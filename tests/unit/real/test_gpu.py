"""The run on a GPU as command lines and processes: each engine on loopback, the machine's state beside them, one folder."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from breakeven.load_driver.client import EngineError
from breakeven.serving import command_line
from breakeven_operator.calibration.sending import SYNTHETIC_ACCEPTANCE
from breakeven_sim.engine.speculative_config import speculation
from localcluster.free_ports import free_ports
from real import gpu, machine_state
from real.gpu import OwnEngine, OwnEngines
from real.pair_rows import AGAIN
from real.pairs import Script

H200_BYTES = 150.8e9
ENGINES = gpu.engines(Path("/results"), "vllm", H200_BYTES, (8123, 8124, 8125, 8126))


def option(one, name):
    return next(word.partition("=")[2] for word in one.serve if word.startswith(f"{name}="))


def test_every_engine_is_on_loopback_with_dummy_weights_and_reads_as_its_arm():
    script = Script()
    assert list(ENGINES)[-3:] == [arm.name for arm in script.arms]
    for arm in script.arms:
        words = list(ENGINES[arm.name].serve)
        assert "--host=127.0.0.1" in words
        assert "--load-format=dummy" in words
        config = command_line.speculation(words[2:]).config
        if arm.k == 0:
            assert config is None
            continue
        assert config["synthetic_acceptance_rates"] == list(gpu.SURVIVAL[: arm.k])
        read = speculation(config)
        assert (read.method, read.drafts.longest) == (arm.method, arm.k)
    again = set(ENGINES[AGAIN].serve) ^ set(ENGINES["none"].serve)
    assert again == {"--max-cudagraph-capture-size=1024", "--port=8123", f"--port={ENGINES['none'].port}"}
    assert script.text == SYNTHETIC_ACCEPTANCE


def test_shares_of_accepted_drafts_are_what_vllm_takes():
    """Unconditional, falling, one per draft (vLLM 0.32)."""
    assert len(gpu.SURVIVAL) == max(arm.k for arm in Script().arms)
    assert list(gpu.SURVIVAL) == sorted(gpu.SURVIVAL, reverse=True)
    assert all(0 < share < 1 for share in gpu.SURVIVAL)


def test_requests_are_as_long_as_the_engine_takes():
    script, most = Script(), int(option(ENGINES["none"], "--max-model-len"))
    assert max(script.stream_tokens, *script.prompts) + 64 < most
    assert script.streams * script.stream_tokens * 131_072 < float(
        option(ENGINES["none"], "--kv-cache-memory-bytes")
    )


@pytest.mark.parametrize(("gigabytes", "kv"), [(150.8, 14e9), (85.5, 6.2e9)])
def test_three_engines_share_the_memory_of_a_gpu(gigabytes, kv):
    own = gpu.engines(Path("/results"), "vllm", 1e9 * gigabytes, (1, 2, 3, 4))
    assert float(option(own["none"], "--kv-cache-memory-bytes")) == pytest.approx(kv, rel=0.01)


def test_a_gpu_that_is_too_small_is_one_line():
    with pytest.raises(EngineError, match="the GPU has 51 GB; expected 80"):
        gpu.engines(Path("/results"), "vllm", 51e9, (1, 2, 3, 4))


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
    assert gpu.first_gpu("NVIDIA H100 80GB HBM3, 81559\nNVIDIA H100 80GB HBM3, 81559\n") == (
        "NVIDIA-H100-80GB-HBM3",
        81559 * 2**20,
    )
    for listing in ("\n", "No devices were found\n", "NVIDIA GB10, [N/A]"):
        with pytest.raises(EngineError, match="lists no GPU"):
            gpu.first_gpu(listing)


@pytest.fixture
def free_port():
    (port,) = free_ports(1)
    return port


def own_engine(program, port=0):
    return OwnEngine((sys.executable, "-c", program), port, {"SAID": "it is broken"})


@pytest.mark.parametrize("by_stop", [True, False])
def test_an_engine_is_up_when_it_answers_and_gone_when_it_is_not_wanted(tmp_path, free_port, by_stop):
    child, asked = tmp_path / "child", tmp_path / "asked"
    program = f"""
import signal, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

def end(*_):
    open({str(asked)!r}, "w").close()
    sys.exit()

signal.signal(signal.SIGTERM, end)
open({str(child)!r}, "w").write(str(subprocess.Popen(["sleep", "60"]).pid))
HTTPServer(("127.0.0.1", {free_port}), Healthy).serve_forever()
"""
    engines = OwnEngines({"none": own_engine(program, free_port)}, tmp_path)

    async def play():
        url = await engines.start("none", 30.0)
        if by_stop:
            await engines.stop("none")
        return url

    assert asyncio.run(play()) == f"http://127.0.0.1:{free_port}"
    engines.end()
    # vLLM removes its shared memory when it is asked to end, and not when it is killed.
    assert asked.exists()
    # An engine's own processes end with it; nobody may have collected what is left of them.
    state = Path(f"/proc/{child.read_text()}/stat")
    deadline = time.monotonic() + 10
    while state.exists() and ") Z " not in state.read_text():
        assert time.monotonic() < deadline, "a process of the engine is left"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import os; print('first'); raise SystemExit(os.environ['SAID'])", "ended within 5 s; its last line is 'it is broken'"),
        ("import time; print('compiling', flush=True); time.sleep(60)", "did not answer in 1 s; its last line is 'compiling'"),
    ],
)  # fmt: skip
def test_an_engine_that_does_not_start_is_one_line_and_gone(program, why, tmp_path, free_port):
    engines = OwnEngines({"eagle3/2": own_engine(program, free_port)}, tmp_path)
    with pytest.raises(EngineError, match=why):
        asyncio.run(engines.start("eagle3/2", 5.0 if "ended" in why else 1.0))
    engines.end()


def test_the_state_of_the_machine_is_written_as_long_as_it_is_wanted(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    line = "2026/11/29 22:00:01.500, 1980, 2619, 301.5, 41, 0x0000000000000004"
    # A driver that knows the older name of the reasons alone.
    smi.write_text(
        f"#!/bin/sh\ncase \"$*\" in *event*) exit 2;; esac\necho '{line}'\necho '2026/11/29 22:0'\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with machine_state.recorded(tmp_path):
        deadline = time.monotonic() + 30
        while len(looks := machine_state.read_looks(tmp_path)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
    host, card = looks
    assert set(host.figures) == {"loop_ms", "busy", "steal"}
    assert host.figures["loop_ms"] > 0
    assert card.figures == {"sm_mhz": 1980.0, "memory_mhz": 2619.0, "watts": 301.5, "celsius": 41.0}
    assert (card.at_s % 60, card.reasons) == (1.5, 4)


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ((), "there is no nvidia-smi"),
        (("nvidia-smi",), "there is no vllm on PATH"),
        (("nvidia-smi", "vllm"), "nvidia-smi lists no GPU"),
    ],
)
def test_a_machine_without_gpu_or_vllm_is_one_line(capsys, monkeypatch, tmp_path, there, words):
    for name in there:
        (tmp_path / name).write_text("#!/bin/sh\nexit 9\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["real.gpu"])
    assert gpu.main() == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"real: exit status 1: {words}")


def test_a_run_without_any_engine_leaves_its_table_and_its_commands(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "pairs"
    said: list[str] = []
    own = {name: own_engine("raise SystemExit('no GPU')") for name in ENGINES}
    left_out = gpu.measure_pairs(replace(Script(), start_s=20.0), own, folder, "GPU", said.append)
    assert "decode only: it ended within 20 s; its last line is 'no GPU'" in left_out
    assert (folder / "commands.txt").read_text().count("raise SystemExit") == 4
    monkeypatch.setattr(sys, "argv", ["real.gpu", "--read", str(folder)])
    assert gpu.main() == 0
    shown = capsys.readouterr().out
    assert said[-1].endswith((folder / "table.txt").read_text())
    assert "left out: decode only, eagle3/5: it ended within 20 s; its last line is 'no GPU'" in shown


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--seconds", "nan"], "--seconds nan (SECONDS); expected a time above 0"),
        (["--likeness"], "unrecognized arguments: --likeness"),
    ],
)
def test_a_word_that_is_not_of_this_engine_is_refused_before_anything_begins(
    words, complaint, capsys, monkeypatch
):
    monkeypatch.setattr(sys, "argv", ["real.gpu", *words])
    with pytest.raises(SystemExit, match="2"):
        gpu.main()
    assert capsys.readouterr().err.splitlines()[-1].endswith(complaint)


def test_a_folder_that_no_run_left_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["real.gpu", "--read", str(tmp_path)])
    assert gpu.main() == 1
    assert capsys.readouterr().out.endswith("no kept.jsonl; expected a folder that a run left\n")
