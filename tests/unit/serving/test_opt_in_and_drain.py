"""Missing settings of a manifest, as lines."""

from __future__ import annotations

import json

import pytest
import yaml
from click.testing import CliRunner

from breakeven.cli import lint
from breakeven.serving.opt_in import (
    ANNOTATION,
    ARGUMENT,
    VARIABLE,
    engine_container,
    opt_in,
    places_in,
    preset_opt_in,
)
from breakeven.serving.rolling import drain

ENTRY = {
    "name": VARIABLE,
    "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{ANNOTATION}']"}},
}
READY = {
    "name": "vllm",
    "image": "vllm/vllm-openai:v0.32.0",
    "args": ["org/model", ARGUMENT, "--shutdown-timeout=60"],
    "env": [ENTRY],
    "lifecycle": {"preStop": {"sleep": {"seconds": 10}}},
}


def test_a_complete_container_needs_nothing():
    assert opt_in(READY).ok
    assert drain({"terminationGracePeriodSeconds": 90}, READY).ok


def test_a_static_configuration_is_removed_and_the_variable_added():
    container = {"name": "vllm", "args": ["m", "--speculative-config", '{"method":"ngram"}']}
    found = opt_in(container)
    assert [change.lines for change in found.remove] == [
        ("- --speculative-config", '- \'{"method":"ngram"}\'')
    ]
    assert [change.path for change in found.add] == ["containers[vllm].env", "containers[vllm].args"]


def test_following_the_advice_completes_the_opt_in():
    container = {"name": "vllm", "args": ["m"], "env": []}
    found = opt_in(container)
    args = yaml.safe_load("\n".join(line for c in found.add if c.path.endswith("args") for line in c.lines))
    env = yaml.safe_load("\n".join(line for c in found.add if c.path.endswith("env") for line in c.lines))
    assert opt_in({"name": "vllm", "args": ["m", *args], "env": env}).ok


@pytest.mark.parametrize(
    ("change", "grace_s", "words"),
    [
        ({"args": ["m"]}, 90, "--shutdown-timeout is 0"),
        ({"lifecycle": None}, 90, "no preStop"),
        ({}, 30, "terminationGracePeriodSeconds is 30"),
        ({}, 70, "set it above 70"),
    ],
)
def test_each_missing_drain_setting_is_named(change, grace_s, words):
    found = drain({"terminationGracePeriodSeconds": grace_s}, {**READY, **change})
    assert any(words in problem for problem in found.problems)


