"""The opt-in inside a shell's text: accepted as a real shell would hand it on, and edited so that it is."""

from __future__ import annotations

import json
import subprocess

import pytest

from breakeven.serving.command_line import speculation
from breakeven.serving.engine_start import engine_start
from breakeven.serving.opt_in import ANNOTATION, QUOTED_ARGUMENT, VARIABLE, opt_in_of, with_argument

ENTRY = {"name": VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{ANNOTATION}']"}}}
VALUES = ["", "null", '{"method": "eagle3", "model": "a b", "num_speculative_tokens": 3}']


def container(text: str, *, env: bool = True) -> dict[str, object]:
    return {"name": "vllm", "command": ["bash", "-c"], "args": [text], "env": [ENTRY] if env else []}


def found(text: str, *, env: bool = True):
    one = container(text, env=env)
    return opt_in_of(one, engine_start(one))


@pytest.fixture
def by_bash(tmp_path):
    """The words that a real bash hands to vLLM if the annotation has a value."""
    program, words = tmp_path / "vllm", tmp_path / "words"
    program.write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" > {words}\n')
    program.chmod(0o755)

    def handed(text: str, value: str) -> list[str]:
        subprocess.run(
            ["bash", "-c", text], env={"PATH": f"{tmp_path}:/usr/bin:/bin", VARIABLE: value}, check=True
        )
        return ["vllm", *words.read_text(encoding="utf-8").split("\0")[:-1]]

    return handed


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    "text",
    [
        f"exec vllm serve m {QUOTED_ARGUMENT}",
        f'vllm serve m --speculative-config="${VARIABLE}" --seed 1',
        f'set -e\nexport A=1\nexec vllm serve m -sc "${{{VARIABLE}}}" \\\n  --seed 1',
        f'exec vllm serve m --speculative-config "${{{VARIABLE}:-}}"',
    ],
)
def test_an_accepted_text_hands_every_value_on_and_an_empty_one_is_no_speculation(text, value, by_bash):
    assert found(text).ok
    assert speculation(by_bash(text, value)).config == (json.loads(value) if value else None)


def test_a_text_that_reads_the_variable_lacks_its_entry_alone():
    missing = found(f"exec vllm serve m {QUOTED_ARGUMENT}", env=False)
    assert [change.path for change in missing.add] == ["containers[vllm].env"]
    assert (missing.remove, missing.refusal) == ((), None)


@pytest.mark.parametrize(
    "text",
    [
        f"exec vllm serve m --speculative-config ${VARIABLE}",
        f"exec vllm serve m --speculative-config=$({VARIABLE})",
        f"exec vllm serve m --speculative-config '${VARIABLE}'",
        f'exec vllm serve m {QUOTED_ARGUMENT} --speculative-config "{{}}"',
        f"exec vllm serve m {QUOTED_ARGUMENT} --spec-method ngram",
        "exec vllm serve m",
    ],
)
def test_a_text_that_would_lose_the_value_is_not_accepted_and_its_edit_is(text, by_bash):
    refused = found(text)
    assert not refused.ok
    assert QUOTED_ARGUMENT in (refused.refusal or "")
    edited = with_argument(container(text), QUOTED_ARGUMENT)
    assert edited is not None
    assert opt_in_of(edited, engine_start(edited)).ok
    (changed,) = edited["args"]
    for value in VALUES:
        assert speculation(by_bash(changed, value)).config == (json.loads(value) if value else None)


@pytest.mark.parametrize(
    "text",
    [
        f"if true; then exec vllm serve m {QUOTED_ARGUMENT}; fi",
        f"vllm serve m {QUOTED_ARGUMENT} | tee log",
        f"while sleep 1; do vllm serve m {QUOTED_ARGUMENT}; done",
        f"exec vllm serve $(cat model) {QUOTED_ARGUMENT}",
        f"curl x | bash; exec vllm serve 'm {QUOTED_ARGUMENT}",
        f"eval 'exec vllm serve m' {QUOTED_ARGUMENT}",
    ],
)
def test_a_text_that_cannot_be_read_to_its_end_is_refused_without_lines(text):
    refused = found(text)
    assert not refused.ok
    assert (refused.add, refused.remove) == ((), ())
    assert "cannot be read" in (refused.refusal or "")
