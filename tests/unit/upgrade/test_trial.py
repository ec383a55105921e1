"""Trials of upgrades between two simulated engines over HTTP, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import click.testing
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from breakeven.answering.prompt_set import GatePrompt, shipped_prompts
from breakeven.arm import NO_SPECULATION, Arm
from breakeven.cli import gate
from breakeven.load_driver.asking import ask
from breakeven.load_driver.client import Endpoint, EngineClient, EngineError
from breakeven.load_driver.measuring import measure
from breakeven.load_driver.sent_workload import SentWorkload
from breakeven.load_driver.window import RequestRecord
from breakeven.points.point import ImposedLoad, LoadMode
from breakeven.profile import Profile
from breakeven.upgrade import trial
from breakeven.upgrade.record import UpgradeReport, UpgradeWord
from breakeven.upgrade.trial import UpgradePlan, try_against, try_upgrade
from fakes.lawful_profile import lawful_profile_json
from fakes.simulated_engine import simulated
from fakes.virtual_time import in_virtual_time
from golden.documents import unexplained

EAGLE = {"method": "eagle3", "model": "drafter", "num_speculative_tokens": 3}
ARM = Arm("eagle3", 3)
DEMO = Path(__file__).parents[3] / "examples" / "engine-costs" / "demo.json"
SHORT = SentWorkload(16, 16)
NOWHERE = "http://127.0.0.1:9"


def engine(**changes: Any) -> dict[str, Any]:
    """Costs of the demo's engine with a prefix cache, changed."""
    known: dict[str, Any] = json.loads(DEMO.read_text())["gpus"]["NVIDIA-H100-80GB-HBM3"]
    broken = changes.pop("broken_answers", None)
    known["methods"]["eagle3"]["broken_answers"] = broken
    # Many answers at once take no longer than one, so that a trial needs few seconds.
    known["step"]["per_token_s"] = 0.0
    known["methods"]["eagle3"]["draft"]["per_draft_token_s"] = 0.0
    return {**known, "prefix_cache": True, "time_scale": 0.5, **changes}


@contextlib.asynccontextmanager
async def both(
    after: Mapping[str, Any], arms: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None] = (EAGLE, EAGLE)
) -> AsyncIterator[tuple[str, str]]:
    async with simulated(engine(), arms[0]) as old, simulated(after, arms[1], seed=1) as new:
        yield old, new


async def tried(urls: tuple[str, str], said: list[str], seconds: float = 16.0) -> UpgradeReport:
    loads = (ImposedLoad(LoadMode.CLOSED, 1), ImposedLoad(LoadMode.CLOSED, 2))
    plan = UpgradePlan(ARM, SHORT, loads, seconds, start_timeout_s=2.0, start_s=(60.0, 66.0))
    return await try_upgrade(Endpoint(urls[0]), Endpoint(urls[1]), plan, said.append)


def word_of(report: UpgradeReport, figure: str) -> UpgradeWord | None:
    return next(one.word for one in report.findings if one.figure == figure)


@in_virtual_time
async def test_a_sound_engine_loses_nothing_and_everything_is_compared():
    said: list[str] = []
    async with both(engine()) as urls:
        report = await tried(urls, said, 50.0)
    assert report.word.status != 1, report.findings
    missing = [one.figure for one in report.findings if one.sentence.startswith("not compared")]
    assert missing == []
    assert word_of(report, "answers") is UpgradeWord.SAME
    assert word_of(report, "prefix-cache hits") is UpgradeWord.SAME
    start = next(one for one in report.findings if one.figure == "start")
    assert (start.before, start.after) == (60.0, 66.0)
    assert report.versions == {"before": "0.32.0+breakeven", "after": "0.32.0+breakeven"}
    order = [
        line.partition(": ")[0].rpartition(", ")[2]
        for line in said
        if line.startswith("pair ") and "at 1 client" in line
    ]
    assert order[:4] == ["before", "after", "after", "before"]


