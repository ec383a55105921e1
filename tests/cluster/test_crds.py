"""The CRDs on a real API server: accepted, explained, and as strict as the models."""

import importlib.util
import json
from http import HTTPStatus
from pathlib import Path

import kubernetes
import pytest
import yaml

from localcluster import LocalCluster

pytestmark = pytest.mark.always

ROOT = Path(__file__).parents[2]
SPECS = ROOT / "tests" / "unit" / "resources"


def _load(name):
    spec = importlib.util.spec_from_file_location(name, SPECS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


specs = _load("test_specs")

# Keys that vLLM takes beside method, model and draft length, method by method.
OPTIONS_OF_VLLM = {
    "ngram": {"prompt_lookup_min": 2, "prompt_lookup_max": 5},
    "suffix": {
        "suffix_decoding_max_tree_depth": 24,
        "suffix_decoding_max_cached_requests": 10000,
        "suffix_decoding_max_spec_factor": 1.0,
        "suffix_decoding_min_token_prob": 0.1,
    },
    "eagle3": {
        "disable_padded_drafter_batch": True,
        "draft_lm_head_quantization": "fp8",
        "speculative_token_tree": str([(0,) * (1 + i % 7) for i in range(80)]),
        "num_speculative_tokens_per_batch_size": [[1 + 4 * i, 4 + 4 * i, 7] for i in range(60)],
    },
    "draft_model": {
        "draft_tensor_parallel_size": 1,
        "quantization": None,
        "revision": "main",
        "rejection_sample_method": "block",
        "draft_load_config": {
            "load_format": "tensorizer",
            "ignore_patterns": ["original/**/*"],
            "model_loader_extra_config": {"tensorizer_config": {"verify_hash": True, "num_readers": 8}},
        },
    },
    "mtp": {"index_share_for_mtp_iteration": True},
    "dflash": {"xpress_topc": 4},
    "dspark": {"dspark_draft_topk": 8, "enable_adaptive_verification": False},
}


@pytest.fixture(scope="module")
def cluster():
    # Of its own: what is tested here is how CRDs come into a cluster that has none.
    with LocalCluster() as running:
        running.kubectl("apply", "--server-side", f"--filename={ROOT / 'crds'}")
        running.until_established()
        yield running


@pytest.fixture(scope="module")
def objects(cluster):
    with kubernetes.config.new_client_from_config(str(cluster.kubeconfig)) as client:
        yield kubernetes.client.CustomObjectsApi(client)


def create(objects, body, namespace="default", plural="speculativeservices", **options):
    body = {**body, "metadata": {**body["metadata"], "namespace": namespace}}
    return objects.create_namespaced_custom_object(
        "breakeven.dev", "v1alpha1", namespace, plural, body, field_validation="Strict", **options
    )


def patch(objects, name, body, plural="speculativeservices", namespace="default"):
    return objects.patch_namespaced_custom_object("breakeven.dev", "v1alpha1", namespace, plural, name, body)


def refusal(caught):
    return json.loads(caught.value.body)["message"]


@pytest.mark.parametrize("case", specs.CORPUS, ids=lambda case: case["says"])
def test_the_api_server_accepts_and_refuses_what_the_models_do(objects, case):
    body = specs.manifest(case)
    if case.get("admitted"):
        create(objects, body, dry_run="All")
        return
    if not specs.is_refused(case):
        made = create(objects, body, dry_run="All")
        # With the server's defaults filled in, the models read the same spec as without.
        filled = specs.SpeculativeService.read(made, "chat")
        assert filled.spec == specs.SpeculativeService.read(body, "chat").spec
        return
    with pytest.raises(kubernetes.client.ApiException) as caught:
        create(objects, body, dry_run="All")
    said = refusal(caught)
    for words in ("field", "server" if "server" in case else "text"):
        assert case.get(words, "") in said


def with_options(text):
    """A service as its text, because a client of Python would not write what is nested so deep."""
    body = specs.manifest(
        {"spec": {"candidates": {"methods": [{"name": "l", "method": "ngram", "options": "@"}]}}}
    )
    return json.dumps({**body, "metadata": {"name": "odd", "namespace": "default"}}).replace('"@"', text)


def posted(objects, text):
    """The API server's refusal of a text; empty if it takes it."""
    path = "/apis/breakeven.dev/v1alpha1/namespaces/default/speculativeservices?dryRun=All"
    client = objects.api_client
    answer = client.rest_client.pool_manager.request(
        "POST", client.configuration.host + path, body=text, headers={"Content-Type": "application/json"}
    )
    return "" if answer.status == HTTPStatus.CREATED else answer.json()["message"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ('{"a":' * 220 + "1" + "}" * 220, "options.a.a.a"),
        ('{"a":' * 3000 + "1" + "}" * 3000, "options.a.a.a"),
        ('{"a":' + "[" * 3000 + "]" * 3000 + "}", "options.a[0][0]"),
        (json.dumps({f"k{i}": i for i in range(33)}), "options: Too many: 33: must have at most 32 items"),
        (json.dumps({"a": {f"k{i}": i for i in range(2000)}}), "options.a: Too many: 2000"),
        (json.dumps({"a": list(range(257))}), "options.a: Too many: 257: must have at most 256 items"),
        (json.dumps({"a": {"b": "x" * 2049}}), "options.a.b: Too long: may not be more than 2048 "),
        ("null", ""),
        *((json.dumps(options), "") for options in OPTIONS_OF_VLLM.values()),
    ],
    ids=[
        "220 deep",
        "3000 deep",
        "3000 lists",
        "wide",
        "wide below",
        "long list",
        "long text",
        "null",
        *OPTIONS_OF_VLLM,
    ],
)
def test_options_are_bounded_by_the_api_server(objects, options, says):
    said = posted(objects, with_options(options))
    assert says in said
    assert bool(said) == bool(says)


