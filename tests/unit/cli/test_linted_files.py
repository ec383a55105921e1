"""`breakeven lint` on files as people have them: each row is a file of another shape, with what is said of it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from breakeven.cli.lint import command
from breakeven.errors import BreakevenError
from breakeven.serving.shell_script import shell_script

VARIABLE = """\
- name: BREAKEVEN_SPECULATIVE_CONFIG
  valueFrom: {fieldRef: {fieldPath: "metadata.annotations['breakeven.dev/speculative-config']"}}
"""


def linted(text: str, folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """The document of `--json` (empty if nothing was printed), and the refusal (empty without one)."""
    file = folder / "m.yaml"
    file.write_text(textwrap.dedent(text), encoding="utf-8")
    result = CliRunner().invoke(command, [str(file), "--json", *options])
    assert result.exception is None or isinstance(result.exception, BreakevenError), result.exception
    said = str(result.exception or "")
    assert "\n" not in said
    return json.loads(result.stdout) if result.stdout else {}, said


def container(image: str = "vllm/vllm-openai:v0.32.0", **parts: Any) -> dict[str, Any]:
    return {"name": "vllm", "image": image, "args": ["org/model"], **parts}


def manifest(one: dict[str, Any], *, kind: str = "Deployment", grace_s: int = 30, **metadata: Any) -> str:
    return json.dumps(
        {
            "kind": kind,
            "metadata": {"name": "chat"},
            "spec": {
                "template": {
                    "metadata": metadata,
                    "spec": {"terminationGracePeriodSeconds": grace_s, "containers": [one]},
                }
            },
        }
    )


SPEC = "{containers: [{name: vllm, image: 'vllm/vllm-openai:v0.32.0', args: [org/model]}]}"
ENGINE = "Deployment/chat vllm: containers[vllm].env containers[vllm].args"

READ = {
    "a Deployment": (f"kind: Deployment\nmetadata: {{name: chat}}\nspec: {{template: {{spec: {SPEC}}}}}", [ENGINE]),
    "a List": (
        f"kind: List\nitems:\n- kind: Deployment\n  metadata: {{name: chat}}\n  spec: {{template: {{spec: {SPEC}}}}}\n",
        [ENGINE],
    ),
    "a DeploymentList in a List": (
        ("kind: List\nitems:\n- kind: DeploymentList\n  items:\n  - kind: Deployment\n    metadata: {name: chat}\n"
        f"    spec: {{template: {{spec: {SPEC}}}}}\n"),
        [ENGINE],
    ),
    "documents, an empty one among them, and objects that run nothing": (
        f"---\n---\nkind: Service\n---\nkind: ConfigMap\nmetadata: {{name: c}}\n---\nkind: Deployment\nmetadata: {{name: chat}}\nspec: {{template: {{spec: {SPEC}}}}}",
        [ENGINE],
    ),
    "JSON": (manifest(container()), [ENGINE]),
    "an anchor": (
        f"x: &spec {SPEC}\nkind: Deployment\nmetadata: {{name: chat}}\nspec: {{template: {{spec: *spec}}}}",
        [ENGINE],
    ),
    "two engines in one pod": (
        ("kind: Deployment\nmetadata: {name: chat}\nspec: {template: {spec: {containers: ["
        "{name: a, image: vllm/vllm-openai:v0.32.0}, {name: b, command: [vllm, serve, m]}]}}}"),
        ["Deployment/chat a: containers[a].env containers[a].args", "Deployment/chat b: containers[b].env containers[b].args"],
    ),
    "an image of another name whose arguments are vLLM's": (
        "kind: Deployment\nmetadata: {name: chat}\nspec: {template: {spec: {containers: [{name: x, image: 'registry/llm:1', args: [--model, m, --max-num-seqs, '8']}]}}}",
        ["Deployment/chat x: containers[x].env containers[x].args"],
    ),
    "python -m, and a router of vLLM's beside it": (
        ("kind: Deployment\nmetadata: {name: chat}\nspec: {template: {spec: {containers: ["
        "{name: x, image: 'registry/py:3', command: [python3, -m, vllm.entrypoints.openai.api_server, --model, m]}, {name: r, image: 'org/vllm-router:v1'}]}}}"),
        ["Deployment/chat x: containers[x].env containers[x].args"],
    ),
    "production-stack's values": (
        "servingEngineSpec:\n  modelSpec:\n  - {name: llama, repository: vllm/vllm-openai, tag: v0.32.0, modelURL: org/m, vllmConfig: {maxModelLen: 4096, extraArgs: [--disable-log-requests]}}\n",
        [
            "production-stack values/llama vllm: servingEngineSpec.modelSpec[llama].env servingEngineSpec.modelSpec[llama].vllmConfig.extraArgs"
        ],
    ),
    "the same under a chart above it": (
        "stack:\n  servingEngineSpec:\n    modelSpec:\n    - {name: llama, repository: vllm/vllm-openai, tag: latest, modelURL: org/m}\n",
        [
            "production-stack values/llama vllm: stack.servingEngineSpec.modelSpec[llama].env stack.servingEngineSpec.modelSpec[llama].vllmConfig.extraArgs"
        ],
    ),
    "llm-d-modelservice's values": (
        ("multinode: false\nmodelArtifacts: {uri: 'hf://{{ .Values.modelArtifacts.name }}'}\n"
        "decode: {containers: [{name: vllm, image: 'ghcr.io/llm-d/llm-d-cuda:v0.4.0', modelCommand: vllmServe, args: [m]}]}\n"
        "prefill: {containers: [{name: vllm, image: 'ghcr.io/llm-d/llm-d-inference-sim:v0.3.0', modelCommand: imageDefault}]}\n"),
        ["llm-d-modelservice values/decode vllm: decode.containers[vllm].env decode.containers[vllm].args"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_the_pod_template_is_found_and_its_lines_are_named_in_the_files_own_terms(name, tmp_path):
    text, expected = READ[name]
    found, refusal = linted(text, tmp_path)
    engines = [
        f"{one['kind']}/{one['deployment']} {one['container']}: {' '.join(change['path'] for change in one['opt_in']['add'])}"
        for one in found["deployments"]
    ]
    assert (engines, refusal) == (expected, "")


UNMANAGED = {
    "DaemonSet": (f"spec: {{template: {{spec: {SPEC}}}}}", {"containers[vllm]": "spec.template.metadata.annotations"}),
    "FleetOfOurs": (f"spec: {{template: {{spec: {SPEC}}}}}", {"spec.template.spec.containers[vllm]": "spec.template.metadata.annotations"}),
    "Pod": (f"spec: {SPEC}", {"spec.containers[vllm]": "metadata.annotations"}),
    "ServingRuntime": (f"spec: {SPEC}", {"spec.containers[vllm]": "spec.annotations"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNMANAGED)
def test_another_kind_gets_its_lines_and_is_refused_by_name_after_them(kind, tmp_path):
    spec, expected = UNMANAGED[kind]
    found, refusal = linted(f"kind: {kind}\nmetadata: {{name: chat}}\n{spec}", tmp_path)
    assert f"{kind}/chat" in refusal
    assert refusal.endswith(
        "expected a Deployment, StatefulSet, LeaderWorkerSet, Rollout, LLMInferenceService or InferenceService (other kinds that own their pods are not managed)"
    )
    for one, (path, reached) in zip(found["deployments"], expected.items(), strict=True):
        assert [change["path"] for change in one["opt_in"]["add"]] == [f"{path}.env", f"{path}.args"]
        assert any(f"the annotation would go to {reached}" in line for line in one["warnings"])
        assert not one["ok"]


KSERVE = {
    "InferenceService": (f"spec: {{predictor: {SPEC}}}", ["spec.predictor.containers[vllm]"]),
    "LLMInferenceService": (f"spec: {{template: {SPEC}}}", ["spec.template.containers[vllm]"]),
}


@pytest.mark.parametrize("kind", KSERVE)
def test_a_kind_of_kserves_gets_its_lines_and_is_rolled(kind, tmp_path):
    spec, expected = KSERVE[kind]
    found, refusal = linted(f"kind: {kind}\nmetadata: {{name: chat}}\n{spec}", tmp_path)
    assert refusal == ""
    paths = [change["path"] for one in found["deployments"] for change in one["opt_in"]["add"]]
    assert paths == [f"{path}.{part}" for path in expected for part in ("env", "args")]
    assert found["deployments"][0]["warnings"] == []


def test_prefill_beside_decode_is_warned_of(tmp_path):
    text = f"kind: LLMInferenceService\nmetadata: {{name: chat}}\nspec: {{template: {SPEC}, prefill: {{template: {SPEC}}}}}"
    found, _ = linted(text, tmp_path)
    assert all(any("has spec.prefill" in line for line in one["warnings"]) for one in found["deployments"])


def of_stateful_set(tmp_path, text, version="apps/v1"):
    document = f"apiVersion: {version}\nkind: StatefulSet\nmetadata: {{name: chat}}\nspec: {{{text}template: {{spec: {SPEC}}}}}"
    found, refusal = linted(document, tmp_path)
    (one,) = found["deployments"]
    return one, refusal


def test_a_stateful_set_is_one_that_the_operator_rolls(tmp_path):
    one, refusal = of_stateful_set(tmp_path, "")
    assert refusal == ""
    assert [change["path"] for change in one["opt_in"]["add"]] == [
        "containers[vllm].env",
        "containers[vllm].args",
    ]
    assert not any("does not manage this kind" in line or "surge" in line for line in one["warnings"])
    # OpenKruise has a kind of the same name.
    _, refusal = of_stateful_set(tmp_path, "", version="apps.kruise.io/v1beta1")
    assert "StatefulSet/chat" in refusal


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("{type: OnDelete}", "StatefulSet/chat has updateStrategy OnDelete"),
        ("{rollingUpdate: {partition: 2}}", "StatefulSet/chat has partition 2"),
        ("{rollingUpdate: {partition: 0, maxUnavailable: 50%}}", None),
    ],
)
def test_a_stateful_set_that_keeps_old_pods_is_warned_about(strategy, said, tmp_path):
    one, _ = of_stateful_set(tmp_path, f"updateStrategy: {strategy}, ")
    found = [line for line in one["warnings"] if line.startswith("StatefulSet/chat has ")]
    assert [line.startswith(str(said)) for line in found] == ([True] if said else [])


def test_volumes_of_each_pods_own_are_told_to_be_empty_in_a_calibration(tmp_path):
    one, _ = of_stateful_set(tmp_path, "volumeClaimTemplates: [{metadata: {name: cache}, spec: {}}], ")
    assert any("in place of the volumeClaimTemplate cache" in note for note in one["notes"])
    one, _ = of_stateful_set(tmp_path, "")
    assert not any("volumeClaimTemplate" in note for note in one["notes"])


def test_what_kserve_fills_in_is_no_helm_template(tmp_path):
    spec = "{containers: [{name: kserve-container, image: 'quay.io/vllm:1', args: ['--served-model-name={{.Name}}', '%s']}]}"
    found, _ = linted(f"kind: ServingRuntime\nmetadata: {{name: r}}\nspec: {spec % '--port=8080'}", tmp_path)
    assert found["deployments"][0]["container"] == "kserve-container"
    found, refusal = linted(
        f"kind: ServingRuntime\nmetadata: {{name: r}}\nspec: {spec % '{{ .Values.port }}'}", tmp_path
    )
    assert (found, "a Helm template" in refusal) == ({}, True)


def test_a_model_of_kserve_gets_its_lines_where_kserve_has_them(tmp_path):
    text = "kind: InferenceService\nmetadata: {name: chat}\nspec: {predictor: {model: {runtime: kserve-vllmserver, args: [--max-model-len=4096]}}}"
    found, _ = linted(text, tmp_path)
    paths = [change["path"] for change in found["deployments"][0]["opt_in"]["add"]]
    assert paths == ["spec.predictor.model.env", "spec.predictor.model.args"]


@pytest.mark.parametrize(
    "template",
    [
        "",
        "  template: {containers: [{name: main, env: [{name: VLLM_ADDITIONAL_ARGS, value: --enable-lora}]}]}",
    ],
)
def test_a_preset_of_kserve_opts_in_by_the_variable_that_it_evaluates(template, tmp_path):
    """The value goes through the preset's `eval`: as bash would, the quotes keep the JSON whole."""
    text = (
        f"kind: LLMInferenceService\nmetadata: {{name: chat}}\nspec:\n  model: {{uri: 'hf://m'}}\n{template}"
    )
    found, refusal = linted(text, tmp_path)
    (one,) = found["deployments"]
    assert {change["path"] for change in one["opt_in"]["add"]} == {"spec.template.containers[main].env"}
    entries = yaml.safe_load("\n".join(line for change in one["opt_in"]["add"] for line in change["lines"]))
    assert [entry["name"] for entry in entries] == ["BREAKEVEN_SPECULATIVE_CONFIG", "VLLM_ADDITIONAL_ARGS"]
    value = entries[1]["value"].replace("$(BREAKEVEN_SPECULATIVE_CONFIG)", '{"method": "ngram"}')
    (command,) = shell_script('eval "vllm serve m ${V}"', {"V": value}).commands
    assert (
        shell_script(" ".join(command.words[1:]), {}).commands[0].words[-1]
        == '--speculative-config={"method": "ngram"}'
    )
    assert refusal == ""
    spec = {"model": {"uri": "hf://m"}, "template": {"containers": [{"name": "main", "env": entries}]}}
    mended = {"kind": "LLMInferenceService", "metadata": {"name": "chat"}, "spec": spec}
    assert linted(json.dumps(mended), tmp_path)[0]["deployments"][0]["opt_in"]["ok"]


