"""The requests that a calibration sends, and the files that it imports, on the real control plane."""

import json

from operatorcluster import manifests
from operatorcluster.stage import condition
from operatorcluster.target_engine import METHOD
from operatorcluster.waiting import until

# Product files whose change runs these tests at the next landing.
COVERS = ("operator/breakeven_operator/calibration/",)

MARKER = "xyzzy-not-for-logs"
ARM = f"{METHOD['name']}/{METHOD['draftLengths'][0]}"


def config_map(name, data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def points(method, k, c1_s, c2_s):
    """Results of another load generator, of an engine that obeys a law."""
    loads = [share / c2_s for share in (0.05, 0.2, 0.35, 0.5, 0.6, 0.7)]
    rows = [f"{method},{k},{rps:.4f},{c1_s / (1 - rps * c2_s):.5f},64,32,{MARKER}" for rps in loads]
    header = "method,k,request_rate_rps,mean_latency_s,prompt_tokens,output_tokens,note"
    return "\n".join([header, *rows])


def everything(place):
    """Statuses, events and logs of the namespace and of the operator."""
    kinds = ("specsvc", "calrun", "specprof", "job", "pod", "event")
    return json.dumps([*(place.all(kind) for kind in kinds), place.stage.log()])


def logs(place):
    """Of the drivers that are there now: that of the next arm comes while the one before it goes."""
    for pod in place.all("pod"):
        if "breakeven.dev/run" in pod["metadata"].get("labels", {}):
            yield place.stage.cluster.kubectl(
                "logs",
                f"--namespace={place.name}",
                pod["metadata"]["name"],
                "--container=driver",
                check=False,
            ).stdout


def test_prompts_of_a_config_map_are_sent_and_shown_nowhere(place):
    lines = [
        json.dumps({"prompt": f"{MARKER} what is the price of {n} loaves of bread in {n * n} towns " * 4})
        for n in range(200)
    ]
    place.apply(config_map("prompts", {"support.jsonl": "\n".join(lines)}))
    prompts = {"configMap": {"name": "prompts", "key": "support.jsonl"}}
    lengths = manifests.service()["spec"]["calibration"]["workload"]
    workload = {**lengths, "prompts": prompts, "sampling": {"temperature": "0.5"}}
    place.apply(manifests.target(), manifests.service(calibration={"workload": workload, "loads": 3}))

    def measured():
        runs = place.all("calrun")
        status = (runs[0].get("status") or {}) if len(runs) == 1 else {}
        assert status.get("phase") != "Failed", status.get("message")
        return status.get("points")

    found = until("a point is measured", measured, seen=lambda: place.told("chat"))
    assert {point["textSource"] for point in found} == {"support"}
    assert float(found[0]["promptTokens"]) > 20
    told = until("a driver says so in its log", lambda: [text for text in logs(place) if "point" in text])
    assert MARKER not in "".join(told)
    assert MARKER not in everything(place)


def test_a_config_map_without_the_key_ends_the_run_with_a_word_and_no_pod(place):
    place.apply(config_map("prompts", {"others.jsonl": MARKER}))
    prompts = {"configMap": {"name": "prompts", "key": "support.jsonl"}}
    place.apply(manifests.target(), manifests.service(calibration={"workload": {"prompts": prompts}}))

    def refused():
        said = condition(place.get("specsvc", "chat"), "Calibrated")
        return said if "InputRefused" in said.get("message", "") else None

    said = until("the service says so", refused, seen=lambda: place.told("chat"))
    assert "ConfigMap prompts has no key support.jsonl" in said["message"]
    assert place.writes("jobs") == []
    assert place.writes() == []
    assert MARKER not in everything(place)


def test_imported_results_become_the_profile_in_force_and_no_pod_starts(place):
    method, k = METHOD["method"], METHOD["draftLengths"][0]
    data = {"none.csv": points("none", 0, 1.0, 0.05), "drafted.csv": points(method, k, 0.6, 0.055)}
    sources = [
        {"arm": arm, "configMap": {"name": "sweeps", "keys": [key]}}
        for arm, key in (("none", "none.csv"), (ARM, "drafted.csv"))
    ]
    run = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "CalibrationRun",
        "metadata": {"name": "imported"},
        "spec": {"serviceRef": {"name": "chat"}, "importFrom": sources},
    }
    # The run is there before its service, which otherwise would measure by itself first.
    place.apply(config_map("sweeps", data), manifests.target(), run, manifests.service())

    def ended():
        status = place.get("calrun", "imported").get("status") or {}
        assert status.get("phase") != "Failed", status.get("message")
        return status if status.get("phase") == "Succeeded" else None

    status = until("the import has succeeded", ended, seen=lambda: place.told("chat"))
    assert len(status["points"]) == 12
    found = place.until_calibrated()
    assert found["status"]["calibration"]["profile"] == "imported"
    created = [job for job in place.writes("jobs") if job.verb == "create"]
    assert [job for job in created if job.body["metadata"]["labels"]["breakeven.dev/run"] == "imported"] == []
    assert MARKER not in everything(place)