@in_virtual_time
async def test_faults_of_fields_cache_and_answers_are_found_and_no_text_is_said():
    said: list[str] = []
    worse = engine(
        refuses=["seed"],
        prefix_cache=False,
        broken_answers={"share": 1.0, "from_request": 150, "kind": "wrong"},
    )
    async with both(worse) as urls:
        report = await tried(urls, said)
    assert report.word is UpgradeWord.REFUSED
    assert word_of(report, "answers") is UpgradeWord.ANSWERS_DIFFER
    assert word_of(report, "prefix-cache hits") is UpgradeWord.CACHE_LOST
    shown = "\n".join([*said, *(one.sentence for one in report.findings)])
    words = {
        text[:20]
        for one in shipped_prompts()
        for message in one.messages or ()
        if (text := str(message["content"]))
    }
    assert not [text for text in words if text in shown]


@in_virtual_time
async def test_an_engine_that_does_not_speculate_any_more_has_lost_its_acceptance():
    async with both(engine(), (EAGLE, None)) as urls:
        report = await tried(urls, [], 30.0)
    assert report.word is UpgradeWord.ACCEPTANCE_LOST


@in_virtual_time
async def test_an_engine_that_does_not_answer_is_a_word_and_one_of_before_is_an_error():
    async with simulated(engine(), EAGLE) as url:
        report = await tried((url, NOWHERE), [])
        assert report.word is UpgradeWord.DOES_NOT_START
        assert "127.0.0.1:9" in report.findings[0].sentence
        with pytest.raises(EngineError, match="expected 200"):
            await tried((NOWHERE, url), [])


@in_virtual_time
async def test_the_engine_before_must_run_the_arm():
    async with both(engine(), (None, EAGLE)) as urls:
        with pytest.raises(EngineError, match="does not speculate"):
            await tried(urls, [])


LONGER = {**EAGLE, "num_speculative_tokens": 5}


@in_virtual_time
async def test_engines_of_two_arms_are_not_compared():
    async with both(engine(), (EAGLE, LONGER)) as urls:
        with pytest.raises(EngineError, match="draft up to 3 and 5 tokens per step; expected one arm"):
            await tried(urls, [])


def run_gate(
    monkeypatch: pytest.MonkeyPatch,
    after: Mapping[str, Any],
    *arguments: str,
    arm: Mapping[str, Any] | None = EAGLE,
) -> click.testing.Result:
    """`breakeven gate` of two engines in virtual time; their addresses are `old` and `new`."""
    urls: dict[str, str] = {}

    def run(report: Any) -> Any:
        found = []

        @in_virtual_time
        async def in_time() -> None:
            async with both(after, (EAGLE, arm)) as (urls["http://old"], urls["http://new"]):
                found.append(await report)

        in_time()
        return found[0]

    monkeypatch.setattr(asyncio, "run", run)
    monkeypatch.setattr(gate, "endpoint_of", lambda _, url: Endpoint(urls.get(url, url)))
    usual = (
        "--to-url",
        "http://new",
        "--prompt-tokens",
        "16",
        "--output-tokens",
        "16",
        "--max-seconds",
        "30",
    )
    return click.testing.CliRunner().invoke(gate.command, [*usual, *arguments])


@pytest.mark.claim(
    "README.md", "`breakeven gate` says in one word whether speculation still works in the next version."
)
def test_the_command_says_one_word_writes_a_document_and_exits_by_the_word(monkeypatch, tmp_path):
    file = tmp_path / "gate.json"
    between = ("--from-url", "http://old", "--arm", "eagle3/3", "--concurrency", "1", "--concurrency", "2")
    result = run_gate(monkeypatch, engine(refuses=["seed"]), *between, "-o", str(file), "--json")
    assert result.exit_code == 1, result.output
    told = json.loads(result.stdout)
    assert told == json.loads(file.read_text())
    assert unexplained("gate", told) == set()
    assert (told["word"], told["arm"], told["confidence"]) == ("Refused", "eagle3/3", 0.9)
    assert {"figure", "before", "after", "ratio", "interval", "word", "sentence"} == set(told["findings"][0])
    assert "fields accepted" in result.stderr


