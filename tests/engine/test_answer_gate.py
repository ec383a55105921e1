"""The answer gate on simulated engines: each word, by the requests that a real vLLM would get."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import re
from pathlib import Path

import pytest

from breakeven.answering.answer import MOST_JUDGED_TOKENS, JudgedSet
from breakeven.answering.answer_gate import GateFinding, judge_arm
from breakeven.answering.prompt_set import shipped_prompts
from breakeven.load_driver.asking import ask, gate_prompts, judge
from breakeven.load_driver.client import Endpoint, EngineClient, EngineError
from breakeven.load_driver.dataset import dataset_of
from breakeven.reasons import Reason
from breakeven_operator import driver
from breakeven_operator.driver import run_trial
from breakeven_operator.kinds import SECRETS
from breakeven_operator.ports import ClusterError
from breakeven_operator.resources.calibrationrun import CalibrationRun
from breakeven_sim.engine.language import Language, prompt_logprobs
from engine.conftest import costs_document
from fakes.calibration_world import World
from fakes.gate_worlds import judged_world
from fakes.simulated_engine import simulated
from fakes.trial_run import StoredRun, trial_environment
from fakes.virtual_time import in_virtual_time

EAGLE = {"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}
PROMPT = (1, 2, 3)
# Long enough for a loop to be seen: 64 tokens that repeat.
TOKENS = 96
_floors: list[JudgedSet] = []


@contextlib.asynccontextmanager
async def engine(config=None, **changes):
    document = costs_document(near_ties=0.02, **changes)
    async with simulated(document, config) as url, EngineClient(Endpoint(url)) as client:
        yield client


async def floor() -> JudgedSet:
    """Answers of no speculation, judged by a second start of it; the same for all tests."""
    if not _floors:
        async with engine() as none, engine() as again:
            _floors.append(
                await judge(again, await ask(none, "none", shipped_prompts(), 10_000.0, TOKENS), 10_000.0)
            )
    return _floors[0]


async def gate(longest_s=10_000.0, **broken) -> GateFinding:
    """The word for an arm whose engine breaks answers in this way."""
    changes = {"methods__eagle3__broken_answers": broken} if broken else {}
    async with engine() as again, engine(EAGLE, **changes) as arm:
        given = await ask(arm, "eagle3/3", shipped_prompts(), longest_s, TOKENS)
        return judge_arm(await judge(again, given, 10_000.0), await floor())


@in_virtual_time
async def test_an_arm_that_answers_as_no_speculation_does_agrees_up_to_near_ties():
    found = await gate()
    assert found.word is Reason.ANSWERS_AGREE
    assert found.near_ties > 0
    assert found.equal < found.compared == 109


@in_virtual_time
async def test_answers_that_go_wrong_differ_and_the_places_are_right():
    found = await gate(share=0.3, from_token=40)
    assert found.word is Reason.ANSWERS_DIFFER
    assert {place.position for place in found.places} == {40}


@pytest.mark.parametrize(
    "broken",
    [
        {"share": 0.3, "kind": "loop", "from_token": 20},
        {"share": 0.3, "kind": "empty"},
        {"grammar_share": 0.5},
    ],
)
@in_virtual_time
async def test_loops_empty_answers_and_invalid_json_are_broken(broken):
    found = await gate(**broken)
    assert found.word is Reason.ANSWERS_BROKEN
    assert found.flawed > 0


@in_virtual_time
async def test_too_little_time_leaves_it_undecided():
    """Answers together come later than that; by 5 s there are those under a grammar alone."""
    found = await gate(longest_s=5.0)
    assert found.word is Reason.ANSWERS_UNDECIDED


@in_virtual_time
async def test_the_judgement_is_asked_for_one_by_one_and_in_bounded_lengths(monkeypatch):
    async with engine() as none:
        base = await ask(none, "none", shipped_prompts(), 10_000.0, TOKENS)
        assert base.refused == 0
        assert max(len(one.prompt_ids) + len(one.token_ids) for one in base.answers) <= MOST_JUDGED_TOKENS
        seen = []
        whole = none.whole

        async def watched(path, body):
            seen.append("begin")
            found = await whole(path, body)
            seen.append("end")
            return found

        monkeypatch.setattr(none, "whole", watched)
        await judge(none, base, 10_000.0)
        assert seen == ["begin", "end"] * 109


@in_virtual_time
async def test_own_prompts_are_asked_and_named_by_number():
    lines = '{"prompt": "once upon a time"}\n{"messages": [{"role": "user", "content": "hello there"}]}\n'
    async with engine() as none:
        found = await ask(none, "none", gate_prompts(dataset_of(lines, "file", "file")), 10_000.0)
    assert {one.prompt for one in found.answers if one.prompt.startswith("own")} == {"own-1", "own-2"}
    assert "once" not in repr(found)


@in_virtual_time
async def test_the_field_has_vllms_form():
    body = {"prompt": [1, 2, 3], "max_tokens": 1, "temperature": 0}
    async with simulated(costs_document()) as url, EngineClient(Endpoint(url)) as none:
        await none.model()
        document = await none.whole("/v1/completions", body | {"prompt_logprobs": 1})
        first, *others = document["choices"][0]["prompt_logprobs"]
        assert first is None
        assert len(others) == 2
        for token, entry in zip(("2", "3"), others, strict=True):
            assert set(entry[token]) == {"logprob", "rank", "decoded_token"}
            assert min(one["rank"] for one in entry.values()) == 1
        plain = await none.whole("/v1/completions", body)
        assert plain["choices"][0]["prompt_logprobs"] is None
        assert plain["choices"][0]["token_ids"] is None
        refused = {**body, "model": "tiny", "stream": True, "prompt_logprobs": 1}
        async with none.session.post(f"{url}/v1/completions", json=refused) as answer:
            assert answer.status == 400
            assert "are not available when `stream=True`" in await answer.text()


@pytest.mark.parametrize("tie_share", [0.0, 0.01, 0.05])
def test_sound_arms_are_hardly_ever_called_different(tie_share):
    """A hundred calibrations at an error rate of 1 %: more than five alarms have a chance below one in a thousand."""
    words = [
        judge_arm(
            judged_world(1000 + seed, tie_share=tie_share, tokens=32),
            judged_world(seed, arm="none", tie_share=tie_share, tokens=32),
        ).word
        for seed in range(100)
    ]
    assert sum(word in {Reason.ANSWERS_DIFFER, Reason.ANSWERS_BROKEN} for word in words) <= 5


def test_an_answer_is_the_first_choice_of_its_judge_unless_a_tie_was_turned():
    language = Language(near_ties=0.05)
    alone = language.speak(PROMPT, 200, batched=False)
    assert language.speak(PROMPT, 200, batched=False, number=9) == alone
    opinions = language.judge((*PROMPT, *alone.token_ids))[2:]
    assert {one.rank for one in opinions} == {1}
    turned = language.speak(PROMPT, 200, batched=True, number=4)
    opinions = language.judge((*PROMPT, *turned.token_ids))[2:]
    assert {one.rank for one in opinions} == {1, 2}
    assert max(one.first_logprob - one.logprob for one in opinions) < 0.2


def test_the_token_stands_beside_the_first_choice_of_which_none_is_asked_for():
    language = Language()
    ids = (1, 2, 3)
    assert all(len(entry) == 1 for entry in prompt_logprobs(language.judge(ids), ids, 0)[1:])
    assert all(len(entry) == 2 for entry in prompt_logprobs(language.judge(ids), ids, 1)[1:])


class KeptSecrets(StoredRun):
    """The run, and the Secrets that a driver makes, mounted into a folder as a kubelet would."""

    def __init__(self, run, folder: Path) -> None:
        super().__init__(run)
        self.folder = folder
        self.found: list[dict] = []

    async def create(self, resource, body):
        assert resource == SECRETS
        if (self.folder / body["metadata"]["name"]).exists():
            raise ClusterError("already exists", status=409)
        (data,) = body["data"].values()
        (self.folder / body["metadata"]["name"]).write_bytes(base64.b64decode(data))
        return body

    async def apply(self, resource, body, *, force, subresource, manager):
        given = dict(body["status"])
        # Server-side apply: what a manager has written and leaves out is taken away.
        if manager == "breakeven-trial-none-again":
            self.run["status"]["answers"] = given.pop("answers", [])
            CalibrationRun.read(self.run, "run")
        if not given:
            return self.run
        return await super().apply(
            resource, body | {"status": given}, force=force, subresource=subresource, manager=manager
        )


async def dying(*_, **__):
    raise EngineError("the engine is gone")


@in_virtual_time
async def test_drivers_keep_answers_and_the_judges_writes_the_word_and_no_text(tmp_path, caplog, monkeypatch):
    """Three Jobs of one calibration as their pods run them: no speculation, an arm that breaks answers, and the judge."""
    world = World()
    world.turn()
    runs = KeptSecrets(world.run, tmp_path)
    jobs = ["chat-7f3c2-none", "chat-7f3c2-eagle-2"]
    broken = {"share": 0.3, "from_token": 16}
    config = EAGLE | {"num_speculative_tokens": 2}
    document = costs_document(near_ties=0.02, methods__eagle3__broken_answers=broken)
    settings = {
        "answersSeconds": 3600,
        "answersOutputTokens": 32,
        "trial_service": "chat",
        "trial_maxSeconds": 10_000,
    }
    with caplog.at_level(logging.DEBUG):
        for arm, speculation in (("none", None), ("eagle/2", config)):
            async with simulated(document, speculation) as url:
                trial = trial_environment(url, arm, job_uid="u1", **settings)
                await run_trial(trial, runs)
                await run_trial(trial, runs)
        async with simulated(document) as url:
            trial = trial_environment(url, "none/again", trial_judged=jobs, answers=str(tmp_path), **settings)
            with monkeypatch.context() as patched:
                # The engine dies under its first load.
                patched.setattr(driver, "run_sweep", dying)
                with pytest.raises(EngineError):
                    await run_trial(trial, runs)
            assert [one["word"] for one in runs.run["status"]["answers"]] == ["AnswersDiffer"]
            await run_trial(trial, runs)
    again = CalibrationRun.read(runs.run, "run").status.points_of("none/again")
    assert [point.start for point in again] == ["none/again"]
    (found,) = runs.run["status"]["answers"]
    assert (found["arm"], found["word"]) == ("eagle/2", "AnswersDiffer")
    assert caplog.text.count("eagle/2: AnswersDiffer") == 1, "it is judged once"
    assert "@16" in found["places"][0]
    assert "eagle/2: AnswersDiffer" in caplog.text
    for text in (json.dumps(runs.run), caplog.text):
        assert "harbour" not in text, "a prompt"
        assert re.search(r"w\d+ w\d+", text) is None, "an answer"


@in_virtual_time
async def test_a_cluster_that_keeps_no_answers_costs_no_point(tmp_path):
    class Refusing(KeptSecrets):
        async def create(self, resource, body):
            raise ClusterError("forbidden", status=403)

    world = World()
    world.turn()
    runs = Refusing(world.run, tmp_path)
    async with simulated(costs_document()) as url:
        trial = trial_environment(
            url, "none", job_uid="u1", answersSeconds=3600, answersOutputTokens=16, trial_service="chat"
        )
        await run_trial(trial, runs)
    assert runs.applied
    assert not list(tmp_path.iterdir())
