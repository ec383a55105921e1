"""Pages of the board: valid markup, nothing from outside, and strangers' words are words."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from breakeven.arm import Arm
from breakeven.reporting.lines import arm_curves
from breakeven_operator.board.board_list import ListFilter, service_list
from breakeven_operator.board.board_server import (
    Frontispiece,
    list_html,
    message_html,
    service_html,
    style_css,
)
from breakeven_operator.board.board_service import course, laws_of, service_page
from breakeven_operator.board.load_trail import LoadSample
from breakeven_operator.case import FirstAnswer
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.outcome.worth import worth_of
from breakeven_operator.resources.meta import Condition, ConditionStatus
from fakes.published_board import CHAT

from .markup import StrictPage

HOSTILE = "</td></title><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e{{ 7*7 }}"


def front(published, **changes):
    made = Frontispiece("/base", {}, 0, published.time, "", None, published.time)
    return replace(made, **changes)


def trail_of(published):
    begin_s = published.services[CHAT].status.history[0].time.timestamp()
    return [LoadSample(begin_s + 60 * minute, 3.0 + minute) for minute in range(5)]


def service_text(published, asked=None, name=CHAT, **changes):
    laws = laws_of(published, name) if name in published.services else None
    curves = arm_curves(laws[1]) if laws else ()
    trail = trail_of(published) if laws else ()
    page = service_page(published, name, trail, curves, asked or {}, published.time)
    return service_html(page, front(published, **changes))


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
    assert "Confirmed" in page.text
    assert {head["scope"] for head in page.all("th")} == {"col", "row"}
    assert len(page.all("caption")) == 1
    (bar,) = (svg for svg in page.all("svg") if svg["class"] == "bar")
    assert bar["role"] == "img"
    assert bar["aria-label"].startswith("load 3 rps; break-even ")
    assert page.all("html") == [{"lang": "en"}]


def test_the_page_of_a_service_draws_curves_now_and_the_loads_that_were_seen(settled):
    page = StrictPage(service_text(settled))
    assert len(page.all("desc")) == 2
    (latency, speedup) = sorted(svg["aria-labelledby"] for svg in page.all("svg"))
    assert (latency, speedup) == ("latency-title latency-text", "speedup-title speedup-text")
    assert len(page.all("circle")) == 2
    assert [path["class"] for path in page.all("path")].count("seen") == 1
    assert "break-even, marked on the line" in page.text
    assert f"speedup {settled.services[CHAT].status.display.speedup}; load" in page.text
    assert "] expected; load" in page.text
    assert "eagle/3" in page.text


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
    assert not [svg for svg in page.all("svg") if svg.get("class") != "bar"]
    assert "There are no curves" in page.text
    assert "nothing is claimed" in page.text.lower()


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
    assert "its last 7 days hold two arms." in text
    assert "Curves are of the service's past" in text
    assert "nothing measured: of its past" in StrictPage(list_text(published)).text


def test_a_calibration_under_way_shows_its_progress(settled):
    chat = settled.services[CHAT]
    state = chat.status.calibration.model_copy(
        update={"run": "chat-r2", "last_run": "chat-r1", "points_done": 4, "points_planned": 27}
    )
    running = chat.with_status(chat.status.model_copy(update={"calibration": state}))
    page = StrictPage(service_text(replace(settled, services={CHAT: running})))
    assert page.all("progress") == [{"max": "27", "value": "4"}]
    assert "4 of 27 points" in page.text


def test_the_course_is_newest_first_and_has_rolls_calibrations_and_faults(settled):
    chat = settled.services[CHAT]
    fault = Condition(
        type="ModelAgrees",
        status="False",
        reason="ModelDisagrees",
        last_transition_time=settled.time + timedelta(1),
    )
    entries = course(chat.with_status(chat.status.replace(conditions=(fault,))), settled.time)
    assert [one.time for one in entries] == sorted((one.time for one in entries), reverse=True)
    assert {"roll", "calibration", "arm", "condition", "alert"} <= {one.what for one in entries}
    assert "ModelAgrees is False since then: ModelDisagrees" in {one.text for one in entries[:2]}
    (alert,) = [one.text for one in entries if one.what == "alert"]
    assert re.fullmatch(r"BreakevenModelDisagrees .* fires at \d\d:\d\d:\d\d UTC unless it ends\.", alert)
    (fired,) = [
        one.text
        for one in course(
            chat.with_status(chat.status.replace(conditions=(fault,))),
            fault.last_transition_time + timedelta(1),
        )
        if "ModelDisagrees holds" in one.text
    ]
    assert re.fullmatch(r"BreakevenModelDisagrees holds since [0-9:]{8} UTC: the chart's rule fires\.", fired)
    assert any(one.text.startswith("no speculation -> eagle/3: Confirmed") for one in entries)


def test_what_if_answers_below_its_form_and_refuses_in_one_line(settled):
    asked = StrictPage(service_text(settled, {"rps": "30", "replicas": "2"}))
    assert "fastest" in asked.text
    assert {"name": "rps", "value": "30"}.items() <= asked.all("input")[0].items()
    refused = StrictPage(service_text(settled, {"rps": "many"}))
    assert "rps: is 'many'; expected load of all replicas together" in refused.text
    assert "fastest" not in refused.text


def test_money_is_said_only_with_a_price(settled):
    assert "per GPU-hour" not in service_text(settled)
    assert "at 2.5 per GPU-hour" in list_text(of_priced(settled), gpu_price_per_hour=2.5)
    assert "at 2.5 per GPU-hour" not in service_text(of_priced(settled)), "no GPU is spared"


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
    """The service, with GPUs and capacities that say something."""
    chat = published.services[CHAT]
    status = chat.status.replace(target=chat.status.target.replace(gpus_per_pod=1))
    return replace(
        published, services={CHAT: chat.with_status(status.replace(savings=worth_of(status, 2.5)))}
    )


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


def test_attention_shows_only_what_needs_it(settled):
    published = replace(settled, invalid={NamespacedName("llm", "bad"): "spec.x is wrong"})
    assert len(shown_services(list_text(published))) == 2
    (only,) = shown_services(list_text(published, ListFilter.of({"show": "attention"})))
    assert only.endswith("/llm/bad")


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
    assert len(dashes) == len(set(dashes)) == 6
    assert "http" not in css
    assert "url(" not in css
