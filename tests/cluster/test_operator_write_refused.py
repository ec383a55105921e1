"""A real admission policy and a real lack of rights: the word, the server's sentence, no roll under way, and the way back."""

from operatorcluster import manifests
from operatorcluster.stage import HOME, condition, decision

EAGLE = {"updatePolicy": {"pinnedArm": "eagle/3"}}
SAID = "no rolls before the release"


def until_refused(place, words):
    """The service says WriteRefused, with the server's words, and no roll is under way."""
    service = place.until_service(
        "its roll is refused",
        # A try between two refusals is another state for a moment.
        lambda status: (
            decision(status).get("reason") == "WriteRefused"
            and condition({"status": status}, "Ready").get("reason") == "WriteRefused"
            and "rollout" not in status
        ),
    )
    ready = condition(service, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "WriteRefused")
    assert f"refuses to patch Deployment/{place.name}/chat-vllm" in ready["message"]
    assert words in ready["message"]
    assert words in decision(service["status"])["message"]
    assert "history" not in service["status"]
    assert place.annotation() is None
    assert words in place.until_event("WriteRefused")
    assert len([event for event in place.all("event") if event["reason"] == "WriteRefused"]) == 1


def resume(place, value):
    place.patch("specsvc", "chat", {"metadata": {"annotations": {"breakeven.dev/resume": value}}})


def test_an_admission_policy_that_denies_the_patch_is_said_in_its_own_words(place):
    place.apply(manifests.target())
    with place.frozen(SAID):
        place.managed(**EAGLE)
        until_refused(place, SAID)
    resume(place, "1")
    place.until_settled("eagle/3")
    assert condition(place.get("specsvc", "chat"), "Ready")["status"] == "True"


def test_a_role_without_patch_is_said_in_the_server_s_words(place, stage):
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    roles = [role for role in stage.api.json(path)["items"] if role["metadata"]["name"].startswith(HOME)]
    rules = {
        role["metadata"]["name"]: role["rules"]
        for role in roles
        if any(
            "deployments" in rule["resources"] and "patch" in rule["verbs"] for rule in role["rules"] or []
        )
    }
    assert rules, [role["metadata"]["name"] for role in roles]
    try:
        for name, before in rules.items():
            without = [
                {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "patch"]}
                if "deployments" in rule["resources"]
                else rule
                for rule in before
            ]
            stage.api.patch(f"{path}/{name}", {"rules": without})
        place.managed(**EAGLE)
        until_refused(place, 'cannot patch resource "deployments" in API group "apps"')
    finally:
        for name, before in rules.items():
            stage.api.patch(f"{path}/{name}", {"rules": before})
    resume(place, "1")
    place.until_settled("eagle/3")