@pytest.fixture
def past(tmp_path: Path) -> str:
    """Path of a profile of no speculation and the arm."""
    profile = tmp_path / "past.json"
    arms = {NO_SPECULATION: (0.2, 0.02), ARM: (0.02, 0.001)}
    profile.write_text(
        lawful_profile_json(
            arms, {NO_SPECULATION: 1.0, ARM: 2.5}, prompt_tokens=16.0, output_tokens=16.0, gpu="H100"
        )
    )
    return str(profile)


@pytest.fixture
def past_profile(past: str) -> Profile:
    return Profile.from_json(Path(past).read_text())


@pytest.mark.parametrize(
    ("runs", "word", "said"),
    [
        (None, "AcceptanceLost", "no drafts are counted any more"),
        (LONGER, "Undecided", "up to 5 tokens per step"),
    ],
)
def test_an_engine_of_another_arm_than_the_profile_s_is_not_taken_for_it(monkeypatch, past, runs, word, said):
    result = run_gate(monkeypatch, engine(), "--from-profile", past, "--arm", "eagle3/3", arm=runs)
    assert f"\n{word}" in f"\n{result.stdout}"
    assert said in result.stdout


@in_virtual_time
async def test_a_time_too_short_for_two_pairs_of_windows_says_how_much_it_lacks():
    said = list[str]()
    async with both(engine()) as urls:
        report = await tried(urls, said, 12.0)
    assert any("the time is used after" in line for line in said)
    assert report.word is UpgradeWord.UNDECIDED
    lacking = re.search(r"windows: about (\d+) s more than the other parts leave; ", str(report.needs))
    assert lacking is not None
    async with both(engine()) as urls:
        # Windows get what the other parts leave.
        report = await tried(urls, [], 12.0 + 4 * int(lacking[1]))
    assert "s more than" not in str(report.needs)


def test_a_profile_of_another_model_is_said(monkeypatch, past):
    document = json.loads(Path(past).read_text())
    document["provenance"]["model"] = "org/other"
    Path(past).write_text(json.dumps(document))
    result = run_gate(monkeypatch, engine(), "--from-profile", past, "--arm", "eagle3/3")
    assert "model: not compared: org/other before, the engine now serves tiny" in result.stdout


