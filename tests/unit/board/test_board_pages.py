"""Pages of the board: valid markup, nothing from outside, and strangers' words are words."""

from __future__ import annotations

import copy
import html
import json
import re
import shlex
from dataclasses import replace
from datetime import timedelta

import pytest
import yaml

from breakeven.arm import Arm
from breakeven.reporting.lines import arm_curves
from breakeven_operator.board.board_list import ListFilter, list_json, service_list
from breakeven_operator.board.board_rows import view_of
from breakeven_operator.board.board_server import (
    BoardSettings,
    Frontispiece,
    list_html,
    message_html,
    service_html,
    style_css,
)
from breakeven_operator.board.board_service import commands, history, laws_of, service_json, service_page
from breakeven_operator.board.load_trail import LoadSample
from breakeven_operator.case import FirstAnswer
from breakeven_operator.kinds import PROFILES, NamespacedName
from breakeven_operator.plugin.plugin_commands import root
from breakeven_operator.plugin.service_view import ServiceView
from breakeven_operator.plugin.wanted_arm import exported, wanted_arm
from breakeven_operator.resources.meta import Condition, ConditionStatus
from fakes.published_board import CHAT, LOSING, RECOMMENDED, ROLLING

from .markup import StrictPage

HOSTILE = "</td></title><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e{{ 7*7 }}"


def front(published, **changes):
    settings = BoardSettings("/base", **changes.pop("settings", {}))
    made = Frontispiece(settings, {}, 0, published.time, "", "/base/json/services", published.time)
    return replace(made, **changes)


def trail_of(published):
    begin_s = published.time.timestamp() - 300
    return [LoadSample(begin_s + 60 * minute, 3.0 + minute) for minute in range(5)]


def page_of(published, asked=None, name=CHAT):
    laws = laws_of(published, name) if name in published.services else None
    curves = arm_curves(laws[1]) if laws else ()
    trail = trail_of(published) if laws else ()
    return service_page(published, name, trail, curves, asked or {}, published.time)


def service_text(published, asked=None, name=CHAT, **changes):
    return service_html(page_of(published, asked, name), front(published, **changes))


def list_text(published, asked=None, left_out="", **changes):
    page = service_list(published, published.names, asked or ListFilter(), published.time, left_out)
    return list_html(page, front(published, **changes))


def of_many(published, count):
    """So many services of the same status."""
    chat = published.services[CHAT]
    named = {
        NamespacedName(f"ns-{number % 3}", f"s-{number:03}"): chat.model_copy(
            update={
                "metadata": chat.metadata.replace(
                    namespace=f"ns-{number % 3}", name=f"s-{number:03}", uid=str(number)
                )
            }
        )
        for number in range(count)
    }
    return replace(published, services=named, profiles={})


def shown_services(text):
    return [link["href"] for link in StrictPage(text).all("a") if "/services/" in link.get("href", "")]


def test_the_list_is_valid_and_reads_to_a_screen_reader(settled):
    page = StrictPage(list_text(settled))
    assert "llm/chat" in page.text
    assert {head["scope"] for head in page.all("th")} == {"col", "row", "rowgroup"}
    assert len(page.all("caption")) == 1
    speedup, load = page.all("svg")
    assert {speedup["role"], load["role"]} == {"img"}
    assert speedup["aria-label"] == f"speedup {settled.services[CHAT].status.display.speedup}"
    assert load["aria-label"].startswith("load 3 rps; break-even ")
    assert page.all("html") == [{"lang": "en"}]


def test_what_needs_attention_comes_first_the_most_urgent_on_top(fleet):
    text = list_text(fleet)
    names = [link.rpartition("/")[2] for link in shown_services(text)]
    assert names[:5] == ["code", "vision", "agents", "broken", "embed"]
    long = "a-service-with-a-very-long-name-of-its-own"
    assert names[5:] == ["chat", "mail", "batch", "long", "rerank", long, "first"]
    read = " ".join(StrictPage(text).text.split())
    assert "Needs attention 5" in read
    assert "In order 7" in read
    assert read.index("Needs attention 5") < read.index("llm/code") < read.index("In order 7")


