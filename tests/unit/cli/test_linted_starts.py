"""`breakeven lint` on the ways in which manifests start vLLM: what is said must hold for the image's version, and for what runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from breakeven.cli.lint import command
from breakeven.errors import BreakevenError


def engine(image: str = "vllm/vllm-openai:v0.29.0", **parts: Any) -> dict[str, Any]:
    return {"name": "vllm", "image": image, **parts}


def deployment(one: dict[str, Any], *, kind: str = "Deployment", **pod: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "metadata": {"name": "chat"},
        "spec": {"template": {"spec": {"containers": [one], **pod}}},
    }


def linted(folder: Path, *documents: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The document of `--json` (empty if nothing was printed), and the refusal (empty without one)."""
    file = folder / "m.yaml"
    file.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    result = CliRunner().invoke(command, [str(file), "--json"])
    assert result.exception is None or isinstance(result.exception, BreakevenError), result.exception
    return json.loads(result.stdout) if result.stdout else {}, str(result.exception or "")


def only(folder: Path, *documents: dict[str, Any]) -> dict[str, Any]:
    (one,) = linted(folder, *documents)[0]["deployments"]
    return dict(one)


def spoken(config: dict[str, Any]) -> list[str]:
    return ["--speculative-config", json.dumps(config)]


DRAFTER = {"method": "eagle3", "model": "h", "num_speculative_tokens": 3}
CONTEXTS = [
    ("v0.29.0", ["--max-model-len=8k", *spoken({**DRAFTER, "max_model_len": 2048})], "max_model_len 2048 of --speculative-config, shorter than the target's 8000: while one request of a batch is longer", ""),
    ("v0.29.0", ["--max-model-len", "4096", *spoken({**DRAFTER, "max_model_len": "8192"})], "max_model_len 8192 of --speculative-config: vLLM does not start, because that is above the target's 4096", ""),
    ("v0.29.0", ["--max-model-len", "4096", "-sc.method", "mtp", "-sc.max_model_len", "2048"], "shorter than the target's 4096", ""),
    ("v0.29.0", spoken({**DRAFTER, "max_model_len": 2048}), "", "no --max-model-len is given here, so the target's context is that of its model"),
    ("v0.29.0", ["--max-model-len=-1", *spoken({**DRAFTER, "max_model_len": 2048})], "", "no --max-model-len is given here"),
    ("v0.29.0", ["--max-model-len", "4096", *spoken({**DRAFTER, "max_model_len": 4096})], "", ""),
    ("v0.29.0", ["--max-model-len", "4096", *spoken({"method": "ngram", "num_speculative_tokens": 3, "max_model_len": 2048})], "", ""),
    ("v0.29.0", ["--max-model-len", "4096", *spoken({**DRAFTER, "max_model_len": True})], "", ""),
    ("v0.29.0", ["--max-model-len", "4096", *spoken(DRAFTER)], "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("tag", "args", "warned", "noted"), CONTEXTS)
def test_a_drafters_context_is_compared_with_the_targets_as_far_as_flags_say(
    tag, args, warned, noted, tmp_path
):
    one = only(tmp_path, deployment(engine(f"vllm/vllm-openai:{tag}", args=["m", *args])))
    for lines, said in ((one["warnings"], warned), (one["notes"], noted)):
        about = [line for line in lines if "context" in line or "target's" in line]
        assert [said in line for line in about] == ([True] if said else [])


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("vllm/vllm-openai:v0.33.0", "vLLM refuses requests with min_p above 0 or with logit_bias"),
        ("vllm/vllm-openai:v0.14.1", "min_p above 0, min_tokens above 1 or logit_bias"),
        ("vllm/vllm-openai:v0.16.0", "min_p above 0, min_tokens above 1 or logit_bias"),
        ("vllm/vllm-openai:v0.17.0", "min_p above 0 or with logit_bias"),
        ("vllm/vllm-openai", "min_p above 0 or with logit_bias"),
    ],
)
def test_refused_requests_are_those_of_the_version(image, said, tmp_path):
    one = only(tmp_path, deployment(engine(image, args=["m"])))
    assert [said in note for note in one["notes"] if "min_p" in note] == [True]