def test_a_profile_stands_for_the_engine_of_the_past(monkeypatch, past):
    document = json.loads(Path(past).read_text())
    document["arms"][1]["acceptance"]["survival"] = [0.5, 0.4, 0.3]
    Path(past).write_text(json.dumps(document))
    result = run_gate(monkeypatch, engine(), "--from-profile", past, "--arm", "eagle3/3", "--json")
    told = {one["figure"]: one for one in json.loads(result.stdout)["findings"]}
    assert "not compared" in told["answers"]["sentence"]
    assert "time per output token at 1 client" in told
    first = told["accepted at position 1"]
    assert first["ratio"] == pytest.approx(first["after"] / 0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            (),
            "neither is given; expected --from-url for an engine of today that runs, or --from-profile for its",
        ),
        (("--from-url", "http://old", "--from-profile", __file__), "both are given; expected --from-url"),
        (("--from-url", "http://new/"), "both http://new; expected two engines"),
        (("--from-url", "http://old", "--arm", "eagle3"), "expected none or such as eagle3/3"),
        (("--from-url", "http://old", "--concurrency", "1"), "expected two, a low and a high one"),
        (("--from-url", "http://old", "--concurrency", "1", "--rps", "2"), "--concurrency excludes --rps"),
    ],
)
def test_wrong_usage_is_said_in_one_line(monkeypatch, arguments, said):
    result = run_gate(monkeypatch, engine(), *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_an_engine_of_before_that_does_not_answer_leaves_it_undecided(monkeypatch):
    result = run_gate(monkeypatch, engine(), "--from-url", NOWHERE)
    assert result.exit_code == 2
    assert result.stdout.startswith("Undecided")


@in_virtual_time
async def test_a_field_of_which_an_engine_dies_is_refused_and_the_rest_was_compared(monkeypatch):
    said, dead = list[str](), set[EngineClient]()
    whole, ready = EngineClient.whole, EngineClient.wait_until_ready

    async def dying(client: EngineClient, path: str, body: Mapping[str, Any]) -> Any:
        if "top_k" in body and any("before: " in line and "accepted" in line for line in said):
            dead.add(client)
        if client in dead:
            raise EngineError("no answer")
        return await whole(client, path, body)

    async def alive(client: EngineClient, deadline_s: float) -> None:
        if client in dead:
            raise EngineError("no answer")
        await ready(client, deadline_s)

    monkeypatch.setattr(EngineClient, "whole", dying)
    monkeypatch.setattr(EngineClient, "wait_until_ready", alive)
    async with both(engine()) as urls:
        report = await tried(urls, said)
    fields = next(one for one in report.findings if one.figure == "fields")
    assert (fields.word, fields.sentence) == (UpgradeWord.REFUSED, "refused, and accepted before: top_k")
    assert "after: died of top_k: no answer" in said
    assert word_of(report, "prefix-cache hits") is UpgradeWord.SAME


@pytest.mark.parametrize("side", [0, 1])
@in_virtual_time
async def test_an_engine_that_is_healthy_and_answers_nothing_ends_in_time_with_its_word(side):
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "tiny"}]})
        await asyncio.sleep(0.0 if request.method == "GET" else 600.0)
        return web.Response(text="")

    silent = web.Application()
    silent.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(silent) as server, simulated(engine(), EAGLE) as url:
        urls = [url]
        urls.insert(side, str(server.make_url("/")))
        begun_s = asyncio.get_running_loop().time()
        report = await tried((urls[0], urls[1]), [], 50.0)
        took_s = asyncio.get_running_loop().time() - begun_s
    assert report.word is (UpgradeWord.DOES_NOT_START if side else UpgradeWord.UNDECIDED), report
    assert took_s < 120.0
    if side:
        assert "no answer to a first request" in report.findings[0].sentence


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> dict[EngineClient, str]:
    """The address of each client that a test makes."""
    found: dict[EngineClient, str] = {}
    made = EngineClient.__init__

    def noted(client: EngineClient, endpoint: Endpoint, *rest: Any) -> None:
        found[client] = endpoint.url
        made(client, endpoint, *rest)

    monkeypatch.setattr(EngineClient, "__init__", noted)
    return found


@pytest.mark.parametrize(("error", "lost"), [("HTTP 500", True), ("HTTP 429", False), (None, False)])
@in_virtual_time
async def test_prompts_that_only_the_engine_of_now_refuses_are_a_loss_and_late_answers_are_none(
    monkeypatch, addresses, error, lost
):
    """A request that is turned away came at a wrong time."""
    whole = EngineClient.whole

    async def picky(client: EngineClient, path: str, body: Mapping[str, Any]) -> Any:
        if addresses[client] == new and len(json.dumps(body.get("messages"))) % 3 == 0:
            if error:
                raise EngineError(error, {error: 1})
            await asyncio.sleep(600.0)
        return await whole(client, path, body)

    monkeypatch.setattr(EngineClient, "whole", picky)
    async with both(engine()) as (old, new):
        report = await tried((old, new), [], 60.0)
    found = {one.figure: one for one in report.findings}
    assert ("refused prompts" in found) is lost
    if lost:
        assert report.word is UpgradeWord.REFUSED
        assert "prompts refused, and answered before" in found["refused prompts"].sentence


@pytest.mark.parametrize("side", [0, 1])
@in_virtual_time
async def test_an_engine_that_others_use_is_not_compared(side):
    async with both(engine()) as urls, EngineClient(Endpoint(urls[side])) as other:
        await other.model()

        async def use() -> None:
            while True:
                await other.complete("hello", 1_000, RequestRecord(0.0, 0.0))

        task = asyncio.create_task(use())
        await asyncio.sleep(0.2)
        with pytest.raises(EngineError, match="answers 1 request of others; expected an engine that nobody"):
            await tried(urls, [])
        task.cancel()


