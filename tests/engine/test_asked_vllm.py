"""A real vLLM judges command lines for GPUs on a machine that has none: each method, and what the rows of `engine_refusals.json` say."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from breakeven.methods import METHODS
from breakeven.serving.examination import AskedEngine, verdicts
from breakeven.serving.vllm_versions import hindrances
from localcluster.cache import cache_folder
from real.model import TARGET, config
from real.vllm_environment import LOCK, home

LLAMA = config(TARGET, 1000)
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
BLOCKS = {"block_size": 8, "dflash_config": {"target_layer_ids": [0, 1], "mask_token_id": 5}}
MODELS = {
    "org/llama": LLAMA,
    "org/head": LLAMA,
    "org/qwen3": QWEN3,
    "org/dflash": {**QWEN3, **BLOCKS, "architectures": ["DFlashDraftModel"]},
    "org/dspark": {**QWEN3, **BLOCKS, "architectures": ["Qwen3DSparkModel"], "markov_rank": 8},
    "org/mimo": {
        **LLAMA, "architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 1,
    },
}  # fmt: skip
HEAD: dict[str, Any] = {"method": "eagle3", "model": "org/head", "num_speculative_tokens": 4}
ADAPTIVE = {**HEAD, "enable_adaptive_verification": True}


def line(*more: str, target: str = "org/llama", **speculation: Any) -> tuple[str, ...]:
    return (target, "--speculative-config", json.dumps(speculation), *more)


METHOD_LINES = {
    "ngram": line(method="ngram", num_speculative_tokens=3),
    "ngram_gpu": line(method="ngram_gpu", num_speculative_tokens=3),
    "suffix": line(method="suffix"),
    "custom_class": line(method="custom_class", model="a.B", num_speculative_tokens=2),
    "draft_model": line(method="draft_model", model="org/head", num_speculative_tokens=3),
    "eagle": line(method="eagle", model="org/head", num_speculative_tokens=3),
    "eagle3": line(**HEAD),
    "dflash": line(method="dflash", model="org/dflash", num_speculative_tokens=7, target="org/qwen3"),
    "dspark": line(method="dspark", model="org/dspark", num_speculative_tokens=8, target="org/qwen3"),
    "mtp": line(method="mtp", num_speculative_tokens=1, target="org/mimo"),
}
DRAFTERS = {
    "draft_model": "LlamaForCausalLM",
    "eagle": "EagleLlamaForCausalLM",
    "eagle3": "Eagle3LlamaForCausalLM",
    "dflash": "DFlashDraftModel",
    "dspark": "Qwen3DSparkModel",
    "mtp": "MiMoMTPModel",
}
REFUSED = {
    line("--enable-lora", **ADAPTIVE): "Adaptive verification is not currently compatible with LoRA",
    line("--enforce-eager", **ADAPTIVE): "Adaptive verification requires full CUDA graphs",
    line("-pp", "2", **ADAPTIVE): "Adaptive verification is not currently compatible with pipeline parallelism",
    line(**ADAPTIVE, use_local_argmax_reduction=True): "use_local_argmax_reduction never materializes",
    line(method="draft_model", num_speculative_tokens=3): "without speculative model",
    line("--max-model-len=1024", **HEAD, max_model_len=1500): "larger than target_max_model_len=1024",
    line(**{**HEAD, "num_speculative_tokens": 0}): "num_speculative_tokens: Input should be greater than 0",
    line(target="org/absent", method="eagle9", model="org/head"): "method: Input should be 'ngram'",
    line("-tp", "16", **HEAD): "World size (16) is larger than the number of available GPUs (8)",
    ("org/llama", "--nonsense"): "unrecognized arguments: --nonsense",
    ("org/llama", "--gpu-memory-utilization", "1.5"): "gpu_memory_utilization: Input should be less than",
}  # fmt: skip
LATER = (
    line("-pp", "2", **HEAD),
    line("--logits-processors", "a.B", **HEAD),
    line("--structured-outputs-config.backend", "lm-format-enforcer", **HEAD),
    line("--max-model-len=2048", **HEAD, max_model_len=1024),
    line(method="ngram", num_speculative_tokens=3, enable_adaptive_verification=True),
)
"""vLLM's configuration takes these; what it does later is known from the rows alone."""
UNKNOWN = {
    line(
        target="org/absent", method="ngram", num_speculative_tokens=3
    ): "what depends on org/absent (no config.json",
    line(
        method="eagle3", model="org/absent", num_speculative_tokens=3
    ): "what depends on org/absent (no config.json",
    (
        "org/llama",
        "--chat-template",
        "/absent.jinja",
    ): "/absent.jinja of --chat-template (the file is not here)",
}
ON_CPU = line(method="ngram", num_speculative_tokens=3)


def question(words: tuple[str, ...], gpus: int = 8) -> AskedEngine:
    return AskedEngine("serve", words, (), gpus, ())


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """vLLM's verdict by question; all are asked in two processes, because importing vLLM takes most of the time."""
    python = home(cache_folder(os.environ), LOCK.read_text(), sys.version_info[:2]) / "bin" / "python"
    if not python.exists():
        pytest.skip("no vLLM to ask: make real installs one (.venv/bin/python -m real --install-only)")
    folder = Path(tmp_path_factory.mktemp("models"))
    for name, document in MODELS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(document))
    asked = [*METHOD_LINES.values(), *REFUSED, *LATER, *UNKNOWN]
    return verdicts([*map(question, asked), question(ON_CPU, 0)], str(python), folder)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_is_taken_for_a_gpu_and_its_drafter_is_named(method, judged):
    found = judged[question(METHOD_LINES[method])]
    assert (found.outcome, found.sentence, found.judged_as) == ("accepted", "", "NVIDIA H100 80GB HBM3")
    assert found.resolved["cudagraph_mode"] == "FULL_AND_PIECEWISE"
    if method == "suffix":
        # Its package is none of vLLM's own.
        assert "its speculation (Arctic Inference is required" in found.unjudged[0]
        return
    assert found.unjudged == ()
    assert (found.resolved["method"], found.resolved.get("drafter")) == (method, DRAFTERS.get(method))


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_vllm_refuses_is_refused_in_its_own_words(words, judged):
    found = judged[question(words)]
    assert found.outcome == "refused"
    assert REFUSED[words] in found.sentence


@pytest.mark.parametrize("words", LATER, ids=" ".join)
def test_what_vllm_finds_only_later_is_in_a_row(words, judged):
    assert judged[question(words)].outcome == "accepted"
    assert len(hindrances(words, json.loads(words[2]))) == 1


@pytest.mark.parametrize("words", UNKNOWN, ids=" ".join)
def test_what_is_not_here_is_said_to_be_unjudged(words, judged):
    found = judged[question(words)]
    assert found.outcome == "accepted"
    assert found.unjudged[0].startswith(UNKNOWN[words])


def test_settings_are_those_of_the_device(judged):
    gpu, cpu = judged[question(ON_CPU)].resolved, judged[question(ON_CPU, 0)].resolved
    assert (gpu["max_num_batched_tokens"], gpu["model_runner"], gpu["block_size"]) == (8192, "V2", 16)
    assert judged[question(ON_CPU, 0)].judged_as == "CPU"
    assert (cpu.get("cudagraph_mode"), cpu["block_size"]) == ("NONE", 128)