@pytest.mark.parametrize(
    ("tag", "args", "said"),
    [
        ("v0.33.0", spoken({**DRAFTER, "disable_by_batch_size": 16}), "disable_by_batch_size of --speculative-config: no vLLM"),
        ("latest", spoken({**DRAFTER, "num_spec_tokens": 4}), "num_spec_tokens of --speculative-config: no vLLM from 0.18"),
        ("v0.17.1", spoken({**DRAFTER, "disable_by_batch_size": 16}), None),
        ("v0.17.1", ["-pp", "2"], None),
        ("v0.29.0", spoken({"method": "eagle3", "num_speculative_tokens": 3}), "method eagle3 of --speculative-config without a model"),
        ("v0.29.0", spoken({"method": "mtp", "num_speculative_tokens": 1}), None),
        ("v0.29.0", spoken({"method": "dspark", "num_speculative_tokens": 3}), None),
        ("v0.29.0", spoken({"method": "ngram", "num_speculative_tokens": 0}), "num_speculative_tokens 0 of --speculative-config: vLLM"),
        ("v0.29.0", ["--speculative-config {}"], "has --speculative-config and its value in one item"),
        ("v0.29.0", ["--max-model-len 4096 --port 80"], "has --max-model-len and its value in one item"),
        ("v0.29.0", ["--served-model-name=a b", "--chat-template", "{% if x %} --port 8 {% endif %}"], None),
    ],
)  # fmt: skip
def test_words_that_keep_vllm_from_starting_are_said(tag, args, said, tmp_path):
    one = only(tmp_path, deployment(engine(f"vllm/vllm-openai:{tag}", args=["m", *args])))
    assert [said is not None and said in line for line in one["warnings"]] == ([] if said is None else [True])


SCRIPT = "/scripts/start.sh"
PARTS = {
    "volumeMounts": [{"name": "s", "mountPath": "/scripts"}],
}
VOLUMES = [{"name": "s", "configMap": {"name": "start"}}]


def script_map(text: str) -> dict[str, Any]:
    return {"kind": "ConfigMap", "metadata": {"name": "start"}, "data": {"start.sh": text}}


@pytest.mark.parametrize("how", [["/bin/bash", SCRIPT], [SCRIPT], ["tini", "--", "bash", "-x", SCRIPT], ["sh", "-c", f'exec {SCRIPT} "$@"', "sh"]])  # fmt: skip
@pytest.mark.parametrize("passes", [True, False])
def test_a_script_of_a_config_map_is_read_and_must_hand_arguments_on(how, passes, tmp_path):
    end = ' "$@"' if passes else ""
    text = f"#!/bin/bash\nset -e\nexec vllm serve m --shutdown-timeout 90 --disable-log-stats{end}\n"
    one = only(tmp_path, deployment(engine(command=how, **PARTS), volumes=VOLUMES), script_map(text))
    assert one["drain"]["shutdown_timeout_s"] == 90
    assert any("--disable-log-stats" in line for line in one["warnings"])
    if how[0] == "sh":
        assert "through a shell" in one["opt_in"]["refusal"]
    elif passes:
        assert [change["path"] for change in one["opt_in"]["add"]] == [
            "containers[vllm].env",
            "containers[vllm].args",
        ]
    else:
        assert (
            f'its script {SCRIPT} hands no argument on to vLLM: end its command line with "$@"'
            in one["opt_in"]["refusal"]
        )


def test_a_script_that_is_not_in_the_file_is_said_to_be_unseen(tmp_path):
    one = only(tmp_path, deployment(engine(command=["/bin/bash", "/start.sh"])))
    assert any(note.startswith("/start.sh is not seen here") for note in one["notes"])
    own = only(tmp_path, deployment(engine(args=["m", "--tool-parser-plugin", "/x.py"])))
    assert not any("not seen here" in note for note in own["notes"])


@pytest.mark.parametrize(
    ("command_line", "said"),
    [
        (["vllm", "bench", "serve", "--model", "m"], "runs vllm bench, which serves nobody"),
        (["/opt/venv/bin/vllm", "run-batch", "-i", "a"], "runs vllm run-batch, which serves nobody"),
        (["python3", "-m", "vllm.entrypoints.openai.run_batch"], "which serves nobody"),
        (["sh", "-c", "sleep 5; exec vllm bench latency --model m"], "runs vllm bench, which serves nobody"),
        (["bash", "-c", "ray start --address=$HEAD:6379 --block"], "joins Ray and starts no vLLM"),
        (
            ["sh", "-c", "bash /x/multi-node-serving.sh worker --ray_address=$(L)"],
            "joins Ray and starts no vLLM",
        ),
    ],
)
def test_what_serves_nobody_is_passed_over_with_the_reason(command_line, said, tmp_path):
    other = deployment(engine(command=command_line))
    found, refusal = linted(tmp_path, other, deployment(engine(args=["m"])))
    assert len(found["deployments"]) == 1
    assert [said in line for line in found["passed_over"]] == [True]
    assert refusal == ""
    branches = "if [ $I = 0 ]; then python3 api.py; else bash /x/multi-node-serving.sh worker; fi"
    leads = "bash /x/multi-node-serving.sh leader; vllm serve m"
    heads = "ray start --head && vllm serve m"
    for script in (leads, heads, branches):
        assert only(tmp_path, deployment(engine(command=["sh", "-c", script])))["container"] == "vllm"