def test_a_sleep_by_exec_counts_and_an_unknown_hook_is_not_called_missing():
    by_exec = {**READY, "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "sleep 15"]}}}}
    assert drain({"terminationGracePeriodSeconds": 90}, by_exec).pre_stop_s == 15
    unknown = {**READY, "lifecycle": {"preStop": {"httpGet": {"path": "/drain", "port": 1}}}}
    assert drain({"terminationGracePeriodSeconds": 90}, unknown).ok


@pytest.mark.parametrize(
    ("command", "seconds"),
    [
        (["/bin/sh", "-c", "sleep 1m"], 60),
        (["sleep", "1h"], 3600),
        (["/bin/sleep", "2d"], 2 * 86400),
        (["sleep", "1m", "30s"], 90),
        (["sh", "-c", "sleep 5; sleep 20"], 25),
        (["sh", "-c", "sleep 5 && sleep .5"], 5.5),
        (["sh", "-c", "echo bye; exec sleep 15"], 15),
        (["sh", "-c", "curl -X POST localhost:8000/drain; sleep 15"], None),
        (["sh", "-c", "until curl -sf x; do sleep 5; done"], None),
        (["sh", "-c", "for i in 1 2 3; do sleep 5; done"], None),
        (["sh", "-c", "test -f /x && sleep 5 || sleep 50"], None),
        (["sh", "-c", "sleep 5 &"], None),
        (["sh", "-c", "sleep $SECONDS_TO_WAIT"], None),
        (["sh", "-c", "sleep $((60 * 2))"], None),
        (["sh", "-c", "sleep 'unfinished"], None),
        (["sh", "-c", "sleep 5;" + " " * 2000], None),
        (["/drain.sh"], None),
        (["sleep", "a while"], None),
        ([], None),
    ],
    ids=str,
)
def test_the_length_of_a_hook_is_said_or_null(command, seconds):
    hooked = {**READY, "lifecycle": {"preStop": {"exec": {"command": command}}}}
    assert drain({"terminationGracePeriodSeconds": 10**6}, hooked).pre_stop_s == seconds


@pytest.mark.parametrize("hook", [{"httpGet": {"path": "/drain", "port": 1}}, {"tcpSocket": {"port": 1}}])
def test_a_hook_that_asks_somebody_has_no_length(hook):
    assert drain({}, {**READY, "lifecycle": {"preStop": hook}}).pre_stop_s is None


def test_an_old_version_drains_only_by_a_hook_that_waits():
    old = {**READY, "image": "vllm/vllm-openai:v0.14.0", "args": ["org/model"]}
    waits = {"preStop": {"exec": {"command": ["sh", "-c", "until curl -sf x; do sleep 5; done"]}}}
    grace = {"terminationGracePeriodSeconds": 600}
    assert "0.14 does not know --shutdown-timeout (0.18 does)" in drain(grace, old).problems[0]
    assert drain(grace, {**old, "lifecycle": waits}).ok


def test_an_engine_that_is_too_old_is_refused_however_it_starts():
    old = {"name": "main", "image": "vllm/vllm-openai:v0.13.0"}
    for found in (opt_in(old), preset_opt_in(old, places_in(old))):
        assert not found.add
        assert "0.13 is older than 0.14" in found.refusal


def test_the_engine_is_found_among_sidecars():
    pod = {"containers": [{"name": "proxy", "image": "envoy:1"}, READY]}
    assert engine_container(pod) == READY
    assert engine_container({"containers": [{"name": "a"}, {"name": "b"}]}) is None


def _manifest(tmp_path, container, annotations=None, grace_s=90):
    document = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat"},
        "spec": {
            "template": {
                "metadata": {"annotations": annotations or {}},
                "spec": {"terminationGracePeriodSeconds": grace_s, "containers": [container]},
            }
        },
    }
    path = tmp_path / "deployment.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_lint_says_ok_for_a_ready_manifest(tmp_path):
    result = CliRunner().invoke(lint.command, [str(_manifest(tmp_path, READY)), "--json", "--check"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["deployments"][0]["ok"] is True


def test_lint_warns_of_an_initial_value_in_git(tmp_path):
    path = _manifest(tmp_path, READY, {ANNOTATION: "null"})
    result = CliRunner().invoke(lint.command, [str(path)])
    assert "takes the key back at every apply" in result.output


TABLE = '{"method":"eagle3","model":"org/head","num_speculative_tokens":3,"num_speculative_tokens_per_batch_size":[[%d,8,3]]}'


@pytest.mark.parametrize(
    ("first", "more", "said"),
    [
        (2, (), "its first range at 1: vLLM refuses to start"),
        (1, ("-dp", "2"), "only its log says so"),
        (1, (), None),
    ],
)
@pytest.mark.parametrize("annotated", [True, False])
def test_lint_checks_a_draft_length_per_batch_size_wherever_the_arm_is_said(
    tmp_path, first, more, said, annotated
):
    args = [*READY["args"], *more]
    if not annotated:
        args = [*more, "--speculative-config", TABLE % first]
    annotations = {ANNOTATION: TABLE % first} if annotated else {}
    path = _manifest(tmp_path, {**READY, "args": args}, annotations)
    result = CliRunner().invoke(lint.command, [str(path), "--json"])
    (finding,) = json.loads(result.stdout)["deployments"]
    assert any(said is not None and said in warning for warning in finding["warnings"]) is (said is not None)
    assert any("per_batch_size" in warning for warning in finding["warnings"]) is (said is not None)


@pytest.mark.parametrize("text", ["a: [", "- 1", "kind: Service"])
def test_lint_refuses_what_is_no_deployment(tmp_path, text):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    result = CliRunner().invoke(lint.command, [str(path)])
    assert result.exit_code != 0
    assert "wrong.yaml" in str(result.exception)