def failing(
    monkeypatch: pytest.MonkeyPatch, fails: Callable[[EngineClient], bool], error: str = "HTTP 500"
) -> None:
    """Requests of a load fail at once where a function of their engine says so."""
    complete = EngineClient.complete

    async def some(client: EngineClient, prompt: Any, tokens: int, record: RequestRecord) -> None:
        if not fails(client):
            await complete(client, prompt, tokens, record)
            return
        await asyncio.sleep(0.01)
        record.error, record.done_s = error, asyncio.get_running_loop().time()

    monkeypatch.setattr(EngineClient, "complete", some)


@pytest.mark.parametrize(
    ("times", "error", "lost"), [(1, "HTTP 400", False), (1000, "HTTP 400", True), (1000, "HTTP 429", False)]
)
@in_virtual_time
async def test_longer_prompts_that_only_the_engine_of_now_refuses_are_a_loss(
    monkeypatch, addresses, times, error, lost
):
    """Such as by a smaller max_model_len; once is none, and to be turned away is none."""
    complete, left = EngineClient.complete, itertools.count()

    async def short(client: EngineClient, prompt: Any, tokens: int, record: RequestRecord) -> None:
        if addresses[client] == new and len(str(prompt)) > 2000 and next(left) < times:
            record.error = error
            return
        await complete(client, prompt, tokens, record)

    monkeypatch.setattr(EngineClient, "complete", short)
    async with both(engine()) as (old, new):
        report = await tried((old, new), [], 50.0)
    fields = next(one for one in report.findings if one.figure == "fields")
    if not lost:
        assert fields.word is UpgradeWord.SAME
        return
    assert report.word is fields.word is UpgradeWord.REFUSED
    assert fields.sentence == "refused, and accepted before: prompts of 1024 tokens"


@pytest.mark.parametrize("part", ["prefixes", "answers", "fields"])
@in_virtual_time
async def test_an_engine_of_now_that_restarts_refuses_nothing(monkeypatch, addresses, part):
    """It answers no request for some seconds: tries that follow each other at once all fall into them."""
    said, ends_s = list[str](), list[float]()
    begins = {
        "prefixes": lambda: True,
        "answers": lambda: any(line.startswith("before: ") and "answers" in line for line in said),
        "fields": lambda: any(line.startswith("before: ") and "fields" in line for line in said),
    }[part]
    complete, whole, ready = EngineClient.complete, EngineClient.whole, EngineClient.wait_until_ready

    def down(client: EngineClient) -> bool:
        now_s = asyncio.get_running_loop().time()
        if addresses[client] == new and begins() and not ends_s:
            ends_s.append(now_s + 4.0)
        return addresses[client] == new and bool(ends_s) and now_s < ends_s[0]

    async def completed(client: EngineClient, prompt: Any, tokens: int, record: RequestRecord) -> None:
        if down(client):
            record.error = "no connection"
            return
        await complete(client, prompt, tokens, record)

    async def answered(client: EngineClient, path: str, body: Mapping[str, Any]) -> Any:
        if down(client):
            raise EngineError("no connection")
        return await whole(client, path, body)

    async def up(client: EngineClient, deadline_s: float) -> None:
        if down(client):
            await asyncio.sleep(ends_s[0] - asyncio.get_running_loop().time())
        await ready(client, deadline_s)

    for name, faked in (("complete", completed), ("whole", answered), ("wait_until_ready", up)):
        monkeypatch.setattr(EngineClient, name, faked)
    async with both(engine()) as (old, new):
        report = await tried((old, new), said, 50.0)
    assert ends_s
    assert not {UpgradeWord.REFUSED, UpgradeWord.DOES_NOT_START} & {one.word for one in report.findings}