@pytest.mark.parametrize(
    ("show", "names"),
    [
        ("attention", {"code", "vision", "agents", "broken", "embed"}),
        ("loses", {"code", "agents", "batch"}),
        ("unknown", {"broken", "embed", "long"}),
    ],
)
def test_a_count_is_a_filter(fleet, show, names):
    text = list_text(fleet, ListFilter.of({"show": show}))
    assert {link.rpartition("/")[2] for link in shown_services(text)} == names
    (chosen,) = (link for link in StrictPage(text).all("a") if link.get("aria-current") == "true")
    assert chosen["href"] == f"/base/?show={show}"


def test_the_page_of_a_service_draws_the_curve_now_and_the_loads_that_were_seen(settled):
    page = StrictPage(service_text(settled))
    assert len(page.all("desc")) == 2
    named = [svg["aria-labelledby"] for svg in page.all("svg") if "aria-labelledby" in svg]
    assert named == ["speedup-title speedup-text", "load-title load-text"]
    assert [circle["class"] for circle in page.all("circle")].count("now") == 1
    assert [path["class"] for path in page.all("path")].count("seen") == 1
    assert "now 1.79 at 3 rps" in page.text
    assert page.text.count("break-even 9.08 rps") == 3, "the tile, the curve and the load"
    assert "eagle/3 ran" in page.text


def test_rolls_are_a_timeline_of_promise_and_measurement(fleet):
    page = page_of(fleet)
    assert [one.result for one in page.rolls] == ["Confirmed", "Confirmed", "Unproven", "Undone"]
    assert page.rolls[-1].measured_bar is None
    assert page.rolls[0].promised == "1.79 [1.69,1.89]"
    assert page.rolls[0].text.startswith("measured 1.79x")
    text = " ".join(StrictPage(service_text(fleet)).text.split())
    assert "no speculation → eagle/3 Undone" in text
    assert text.count("promised 1.") == 5, "four of the timeline, and a sentence"


def test_a_roll_under_way_says_its_phase_and_which_pods_run_which_arm(fleet):
    roll = page_of(fleet, name=ROLLING).rolls[0]
    assert [(one.arm, one.pods, one.begin, one.width) for one in roll.pods] == [
        ("eagle/3", 2, 0.0, 33.3),
        ("no speculation", 4, 33.3, 66.7),
    ]
    assert roll.phases == ["Intended", "Rolling", "Confirming"]
    page = StrictPage(service_text(fleet, name=ROLLING))
    assert [one for one in page.all("li") if one.get("aria-current") == "step"]
    assert "4 pods of no speculation" in page.text


def test_the_patch_is_what_export_prints(recommending):
    world, published = recommending
    service = ServiceView.of(world.service)
    target = world.cluster.objects["deployments", "llm", "chat-vllm"]
    (profile,) = world.cluster.of(PROFILES)
    patch = page_of(published).patch
    assert patch == exported(wanted_arm(service, target, profile))
    assert yaml.safe_load(patch)["kind"] == "Deployment"
    text = service_text(published)
    assert (
        html.escape(patch.rstrip(), quote=True).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in text
    )


def test_no_argument_of_the_target_is_shown_to_who_may_not_read_it(recommending):
    _, published = recommending
    target = copy.deepcopy(published.targets[CHAT])
    (container,) = target["spec"]["template"]["spec"]["containers"]
    container["command"] = ["sh", "-c"]
    container["args"] = ["exec vllm serve org/model --api-key sk-hush"]
    page = page_of(replace(published, targets={CHAT: target}))
    assert "kubectl breakeven export chat -n llm" in page.patch
    assert "hush" not in page.patch


def test_without_a_recommendation_or_a_target_there_is_no_patch(fleet, fresh):
    assert page_of(fleet, name=NamespacedName("search", "long")).patch == ""
    assert page_of(replace(fleet, targets={})).patch == ""
    assert page_of(fresh).patch == ""


def test_the_commands_fit_the_state_and_are_such_that_kubectl_breakeven_knows(fleet):
    for name, service in fleet.services.items():
        for line, _ in commands(view_of(service), fleet.time):
            program, verb, *words = shlex.split(line)
            assert program == "kubectl"
            if verb != "breakeven":
                assert (verb, json.loads(words[-1])) == (
                    "patch",
                    {"spec": {"updatePolicy": {"mode": "RollingUpdate"}}},
                )
                continue
            command = root.commands[words[0]]
            command.make_context(words[0], words[1:])
            assert words[-2:] == ["-n", name.namespace] or words[-1] == "--retry"

    def verbs(name):
        lines = commands(view_of(fleet.services[name]), fleet.time)
        return [line.split()[2 if " breakeven " in line else 1] for line, _ in lines]

    assert verbs(CHAT) == ["pin", "recalibrate", "pause", "explain"]
    assert verbs(RECOMMENDED) == ["patch", "pin", "recalibrate", "pause", "explain"]
    assert verbs(NamespacedName("tools", "a-service-with-a-very-long-name-of-its-own"))[0] == "resume"
    assert "recalibrate" not in verbs(NamespacedName("search", "long"))