def test_the_target_cannot_be_changed_but_its_container_named(objects, namespace):
    create(objects, specs.manifest({}), namespace)
    patch(objects, "chat", {"spec": {"targetRef": {"containerName": "vllm"}}}, namespace=namespace)
    with pytest.raises(kubernetes.client.ApiException) as caught:
        patch(objects, "chat", {"spec": {"targetRef": {"name": "other"}}}, namespace=namespace)
    assert "spec.targetRef" in refusal(caught)
    assert "targetRef cannot be changed; expected another SpeculativeService" in refusal(caught)


def test_a_run_and_a_profile_cannot_be_changed(objects, namespace):
    run = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "CalibrationRun",
        "metadata": {"name": "r"},
        "spec": {"serviceRef": {"name": "chat"}, "arms": ["eagle/7"]},
    }
    create(objects, run, namespace, "calibrationruns")
    with pytest.raises(kubernetes.client.ApiException) as caught:
        patch(objects, "r", {"spec": {"arms": ["eagle/2"]}}, "calibrationruns", namespace)
    assert "a CalibrationRun's spec cannot be changed; expected another CalibrationRun" in refusal(caught)
    profile = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "SpeculationProfile",
        "metadata": {"name": "p"},
        "spec": {
            "serviceRef": {"name": "chat"},
            "gpuProduct": "NVIDIA-H100-80GB-HBM3",
            "fingerprint": "abc",
            "profile": "{}",
        },
    }
    create(objects, profile, namespace, "speculationprofiles")
    with pytest.raises(kubernetes.client.ApiException) as caught:
        patch(objects, "p", {"spec": {"profile": "[]"}}, "speculationprofiles", namespace)
    assert "a SpeculationProfile's spec cannot be changed; expected a new calibration" in refusal(caught)


def test_the_largest_profile_is_stored(objects, namespace):
    spec = {"serviceRef": {"name": "chat"}, "gpuProduct": "H100", "fingerprint": "abc"}
    body = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "SpeculationProfile",
        "metadata": {"name": "large"},
    }
    text = json.dumps({"figure": 0.1234567891}) * 50_000
    create(objects, body | {"spec": spec | {"profile": text[:1_048_576]}}, namespace, "speculationprofiles")


def test_a_run_keeps_points_of_several_writers(cluster, objects, namespace):
    run = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "CalibrationRun",
        "metadata": {"name": "r"},
        "spec": {"serviceRef": {"name": "chat"}},
    }
    create(objects, run, namespace, "calibrationruns")

    def write(manager, status):
        cluster.kubectl(
            "apply",
            f"--namespace={namespace}",
            "--server-side",
            "--subresource=status",
            f"--field-manager={manager}",
            "--filename=-",
            stdin=yaml.safe_dump({**run, "status": status}),
        )

    write("breakeven", {"phase": "Measuring", "gpuSecondsUsed": "12.5"})
    first = {"arm": "none", "index": 0, "meanLatencyS": "1.1"}
    write("breakeven-trial-none", {"points": [first]})
    write("breakeven-trial-eagle-7", {"points": [{"arm": "eagle/7", "index": 0, "meanLatencyS": "0.53"}]})
    write("breakeven-trial-none", {"points": [first, {"arm": "none", "index": 1, "meanLatencyS": "1.2"}]})
    got = objects.get_namespaced_custom_object("breakeven.dev", "v1alpha1", namespace, "calibrationruns", "r")
    kept = {(point["arm"], point["index"]): point["meanLatencyS"] for point in got["status"]["points"]}
    assert kept == {("none", 0): "1.1", ("none", 1): "1.2", ("eagle/7", 0): "0.53"}
    assert got["status"]["phase"] == "Measuring"