@in_virtual_time
async def test_an_engine_that_answers_no_request_of_a_load_is_not_left_undecided(monkeypatch, addresses):
    said = list[str]()

    def fails(client: EngineClient) -> bool:
        return addresses[client] == new and any("at 1 client, after" in line for line in said)

    failing(monkeypatch, fails)
    async with both(engine()) as (old, new):
        report = await tried((old, new), said, 50.0)
    assert report.word is UpgradeWord.DOES_NOT_START
    assert "2 clients: no answer in" in report.findings[0].sentence
    assert "HTTP 500" in report.findings[0].sentence
    assert any("HTTP 500" in line for line in said)


@in_virtual_time
async def test_an_engine_of_now_that_turns_requests_away_is_full_and_refuses_nothing(monkeypatch, addresses):
    """Such as behind a limit of rates: at one client, at two, and with each field."""
    said, whole = list[str](), EngineClient.whole

    async def picky(client: EngineClient, path: str, body: Mapping[str, Any]) -> Any:
        if addresses[client] == new and "seed" in body and "messages" in body:
            raise EngineError("HTTP 429", {"HTTP 429": 1})
        return await whole(client, path, body)

    def fails(client: EngineClient) -> bool:
        return addresses[client] == new and any("at 1 client, after" in line for line in said)

    monkeypatch.setattr(EngineClient, "whole", picky)
    failing(monkeypatch, fails, "HTTP 429")
    async with both(engine()) as (old, new):
        report = await tried((old, new), said, 50.0)
    found = {one.figure: one for one in report.findings}
    assert found["fields"].word is UpgradeWord.SAME
    assert found["failed requests"].word is report.word is UpgradeWord.SLOWER
    assert "most often HTTP 429" in found["failed requests"].sentence


def test_requests_that_fail_are_held_against_a_profile_too(monkeypatch, past):
    count = itertools.count(1)
    failing(monkeypatch, lambda _: next(count) % 8 == 0)
    result = run_gate(monkeypatch, engine(), "--from-profile", past, "--arm", "eagle3/3", "--json")
    told = json.loads(result.stdout)
    found = {one["figure"]: one for one in told["findings"]}
    assert found["failed requests"]["word"] == told["word"] == "Refused", found
    assert result.exit_code == 1
    assert "clients, after: " in result.stderr
    assert "before: " not in result.stderr, "no such engine was asked"


def test_a_load_that_an_engine_does_not_bear_for_long_is_held_against_a_profile_too(monkeypatch, past):
    """Its first windows alone would be compared, and are as the profile expects them."""

    async def for_a_while(client: EngineClient, given: Any, step: Any, seed: int) -> Any:
        if step.load.clients == 8 and step.number > 4:
            raise EngineError(f"{step.load}: no answer in 9 s (HTTP 500); expected some")
        return await measure(client, given, step, seed)

    monkeypatch.setattr(trial, "measure", for_a_while)
    result = run_gate(monkeypatch, engine(), "--from-profile", past, "--arm", "eagle3/3", "--json")
    told = json.loads(result.stdout)
    assert (told["word"], result.exit_code) == ("DoesNotStart", 1), told
    assert "8 clients: no answer in 9 s (HTTP 500)" in told["findings"][0]["sentence"]


@pytest.mark.parametrize(("status", "models"), [(401, []), (200, ["another"])])
@in_virtual_time
async def test_an_engine_that_is_up_and_refuses_the_key_or_serves_no_such_model_has_started(
    past_profile, status, models
):
    async def answer(request: web.Request) -> web.Response:
        if request.path != "/v1/models":
            return web.Response(text="")
        return web.json_response({"data": [{"id": name} for name in models]}, status=status)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    said = "HTTP 401" if not models else "'tiny' is not served; expected one of another"
    async with TestServer(app) as server, simulated(engine(), EAGLE) as url:
        plan = UpgradePlan(ARM, SHORT, max_seconds=30.0, start_timeout_s=2.0)
        after = Endpoint(str(server.make_url("/")), "tiny")
        with pytest.raises(EngineError, match=said):
            await try_upgrade(Endpoint(url, "tiny"), after, plan, list[str]().append)
        with pytest.raises(EngineError, match=said):
            await try_against(past_profile, ARM, after, plan, list[str]().append)