def test_pages_link_to_the_dashboard_of_the_service_and_to_the_runbooks_of_its_alerts(fleet):
    settings = {"dashboard_url": "https://g.example/d/x?orgId=1", "runbook_url_prefix": "https://r.example/"}
    links = [one["href"] for one in StrictPage(service_text(fleet, name=LOSING, settings=settings)).all("a")]
    assert "https://g.example/d/x?orgId=1&var-namespace=llm&var-service=code" in links
    assert "https://r.example/SpeculationUnprofitable.md" in links
    assert settings["dashboard_url"] in [
        one["href"] for one in StrictPage(list_text(fleet, settings=settings)).all("a")
    ]
    without = StrictPage(service_text(fleet, name=LOSING))
    assert "Grafana" not in without.text
    assert "Runbook" not in without.text


def test_json_has_the_facts_of_the_page(fleet):
    page = page_of(fleet, name=LOSING)
    found = json.loads(service_json(fleet, page, trail_of(fleet), fleet.time))
    assert (found["arm"], found["load_rps"], found["patch"]) == ("eagle/3", 11.2, page.patch)
    assert found["attention"] == [one.text for one in page.row.concerns]
    assert found["status"]["decision"]["reason"] == "BeyondBreakEven"
    assert len(found["loads"]) == 5
    shown = service_list(fleet, fleet.names, ListFilter.of({"show": "loses"}), fleet.time)
    services = json.loads(list_json(fleet, shown, fleet.time))["services"]
    assert [one["name"] for one in services] == ["code", "agents", "batch"]
    assert services[0].items() <= found.items()
    broken = NamespacedName("tools", "broken")
    invalid = json.loads(service_json(fleet, page_of(fleet, name=broken), (), fleet.time))
    assert invalid["attention"] == ["spec.targetRef: Field required"]


def test_sentences_begin_with_a_capital_and_commands_are_code(fleet):
    for name in fleet.names:
        text = service_text(fleet, name=name)
        read = StrictPage(re.sub("<code>.*?</code>", "", text, flags=re.DOTALL)).text
        assert "`" not in read
        assert not re.search(r"(?<![0-9])-0(?:\.0+)?(?![0-9.])", read)
        assert not re.search(r"[a-z)%][.!] [a-z]+ ", read)
    mail = service_text(fleet, name=RECOMMENDED)
    assert "<code>kubectl breakeven export mail</code> prints" in mail


def test_worth_is_there_only_if_there_is_some(fleet, settled):
    assert "What it is worth" not in list_text(fleet)
    assert "What it is worth" not in service_text(fleet)
    status = settled.services[CHAT].status
    saving = status.savings.model_copy(
        update={"gpus_basis": "Running", "gpus_not_needed": 2.0, "message": "2 GPUs not needed"}
    )
    some = replace(
        settled, services={CHAT: settled.services[CHAT].with_status(status.replace(savings=saving))}
    )
    assert "GPUs not needed" in list_text(some)
    assert "2 GPUs not needed." in service_text(some)


@pytest.mark.parametrize("make", [list_text, service_text])
def test_nothing_is_scripted_styled_inline_or_fetched_from_elsewhere(settled, make):
    page = StrictPage(make(settled))
    assert not page.all("script")
    assert not page.all("style")
    assert not page.all("img")
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        for name in ("href", "src", "action"):
            assert attributes.get(name, "/base/").startswith(("/base/", "#", "?")), (tag, attributes)


