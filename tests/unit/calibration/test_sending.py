"""Requests of a run: the plan, the Job's volumes, the driver's reading of it, and that no prompt is ever shown."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest

from breakeven.errors import InputError
from breakeven.load_driver.sent_workload import Sampling
from breakeven.serving.counted_window import Load
from breakeven_operator.calibration import files_read
from breakeven_operator.calibration.sending import imposed, planned_workload, text_name
from breakeven_operator.driver import PromptsError
from breakeven_operator.kinds import CONFIG_MAPS
from breakeven_operator.loop.run_turns import RunFiles, read_run_files
from breakeven_operator.ports import ClusterError
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.calibrationspec import PromptSource, WorkloadSpec
from fakes.api_server import FakeCluster
from fakes.calibration_world import RUN, SERVICE, TARGET, timestamp
from fakes.manual_clock import FakeClock
from fakes.trial_run import trial_environment

MARKER = "xyzzy-not-for-logs"
LINES = "\n".join(json.dumps({"prompt": f"{MARKER} {n}", "output_tokens": 8 + n % 5}) for n in range(20))
FROM_CONFIG_MAP = {"configMap": {"name": "prompts", "key": "support.jsonl"}}


def ask_for(world, **workload):
    """The service asks for this workload, beside its lengths."""
    world.service["spec"]["calibration"]["workload"] |= workload


def with_prompts(world, text=LINES):
    ask_for(world, prompts=FROM_CONFIG_MAP)
    world.config_maps["prompts"] = {"metadata": {"name": "prompts"}, "data": {"support.jsonl": text}}


def pod_of(world):
    return world.job["spec"]["template"]["spec"]


def everything(world):
    """All that the operator has written or said, as one text."""
    return json.dumps([world.status, world.jobs, world.profiles, [str(event) for event in world.said]])


def refused(world):
    world.turn()
    world.turn()
    assert world.status["phase"] == "Failed"
    assert not world.jobs, "no GPU is held"
    assert MARKER not in everything(world)
    return world.status["reason"], world.status["message"]


@pytest.mark.parametrize(("stem", "named"), [("support", "support"), (65 * "a", 64 * "a")])
def test_a_text_is_named_by_its_file_in_at_most_64_letters(stem, named):
    prompts = PromptSource.model_validate({"configMap": {"name": "prompts", "key": f"{stem}.jsonl"}})
    assert text_name(prompts) == named


def test_prompts_of_a_config_map_are_mounted_read_only_into_the_driver_alone(world):
    with_prompts(world)
    world.turn()
    world.turn()
    pod = pod_of(world)
    assert {
        "name": "breakeven-prompts",
        "configMap": {"name": "prompts", "items": [{"key": "support.jsonl", "path": "support.jsonl"}]},
    } in pod["volumes"]
    (driver,) = pod["containers"]
    assert {
        "name": "breakeven-prompts",
        "mountPath": "/var/run/breakeven/prompts",
        "readOnly": True,
    } in driver["volumeMounts"]
    assert world.trial["prompts"] == "/var/run/breakeven/prompts/support.jsonl"
    for other in pod["initContainers"]:
        assert "breakeven-prompts" not in json.dumps(other.get("volumeMounts") or [])
    assert MARKER not in everything(world)


@pytest.mark.parametrize(
    ("prompts", "source", "path"),
    [
        (
            {"persistentVolumeClaim": {"claimName": "texts", "path": "chat/may.jsonl"}},
            {"persistentVolumeClaim": {"claimName": "texts", "readOnly": True}},
            "chat/may.jsonl",
        ),
        (
            {"image": {"reference": "registry.example.com/prompts:may", "path": "data.jsonl"}},
            {"image": {"reference": "registry.example.com/prompts:may"}},
            "data.jsonl",
        ),
    ],
)
def test_prompts_of_a_volume_and_of_an_image(world, prompts, source, path):
    ask_for(world, prompts=prompts)
    world.claims = ({"metadata": {"name": "texts"}, "spec": {"accessModes": ["ReadWriteOnce"]}},)
    world.turn()
    world.turn()
    assert {"name": "breakeven-prompts", **source} in pod_of(world)["volumes"]
    assert world.trial["prompts"] == f"/var/run/breakeven/prompts/{path}"


def test_a_config_map_that_is_not_there_is_a_word_and_no_pod(world):
    ask_for(world, prompts=FROM_CONFIG_MAP)
    world.config_maps["prompts"] = None
    assert refused(world) == (
        "InputRefused",
        "workload.prompts: ConfigMap prompts is not in this namespace",
    )


def test_a_key_that_is_not_there_is_a_word_and_no_pod(world):
    with_prompts(world)
    world.config_maps["prompts"]["data"] = {MARKER: "{}"}
    assert refused(world) == (
        "InputRefused",
        "workload.prompts: ConfigMap prompts has no key support.jsonl (1 others)",
    )


def test_binary_data_is_a_word_and_no_pod(world):
    with_prompts(world)
    world.config_maps["prompts"] = {"binaryData": {"support.jsonl": "AAAA"}}
    assert refused(world)[0] == "InputRefused"


def test_a_line_that_is_no_request_is_a_word_and_no_pod(world):
    with_prompts(world, f'{{"prompt": "fine"}}\n{{"text": "{MARKER}"}}\n')
    assert refused(world) == (
        "InputRefused",
        "workload.prompts: ConfigMap prompts, key support.jsonl: line 2: neither prompt nor messages; expected one of the two",
    )


def test_more_requests_than_the_driver_keeps_are_a_word_and_no_pod(world):
    with_prompts(world, '{"prompt":"a"}\n' * 100_001)
    assert refused(world)[0] == "InputRefused"


def test_a_claim_that_is_not_there_is_a_word_and_no_pod(world):
    ask_for(world, prompts={"persistentVolumeClaim": {"claimName": "texts", "path": "a.jsonl"}})
    assert refused(world) == (
        "InputRefused",
        "workload.prompts: PersistentVolumeClaim texts is not in this namespace",
    )


def test_a_config_map_that_the_operator_may_not_read_is_left_to_the_pod(world):
    ask_for(world, prompts=FROM_CONFIG_MAP)
    world.turn()
    world.turn()
    assert "breakeven-prompts" in json.dumps(pod_of(world)["volumes"])


def test_a_driver_that_cannot_use_its_file_has_a_word_of_its_own(world):
    ask_for(world, prompts={"image": {"reference": "prompts:may", "path": "data.jsonl"}})
    world.turn()
    world.turn()
    pod = world.place_pod()
    pod["status"]["phase"] = "Failed"
    said = "workload.prompts: /var/run/breakeven/prompts/data.jsonl: No such file or directory"
    ended = {"exitCode": 5, "message": f"2026-11-22 10:00:00,123 {said}", "finishedAt": timestamp(world.now)}
    pod["status"]["containerStatuses"][0]["state"] = {"terminated": ended}
    status = world.turn()
    assert (status["armStatuses"][0]["reason"], status["armStatuses"][0]["message"]) == (
        "InputRefused",
        said,
    )


def test_last_words_of_an_engine_that_was_asked_a_users_prompts_are_withheld(world):
    with_prompts(world)
    world.target["spec"]["template"]["spec"]["containers"][0]["args"] += ["--enable-log-requests"]
    world.turn()
    world.turn()
    engine = pod_of(world)["initContainers"][-1]
    assert engine["args"][-2] == "--no-enable-log-requests"
    pod = world.place_pod()
    world.turn(60)
    world.start_driver(pod)
    world.turn()
    crash = {
        "exitCode": 1,
        "message": f"EngineDeadError while serving prompt: {MARKER}",
        "startedAt": timestamp(world.now),
        "finishedAt": timestamp(world.now),
    }
    pod["status"]["initContainerStatuses"][0] |= {
        "restartCount": 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": crash},
    }
    world.turn()
    assert "withheld" in world.status["armStatuses"][0]["message"]
    assert MARKER not in everything(world)


def test_the_last_words_of_an_engine_that_was_asked_made_up_prose_are_shown(world):
    world.turn()
    world.turn()
    assert "--no-enable-log-requests" not in json.dumps(world.jobs)


def test_imposed_acceptance_is_the_trial_pods_alone(world):
    ask_for(world, syntheticAcceptance={"rates": ["0.8", "0.6"]})
    world.turn()
    world.turn()
    none = pod_of(world)["initContainers"][-1]["args"][-1]
    assert none == "--speculative-config=null"
    world.measure_arm()
    world.turn()
    world.turn()
    config = json.loads(pod_of(world)["initContainers"][-1]["args"][-1].partition("=")[2])
    assert config["rejection_sample_method"] == "synthetic"
    assert config["synthetic_acceptance_rates"] == [0.8, 0.6]
    assert "synthetic" not in json.dumps([arm["speculativeConfig"] for arm in world.status["plan"]["arms"]])
    world.measure_arm()
    world.turn()
    world.turn()
    longer = json.loads(pod_of(world)["initContainers"][-1]["args"][-1].partition("=")[2])
    assert longer["synthetic_acceptance_rates"] == [0.8, 0.6, 0.45, 0.3375, 0.253125, 0.189844, 0.142383]


def test_acceptance_is_imposed_on_the_shortest_draft_too():
    document = json.dumps({"syntheticAcceptance": {"rates": ["0.8", "0.6"]}})
    config = {"method": "eagle3", "num_speculative_tokens": 1}
    assert imposed(document, config, 1) == config | {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.8],
    }


def test_no_candidate_that_serves_may_accept_by_chance():
    service = copy.deepcopy(SERVICE)
    service["spec"]["candidates"]["methods"][0]["options"] = {"rejection_sample_method": "synthetic"}
    with pytest.raises(InputError, match="its answers are wrong"):
        SpeculativeService.read(service, "chat")


@pytest.mark.parametrize(
    ("seen", "asked", "sent"),
    [
        (0.62, {}, 62),
        (0.62, {"prompts": {}}, 62),
        (0.62, {"prompts": {"sharedPrefixPercent": 0}}, 0),
        (1.0, {}, 95),
        (0.03, {}, None),
        (None, {}, None),
        (0.62, {"prompts": FROM_CONFIG_MAP}, None),
    ],
)
def test_made_up_prompts_share_what_live_ones_do_unless_somebody_says_otherwise(world, seen, asked, sent):
    if "configMap" in asked.get("prompts", {}):
        with_prompts(world)
    else:
        ask_for(world, **asked)
    view = replace(
        world.view(), seen_lengths=Load(prompt_tokens=300.0, output_tokens=100.0, prefix_hit_ratio=seen)
    )
    service = SpeculativeService.read(world.service, "chat")
    planned = planned_workload(view, service)
    prompts = json.loads(planned["workload"] or "{}").get("prompts") or {}
    assert prompts.get("sharedPrefixPercent") == sent


def test_a_change_of_the_service_does_not_bend_a_run_that_has_begun(world):
    with_prompts(world)
    world.turn()
    world.service["spec"]["calibration"]["workload"] = {}
    world.turn()
    assert "breakeven-prompts" in json.dumps(pod_of(world)["volumes"])


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (
            {"prompts": {**FROM_CONFIG_MAP, "image": {"reference": "a", "path": "b"}}},
            "prompts has more than one source; expected one of configMap, persistentVolumeClaim and image",
        ),
        ({"prompts": {**FROM_CONFIG_MAP, "sharedPrefixPercent": 10}}, "stands beside prompts of a file"),
        (
            {"prompts": {"image": {"reference": "a", "path": "../etc/passwd"}}},
            "path leads out of the volume; expected a path without ..",
        ),
        ({"lengths": [{"promptTokens": 1}]}, "outputTokens"),
        ({"sampling": {"topP": "1.5"}}, "topP is out of range; expected a number from 1e-06 to 1"),
        ({"syntheticAcceptance": {"rates": ["0.5", "0.7"]}}, "rates rise"),
        ({"syntheticAcceptance": {"rates": ["1.5"]}}, "rates has a number out of range"),
    ],
)
def test_a_wrong_workload_is_one_clear_line(workload, said):
    with pytest.raises(InputError) as refusal:
        WorkloadSpec.read(workload, "workload")
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("temperature", 10.1, "a number from 0 to 10"),
        ("temperature", float("nan"), "a number from 0 to 10"),
        ("min_p", -0.1, "a number from 0 to 1"),
        ("top_k", 1.5, "a whole number from -1 to 1e+06"),
    ],
)
def test_a_sampling_field_is_refused_with_what_it_may_be(field, value, expected):
    with pytest.raises(InputError) as refusal:
        Sampling(**{field: value})
    assert str(refusal.value) == f"{field}: {value:g}; expected {expected}"


def test_sampling_takes_both_ends_of_a_range_and_is_greedy_if_nothing_is_said():
    assert Sampling().body() == {"temperature": 0.0}
    ends = {"temperature": 10.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "seed": 7}
    assert Sampling(**ends).body() == ends


def test_the_driver_sends_what_the_plan_says(tmp_path):
    file = tmp_path / "support.jsonl"
    file.write_text(LINES)
    document = {
        "prompts": FROM_CONFIG_MAP,
        "sampling": {"temperature": "0.7", "topP": "0.9"},
    }
    trial = trial_environment("http://x", workload=json.dumps(document), trial_prompts=str(file))
    workload = trial.sweep.workload
    assert workload.text == "support"
    assert workload.sampling.body() == {"temperature": 0.7, "top_p": 0.9}
    assert workload.prompts().prompt(0).startswith(MARKER)
    assert MARKER not in repr(trial)
    pairs = {"lengths": [{"promptTokens": 9, "outputTokens": 5, "weight": 3}]}
    drawn = trial_environment("http://x", workload=json.dumps(pairs)).sweep.workload.drawn
    assert drawn.pair(7) == (9, 5)


def test_a_pair_of_lengths_without_a_weight_occurs_a_third_as_often_as_one_of_weight_3():
    rows = [{"promptTokens": 10, "outputTokens": 5}, {"promptTokens": 50, "outputTokens": 9, "weight": 3}]
    workload = json.dumps({"lengths": rows})
    drawn = trial_environment("http://x", workload=workload).sweep.workload.drawn
    assert drawn.mean_prompt_tokens == 40.0


def test_a_long_file_name_is_a_text_of_64_letters(tmp_path):
    file = tmp_path / "long.jsonl"
    file.write_text(LINES)
    document = json.dumps({"prompts": {"configMap": {"name": "prompts", "key": "a" * 70 + ".jsonl"}}})
    trial = trial_environment("http://x", workload=document, trial_prompts=str(file))
    assert trial.sweep.workload.text == "a" * 64


def test_the_text_of_an_engine_that_accepts_by_chance_is_called_so_where_anything_is_drafted():
    document = json.dumps({"syntheticAcceptance": {"rates": ["0.7"]}})
    texts = [
        trial_environment("http://x", arm, workload=document).sweep.workload.text
        for arm in ("eagle/2", "none")
    ]
    assert texts == ["synthetic acceptance", "synthetic text"]


def test_a_file_that_is_not_there_or_is_none_is_one_line_without_a_prompt(tmp_path):
    file = tmp_path / "support.jsonl"
    given = {"workload": json.dumps({"prompts": FROM_CONFIG_MAP}), "trial_prompts": str(file)}
    with pytest.raises(PromptsError, match="No such file"):
        trial_environment("http://x", **given)
    file.write_text(f'{{"prompt": ["{MARKER}"]}}')
    with pytest.raises(PromptsError) as refusal:
        trial_environment("http://x", **given)
    assert MARKER not in str(refusal.value)


def test_config_maps_are_read_by_name_and_only_before_a_run_begins(world):
    with_prompts(world)
    view = replace(world.view(), run=world.run | {"metadata": {**RUN["metadata"], "labels": {}}})
    assert files_read(view) == {"prompts": {"support.jsonl"}}
    for waits in (
        {"run": view.run | {"status": {"plan": {}}}},
        {"service": None},
        {"target": None},
        {"may_start": False},
        {"target": replace(world.workload, pods=())},
        {"duplicate_of": "other"},
    ):
        assert files_read(replace(view, **waits)) == {}


async def test_of_a_config_map_only_the_keys_that_are_named_are_kept():
    cluster = FakeCluster(FakeClock())
    body = {"metadata": {"name": "c", "namespace": "llm"}, "data": {"a": "text", "b": "secret"}}
    cluster.put(CONFIG_MAPS, {**body, "binaryData": {"x": "AAAA"}})
    read = await read_run_files(cluster, "llm", {"c": {"a"}, "none": {"k"}})
    assert read.problem is None
    assert read.config_maps["none"] is None
    assert read.config_maps["c"]["data"] == {"a": "text", "b": ""}
    assert read.config_maps["c"]["binaryData"] == {"x": ""}


async def test_a_config_map_that_may_not_be_read_is_left_out_and_one_that_did_not_come_is_not_taken_for_missing():
    cluster = FakeCluster(FakeClock())

    def answers(status):
        def fail(*_asked):
            raise ClusterError("no", status)

        cluster.fail = fail

    answers(403)
    assert await read_run_files(cluster, "llm", {"c": {"a"}}) == RunFiles({}, None, 0)
    for status in (0, 500, 503):
        answers(status)
        with pytest.raises(ClusterError):
            await read_run_files(cluster, "llm", {"c": {"a"}})


async def test_files_of_more_than_16_mib_are_refused_before_they_are_all_read(world):
    cluster = FakeCluster(FakeClock())
    for number in range(40):
        body = {"metadata": {"name": f"c{number}", "namespace": "llm"}, "data": {"a": "x" * (1 << 20)}}
        cluster.put(CONFIG_MAPS, body)
    read = await read_run_files(cluster, "llm", {f"c{number}": {"a"} for number in range(40)})
    assert cluster.requests["get"] == 17
    assert not read.config_maps
    world.files_problem = read.problem
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Failed", "InputRefused")
    assert "more than 16 MiB" in status["message"]


def test_a_template_is_copied_as_before_where_nothing_is_asked_for(world):
    world.turn()
    world.turn()
    assert "breakeven-prompts" not in json.dumps(world.jobs)
    assert "workload" not in world.trial["plan"]
    assert "workload" not in world.status["plan"]
    assert world.target == TARGET