def test_a_figure_in_a_status_is_a_decimal_string(objects, namespace):
    create(objects, specs.manifest({}), namespace)
    for wrong in ("fast", "1e3", "NaN", ""):
        with pytest.raises(kubernetes.client.ApiException) as caught:
            objects.patch_namespaced_custom_object_status(
                "breakeven.dev",
                "v1alpha1",
                namespace,
                "speculativeservices",
                "chat",
                {"status": {"decision": {"loadRps": wrong}}},
            )
        assert "status.decision.loadRps" in refusal(caught)


def test_explain_tells_every_field_with_default_and_bounds(cluster):
    tree = cluster.kubectl("explain", "specsvc.spec", "--recursive").stdout
    for field in (
        "targetRef",
        "methods",
        "pinnedArm",
        "maxGpuSeconds",
        "bearerTokenSecretRef",
        "e2eP95Milliseconds",
    ):
        assert f" {field}\t" in tree
    assert "enum: Disabled, Recommend, NextRollout," in tree, [
        line for line in tree.splitlines() if "enum: D" in line
    ]
    text = " ".join(cluster.kubectl("explain", "specsvc.spec.updatePolicy.cooldownSeconds").stdout.split())
    assert "Least time between a roll and the next one to a speculative arm; a day where" in text
    assert "Default 3600 seconds. 0 to 604800 seconds." in text
    mode = " ".join(cluster.kubectl("explain", "specsvc.spec.updatePolicy.mode").stdout.split())
    assert "Default Recommend." in mode


def test_short_names_and_category(cluster):
    listed = cluster.kubectl("api-resources", "--categories=breakeven", "--no-headers").stdout
    assert {line.split()[1] for line in listed.splitlines()} == {"specsvc", "calrun", "specprof"}


@pytest.mark.claim(
    "README.md", "SPEEDUP is latency without speculation over latency with it, with its 90 % bounds."
)
def test_columns_say_whether_it_pays(cluster, objects, namespace):
    create(objects, specs.manifest({}), namespace)
    display = {
        "arm": "eagle/7",
        "pays": "Yes",
        "speedup": "1.82 [1.74,1.90]",
        "breakEven": "8.9 rps",
        "load": "3.1 rps",
        "recommended": "eagle/7",
        "reason": "BelowBreakEven",
        "mode": "Recommend, pinned",
    }
    objects.patch_namespaced_custom_object_status(
        "breakeven.dev",
        "v1alpha1",
        namespace,
        "speculativeservices",
        "chat",
        {"status": {"workings": {"display": display}}},
    )
    lines = cluster.kubectl("get", "specsvc", f"--namespace={namespace}").stdout.splitlines()
    assert lines[0].split() == [
        "NAME",
        "ARM",
        "PAYS",
        "SPEEDUP",
        "BREAK-EVEN",
        "LOAD",
        "RECOMMENDED",
        "REASON",
        "MODE",
        "AGE",
    ]
    assert lines[1].split("  ")[0] == "chat"
    assert "1.82 [1.74,1.90]" in lines[1]
    assert "BelowBreakEven   Recommend, pinned" in lines[1]
    wide = cluster.kubectl("get", "specsvc", f"--namespace={namespace}", "--output=wide").stdout
    assert "TARGET" in wide
    assert "chat-vllm" in wide


def test_the_examples_are_accepted_as_they_are(cluster, namespace):
    done = cluster.kubectl(
        "apply", f"--namespace={namespace}", "--validate=strict", f"--filename={ROOT / 'examples'}"
    ).stdout
    assert "speculativeservice.breakeven.dev/chat created" in done
    assert "speculativeservice.breakeven.dev/code created" in done
    assert "calibrationrun.breakeven.dev/chat-by-hand created" in done
    assert "deployment.apps/chat-vllm created" in done
    assert "deployment.apps/code-vllm created" in done