def hostile(published):
    """A service whose every word is of somebody who means harm."""
    chat = published.services[CHAT]
    status = chat.status
    display = status.display.model_copy(
        update=dict.fromkeys(
            ("target", "arm", "pays", "speedup", "load", "break_even", "recommended", "reason"), HOSTILE
        )
    )
    condition = Condition.model_construct(
        type=HOSTILE, status=ConditionStatus.FALSE, reason=HOSTILE, message=HOSTILE, last_transition_time=published.time,
        observed_generation=1,
    )  # fmt: skip
    roll = status.history[0].model_copy(update={"message": HOSTILE, "to_arm": HOSTILE})
    status = status.model_copy(
        update={
            "workings": status.workings.model_copy(update={"display": display}),
            "conditions": (condition,),
            "history": (roll,),
            "decision": status.decision.model_copy(update={"message": HOSTILE}),
        }
    )
    name = NamespacedName("llm", HOSTILE)
    named = chat.model_copy(
        update={"metadata": chat.metadata.model_copy(update={"name": HOSTILE}), "status": status}
    )
    return replace(
        published,
        services={name: named},
        invalid={NamespacedName(HOSTILE, "x"): HOSTILE},
        profiles={name: published.profiles[CHAT]},
    ), name


def test_words_of_a_tenant_who_means_harm_are_words(settled):
    published, name = hostile(settled)
    page = service_page(
        published, name, (), arm_curves(laws_of(published, name)[1]), {"rps": HOSTILE}, published.time
    )
    for text in (
        list_text(published),
        service_html(page, front(published)),
        message_html("404", HOSTILE, ""),
    ):
        read = StrictPage(text)
        assert not read.all("script")
        assert not read.all("img")
        assert "\u202e" not in text
        assert "49" not in text.partition("7*7")[2][:10]
        assert "<script>alert(1)" in read.text


def test_with_adaptive_verification_the_page_says_which_kind_is_fastest_at_light_and_heavy_load(settled):
    curves = arm_curves(laws_of(settled, CHAT)[1])
    adaptive = Arm("eagle3", 3, "eagle", scheduled=True, adaptive=True)
    of_adaptive = replace(curves[-1], arm=adaptive, latency_s=0.9 * curves[-1].latency_s)
    page = service_page(settled, CHAT, (), [*curves, of_adaptive], {}, settled.time)
    text = StrictPage(service_html(page, front(settled))).text
    assert re.search(
        r"At light load \([^)]* rps\) eagle/adaptive is the fastest, eagle/3 takes 11 % longer", text
    )
    assert "At light load" not in service_text(settled)


def test_a_service_without_a_profile_has_a_page_without_curves(fresh):
    page = StrictPage(service_text(fresh))
    assert "plot" not in {svg["class"].split()[0] for svg in page.all("svg")}
    assert "There is no curve" in page.text
    assert "What it is worth" not in page.text


def test_an_invalid_service_has_a_page_with_its_problem(settled):
    published = replace(settled, services={}, invalid={CHAT: "spec.x is wrong"})
    assert "spec.x is wrong" in StrictPage(service_text(published)).text


def test_a_first_answer_is_marked_as_one(settled):
    chat = settled.services[CHAT]
    display = chat.status.display.model_copy(update={"pays": "Yes (past)"})
    state = chat.status.calibration.model_copy(update={"profile": None})
    workings = chat.status.workings.model_copy(update={"display": display})
    past = chat.with_status(chat.status.model_copy(update={"workings": workings, "calibration": state}))
    first = FirstAnswer(laws_of(settled, CHAT)[1], "its last 7 days hold two arms")
    published = replace(settled, services={CHAT: past}, firsts={chat.metadata.uid: first})
    text = StrictPage(service_text(published)).text
    assert "First answer. No arm of this service was measured." in " ".join(text.split())
    assert "Its last 7 days hold two arms." in text
    assert "The curve is of the service's past" in text
    assert "Yes (past)" in StrictPage(list_text(published)).text


def test_a_calibration_under_way_shows_its_progress(settled):
    chat = settled.services[CHAT]
    state = chat.status.calibration.model_copy(
        update={"run": "chat-r2", "last_run": "chat-r1", "points_done": 4, "points_planned": 27}
    )
    running = chat.with_status(chat.status.model_copy(update={"calibration": state}))
    page = StrictPage(service_text(replace(settled, services={CHAT: running})))
    assert page.all("progress") == [{"max": "27", "value": "4"}]
    assert "4 of 27 points" in page.text


def test_the_history_is_newest_first_and_has_arms_calibrations_and_faults(settled):
    chat = settled.services[CHAT]
    fault = Condition(
        type="ModelAgrees",
        status="False",
        reason="ModelDisagrees",
        last_transition_time=settled.time + timedelta(1),
    )
    entries = history(chat.with_status(chat.status.replace(conditions=(fault,))))
    assert [time for time, *_ in entries] == sorted((time for time, *_ in entries), reverse=True)
    assert {what for _, what, _ in entries} == {"Arm", "Calibration", "Condition"}
    assert entries[0][2] == "ModelAgrees is False since then: ModelDisagrees"


