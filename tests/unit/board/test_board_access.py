"""Who may see what: by the API server's word, kept for seconds, at a bounded cost to it."""

from __future__ import annotations

import asyncio

import pytest

from breakeven_operator.board.board_access import (
    LONGEST_TOKEN,
    MOST_NAMESPACES,
    AccessError,
    LoopbackAccess,
    ReviewedAccess,
)
from breakeven_operator.kinds import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from breakeven_operator.ports import ClusterError


class Reviews:
    """An API server with users, and rights by namespace; an empty one stands for the cluster."""

    def __init__(self):
        self.users = {"ann-token": "ann", "root-token": "root"}
        self.rights = {("ann", "llm"), ("root", "")}
        self.extra = {}
        self.asked = []
        self.away = False

    async def create(self, resource, body):
        self.asked.append((resource, body["spec"]))
        await asyncio.sleep(0)
        if self.away:
            raise ClusterError("no route")
        spec = body["spec"]
        if resource == TOKEN_REVIEWS:
            user = self.users.get(spec["token"])
            if user is None:
                return {"metadata": {}, "status": {"user": {}, "error": "invalid bearer token"}}
            extra = self.extra.get(spec["token"], {})
            return {
                "metadata": {},
                "status": {
                    "authenticated": True,
                    "user": {"username": user, "groups": ["g"], "extra": extra},
                },
            }
        assert resource == SUBJECT_ACCESS_REVIEWS
        wanted = spec["resourceAttributes"]
        assert (wanted["group"], wanted["resource"], wanted["verb"]) == (
            "breakeven.dev",
            "speculativeservices",
            "get",
        )
        scoped = "read-nothing" in spec["extra"].get("scopes", [])
        allowed = (spec["user"], wanted.get("namespace", "")) in self.rights and not scoped
        return {"metadata": {}, "status": {"allowed": allowed}}


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def reviews():
    return Reviews()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def access(reviews, clock):
    return ReviewedAccess(reviews, clock)


@pytest.mark.claim("docs/board.md", "a service elsewhere answers 404, as one that does not exist")
async def test_a_reader_sees_the_namespaces_whose_services_he_may_get(access):
    seen = await access.sight("Bearer ann-token", "", ["code", "llm"])
    assert seen.namespaces == {"llm"}
    assert seen.includes("llm")
    assert not seen.includes("code")


async def test_rights_in_the_cluster_take_one_question_for_all_namespaces(access, reviews):
    seen = await access.sight("bearer root-token", "", [f"n{number}" for number in range(500)])
    assert seen.includes("anything")
    assert len(reviews.asked) == 2


@pytest.mark.parametrize(
    ("header", "reviewed"),
    [
        ("", 0),
        ("Bearer", 0),
        ("Bearer ", 0),
        ("Basic ann-token", 0),
        ("Bearer " + "x" * (LONGEST_TOKEN + 1), 0),
        ("Bearer wrong", 1),
    ],
)
async def test_without_a_token_of_the_cluster_there_is_no_page(access, reviews, header, reviewed):
    with pytest.raises(AccessError) as refused:
        await access.sight(header, "", ["llm"])
    assert refused.value.status == 401
    # What can be no token of a cluster is not shown to the API server.
    assert len(reviews.asked) == reviewed


@pytest.mark.claim("docs/board.md", "Both answers are kept for 20 seconds.")
async def test_answers_are_kept_for_seconds_and_no_longer(access, reviews, clock):
    for _ in range(3):
        await access.sight("Bearer ann-token", "", ["llm"])
    assert len(reviews.asked) == 3
    reviews.rights.clear()
    clock.now_s += 20.0
    assert (await access.sight("Bearer ann-token", "", ["llm"])).includes("llm")
    clock.now_s += 1.0
    assert (await access.sight("Bearer ann-token", "", ["llm"])).namespaces == frozenset()
    del reviews.users["ann-token"]
    clock.now_s += 21.0
    with pytest.raises(AccessError):
        await access.sight("Bearer ann-token", "", ["llm"])


async def test_two_tokens_of_one_user_with_other_scopes_share_no_answer(access, reviews):
    reviews.users["narrow"] = "ann"
    reviews.extra["narrow"] = {"scopes": ["read-nothing"]}
    assert (await access.sight("Bearer ann-token", "", ["llm"])).includes("llm")
    assert not (await access.sight("Bearer narrow", "", ["llm"])).includes("llm")


async def test_a_flood_of_tokens_costs_the_api_server_a_bounded_number_of_reviews(access, reviews, clock):
    statuses = []
    for number in range(1000):
        with pytest.raises(AccessError) as refused:
            await access.sight(f"Bearer t{number}", "", [])
        statuses.append(refused.value.status)
    assert len(reviews.asked) == statuses.count(401) == 40 + MOST_NAMESPACES
    assert statuses[-1] == 429
    clock.now_s += 1.0
    assert (await access.sight("Bearer ann-token", "", ["llm"])).includes("llm")


@pytest.mark.claim("docs/board.md", "One page asks about at most 100 namespaces")
async def test_of_very_many_namespaces_some_are_left_out_and_it_is_said(access, reviews):
    names = [f"a{number:03}" for number in range(MOST_NAMESPACES)] + ["llm"]
    seen = await access.sight("Bearer ann-token", "", names)
    assert not seen.includes("llm")
    assert "1 more namespaces" in seen.left_out
    assert (await access.sight("Bearer ann-token", "", names[1:])).left_out == ""
    # Asked for by its name it is seen.
    assert (await access.sight("Bearer ann-token", "", ["llm"])).includes("llm")


async def test_an_api_server_that_does_not_answer_lets_nobody_see_anything(access, reviews):
    reviews.away = True
    with pytest.raises(AccessError, match="does not say who may see what") as refused:
        await access.sight("Bearer root-token", "", ["llm"])
    assert refused.value.status == 503


@pytest.mark.parametrize("host", ["localhost:8081", "127.0.0.1:8081", "[::1]:8081", "LOCALHOST", "127.0.4.1"])
async def test_on_the_loopback_all_is_seen(host):
    assert (await LoopbackAccess().sight("", host, ["llm"])).includes("llm")


@pytest.mark.parametrize(
    "host", ["evil.example:8081", "127.0.0.1.evil.example", "", "[::2]:80", "128.0.0.1", "127.a.b.c"]
)
async def test_a_name_of_elsewhere_that_leads_to_the_loopback_sees_nothing(host):
    with pytest.raises(AccessError) as refused:
        await LoopbackAccess().sight("", host, ["llm"])
    assert refused.value.status == 421
