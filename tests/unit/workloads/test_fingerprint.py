"""Edits that end a profile and edits that do not: flags, variables and images, each of many kinds."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.serving.command_line import VERSIONS, cut, flags_of
from breakeven_operator.workloads.fingerprint import HARMLESS_FLAGS, Identity, identify
from breakeven_operator.workloads.served_engine import ServedEngine
from breakeven_operator.workloads.workload_kind import ALONE, Workers
from fakes.fleet_world import TARGET

A, B = "docker.io/vllm/vllm-openai@sha256:aa", "docker.io/vllm/vllm-openai@sha256:bb"
GIVEN = (
    "--max-model-len=8192",
    "--enforce-eager",
    '--compilation-config={"level": 3, "custom_ops": ["all"]}',
)


def identity(
    *args: str,
    env: dict[str, str] | None = None,
    image: str | None = None,
    resolved: tuple[str, ...] = (A,),
    worker: dict[str, Any] | None = None,
) -> Identity:
    template = copy.deepcopy(TARGET["spec"]["template"])
    container = template["spec"]["containers"][0]
    container["args"] += args
    container["env"] += [{"name": name, "value": value} for name, value in (env or {}).items()]
    container["image"] = image or container["image"]
    engine = ServedEngine.of(template, None)
    assert engine is not None
    workers = Workers(1, {"containers": [worker]}) if worker is not None else ALONE
    return identify(engine, resolved, "NVIDIA-A100-SXM4-80GB", workers)


@pytest.mark.parametrize(
    "args",
    [
        ["--enable-log-requests"], ["--no-enable-log-requests"], ["--disable-log-requests"], ["--disable-uvicorn-access-log"],
        ["--uvicorn-log-level", "warning"], ["--log-config-file=/etc/log.json"], ["--max-log-len=200"],
        ["--otlp-traces-endpoint=http://otel:4317"], ["--enable-auto-tool-choice", "--tool-call-parser=hermes"],
        ["--reasoning-parser", "qwen3"], ["--chat-template=/templates/chat.jinja"], ["--allowed-origins", '["https://chat.example.com"]'],
        ["--ssl-certfile=/tls/tls.crt", "--ssl-keyfile=/tls/tls.key", "--enable-ssl-refresh"],
        ["--show-hidden-metrics-for-version=0.31"], ["--port", "9000"], ["--api-key", "old", "new"], ["--served_model_name", "chat", "chat-v2"],
        ["--enable-prompt-tokens-details"], ["--disable-log-stats"], ["--hf-token=hf_x"], ["--download-dir", "/models"],
        ["--root-path=/v2", "--middleware=corp.audit", "--middleware=corp.trace"], ["--h11-max-header-count=512"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_flags_that_move_no_step_keep_the_profile(args: list[str]) -> None:
    assert identity(*args).fingerprint == identity().fingerprint


@pytest.mark.parametrize(
    "args",
    [
        ["--max-model-len=4096"], ["--max-num-batched-tokens=8192"], ["--max-num-seqs=64"], ["--tensor-parallel-size=2"], ["-tp", "2"],
        ["--no-enable-prefix-caching"], ["--enable-prefix-caching"], ["--enforce-eager"], ["--kv-cache-dtype=fp8"], ["--quantization", "fp8"],
        ["--attention-backend=FLASHINFER"], ["--async-scheduling"], ["--stream-interval=10"], ["--api-server-count=4"],
        ["--lora-modules", "sql=/lora"], ["--collect-detailed-traces=model"], ["--gpu-memory-utilization=0.8"], ["-O1"],
        ["--compilation-config.level=0"], ["--flag-of-a-newer-engine=1"], ["--enable-a-newer-thing"], ["another/model"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_flags_that_may_move_a_step_end_it_and_unknown_ones_too(args: list[str]) -> None:
    assert identity(*args).fingerprint != identity().fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["--max-model-len=8192"], ["--max_model_len", "8192"]), (["--max-model-len=8192"], ["--max-model-len=8K"]),
        (["-tp=2"], ["--tensor-parallel-size", "2"]), (["--max-num-seqs=8", "--max-num-seqs=16"], ["--max-num-seqs=16"]),
        (['--compilation-config={"level":3}'], ["--compilation-config", '{ "level": 3 }']), (["--enable-prefix-cach"], ["--enable-prefix-caching"]),
    ],
)  # fmt: skip
def test_another_spelling_of_the_same_command_line_keeps_it(one: list[str], other: list[str]) -> None:
    assert identity(*one).fingerprint == identity(*other).fingerprint != identity().fingerprint


def test_the_order_of_flags_keeps_it() -> None:
    mixed = [*GIVEN]
    random.Random(7).shuffle(mixed)
    assert identity(*mixed, "--port=1").fingerprint == identity(*GIVEN).fingerprint


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_LOGGING_LEVEL", "VLLM_CONFIGURE_LOGGING", "VLLM_LOG_STATS_INTERVAL", "VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "VLLM_API_KEY",
        "VLLM_CACHE_ROOT", "VLLM_ASSETS_CACHE", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_RPC_TIMEOUT",
        "VLLM_HOST_IP", "VLLM_PORT", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_IB_TIMEOUT", "CUDA_CACHE_PATH", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
        "HF_HOME", "HF_TOKEN", "HF_HUB_OFFLINE", "OTEL_SERVICE_NAME", "LOG_LEVEL", "AWS_ACCESS_KEY_ID",
    ],
)  # fmt: skip
def test_variables_that_move_no_step_keep_the_profile(name: str) -> None:
    assert (
        identity(env={name: "a"}).fingerprint
        == identity(env={name: "b"}).fingerprint
        == identity().fingerprint
    )


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_ATTENTION_BACKEND", "VLLM_USE_V1", "VLLM_USE_DEEP_GEMM", "VLLM_USE_FLASHINFER_SAMPLER", "VLLM_LOG_BATCHSIZE_INTERVAL",
        "VLLM_TRACE_FUNCTION", "VLLM_LOGITS_PROCESSOR_THREADS", "VLLM_MODEL_REDIRECT_PATH", "VLLM_NCCL_SO_PATH", "VLLM_KV_CACHE_LAYOUT",
        "VLLM_TUNED_CONFIG_FOLDER", "VLLM_VARIABLE_OF_A_NEWER_ENGINE", "NCCL_P2P_DISABLE", "NCCL_ALGO", "CUDA_VISIBLE_DEVICES",
        "CUDA_LAUNCH_BLOCKING",
    ],
)  # fmt: skip
def test_variables_that_may_move_a_step_end_it_and_unknown_ones_too(name: str) -> None:
    assert len({identity(env=env).fingerprint for env in ({}, {name: "0"}, {name: "1"})}) == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_every_harmless_flag_is_one_of_vllm(version: str) -> None:
    newer = {"--reasoning-effort-map"} if version == "0.32" else set()
    assert set(HARMLESS_FLAGS) - flags_of(version).keys() == newer


@pytest.mark.parametrize(
    ("image", "resolved"),
    [
        ("vllm/vllm-openai:v0.32.0", (B,)), ("vllm/vllm-openai:v0.32.0", (A, B)), ("vllm/vllm-openai:v0.32.0", ()),
        ("docker.io/vllm/vllm-openai:v0.32.0", (B,)), ("mirror.corp:5000/vllm/vllm-openai:v0.32.0", ("mirror.corp:5000/vllm/vllm-openai@sha256:cc",)),
    ],
)  # fmt: skip
def test_a_version_is_one_engine_whichever_digest_a_node_or_a_mirror_has(
    image: str, resolved: tuple[str, ...]
) -> None:
    assert identity(image=image, resolved=resolved).fingerprint == identity().fingerprint


@pytest.mark.parametrize(
    "image",
    ["vllm/vllm-openai:v0.32.1", "vllm/vllm-openai:latest", "corp/vllm-openai:v0.32.0", "vllm/vllm-openai@sha256:aa", "vllm/vllm-openai:v0.32.0-cu130",
     "vllm/vllm-openai:nightly-0123456789", "vllm/vllm-openai"],
)  # fmt: skip
def test_another_version_or_digest_of_the_manifest_is_another_engine(image: str) -> None:
    assert identity(image=image).fingerprint != identity().fingerprint


@pytest.mark.parametrize("tag", [":latest", ":nightly", ":stable-cu128", "", ":latest-0.32"])
def test_a_moving_tag_counts_by_the_digests_that_pods_run(tag: str) -> None:
    image = f"vllm/vllm-openai{tag}"
    first, both, second = (identity(image=image, resolved=seen) for seen in ((A,), (A, B), (B,)))
    assert both.has(first.fingerprint)
    assert both.has(second.fingerprint), "a profile of either counts while both run"
    assert not second.has(first.fingerprint), "no pod runs what was measured"
    assert identity(image=image, resolved=(A.replace("docker.io", "mirror.corp"),)).has(first.fingerprint)


def test_a_digest_of_the_manifest_counts_whatever_nodes_call_it() -> None:
    pinned = "vllm/vllm-openai:v0.32.0@sha256:aa"
    assert identity(image=pinned).fingerprint == identity(image=pinned, resolved=(B,)).fingerprint


def test_what_workers_log_keeps_it_and_how_they_compute_does_not() -> None:
    def worker(*args: str) -> Identity:
        return identity(
            worker={"image": "vllm:v1.2.3", "command": ["vllm", "serve", "org/model"], "args": list(args)}
        )

    assert worker("--enable-log-requests").fingerprint == worker().fingerprint
    assert worker("--enforce-eager").fingerprint != worker().fingerprint != identity().fingerprint


@given(st.lists(st.sampled_from(HARMLESS_FLAGS), max_size=12), st.randoms(use_true_random=False))
def test_any_harmless_flags_anywhere_keep_the_profile(names: list[str], random: random.Random) -> None:
    table = flags_of(VERSIONS[-1])
    words = [
        *GIVEN,
        *(name if table[name].takes in {"nothing", "yes or no"} else f"{name}=x" for name in names),
    ]
    random.shuffle(words)
    assert identity(*words).fingerprint == identity(*GIVEN).fingerprint


@given(st.sampled_from(sorted(flags_of(VERSIONS[-1]).keys() - {*HARMLESS_FLAGS})))
def test_any_other_flag_of_the_engine_ends_it(name: str) -> None:
    flag = cut([f"{name}=x"])[0]
    assert flag.speculative or identity(f"{name}=x").fingerprint != identity().fingerprint
