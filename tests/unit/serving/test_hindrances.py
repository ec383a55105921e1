"""Settings that `lint` names before the operator meets them as missing series or as an engine that does not start."""

from __future__ import annotations

import pytest

from breakeven.serving.vllm_versions import hindrances


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (["vllm", "serve", "m", "--disable-log-stats"], ["--disable-log-stats: vLLM then counts nothing"]),
        (["m", "--disable_log_stats"], ["--disable_log_stats: "]),
        (["m", "-pp", "2"], ["-pp 2: vLLM does not start"]),
        (["m", "--pipeline-parallel-size=4"], ["--pipeline-parallel-size 4: "]),
        (["m", "--logits-processors", "a.B", "c.D"], ["--logits-processors: vLLM refuses"]),
        (["m", "--disable-log-stats", "-pp=2", "--logits-processors=a.B"], ["--disable", "-pp 2", "--logits"]),
        (["python3", "-m", "vllm.entrypoints.api_server", "--model", "m"], ["vllm.entrypoints.api_server: "]),
        (["m", "-pp", "1", "--disable-log-requests", "--disable-uvicorn-access-log"], []),
        (["m", "-pp", "many"], []),
        ([], []),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_keeps_an_engine_from_being_measured_or_from_speculating(words, begins):
    found = hindrances(words)
    assert [line.startswith(begin) for line, begin in zip(found, begins, strict=True)] == [True] * len(begins)
