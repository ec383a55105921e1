"""vLLM's speculative flags in every form, found and removed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.serving.command_line import (
    Speculation,
    flag_number,
    flag_value,
    model_of,
    shell_call,
    speculation,
    with_speculation,
    without_speculation,
)

EAGLE = {"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("args", "config"),
    [
        (["m"], None),
        (["m", f"--speculative-config={json.dumps(EAGLE)}"], EAGLE),
        (["m", "--speculative-config", json.dumps(EAGLE)], EAGLE),
        (["m", "--speculative_config", json.dumps(EAGLE)], EAGLE),
        (["-sc", json.dumps(EAGLE), "m"], EAGLE),
        (
            ["m", "--spec-method", "ngram", "--spec-tokens=4"],
            {"method": "ngram", "num_speculative_tokens": 4},
        ),
        (
            ["m", "--speculative-config.method", "ngram", "--speculative-config.num_speculative_tokens=4"],
            {"method": "ngram", "num_speculative_tokens": 4},
        ),
        (["m", "--speculative-config="], None),
        (["m", "--speculative-config=null"], None),
        (["m", "--speculative-config", "None"], None),
        (["m", f"--speculative-config={json.dumps(EAGLE)}", "--speculative-config=null"], None),
    ],
)
def test_the_running_configuration_is_read_in_every_form(args, config):
    said = speculation(args)
    assert said.config == config
    assert said.problem is None


def test_a_variable_means_that_the_container_decides():
    said = speculation(["m", "--speculative-config=$(BREAKEVEN_SPECULATIVE_CONFIG)"])
    assert said.variable == "BREAKEVEN_SPECULATIVE_CONFIG"
    assert said.config is None


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("--speculative-config=" + "[" * 100_000, "JSON that is nested too deep"),
        ("--speculative-config=" + '{"a":' * 5000 + "1" + "}" * 5000, "JSON that is nested too deep"),
        ("--speculative-config" + ".a" * 5000 + "=1", "expected at most 64 dots"),
    ],
    ids=["lists", "objects", "dots"],
)
def test_a_command_line_of_any_depth_is_its_own_problem(word, problem):
    said = speculation([word]).problem
    assert problem in said
    assert "\n" not in said
    # Below a dot what is no JSON is a text.
    assert speculation(["--speculative-config.a=" + "[" * 100_000]).problem is None


@pytest.mark.parametrize("value", ["{", "[1]", "3", "$X"])
def test_what_vllm_refuses_is_a_problem_not_no_speculation(value):
    assert speculation([f"--speculative-config={value}"]).problem


@pytest.mark.parametrize(
    "speculative",
    [
        ["--speculative-config", json.dumps(EAGLE)],
        [f"--speculative_config={json.dumps(EAGLE)}"],
        ["-sc", "null"],
        ["--spec-method", "ngram", "--spec-model=org/x", "--spec-tokens", "3"],
        ["--speculative-config.method", "ngram"],
        ["-sc.method=ngram", "-sc.num_speculative_tokens", "3"],
        ["--speculative-conf", "null"],
        ["--speculative-config=$(X)"],
    ],
)
def test_removing_speculation_leaves_everything_else_in_order(speculative):
    before = ["org/model", "--max-num-seqs", "64", "--enforce-eager"]
    after = ["--port=8000", "--served-model-name", "chat"]
    assert without_speculation([*before, *speculative, *after]) == [*before, *after]


@pytest.mark.parametrize(
    "before",
    [
        ["--enable-eplb"],
        ["-ep"],
        ["--enable-log-outputs", "--disable-log-requests"],
        ["--no-enable-eplb"],
        ["-tp", "2"],
        ["--of-a-plug-in", "x"],
    ],
)
def test_a_flag_takes_as_many_items_as_vllm_gives_it(before):
    assert model_of(["vllm", "serve", *before, "org/model", "--port", "1"]) == "org/model"


def test_a_flag_of_many_values_takes_all_of_them():
    assert model_of(["--served-model-name", "chat", "chat-large", "--model", "org/model"]) == "org/model"
    assert without_speculation(["--served-model-name", "a", "b", "-sc", "{}"]) == [
        "--served-model-name",
        "a",
        "b",
    ]


_PLAIN = st.sampled_from(
    ["org/model", "--port=1", "--max-num-seqs", "64", "--enforce-eager", "--x={}", "--no-y"]
)
_SPEC = st.sampled_from(
    [
        ["--speculative-config={}"],
        ["-sc", "null"],
        ["--spec-tokens", "3"],
        ["--speculative-config.method=ngram"],
    ]
)


@given(st.lists(st.one_of(_PLAIN.map(lambda item: [item]), _SPEC)))
def test_an_arm_put_on_any_line_is_the_arm_that_runs(parts):
    args = [item for part in parts for item in part]
    line = with_speculation(args, EAGLE)
    assert speculation(line).config == EAGLE
    assert speculation(without_speculation(line)) == Speculation()
    assert with_speculation(line, EAGLE) == line


def test_flag_values_and_model():
    args = ["serve", "org/model", "--port", "8001", "--shutdown-timeout=60", "--port=8002"]
    assert flag_value(args, "--port") == "8002"
    assert flag_value(args, "--shutdown-timeout") == "60"
    assert flag_value(args, "--api-key") is None
    assert flag_value(["-dp", "2"], "--data-parallel-size") == "2"
    assert flag_value(["m", "--enforce-eager"], "--enforce-eager") == ""
    sizes = ["--max-model-len", "8k", "--max-num-seqs=auto", "--seed", "-1", "--block-size", "x"]
    names = ("--max-model-len", "--max-num-seqs", "--seed", "--block-size", "--port")
    assert [flag_number(sizes, name) for name in names] == [8000, None, None, None, None]
    assert model_of(["vllm", *args]) == "org/model"
    assert model_of(["--enforce-eager", "org/model"]) == "org/model"
    assert model_of(["--model", "org/other"]) == "org/other"


@pytest.mark.parametrize(
    ("words", "shell"),
    [
        (["sh", "-c", "vllm serve m"], "sh -c"),
        (["/bin/bash", "-lc", "exec vllm serve m"], "/bin/bash -lc"),
        (["/bin/bash", "-o", "pipefail", "-c", "vllm serve m", "--shutdown-timeout=120"], "/bin/bash -c"),
        (["bash", "-c", "vllm", "serve", "m"], "bash -c"),
        (["busybox", "sh", "-c", "vllm serve m"], "busybox -c"),
        (["env", "A=b", "sh", "-c", "vllm"], "sh -c"),
        (["/usr/bin/env", "-S", "bash -c 'vllm serve m'"], "bash -c"),
        (["env", "-iS", "A=b bash -c", "vllm serve m"], "bash -c"),
        (["env", "--split-string=bash -c", "vllm serve m"], "bash -c"),
        (["tini", "--", "bash", "-c", "vllm serve m"], "bash -c"),
        (["tini", "-s", "-p", "SIGTERM", "bash", "-c", "vllm serve m"], "bash -c"),
        (["dumb-init", "--rewrite", "15:2", "--", "sh", "-c", "vllm serve m"], "sh -c"),
        (["numactl", "--cpunodebind=0", "-m", "0", "bash", "-c", "vllm serve m"], "bash -c"),
        (["nsys", "profile", "-t", "cuda", "-o", "a", "bash", "-c", "vllm serve m"], "bash -c"),
        (["timeout", "-k", "5", "60", "nice", "-n", "5", "exec", "bash", "-c", "vllm serve m"], "bash -c"),
        (["gosu", "vllm", "su-exec", "vllm", "sh", "-ec", "vllm serve m"], "sh -ec"),
        (["su", "-c", "vllm serve m"], "su -c"),
        (["vllm", "serve"], ""),
        (["tini", "--", "vllm", "serve", "m", "-sc", "{}"], ""),
        (["env", "-S", "vllm serve", "m"], ""),
        (["env", "-S", "vllm 'serve", "m"], ""),
        (["bash", "start.sh", "-cc", "{}"], ""),
        (["bash", "/opt/start.sh", "-c", "a.yaml"], ""),
        (["m", "--served-model-name", "sh", "-cc", "{}"], ""),
        (["vllm", "serve", "m", "--served-model-name", "bash", "-cc", "{}"], ""),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], ""),
        ([], ""),
    ],
    ids=" ".join,
)
def test_a_shell_is_found_wherever_it_stands_and_a_script_is_none(words, shell):
    call = shell_call(words)
    assert (f"{call.program} {call.option}" if call else "") == shell