PASSED_OVER = {
    "Open WebUI": ("kind: Deployment\nmetadata: {name: web}\nspec: {template: {spec: {containers: [{name: ui, image: 'chat-ui:1'}]}}}",
                   "Deployment/web: does not look like vLLM; --container ui if it does"),
    "SGLang with a flag that vLLM has too": ("kind: Deployment\nmetadata: {name: s}\nspec: {template: {spec: {containers: [{name: s, image: 'lmsysorg/sglang:v0.5', args: [--model-path, m, --max-model-len, '4']}]}}}",
                   "Deployment/s: does not look like vLLM"),
    "an address of vLLM's in a front end": ("kind: Deployment\nmetadata: {name: w}\nspec: {template: {spec: {containers: [{name: w, image: 'ui:1', args: [--backend, 'http://vllm:8000']}]}}}",
                   "Deployment/w: does not look like vLLM"),
    "a router in vLLM's name": ("kind: Deployment\nmetadata: {name: r}\nspec: {template: {spec: {containers: [{name: r, image: 'org/vllm-router:1'}]}}}", "Deployment/r: does not look like vLLM"),
    "another program in vLLM's image": ("kind: Deployment\nmetadata: {name: b}\nspec: {template: {spec: {containers: [{name: b, image: 'vllm/vllm-openai:v0.32.0', command: [sleep, infinity]}]}}}", "Deployment/b: does not look like vLLM"),
    "a patch": ("kind: Deployment\nmetadata: {name: chat}\nspec: {replicas: 3}", "Deployment/chat: no containers: a patch; lint what `kubectl kustomize` renders"),
    "a patch with a container": ("kind: Deployment\nmetadata: {name: chat}\nspec: {template: {spec: {containers: [{name: vllm, resources: {}}]}}}", "Deployment/chat: no image: a patch; lint what `kubectl kustomize` renders"),
    "a list of operations": ("- {op: replace, path: /spec/replicas, value: 3}", "a list of operations: a patch; lint what `kubectl kustomize` renders"),
    "a kustomization": ("kind: Kustomization\nresources: [a.yaml]", "Kustomization/?: not read: a kustomization; lint what `kubectl kustomize` renders"),
    "a template that is YAML": ("kind: Deployment\nmetadata: {name: x}\nspec: {template: {spec: {containers: [{name: vllm, image: '{{ .Values.image }}'}]}}}", "Deployment/x: a Helm template; lint what `helm template` renders"),
    "KubeAI": ("apiVersion: kubeai.org/v1\nkind: Model\nmetadata: {name: m}", "Model/m: not read: KubeAI's own fields"),
    "production-stack's operator": ("kind: VLLMRuntime\nmetadata: {name: m}", "VLLMRuntime/m: not read: production-stack's operator rolls nothing"),
    "Dynamo": ("kind: DynamoGraphDeployment\nmetadata: {name: m}", "DynamoGraphDeployment/m: not read: its arguments are those of Dynamo's workers"),
    "AIBrix": ("kind: StormService\nmetadata: {name: m}", "StormService/m: not read"),
    "a Rollout of somebody's Deployment": ("kind: Rollout\nmetadata: {name: m}\nspec: {workloadRef: {name: d}}", "Rollout/m: its pod template is that of spec.workloadRef; lint that"),
    "an LLMInferenceServiceConfig of nothing": ("kind: LLMInferenceServiceConfig\nmetadata: {name: m}\nspec: {model: {uri: 'hf://m'}}", "LLMInferenceServiceConfig/m: no containers in it; lint the object that its controller makes"),
    "AIBrix's fleets": ("kind: RayClusterFleet\nmetadata: {name: m}", "RayClusterFleet/m: not read: Ray starts its engines"),
    "OME's InferenceService": ("apiVersion: ome.io/v1beta1\nkind: InferenceService\nmetadata: {name: m}\nspec: {model: {name: l, args: [vllm]}}", "InferenceService (ome.io)/m: not read: a kind of another group; lint the object that its controller makes"),
    "OME's runtime": ("apiVersion: ome.io/v1beta1\nkind: ClusterServingRuntime\nmetadata: {name: m}\nspec: {engineConfig: {runner: {image: 'vllm/vllm-openai:v0.30.0', command: [vllm, serve]}}}", "ClusterServingRuntime (ome.io)/m: not read: a kind of another group"),
    "Volcano's Job": ("apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: m}\nspec: {tasks: [{template: {spec: {containers: [{name: a, image: vllm}]}}}]}", "Job (batch.volcano.sh)/m: not read: a kind of another group"),
    "an Application of another group": ("apiVersion: app.k8s.io/v1beta1\nkind: Application\nmetadata: {name: m}\nspec: {componentKinds: []}", "Application (app.k8s.io)/m: not read: a kind of another group"),
    "another Model": ("apiVersion: ml.example.com/v1\nkind: Model\nmetadata: {name: m}", "Model (ml.example.com)/m: not read: a kind of another group"),
    "KAITO": ("apiVersion: kaito.sh/v1beta1\nkind: Workspace\nmetadata: {name: phi}\ninference: {preset: {name: phi}}", "Workspace/phi: not read: KAITO's presets are not in it, and its annotation kaito.sh/enable-speculative-decoding speculates by them; lint the object that its controller makes"),
    "roles of prefill and decode": ("kind: DisaggregatedSet\nmetadata: {name: m}\nspec: {roles: []}", "DisaggregatedSet/m: not read: its roles are prefill and decode"),
    "an unknown kind with one container": ("apiVersion: x.example.com/v1\nkind: Engine\nmetadata: {name: m}\nspec: {pod: {runner: {image: 'vllm:1', args: [m]}}}", "Engine/m: not read: a kind that is not known"),
    "a kind that nobody knows": ("kind: Fleet\nmetadata: {name: m}\nspec: {groups: [{pod: {containers: [{name: vllm}]}}]}", "Fleet/m: not read: a kind that is not known; lint the object that its controller makes"),
    "values of an unknown chart": ("replicas: 3\nimage: {repository: x}", "an object without a kind: neither values of a chart that is known"),
}  # fmt: skip