def test_a_variable_that_only_running_tells_is_in_no_line(tmp_path):
    for script in (
        'M=$(ls /models | head -1)\nexec vllm serve "$M"',
        'if [ -f /x ]; then M=a; else M=b; fi\nexec vllm serve "$M"',
    ):
        one = only(tmp_path, deployment(engine(command=["bash", "-c", script])))
        assert one["opt_in"]["add"] == []
        assert any("only running it can tell" in line for line in one["warnings"])
    script = 'M=$(pwd)\nM=m\nexec vllm serve "$M"'
    told = only(tmp_path, deployment(engine(command=["bash", "-c", script])))
    assert any("- m" in change["lines"] for change in told["opt_in"]["add"])


ENGINE_OF_STACK = {"name": "a", "repository": "vllm/vllm-openai", "tag": "v0.29.0", "modelURL": "m"}
RELEASED = {"servingEngineSpec": {"modelSpec": [ENGINE_OF_STACK]}}


@pytest.mark.parametrize(
    ("spec", "kind", "path"),
    [
        ({"values": RELEASED}, "HelmRelease", "spec.values."),
        ({"source": {"helm": {"valuesObject": {"stack": RELEASED}}}}, "Application", "spec.source.helm.valuesObject.stack."),
    ],
)  # fmt: skip
def test_values_within_a_release_are_read_where_they_stand(spec, kind, path, tmp_path):
    one = only(tmp_path, {"kind": kind, "metadata": {"name": "r"}, "spec": spec})
    assert {change["path"] for change in one["opt_in"]["add"]} == {
        f"{path}servingEngineSpec.modelSpec[a].env",
        f"{path}servingEngineSpec.modelSpec[a].vllmConfig.extraArgs",
    }


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"kind": "HelmRelease", "metadata": {"name": "r"}, "spec": {"values": {"a": 1}}}, "HelmRelease/r: values of a chart that is not known"),
        ({"services": {"vllm": {"image": "vllm/vllm-openai"}}}, "a compose file"),
    ],
)  # fmt: skip
def test_values_that_are_not_known_are_named(document, said, tmp_path):
    assert said in linted(tmp_path, document)[1]


@pytest.mark.parametrize(
    ("script", "added"),
    [
        ("export HF_HOME=/m\nexec vllm serve m", {"HF_HOME": "/m"}),
        ("A=1\nexec vllm serve m", {}),
        ("export HF_HOME=$(pwd)\nexec vllm serve m", None),
        ("if x; then export A=1; fi\nexec vllm serve m", None),
        ("export SET=2\nexec vllm serve m", None),
        ("cd /models\nexec vllm serve ./m", None),
    ],
)
def test_what_a_script_exports_is_among_the_lines_that_take_its_place(script, added, tmp_path):
    given = engine(command=["bash", "-c"], args=[script], env=[{"name": "SET", "value": "1"}])
    changes = only(tmp_path, deployment(given))["opt_in"]["add"]
    if added is None:
        text = [line for change in changes if change["path"].endswith("args") for line in change["lines"]]
        assert yaml.safe_load("\n".join(text)) == [
            f'{script} --speculative-config "$BREAKEVEN_SPECULATIVE_CONFIG"'
        ]
        return
    lines = [line for change in changes if change["path"].endswith("env") for line in change["lines"]]
    entries = yaml.safe_load("\n".join(lines))
    assert {one["name"]: one["value"] for one in entries if "value" in one} == added


def test_a_value_that_only_running_tells_is_not_said_to_be_refused(tmp_path):
    script = 'exec vllm serve m --speculative-config "$(cat /spec.json)"'
    one = only(tmp_path, deployment(engine(command=["bash", "-c", script])))
    assert not any("refuses to start" in line for line in one["warnings"])
    assert any("only running it can tell" in line for line in one["warnings"])


