"""The file of vLLM's `--config`: its flags stand behind the model and before the command line's own, which win."""

from __future__ import annotations

import pytest

from breakeven.serving.command_line import flag_value, model_of, with_config_file

FILES = {
    "/a.yaml": "{port: 9000, async-scheduling: false, allowed-media-domains: [a, b], kv-transfer-config: {x: 1}}"
}


def test_flags_of_the_file_follow_the_model_and_the_command_lines_own_win():
    words = with_config_file(["vllm", "serve", "org/m", "--config", "/a.yaml", "--port", "8000"], FILES)
    assert words == [
        *("vllm", "serve", "org/m", "--port", "9000", "--no-async-scheduling"),
        *("--allowed-media-domains", "a", "b", "--kv-transfer-config", '{"x": 1}', "--port", "8000"),
    ]
    assert (model_of(words), flag_value(words, "--port")) == ("org/m", "8000")


def test_a_model_may_stand_in_the_file():
    words = with_config_file(["vllm", "serve", "--config", "/m.yaml"], {"/m.yaml": "model: org/m"})
    assert model_of(words) == "org/m"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["m", "--config", "/other.yaml"], "port: 1"),
        (["m", "--config"], "port: 1"),
        (["m", "--config", "/a.yaml", "--config", "/a.yaml"], "port: 1"),
        (["m", "--config", "/a.yaml"], "- port"),
        (["m", "--config", "/a.yaml"], "port: ["),
        (["m", "--config", "/a.yaml"], ""),
    ],
)
def test_what_vllm_would_not_read_changes_nothing(words, text):
    assert with_config_file(words, {"/a.yaml": text}) == words