@pytest.mark.parametrize("name", PASSED_OVER)
def test_what_is_not_read_is_named_with_the_reason(name, tmp_path):
    text, said = PASSED_OVER[name]
    found, refusal = linted(text, tmp_path)
    title, _, reason = said.partition(": ")
    assert found == {}
    assert title in refusal
    assert reason in refusal
    engine = f"kind: Deployment\nmetadata: {{name: chat}}\nspec: {{template: {{spec: {SPEC}}}}}"
    found, refusal = linted(f"{text}\n---\n{engine}", tmp_path)
    assert refusal == ""
    assert [one["deployment"] for one in found["deployments"]] == ["chat"]
    assert [line.startswith(said) for line in found["passed_over"]] == [True]


@pytest.mark.parametrize(
    "text",
    [
        'job "vllm" {\n  group "g" { task "serve" { driver = "docker" } }\n}\n',
        '# ours\n\nvariable "x" {\n  type = string\n}\nresource "kubernetes_deployment" "v" {\n  metadata {\n    name = "a"\n  }\n}\n',
        'FROM vllm/vllm-openai:v0.30.0\nCMD ["vllm", "serve"]\n',
        "#!/bin/bash\n\nset -e\nexec vllm serve m\n",
        "#!/bin/bash\nvllm serve m --port 8000\n",
        "docker run --gpus all vllm/vllm-openai --model m\n",
        "[Unit]\nDescription=vLLM\n[Service]\nExecStart=vllm serve m\n",
        "from vllm import LLM\n\nLLM('m')\n",
    ],
)
def test_a_file_that_starts_an_engine_elsewhere_is_called_by_its_form(text, tmp_path):
    _, refusal = linted(text, tmp_path)
    form, _, expected = refusal.partition("m.yaml: ")[2].partition("; expected ")
    assert form in {
        "HCL, of Nomad or Terraform", "a Dockerfile", "a script", "a command line", "a unit of systemd's, or TOML", "a program"
    }  # fmt: skip
    assert expected.startswith("Kubernetes manifests")