@pytest.mark.parametrize(
    ("hook", "seconds"),
    [
        ({"exec": {"command": ["sh", "-c", "sleep ${WAIT:-30}; exit 0"]}}, 30),
        ({"exec": {"command": ["sh", "-c", "sleep $LONG"]}}, 45),
        ({"exec": {"command": ["sh", "-c", "sleep 5; exit 0; sleep 9"]}}, 5),
        ({"exec": {"command": ["sh", "-c", "exit 0"]}}, None),
        ({"exec": {"command": ["sh", "-c", "sleep 5; if x; then exit 0; fi"]}}, None),
        ({"exec": {"command": ["sh", "-c", "sleep 10 && kill -TERM 1"]}}, None),
        ({"exec": {"command": ["pkill", "vllm"]}}, None),
        ({"httpGet": {"path": "/stop", "port": 8000}}, None),
    ],
)
def test_a_hook_whose_length_cannot_be_told_is_said_so(hook, seconds, tmp_path):
    given = engine(
        args=["m", "--shutdown-timeout=60"],
        lifecycle={"preStop": hook},
        env=[{"name": "LONG", "value": "45"}],
    )
    one = only(tmp_path, deployment(given, terminationGracePeriodSeconds=200))
    assert one["drain"]["pre_stop_s"] == seconds
    told = [note for note in one["notes"] if "how long the preStop hook takes" in note]
    assert [("200 s" in note, "(60)" in note) for note in told] == (
        [] if seconds is not None else [(True, True)]
    )


def test_speculation_in_the_variable_of_a_preset_is_read_and_replaced(tmp_path):
    value = (
        "--max-model-len 8192 --speculative-config '" + json.dumps({**DRAFTER, "max_model_len": 2048}) + "'"
    )
    spec = {"model": {"uri": "hf://m"}, "template": {"containers": [{"name": "main", "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": value}]}]}}  # fmt: skip
    found, _ = linted(tmp_path, {"kind": "LLMInferenceService", "metadata": {"name": "chat"}, "spec": spec})
    (one,) = found["deployments"]
    assert any("shorter than the target's 8192" in line for line in one["warnings"])
    new = next(change for change in one["opt_in"]["add"] if "VLLM_ADDITIONAL_ARGS" in change["lines"][0])
    (entry,) = yaml.safe_load("\n".join(new["lines"]))
    assert entry["value"] == "--max-model-len 8192 --speculative-config='$(BREAKEVEN_SPECULATIVE_CONFIG)'"


@pytest.mark.parametrize(
    ("more", "managed", "warned"),
    [
        ({}, True, None),
        ({"raySpec": {}, "vllmConfig": {"pipelineParallelSize": 2}}, False, "--pipeline-parallel-size 2"),
        ({"lwsSpec": {"enabled": True, "size": 4}}, False, "--pipeline-parallel-size 4"),
        ({"lwsSpec": {"enabled": False, "size": 4}}, True, None),
    ],
)
def test_the_stacks_values_become_what_its_chart_makes_of_them(more, managed, warned, tmp_path):
    engine_spec = {
        "modelSpec": [ENGINE_OF_STACK | more],
        "lifecycle": {"preStop": {"sleep": {"seconds": 15}}},
        "terminationGracePeriodSeconds": 500,
    }
    found, refusal = linted(tmp_path, {"servingEngineSpec": engine_spec})
    (one,) = found["deployments"]
    assert (refusal == "") == managed
    lines = [line for line in one["warnings"] if "does not manage this kind" not in line]
    assert [warned is not None and warned in line for line in lines] == ([] if warned is None else [True])
    # The chart passes these two values on to nothing.
    assert (one["drain"]["pre_stop_s"], one["drain"]["termination_grace_period_s"]) == (0, 30)
    assert any("patch the Deployment that it makes" in note for note in one["notes"])


def test_llm_ds_values_become_what_its_chart_makes_of_them(tmp_path):
    hook = {"preStop": {"sleep": {"seconds": 15}}}
    config = {
        "method": "eagle3",
        "model": "h",
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": [[1, 8, 3]],
    }
    args = ["--shutdown-timeout=60", *spoken(config)]
    one = {
        "name": "vllm",
        "image": "ghcr.io/llm-d/llm-d-cuda:v0.5.0",
        "modelCommand": "vllmServe",
        "args": args,
    }
    decode = {
        "containers": [one | {"extraConfig": {"lifecycle": hook}}],
        "extraConfig": {"terminationGracePeriodSeconds": 90},
    }
    decode["parallelism"] = {"data": 2}
    prefill = {"create": False, "containers": [one]}
    values = {"decode": decode, "prefill": prefill}
    found = only(tmp_path, values)
    assert (found["drain"]["pre_stop_s"], found["drain"]["termination_grace_period_s"]) == (15, 90)
    assert found["drain"]["ok"]
    assert any("--data-parallel-size above 1" in line for line in found["warnings"])
    misplaced = only(tmp_path, {"decode": {"containers": [one | {"lifecycle": hook}]}})
    assert misplaced["drain"]["pre_stop_s"] == 0
    assert any("under its extraConfig" in note for note in misplaced["notes"])
