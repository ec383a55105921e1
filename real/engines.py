"""Everything that a run asks of an engine: users, its metrics page, its answers, its flags. The one place with sockets."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from breakeven.arm import Arm
from breakeven.load_driver.counters import between, read_counters
from demo.traffic import Endpoints, RequestShape
from real import cores, deployments, likeness
from real.greedy_users import TaskUsers, Users
from real.tasks import TASK_TOKENS, TASKS, TaskAnswer


class QuestionError(Exception):
    """A program that asks an engine failed; the text is its last line."""


class Engines:
    """The engines of one run.

    Args:
        python: the one that has vLLM.
        folder: takes what is asked and what was answered.
        core: the one that the engines' processes run on.
    """

    def __init__(self, python: Path, folder: Path, core: int) -> None:
        self._python = python
        self._folder = folder
        self._core = core

    def users(self, shape: RequestShape, endpoints: Endpoints, *, seed: int) -> Users:
        """Users of some pods, who have asked nothing yet."""
        return Users(deployments.MODEL, shape, endpoints, seed=seed)

    def task_users(self, shape: RequestShape, endpoints: Endpoints, *, seed: int) -> TaskUsers:
        """Users of some pods who ask for tasks, and have asked for none yet."""
        return TaskUsers(deployments.MODEL, shape, endpoints, seed=seed)

    async def page(self, url: str) -> str:
        """The metrics page of an engine.

        Raises:
            aiohttp.ClientError: it cannot be read.
        """
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
            answer.raise_for_status()
            return await answer.text()

    def yardstick_ms(self) -> float:
        """Time of a fixed loop on the engines' core (ms); blocks."""
        return cores.yardstick_ms(self._core)

    def flags(self) -> Mapping[str, Any]:
        """The flags of vLLM's own parser; blocks.

        Raises:
            QuestionError: the parser could not be asked.
        """
        fresh = self._folder / "flags.json"
        _run([self._python, deployments.ROOT / "tests/realvllm/flags.py", fresh])
        found: Mapping[str, Any] = json.loads(fresh.read_text())
        return found

    async def task_answer(self, url: str, task: str, arm: Arm) -> TaskAnswer:
        """The greedy answer of an idle engine to a task.

        Raises:
            aiohttp.ClientError: it cannot be asked, or refuses.
        """
        body = {
            "model": deployments.MODEL,
            "messages": [{"role": "user", "content": TASKS[task]}],
            "max_tokens": TASK_TOKENS,
            "temperature": 0,
        }
        before = read_counters(await self.page(url))
        begun = time.perf_counter()
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.post(f"{url}/v1/chat/completions", json=body) as response,
        ):
            answer = await response.json()
        seconds = time.perf_counter() - begun
        counted = between(before, read_counters(await self.page(url)))
        text, tokens = answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]
        return TaskAnswer(task, arm, text, tokens, counted.tokens_per_step, seconds)

    def answers(self, url: str) -> list[dict[str, Any]]:
        """The answers of an engine to the questions of the table; blocks.

        Raises:
            QuestionError: it could not be asked.
        """
        root = deployments.ROOT
        table = json.loads((root / "tests/engine/vllm_0_32_answers.json").read_text())
        file = self._folder / "questions.json"
        file.write_text(json.dumps(likeness.asked_of(table, deployments.MODEL)))
        text = _run([sys.executable, root / "tests/realvllm/answers.py", file, url])
        answers: list[dict[str, Any]] = json.loads(text)["answers"]
        return answers


def _run(command: Sequence[str | Path]) -> str:
    """Standard output of a program.

    Raises:
        QuestionError: it failed.
    """
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no word").rpartition("\n")[2]
        raise QuestionError(f"{Path(command[1]).name}: {last}")
    return done.stdout