def test_a_kind_of_another_group_with_a_pod_template_is_read(tmp_path):
    text = f"apiVersion: apps.kruise.io/v1alpha1\nkind: DaemonSet\nmetadata: {{name: chat}}\nspec: {{template: {{spec: {SPEC}}}}}"
    found, _ = linted(text, tmp_path)
    assert [one["kind"] for one in found["deployments"]] == ["DaemonSet"]


def test_a_patch_that_starts_vllm_is_read_and_said_to_be_a_patch(tmp_path):
    patch = {key: value for key, value in container(command=["vllm", "serve"]).items() if key != "image"}
    one = only(manifest(patch), tmp_path)
    assert any("no image: a patch; lint what `kubectl kustomize` renders" in line for line in one["warnings"])


def test_a_file_of_objects_that_run_nothing_is_refused_by_their_names(tmp_path):
    _, refusal = linted(
        "kind: Service\nmetadata: {name: a}\n---\nkind: Secret\nmetadata: {name: b}", tmp_path
    )
    assert (
        "no Deployment, StatefulSet, LeaderWorkerSet, Rollout, LLMInferenceService or InferenceService in it, only Service/a, Secret/b; expected one that runs vLLM"
        in refusal
    )


def test_a_named_container_is_linted_where_it_is_and_the_rest_passed_over(tmp_path):
    text = """\
    kind: Deployment
    metadata: {name: web}
    spec: {template: {spec: {containers: [{name: ui, image: 'ui:1'}, {name: cache, image: 'redis:7'}]}}}
    ---
    kind: Deployment
    metadata: {name: other}
    spec: {template: {spec: {containers: [{name: engine, image: 'our/llm:7'}]}}}
    """
    found, refusal = linted(text, tmp_path, "--container", "engine")
    assert ([one["deployment"] for one in found["deployments"]], refusal) == (["other"], "")
    assert found["passed_over"] == ["Deployment/web: has no container engine (ui, cache)"]