def test_what_if_answers_below_its_form_and_refuses_in_one_line(settled):
    asked = StrictPage(service_text(settled, {"rps": "30", "replicas": "2"}))
    assert "fastest" in asked.text
    assert {"name": "rps", "value": "30"}.items() <= asked.all("input")[0].items()
    refused = StrictPage(service_text(settled, {"rps": "many"}))
    assert "rps: is 'many'; expected load of all replicas together" in refused.text
    assert "fastest" not in refused.text


def test_money_is_said_only_with_a_price(settled):
    assert "per GPU-hour" not in list_text(of_priced(settled))
    text = list_text(of_priced(settled), settings={"gpu_price_per_hour": 2.5})
    assert "120 [60,180] a day at 2.5 per GPU-hour" in text


def test_a_service_that_loses_says_what_it_would_take(settled):
    chat = settled.services[CHAT]
    losing = chat.status.decision.replace(load_rps=11.0, speedup=0.7)
    text = StrictPage(
        service_text(
            replace(settled, services={CHAT: chat.with_status(chat.status.replace(decision=losing))})
        )
    ).text
    assert "Acceptance: eagle/3 would pay from" in text
    assert "would pay from" not in StrictPage(service_text(settled)).text


def of_priced(published):
    """The service, whose arm spares two GPUs."""
    chat = published.services[CHAT]
    savings = chat.status.savings.replace(
        gpus_not_needed=2.0, gpus_not_needed_lower=1.0, gpus_not_needed_upper=3.0, gpus_basis="Running"
    )
    return replace(published, services={CHAT: chat.with_status(chat.status.replace(savings=savings))})


def test_a_page_renews_itself_only_if_the_reader_asked(settled):
    still, moving = StrictPage(list_text(settled)), StrictPage(list_text(settled, renew_s=15))
    assert not [meta for meta in still.all("meta") if "http-equiv" in meta]
    assert {"http-equiv": "refresh", "content": "15"} in moving.all("meta")
    assert "?renew=15" in {link.get("href") for link in still.all("a")}


def test_an_operator_that_has_stopped_deciding_is_said_on_every_page(settled):
    old = {
        "stale": "This operator has decided nothing since then",
        "now": settled.time + timedelta(minutes=7),
    }
    for text in (list_text(settled, **old), service_text(settled, **old)):
        assert "decided nothing since then" in StrictPage(text).text
        assert "last cycle ended 7m ago" in StrictPage(text).text


def test_pages_have_a_hundred_services_and_filters_are_kept(settled):
    many = of_many(settled, 250)
    assert len(shown_services(list_text(many))) == 100
    assert len(shown_services(list_text(many, ListFilter(page=3)))) == 50
    # A page beyond the last one is the last one.
    assert len(shown_services(list_text(many, ListFilter(page=99)))) == 50
    text = list_text(many, ListFilter(namespace="ns-1"), query={"namespace": "ns-1"})
    assert len(shown_services(text)) == 83
    assert {link.partition("/services/")[2].partition("/")[0] for link in shown_services(text)} == {"ns-1"}
    first = list_text(many, ListFilter(text="s-"), query={"text": "s-"})
    assert "?text=s-&page=2" in {link.get("href") for link in StrictPage(first).all("a")}


@pytest.mark.parametrize("page", ["0", "-3", "x", "1e9", "99999999", ""])
def test_a_page_that_is_no_number_is_the_first(page):
    assert ListFilter.of({"page": page}).page == 1


def test_namespaces_that_were_not_looked_up_are_said(settled):
    assert "were not looked up" in StrictPage(list_text(settled, left_out="20 were not looked up")).text


def test_colours_have_a_light_and_a_dark_value_and_each_line_its_own_dashes():
    css = style_css()
    assert css.count("--arm1:") == 3
    assert "prefers-color-scheme: dark" in css
    dashes = [
        line.partition("stroke-dasharray:")[2].partition("}")[0]
        for line in css.split(".s")
        if ".line { stroke-dasharray" in line
    ]
    assert len(dashes) == len(set(dashes)) == 5, "and the first one has none"
    assert "http" not in css
    assert "url(" not in css