@in_virtual_time
async def test_an_engine_that_is_asked_at_another_path_has_started(past_profile):
    async with both(engine()) as (old, new):
        after, plan = Endpoint(f"{new}/other"), UpgradePlan(ARM, SHORT, start_timeout_s=2.0)
        with pytest.raises(EngineError, match="/other/health: HTTP 404"):
            await try_upgrade(Endpoint(old), after, plan, list[str]().append)
        with pytest.raises(EngineError, match="/other/health: HTTP 404"):
            await try_against(past_profile, ARM, after, plan, list[str]().append)


@in_virtual_time
async def test_time_beyond_the_longest_windows_goes_into_more_pairs():
    said = list[str]()
    loads = (ImposedLoad(LoadMode.POISSON, 0.3), ImposedLoad(LoadMode.POISSON, 0.6))
    async with both(engine()) as (old, new):
        plan = UpgradePlan(ARM, SHORT, loads, 1500.0)
        await try_upgrade(Endpoint(old), Endpoint(new), plan, said.append)
    assert any(line.startswith("pair 12 ") for line in said)


@in_virtual_time
async def test_engines_that_serve_two_models_are_said_to(monkeypatch, addresses):
    name = EngineClient.model

    async def named(client: EngineClient) -> str:
        return f"{await name(client)}{'-next' if addresses[client] == new else ''}"

    monkeypatch.setattr(EngineClient, "model", named)
    async with both(engine()) as (old, new):
        report = await tried((old, new), [])
    assert (report.findings[0].figure, report.findings[0].word) == ("model", None)
    assert "tiny before, the engine now serves tiny-next" in report.findings[0].sentence


def chosen(**fields: Any) -> dict[str, Any]:
    return {"prompt_token_ids": [2], "choices": [{"token_ids": [1, 2], "finish_reason": "stop", **fields}]}


class Garbled(EngineClient):
    """An engine whose answers are JSON of another shape than vLLM's."""

    def __init__(self, document: Any) -> None:
        super().__init__(Endpoint(NOWHERE))
        self.document = document

    async def model(self) -> str:
        return "tiny"

    async def whole(self, path: str, body: Mapping[str, Any]) -> Any:
        return self.document


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"choices": [None]},
        chosen(message=5),
        chosen(message={"tool_calls": [5], "content": [1], "reasoning": 7}),
        chosen(message={"tool_calls": 5}),
        chosen(message={"tool_calls": [{"function": "act"}]}, text=[3]),
    ],
)
@in_virtual_time
async def test_answers_of_another_shape_are_flawed_or_refused_and_no_fault_of_the_gate(document):
    prompts = shipped_prompts()
    given = await ask(Garbled(document), "after", prompts, 10.0)
    assert all(one.flaw is not None for one in given.answers)
    assert len(given.answers) + given.refused >= len(prompts)


@in_virtual_time
async def test_an_answer_that_only_calls_tools_is_not_empty():
    calls = [{"type": "function", "function": {"name": "act", "arguments": "{}"}}]
    engine = Garbled(chosen(message={"content": None, "tool_calls": calls}))
    own = GatePrompt("own-1", messages=({"role": "user", "content": "act"},))
    given = await ask(engine, "after", [own], 10.0)
    assert [one.flaw for one in given.answers] == [None, None]


@pytest.mark.parametrize("count", ['"a"', "1e999", "null", "[4]"])
@in_virtual_time
async def test_a_usage_that_counts_no_tokens_is_a_failed_request(count):
    async def stream(_: web.Request) -> web.Response:
        usage = f'{{"usage": {{"prompt_tokens": 3, "completion_tokens": {count}}}}}'
        return web.Response(text=f"data: {usage}\n\ndata: [DONE]\n\n")

    app = web.Application()
    app.router.add_post("/v1/completions", stream)
    async with TestServer(app) as server, EngineClient(Endpoint(str(server.make_url("/")))) as client:
        record = RequestRecord(scheduled_s=0.0, sent_s=0.0)
        await client.complete("hello", 4, record)
    assert record.error == "no output tokens"