HOSTILE = {
    "endless replicas": f"kind: Deployment\nmetadata: {{name: a}}\nspec: {{replicas: .inf, template: {{spec: {SPEC}}}}}",
    "no number of replicas": f"kind: Deployment\nmetadata: {{name: a}}\nspec: {{replicas: .nan, template: {{spec: {SPEC}}}}}",
    "a percentage without a number": f"kind: Deployment\nmetadata: {{name: a}}\nspec: {{strategy: {{rollingUpdate: {{maxSurge: '%'}}}}, template: {{spec: {SPEC}}}}}",
    "a strategy of nothing": f"kind: Deployment\nmetadata: {{name: a}}\nspec: {{strategy: {{rollingUpdate: null}}, template: {{spec: {SPEC}}}}}",
    "a claim without a name": "kind: PersistentVolumeClaim\n---\n" + f"kind: Deployment\nmetadata: {{name: a, namespace: [b]}}\nspec: {{template: {{spec: {SPEC}}}}}",
    "mounts without names": manifest(container(volumeMounts=[{"name": {"a": 1}}, 7], args=["m", "--config", "/x"])),
    "a list that holds itself": "kind: List\nitems: &a\n- kind: List\n  items: *a\n",
    "a kind that is a list": "kind: [Deployment]\nspec: {template: {spec: {containers: []}}}",
    "a name that is an object": "kind: Deployment\nmetadata: {name: {a: 1}}",
    "no metadata at all": "kind: StatefulSet\nspec: {template: {spec: {containers: [{}]}}}",
    "a partition that is a text": f"kind: StatefulSet\nmetadata: {{name: a}}\nspec: {{updateStrategy: {{rollingUpdate: {{partition: '%'}}}}, template: {{spec: {SPEC}}}}}",
    "no number of unavailable pods": f"kind: StatefulSet\nmetadata: {{name: a}}\nspec: {{updateStrategy: {{rollingUpdate: {{maxUnavailable: '%'}}}}, template: {{spec: {SPEC}}}}}",
    "claim templates that are texts": f"kind: StatefulSet\nmetadata: {{name: a}}\nspec: {{volumeClaimTemplates: [a], template: {{spec: {SPEC}}}}}",
    "a spec that is a number": "kind: LeaderWorkerSet\nmetadata: {name: a}\nspec: 7",
    "a predictor that is a list": "kind: InferenceService\nmetadata: {name: a}\nspec: {predictor: []}",
    "a model that is a text": "kind: InferenceService\nmetadata: {name: a}\nspec: {predictor: {model: vllm}}",
    "models that are texts": "servingEngineSpec: {modelSpec: [a, b]}",
    "arguments of a chart that are numbers": "servingEngineSpec: {modelSpec: [{name: a, vllmConfig: {extraArgs: [7]}}]}",
    "containers of a chart that are texts": "decode: {containers: [vllm]}",
    "only nulls": "null\n---\n~\n---\n",
    "a number": "7",
    "a date": "2026-01-01",
    "a tag of Python's": "!!python/object/apply:os.system ['true']",
    "a merge of nothing": "<<: 3",
    "an unhashable key": "? {a: 1}\n: 2",
    "a bell": "a: \x07",
    "an impossible date": "kind: 2026-99-99T00:00:00Z",
    "a number of 5000 digits": "kind: Deployment\nmetadata: {name: a}\nspec: " + "9" * 5000,
    "objects in objects": "{a: " * 600 + "1" + "}" * 600,
    "a Helm template": "spec:\n  containers:\n  {{- range .Values.models }}\n  - {name: vllm}\n  {{- end }}",
    "a script without an end": manifest(container(command=["sh", "-c", "vllm serve 'm"], args=[])),
    "a script of nothing but brackets": manifest(container(command=["sh", "-c", "(" * 5000], args=[])),
    "a script in a script in a script": manifest(container(command=["sh", "-c", "eval " * 300 + "vllm serve m"], args=[])),
    "a shell without a script": manifest(container(command=["sh", "-c"], args=[])),
    "half a surrogate": manifest(container(command=["sh", "-c", "vllm serve \ud800"], args=[])),
    "a flag without its value": manifest(container(args=["m", "--speculative-config.model"])),
    "a hook of a million nines": manifest(container(lifecycle={"preStop": {"exec": {"command": ["sleep", "9" * 400]}}})),
    "ports that are texts": manifest(container(ports="8000")),
    "annotations that are numbers": manifest(container(), annotations={"prometheus.io/port": 7, "breakeven.dev/speculative-config": 3}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_no_file_ends_in_a_traceback(name, tmp_path):
    linted(HOSTILE[name], tmp_path)


def with_each_part_replaced(node: Any, value: Any) -> Iterator[Any]:
    """The same document with one of its parts replaced, each part in turn."""
    yield value
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, item in items:
        for replaced in with_each_part_replaced(item, value):
            yield (
                {**node, key: replaced}
                if isinstance(node, dict)
                else [*node[:key], replaced, *node[key + 1 :]]
            )


SHAPES = {name: yaml.safe_load(text) for name, (text, _) in READ.items() if "---" not in text} | {
    kind: yaml.safe_load(f"kind: {kind}\nmetadata: {{name: chat}}\n{spec}")
    for kind, (spec, _) in UNMANAGED.items()
}


@pytest.mark.parametrize("value", [None, 3, "text", [1], {"a": 1}, True], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_any_part_of_any_shape_may_be_of_any_type(name, value, tmp_path):
    for document in with_each_part_replaced(SHAPES[name], value):
        linted(json.dumps(document), tmp_path)


def test_a_thousand_anchors_take_no_time(tmp_path):
    laughs = "\n".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]" for n in range(30))
    linted(f"a0: &a0 [x]\n{laughs}\nkind: List\nitems: *a30\n", tmp_path)


def test_a_text_that_is_not_utf8_is_refused_in_a_line(tmp_path):
    file = tmp_path / "m.yaml"
    file.write_bytes(b"kind: \xff")
    result = CliRunner().invoke(command, [str(file)])
    assert isinstance(result.exception, BreakevenError)


# The cases that came from the field.


def only(text: str, folder: Path, *options: str) -> dict[str, Any]:
    found, _ = linted(text, folder, *options)
    (one,) = found["deployments"]
    return one


def test_lines_to_remove_are_the_lines_of_the_file_and_a_refused_value_is_said(tmp_path):
    text = r"""
    kind: Deployment
    metadata: {name: chat}
    spec:
      template:
        spec:
          containers:
          - name: vllm  # ü
            image: vllm/vllm-openai:v0.32.0
            args:
            - --model=org/model
            - --speculative-config.num_speculative_tokens
            - "3"
            - "--speculative-config='{\"method\": \"mtp\"}'"
    """
    one = only(text, tmp_path)
    (change,) = one["opt_in"]["remove"]
    assert change["lines"] == [
        "- --speculative-config.num_speculative_tokens",
        '- "3"',
        r'''- "--speculative-config='{\"method\": \"mtp\"}'"''',
    ]
    assert all(line.lstrip("- ") in text for line in change["lines"])
    assert any("vLLM refuses to start" in line and "invalid JSON" in line for line in one["warnings"])


@pytest.mark.parametrize(
    ("image", "args", "refused", "removed", "draining"),
    [
        ("vllm/vllm-openai:v0.13.0", [], "vLLM 0.13 is older than 0.14, the oldest that Breakeven works with: upgrade first", 0, "vLLM 0.13 does not know --shutdown-timeout (0.18 does)"),
        ("vllm/vllm-openai:v0.14.0", ["--speculative_config", '{"method":"eagle3","model":"h","num_speculative_tokens":4}'], None, 2, "vLLM 0.14 does not know --shutdown-timeout (0.18 does)"),
        ("vllm/vllm-openai:v0.17.1", ["--shutdown-timeout=60"], None, 0, "vLLM 0.17 does not know --shutdown-timeout (0.18 does), and does not start with it"),
        ("vllm/vllm-openai:v0.18.0", [], None, 0, "--shutdown-timeout is 0 (vLLM's default)"),
        ("vllm/vllm-openai:latest", [], None, 0, "--shutdown-timeout is 0 (vLLM's default)"),
    ],
)  # fmt: skip
def test_advice_fits_the_version_of_the_image(image, args, refused, removed, draining, tmp_path):
    one = only(manifest(container(image, args=["m", *args])), tmp_path)
    assert (refused is None) == (one["opt_in"]["refusal"] is None)
    assert refused is None or refused in one["opt_in"]["refusal"]
    assert sum(len(change["lines"]) for change in one["opt_in"]["remove"]) == removed
    assert any(draining in problem for problem in one["drain"]["problems"])
    unknown = any("does not say which vLLM" in note for note in one["notes"])
    assert unknown == image.endswith("latest")


SHELLS = [
    (["/bin/bash"], ["-c", "vllm serve m --port 8001 --shutdown-timeout 120"]),
    (["/bin/bash", "-c"], ["exec vllm serve m --port 8001 --shutdown-timeout 120"]),
    (["/bin/bash", "-lc", "--"], ["ulimit -n 65536; exec vllm serve m --port 8001 --shutdown-timeout 120"]),
    (["bash", "-c", "-o", "pipefail"], ["vllm serve m --port 8001 --shutdown-timeout 120"]),
    (["tini", "--", "bash", "-c"], ["set -e; exec vllm serve m --port 8001 --shutdown-timeout 120"]),
    (["env", "A=b", "sh", "-c"], ["vllm serve m \\\n  --port 8001 \\\n  --shutdown-timeout 120\n"]),
    (["sh", "-c", 'exec "$@"', "--"], ["vllm", "serve", "m", "--port", "8001", "--shutdown-timeout", "120"]),
    (["bash", "-c"], ['eval "exec vllm serve m --port 8001 ${EXTRA}"']),
]


@pytest.mark.parametrize(("shell", "args"), SHELLS)
def test_a_shell_is_refused_with_the_lines_that_start_vllm_without_it(shell, args, tmp_path):
    given = container(command=shell, args=args, env=[{"name": "EXTRA", "value": "--shutdown-timeout 120"}])
    one = only(manifest(given), tmp_path, "--check")
    assert "through a shell" in one["opt_in"]["refusal"]
    assert one["drain"]["shutdown_timeout_s"] == 120
    added = {change["path"]: yaml.safe_load("\n".join(change["lines"])) for change in one["opt_in"]["add"]}
    assert added["containers[vllm].command"] == ["vllm", "serve"]
    mended = container(
        command=added["containers[vllm].command"],
        args=added["containers[vllm].args"],
        env=added["containers[vllm].env"],
    )
    again = only(manifest(mended), tmp_path)
    assert again["opt_in"]["ok"]
    assert again["drain"]["shutdown_timeout_s"] == 120


@pytest.mark.parametrize(
    ("script", "said", "edited"),
    [
        ("vllm serve m &\nwait", "put exec before", ""),
        ("pip install x && vllm serve m", "put exec before", "pip install x && vllm serve m{}"),
        ("if [ $A ]; then exec vllm serve m; else exec vllm serve n; fi", "in 2 places", ""),
        ("exec vllm serve $(cat /model)", "only running it can tell", ""),
        ("exec /start.sh", "starts no vLLM that can be seen", ""),
        ("exec vllm serve 'm", "cannot be read to the end", ""),
        ('vllm serve m --x "$HOME"; sleep $(nproc)', "put exec before", 'vllm serve m --x "$HOME"{}; sleep $(nproc)'),
        ("vllm serve m | tee /log", "under a condition, in a loop or in a pipe", ""),
    ],
)  # fmt: skip
def test_what_a_script_hides_or_keeps_from_vllm_is_said(script, said, edited, tmp_path):
    one = only(manifest(container(command=["bash", "-c"], args=[script])), tmp_path)
    assert any(said in line for line in one["warnings"])
    texts = [
        line for change in one["opt_in"]["add"] if change["path"].endswith("args") for line in change["lines"]
    ]
    wanted = edited.format(' --speculative-config "$BREAKEVEN_SPECULATIVE_CONFIG"')
    assert (yaml.safe_load("\n".join(texts)) or [""]) == [wanted]
    assert not one["ok"]


@pytest.mark.parametrize(
    ("args", "annotation", "said"),
    [
        (["--kv-transfer-config", "{}"], None, "TargetRefused"),
        (["--kv-transfer-config", "{}"], {"method": "ngram", "num_speculative_tokens": 3}, "TargetRefused"),
        (["-pp", "2"], {"method": "eagle3", "model": "h", "num_speculative_tokens": 3}, "hidden states from stage to stage"),
        (["-pp", "2"], {"method": "ngram", "num_speculative_tokens": 3}, None),
        (["--max-model-len=8k"], {"method": "draft_model", "model": "d", "num_speculative_tokens": 3, "max_model_len": 2048}, "shorter than the target's 8000"),
        (["--structured-outputs-config.backend", "lm-format-enforcer"], None, "does not take speculative tokens"),
        (["--enable-lora"], {"method": "mtp", "num_speculative_tokens": 1, "enable_adaptive_verification": True}, "--enable-lora: vLLM does not start with it"),
        ([], {"method": "medusa", "model": "h", "num_speculative_tokens": 3}, None),
        ([], {"method": "lookahead", "num_speculative_tokens": 3}, "no vLLM from 0.18 to 0.33 knows it"),
        ([], {"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "fly"}, "vLLM 0.32 does not know it (0.33 and newer does)"),
    ],
)  # fmt: skip
def test_what_makes_the_operator_useless_is_said(args, annotation, said, tmp_path):
    given = {} if annotation is None else {"breakeven.dev/speculative-config": json.dumps(annotation)}
    one = only(manifest(container(args=["m", *args]), annotations=given), tmp_path)
    lines = [line for line in one["warnings"] if "takes the key back" not in line]
    assert [said in line for line in lines] == ([] if said is None else [True])


@pytest.mark.parametrize(
    ("env", "adaptive", "said"),
    [
        ([], True, True),
        ([], False, False),
        ([{"name": "VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN", "value": "900"}], True, False),
    ],
)
def test_the_context_of_adaptive_verification_s_table_is_proposed_where_nobody_chose_it(
    env, adaptive, said, tmp_path
):
    config = {"method": "mtp", "num_speculative_tokens": 1, "enable_adaptive_verification": adaptive}
    given = {"breakeven.dev/speculative-config": json.dumps(config)}
    one = only(manifest(container(env=env), annotations=given), tmp_path)
    found = [line for line in one["notes"] if "VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN" in line]
    assert ["with 8,192 tokens of context" in line for line in found] == ([True] if said else [])


def test_a_variable_of_the_image_is_not_put_into_lines_that_kubernetes_fills_in(tmp_path):
    given = container(
        command=["sh", "-c"], args=['exec vllm serve m --download-dir "$HOME/x" --port "$PORT"']
    )
    env = [{"name": "PORT", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "p"}}}]
    added = only(manifest({**given, "env": env}), tmp_path)["opt_in"]["add"]
    assert [line for change in added for line in change["lines"] if "$(" in line] == []
    env.append({"name": "HOME", "value": "/home"})
    added = only(manifest({**given, "env": env}), tmp_path)["opt_in"]["add"]
    lines = next(change["lines"] for change in added if change["path"].endswith("args"))
    assert yaml.safe_load("\n".join(lines))[1:5] == ["--download-dir", "/home/x", "--port", "$(PORT)"]


def test_annotations_that_lead_prometheus_elsewhere_are_said(tmp_path):
    given = {"prometheus.io/scrape": "true", "prometheus.io/port": "9000"}
    one = only(manifest(container(), annotations=given), tmp_path)
    assert any("vLLM serves its metrics at 8000" in line for line in one["warnings"])
    assert not any("PodMonitor" in note for note in one["notes"])
    assert any("PodMonitor" in note for note in only(manifest(container()), tmp_path)["notes"])
    named = container(ports=[{"name": "http", "containerPort": 8000}])
    assert not any("PodMonitor" in note for note in only(manifest(named), tmp_path)["notes"])


FILE = "{served-model-name: chat, disable-log-stats: true, shutdown-timeout: 60, speculative-config: {method: ngram, num_speculative_tokens: 3}}"
MOUNTS = [
    ({"configMap": {"name": "flags"}}, {"mountPath": "/etc/vllm/"}, "/etc/vllm/a.yaml", True),
    ({"configMap": {"name": "flags", "items": [{"key": "a.yaml", "path": "b.yaml"}]}}, {"mountPath": "/etc"}, "/etc/b.yaml", True),
    ({"configMap": {"name": "flags"}}, {"mountPath": "/a.yaml", "subPath": "a.yaml"}, "/a.yaml", True),
    ({"configMap": {"name": "others"}}, {"mountPath": "/etc/vllm"}, "/etc/vllm/a.yaml", False),
    ({"secret": {"secretName": "flags"}}, {"mountPath": "/etc/vllm"}, "/etc/vllm/a.yaml", False),
]  # fmt: skip


@pytest.mark.parametrize(("volume", "mount", "path", "seen"), MOUNTS)
def test_a_file_of_flags_is_read_where_the_manifest_has_it(volume, mount, path, seen, tmp_path):
    config = {"kind": "ConfigMap", "metadata": {"name": "flags"}, "data": {"a.yaml": FILE}}
    one = container(args=["org/model", "--config", path], volumeMounts=[{"name": "v", **mount}])
    deployment = json.loads(manifest(one, grace_s=90))
    deployment["spec"]["template"]["spec"]["volumes"] = [{"name": "v", **volume}]
    found = only(f"{json.dumps(deployment)}\n---\n{json.dumps(config)}", tmp_path)
    assert found["drain"]["shutdown_timeout_s"] == (60 if seen else 0)
    assert any("disable-log-stats" in line for line in found["warnings"]) == seen
    assert any("is not seen here" in note for note in found["notes"]) != seen


def of_groups(tmp_path, text="", version="leaderworkerset.x-k8s.io/v1", groups=""):
    document = (
        f"apiVersion: {version}\nkind: LeaderWorkerSet\nmetadata: {{name: chat}}\n"
        f"spec: {{{text}leaderWorkerTemplate: {{{groups}leaderTemplate: {{spec: {SPEC}}}, workerTemplate: {{spec: {SPEC}}}}}}}"
    )
    found, refusal = linted(document, tmp_path)
    return found["deployments"], refusal


def test_groups_are_rolled_and_every_template_that_starts_vllm_gets_its_lines(tmp_path):
    found, refusal = of_groups(tmp_path)
    assert refusal == ""
    paths = [[change["path"] for change in one["opt_in"]["add"]] for one in found]
    inside = [
        f"spec.leaderWorkerTemplate.{name}.spec.containers[vllm]"
        for name in ("leaderTemplate", "workerTemplate")
    ]
    assert paths == [[f"{path}.env", f"{path}.args"] for path in inside]
    assert not any("does not manage" in line for one in found for line in one["warnings"])
    _, refusal = of_groups(tmp_path, version="example.org/v1")
    assert "LeaderWorkerSet/chat" in refusal


def test_a_partition_of_groups_and_a_volume_that_a_surge_cannot_mount_are_named(tmp_path):
    rolling = "rolloutStrategy: {rollingUpdateConfiguration: {partition: 2, maxSurge: 1}}, "
    found, _ = of_groups(tmp_path, rolling, groups="volumeClaimTemplates: [{metadata: {name: cache}}], ")
    assert any("LeaderWorkerSet/chat has partition 2" in line for line in found[0]["warnings"])
    assert any("volumeClaimTemplate cache" in line for line in found[0]["notes"])
    spec = SPEC.rstrip("}") + ", volumes: [{name: a, persistentVolumeClaim: {claimName: models}}]}"
    document = f"kind: LeaderWorkerSet\nmetadata: {{name: chat}}\nspec: {{{rolling}leaderWorkerTemplate: {{workerTemplate: {{spec: {spec}}}}}}}"
    (one,) = linted(document, tmp_path)[0]["deployments"]
    assert any("under spec.rolloutStrategy.rollingUpdateConfiguration" in line for line in one["notes"])


def test_a_rollout_is_one_that_the_operator_rolls_and_its_canary_says_what_a_roll_adds(tmp_path):
    spec = SPEC.rstrip("}") + ", volumes: [{name: a, persistentVolumeClaim: {claimName: models}}]}"
    for strategy, adds in (
        ("canary: {maxSurge: 1}", True),
        ("canary: {maxSurge: 0, maxUnavailable: 1}", False),
        ("blueGreen: {}", True),
    ):
        document = (
            "apiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: chat}\n"
            f"spec: {{replicas: 2, strategy: {{{strategy}}}, template: {{spec: {spec}}}}}"
        )
        found, refusal = linted(document, tmp_path)
        assert refusal == ""
        (one,) = found["deployments"]
        assert any("under spec.strategy.canary" in line for line in one["notes"]) is adds
