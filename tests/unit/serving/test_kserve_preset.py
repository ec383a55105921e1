"""KServe's presets: the last command of their text is read, and what a real bash hands to vLLM is what is read."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from breakeven.serving.command_line import configuration, flag_value
from breakeven.serving.engine_start import PRESET_VARIABLE, engine_start, preset_end
from breakeven.serving.opt_in import ANNOTATION, PRESET_ARGUMENT, VARIABLE, opt_in_of, with_argument

# The form of KServe's presets, with a version that is found out, values that depend on it, and far more text before.
TEXT = (
    "# "
    + "x" * 5000
    + r"""
ACCESS_LOG_ARGS="--disable-uvicorn-access-log"
VLLM_VERSION=$(vllm --version 2>/dev/null | tail -1 | awk '{print $NF}')
if [[ "$VLLM_VERSION" =~ ^[0-9]+\.[0-9]+ ]]; then
  ACCESS_LOG_ARGS="--disable-access-log-for-endpoints /health,/metrics"
fi
SHUTDOWN_TIMEOUT_ARGS=""
if [[ "$VLLM_VERSION" =~ ^[0-9]+\.[0-9]+ ]]; then
  SHUTDOWN_TIMEOUT_ARGS="--shutdown-timeout 40"
fi
KV_TRANSFER_ARGS=""

eval "exec vllm serve /mnt/models \
  --served-model-name "chat" "publishers/llm/models/chat" \
  --port 8000 \
  ${ACCESS_LOG_ARGS} \
  ${SHUTDOWN_TIMEOUT_ARGS} \
  ${KV_TRANSFER_ARGS} \
 \
   \
  ${VLLM_ADDITIONAL_ARGS} \
  $@"
""".rstrip()
)
READS = {"name": VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{ANNOTATION}']"}}}


def container(
    arguments: str | None, *args: str, env: tuple[dict[str, Any], ...] = (READS,)
) -> dict[str, Any]:
    given = () if arguments is None else ({"name": PRESET_VARIABLE, "value": arguments},)
    return {
        "name": "main",
        "image": "vllm/vllm-openai:v0.32.0",
        "command": ["/bin/bash", "-c", TEXT, "--"],
        "env": [*env, *given],
        **({"args": list(args)} if args else {}),
    }


def given_to_vllm(one: dict[str, Any], value: str, folder: Path) -> list[str]:
    """The words that vLLM gets, by a real bash, after Kubernetes has put the annotation's value in."""
    (folder / "vllm").write_text(
        '#!/bin/sh\nif [ "$1" = --version ]; then echo 0.32.0; else for word; do printf "%s\\0" "$word"; done; fi\n'
    )
    (folder / "vllm").chmod(0o755)
    texts = {
        entry["name"]: entry.get("value", value).replace(f"$({VARIABLE})", value) for entry in one["env"]
    }
    done = subprocess.run(
        [*one["command"], *one.get("args", ())],
        env={"PATH": f"{folder}:/usr/bin:/bin", **texts},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize(
    "value",
    [
        "",
        "null",
        '{"method":"ngram","num_speculative_tokens":3}',
        '{"model": "a b", "num_speculative_tokens": 2}',
    ],
)
def test_vllm_gets_the_annotation_as_it_stands_and_an_empty_one_means_no_speculation(
    value: str, tmp_path: Path
) -> None:
    one = container(f"--max-num-seqs=64 {PRESET_ARGUMENT}")
    words = given_to_vllm(one, value, tmp_path)
    said = flag_value(words, "--speculative-config")
    assert said == value
    assert configuration(said or "") == (json.loads(value) if value.startswith("{") else None)
    read = engine_start(one, longest=4096)
    assert [word.replace(f"$({VARIABLE})", value) for word in read.words] == ["vllm", *words]
    assert read.certain
    assert opt_in_of(one, read).ok


def test_without_quotes_eval_drops_the_empty_value_and_the_lines_are_printed(tmp_path: Path) -> None:
    one = container(f"--speculative-config=$({VARIABLE})")
    broken = given_to_vllm(one, '{"method": "ngram"}', tmp_path)
    assert flag_value(broken, "--speculative-config") != '{"method": "ngram"}'
    found = opt_in_of(one, engine_start(one, longest=4096))
    assert [line for change in found.add for line in change.lines][-1].strip() == f"value: {PRESET_ARGUMENT}"
    assert found.remove


@pytest.mark.parametrize("args", [(), ("--speculative-config={}", "--seed=1")])
def test_a_copy_runs_its_own_arm_and_no_other(args: tuple[str, ...], tmp_path: Path) -> None:
    arm = '--speculative-config=\'{"method": "ngram", "num_speculative_tokens": 2}\''
    one = with_argument(container(f"--max-num-seqs=64 {PRESET_ARGUMENT}", *args), arm)
    assert one is not None
    words = given_to_vllm(dict(one), "", tmp_path)
    assert [word for word in words if word.startswith("--speculative-config")] == [
        '--speculative-config={"method": "ngram", "num_speculative_tokens": 2}'
    ]
    assert "--max-num-seqs=64" in words
    assert ("--seed=1" in words) == bool(args)


def test_a_fixed_configuration_behind_the_variable_wins_and_is_named(tmp_path: Path) -> None:
    one = container(PRESET_ARGUMENT, '--speculative-config={"method":"ngram"}')
    assert flag_value(given_to_vllm(one, "null", tmp_path), "--speculative-config") != "null"
    assert opt_in_of(one, engine_start(one, longest=4096)).ok is False


def test_without_the_variable_the_preset_starts_vllm_without_speculation(tmp_path: Path) -> None:
    one = container(None)
    assert "--speculative-config" not in " ".join(given_to_vllm(one, "", tmp_path))
    found = opt_in_of(one, engine_start(one, longest=4096))
    assert [change.path for change in found.add] == ["containers[main].env"]


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("${VLLM_ADDITIONAL_ARGS}", ""),
        TEXT.replace('eval "exec', '  eval "exec'),
        TEXT + "\n" + TEXT,
        "exec vllm serve m ${VLLM_ADDITIONAL_ARGS}",
        "#" * 65536 + TEXT,
    ],
)
def test_another_text_is_no_preset(text: str) -> None:
    assert preset_end(text) is None


def test_a_value_that_only_running_the_text_shows_is_unknown() -> None:
    found = preset_end(TEXT.replace('KV_TRANSFER_ARGS=""', 'KV_TRANSFER_ARGS="$(cat f)"'))
    assert found is not None
    assert found.variables == {
        "ACCESS_LOG_ARGS": "--disable-access-log-for-endpoints /health,/metrics",
        "SHUTDOWN_TIMEOUT_ARGS": "--shutdown-timeout 40",
        "KV_TRANSFER_ARGS": None,
    }
