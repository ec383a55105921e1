"""The simulated engine against what a real vLLM 0.32.0 said, captured by tests/realvllm.

vllm_0_32_command_lines.json: what its parser and its configuration made of 149 command lines.
vllm_0_32_answers.json: what its server, started with a two-layer Llama of random weights and a vocabulary of the words
w0 to w996, answered to 71 requests.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from breakeven.errors import InputError
from breakeven.serving import command_line
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.exposition import CacheInfo, EngineMetrics
from breakeven_sim.engine.realtime import PacedEngine
from breakeven_sim.engine.serve_arguments import parse
from breakeven_sim.engine.speculative_config import speculation
from breakeven_sim.engine.vllm_api import AnswerSource, NamedModel, VllmApi

HERE = Path(__file__).parent
COMMAND_LINES = json.loads((HERE / "vllm_0_32_command_lines.json").read_text())
ANSWERS = json.loads((HERE / "vllm_0_32_answers.json").read_text())["answers"]

# vLLM's parser takes these schedules; its scheduler refuses them when the engine core starts.
REFUSED_LATER: tuple[list[list[int]], ...] = (
    [],
    [[2, 4, 3]],
    [[1, 4, 3], [4, 8, 1]],
    [[4, 1, 3]],
    [[1, 4, -1]],
)
# It knows the model's files and so the names of quantisations; the simulated engine has no model.
TAKEN_HERE = ["tiny", "--quantization", "fp8x"]


def verdict(words: list[str]) -> dict[str, Any]:
    try:
        parsed = parse(words, {})
        spec = speculation(parsed.speculative_config)
    except SystemExit as exited:
        return {"outcome": "usage" if exited.code == 2 else f"exit {exited.code}"}
    except InputError:
        return {"outcome": "refused"}
    found = {
        "model": parsed.model,
        "served_model_name": None if parsed.served_names == (parsed.model,) else [*parsed.served_names],
        "port": parsed.port,
        "max_num_seqs": parsed.max_num_seqs,
        "max_num_batched_tokens": parsed.max_num_batched_tokens,
        "max_model_len": parsed.max_model_len,
        "shutdown_timeout": parsed.shutdown_timeout_s,
        "seed": parsed.seed,
        "speculation": {"method": spec.method, "k": spec.drafts.longest} if spec else None,
    }
    absent = {"port": 8000, "shutdown_timeout": 0, "seed": 0}
    return {"outcome": "accepted"} | {k: v for k, v in found.items() if v != absent.get(k)}


def schedule_of(words: list[str]) -> Any:
    given = next((word for word in words if "per_batch_size" in word), "{}")
    return json.loads(given).get("num_speculative_tokens_per_batch_size")


def test_command_lines_are_taken_and_refused_as_vllm_does(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in COMMAND_LINES["files"].items():
        Path(name).write_text(text)
    different = []
    for line in COMMAND_LINES["lines"]:
        words = line["words"]
        expected = {key: value for key, value in line.items() if key not in {"words", "message"}}
        if schedule_of(words) in REFUSED_LATER:
            expected = {"outcome": "refused"}
        if words == TAKEN_HERE:
            expected = {"outcome": "accepted", "model": "tiny"}
        if expected.get("max_model_len") == -1:
            del expected["max_model_len"]  # `auto`
        if verdict(words) != expected:
            different.append((words, expected, verdict(words)))
    assert different == []


def said_by_a_manifest(words: list[str]) -> dict[str, Any]:
    """The arm that operator and `lint` read from the words of a pod template."""
    said = command_line.speculation(words)
    spec = speculation(said.config) if said.config is not None else None
    found: dict[str, Any] = {
        "model": command_line.model_of(words) or "Qwen/Qwen3-0.6B",
        "speculation": {"method": spec.method, "k": spec.drafts.longest} if spec else None,
    }
    for name in (
        "port",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "shutdown_timeout",
        "seed",
    ):
        found[name] = command_line.flag_number(words, f"--{name.replace('_', '-')}")
    absent = {"port": 8000, "shutdown_timeout": 0, "seed": 0}
    said_so = {key: value for key, value in found.items() if value is not None and value != absent.get(key)}
    return {"outcome": "accepted", **said_so}


def test_a_manifest_is_read_as_vllm_reads_it():
    different = []
    for line in COMMAND_LINES["lines"]:
        words = line["words"]
        files = any("config" in word and "spec" not in word for word in words)
        if line["outcome"] != "accepted" or files or schedule_of(words) in REFUSED_LATER:
            continue
        expected = {key: value for key, value in line.items() if key not in {"words", "served_model_name"}}
        if expected.get("max_model_len") == -1:
            del expected["max_model_len"]  # `auto`
        programs: tuple[list[str], ...] = (
            [],
            ["vllm", "serve"],
            ["python", "-m", "vllm.entrypoints.openai.api_server"],
        )
        said = [(program, said_by_a_manifest([*program, *words])) for program in programs]
        different += [(program, words, expected, read) for program, read in said if read != expected]
    assert different == []


def test_a_speculation_that_vllm_refuses_is_a_problem_of_the_manifest():
    words = ("no attribute 'items'", "mutually exclusive", "cannot be converted to <function loads>")
    refused = [
        line["words"]
        for line in COMMAND_LINES["lines"]
        if "spec" in str(line["words"]) and any(word in line.get("message", "") for word in words)
    ]
    assert len(refused) == 7
    said = [command_line.speculation(line) for line in refused]
    assert [one for one in said if one.problem is None] == [
        command_line.Speculation(variable="BREAKEVEN_SPECULATIVE_CONFIG")
    ], "what the container's environment will say is not known here"


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda one: f"{one['method']} {one['path']}")
async def test_answers_are_vllms(answer, served):
    given = dict(answer.get("json") or {})
    if str(given.get("prompt")).endswith(" ids"):
        given["prompt"] = [5] * int(given["prompt"].split()[0])
    raw = (
        answer["raw"].encode("latin-1") if "raw" in answer else json.dumps(given).encode() if given else None
    )
    headers = {"Content-Type": "application/json"} if raw is not None else {}
    async with served.request(answer["method"], answer["path"], data=raw, headers=headers) as response:
        text = await response.text()
        assert response.status == answer["status"]
        assert response.headers.get("Content-Type") == answer["type"]
        assert (response.headers["Server"], response.headers["Vary"]) == ("uvicorn", "Origin")
    assert without_chance(text) == without_chance(answer["text"])


@pytest.fixture
async def served(make_config):
    engine = Engine(make_config(None, 0, step__base_s=1e-4, step__per_token_s=1e-6))
    metrics = EngineMetrics(engine, "tiny", CacheInfo(16, 10_000, 1024.0, 0.92, 1024, None), created_s=1.0)
    paced = PacedEngine(engine, metrics.record_step)
    api = VllmApi(paced, metrics, NamedModel(("tiny",), "./tiny", 1024), AnswerSource())
    running = asyncio.create_task(paced.run())
    async with TestClient(TestServer(api.application())) as client:
        yield client
    running.cancel()


def without_chance(text: str) -> str:
    """An answer without what differs from one to the next: identifiers, times, generated text and token ids."""
    for pattern, same in (
        (r'"id":"[^"]*"', '"id":"ID"'),
        (r'"created":\d+', '"created":0'),
        (r'"(text|content)":"[^"]+"', r'"\1":"words"'),
        (r'"system_fingerprint":"[^"]*"', '"system_fingerprint":"F"'),
        (r'"tokens":\[[\d,]+\]', '"tokens":[]'),
        (r'"prompt":"w\d+ w\d+ w\d+"', '"prompt":"words"'),
    ):
        text = re.sub(pattern, same, text)
    return text
