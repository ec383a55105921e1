"""From `kubectl apply` to the first decision and the first roll, with arms measured for real and users on the target."""

import pytest

from operatorcluster import manifests
from operatorcluster.stage import condition, decision
from operatorcluster.users import users
from operatorcluster.waiting import until

pytestmark = pytest.mark.always

RPS = 2.0
# The old arm gets as much time as the new one: six windows of six seconds. With fewer requests the bounds hold 1, and the roll ends Unmeasured.
REQUESTS_BEFORE = 72


@pytest.fixture(scope="module")
def measured(stage):
    """A service in mode Recommend, whose arms the operator has measured, its first decision and the outcomes of its users."""
    with stage.place("measured") as place:
        place.apply(manifests.target(), manifests.service(updatePolicy={"mode": "Recommend"}))
        place.until_calibrated()
        with users(place, RPS) as outcomes:
            yield place, place.until_decided("GainAboveThreshold", "Recommend"), outcomes


def test_apply_leads_to_calibration_jobs_a_profile_in_force_and_a_decision(measured):
    place, made, _ = measured
    jobs = [event.body["metadata"]["labels"]["breakeven.dev/arm"] for event in place.writes("jobs")
            if event.verb == "create"]  # fmt: skip
    (run,) = place.all("calrun")
    assert run["status"]["phase"] == "Succeeded"
    # In turns, or side by side if no other run waits for a place: then the drafter starts twice as well.
    starts = [arm["arm"] for arm in run["status"]["plan"]["arms"]]
    assert sorted(jobs) == sorted(name.replace("/", "-") for name in starts)
    assert (
        {point["arm"] for point in run["status"]["points"]} == {*starts} >= {"none", "eagle/3", "none/again"}
    )
    until("its Jobs are gone", lambda: not place.all("job"))
    found = place.get("specsvc", "chat")
    (profile,) = place.all("specprof")
    # Nobody's, so that a service that is made again finds it.
    assert "ownerReferences" not in profile["metadata"]
    until("the profile says that it counts", lambda: place.all("specprof")[0]["status"].get("inForce"))
    assert condition(found, "Calibrated")["status"] == "True"
    assert (made["arm"], made["runningArm"], made["profile"]) == (
        "eagle/3",
        "none",
        profile["metadata"]["name"],
    )
    # The engine's law promises 1.9 at this load. How wide the bounds are is the machine's, that the arm pays is not.
    assert 1.0 < float(made["speedupLower"]) <= float(made["speedup"]) <= float(made["speedupUpper"])


@pytest.mark.claim(
    "README.md", "Every decision has one reason word, the same in status, event, log and metric"
)
def test_a_decision_has_one_word_in_status_condition_event_log_and_metric(measured, stage):
    place, _, _ = measured
    word = "GainAboveThreshold"

    def says(status):
        shown = condition({"status": status}, "Profitable").get("reason")
        lines = [line for line in stage.log() if line.get("specsvc") == f"{place.name}/chat"]
        return decision(status).get("reason") == word == shown and lines and lines[-1].get("reason") == word

    # A scrape that comes late is a decision, too, for a moment.
    place.until_service("status, condition and log agree", says)
    place.until_event(word)
    series = (
        f'breakeven_decisions_total{{specsvc_namespace="{place.name}",action="Recommend",reason="{word}"}}'
    )
    until(f"{series} is scraped", lambda: stage.query(series))


@pytest.mark.claim("README.md", "The default mode is `Recommend`: nothing of yours is changed.")
def test_recommend_changes_nothing(measured, stage):
    place, _, _ = measured
    place.until_service(
        "it is said that nothing is changed",
        lambda status: (
            "mode Recommend changes nothing"
            in condition({"status": status}, "Progressing").get("message", "")
        ),
    )
    assert place.annotation() is None
    assert place.writes() == []


@pytest.mark.claim("README.md", "If you let it, it rolls your Deployment to that draft length")
def test_rolling_update_carries_it_out_once_confirms_it_and_loses_no_request(measured):
    place, _, outcomes = measured
    until("the old arm was watched", lambda: len(outcomes) >= REQUESTS_BEFORE)
    place.patch("specsvc", "chat", {"spec": {"updatePolicy": {"mode": "RollingUpdate"}}})
    place.until_settled("eagle/3")
    found = place.until_service("the change is judged", lambda status: status.get("history"))
    (change,) = found["status"]["history"]
    assert (change["fromArm"], change["toArm"]) == ("none", "eagle/3"), change
    assert change["result"] in {"Confirmed", "Unproven", "Unmeasured"}, change
    assert len(place.writes()) == 1
    assert len(outcomes) > 20
    assert [outcome for outcome in outcomes if outcome.error] == []
