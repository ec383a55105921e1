"""The simulated vLLM as a process: what a client sees, and how it stops."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

pytestmark = pytest.mark.engine
# Against hanging only: whatever is waited for is an event.
PATIENCE_S = 120.0
# So slow that nothing ends by itself while a test looks, however late it looks.
SLOW = {"step__base_s": 1.0}


@dataclass
class Server:
    process: asyncio.subprocess.Process
    url: str
    client: aiohttp.ClientSession

    async def complete(self, **body: object) -> tuple[int, object]:
        body = {"prompt": "a b c", "max_tokens": 20, "ignore_eos": True, **body}
        async with self.client.post(f"{self.url}/v1/completions", json=body) as answer:
            return answer.status, json.loads(await answer.read())

    async def chunks(self, path: str = "completions", **body: object) -> list[dict]:
        async with self.client.post(f"{self.url}/v1/{path}", json={"stream": True, **body}) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            lines = (await answer.text()).split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]

    async def metric(self, name: str) -> float:
        async with self.client.get(f"{self.url}/metrics") as answer:
            page = await answer.text()
        series = re.compile(rf"vllm:{re.escape(name)}[{{ ,]")
        return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if series.match(line))

    async def until(self, name: str, wanted: float) -> None:
        # A scrape is a round trip to the server: this waits for its answers, not for a time.
        async with asyncio.timeout(PATIENCE_S):
            while await self.metric(name) != wanted:
                pass


@pytest.fixture
def serve(document: Callable[..., dict]) -> Callable[..., object]:
    @asynccontextmanager
    async def start(*flags: str, **changes: object) -> AsyncIterator[Server]:
        costs = document(**{"step__base_s": 0.005, "step__per_token_s": 1e-4, **changes})
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "breakeven.cli",
                "engine-sim",
                "tiny",
                "--host",
                "127.0.0.9",
                "--port",
                "0",
            ),
            *("--max-model-len", "1024", "--sim-costs", json.dumps(costs), *flags),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        try:
            url = None
            while url is None:
                line = (await asyncio.wait_for(process.stderr.readline(), PATIENCE_S)).decode()
                assert line, "ended before it served"
                url = line.partition("Started server on ")[2].strip() or None
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE_S)) as client:
                yield Server(process, url, client)
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    return start


async def test_what_a_client_sees(serve):
    async with serve(
        "--speculative-config", '{"method":"eagle3","model":"d","num_speculative_tokens":3}'
    ) as server:
        assert {
            (await server.client.get(f"{server.url}/{p}")).status for p in ("health", "ping", "version")
        } == {200}
        models = await (await server.client.get(f"{server.url}/v1/models")).json()
        assert (models["data"][0]["id"], models["data"][0]["max_model_len"]) == ("tiny", 1024)

        status, whole = await server.complete(prompt=[1, 2, 3, 4])
        assert (status, whole["usage"]) == (
            200,
            {
                "prompt_tokens": 4,
                "total_tokens": 24,
                "completion_tokens": 20,
                "prompt_tokens_details": None,
                "completion_tokens_details": None,
            },
        )
        assert whole["choices"][0]["finish_reason"] == "length"
        assert len(whole["choices"][0]["text"].split()) == 20

        chunks = await server.chunks(
            prompt=[1], max_tokens=30, ignore_eos=True, stream_options={"include_usage": True}
        )
        *texts, counts = chunks
        assert counts["choices"] == []
        assert counts["usage"] == {"prompt_tokens": 1, "total_tokens": 31, "completion_tokens": 30}
        assert len("".join(c["choices"][0]["text"] for c in texts).split()) == 30
        assert [c["choices"][0]["finish_reason"] for c in texts] == [None] * (len(texts) - 1) + ["length"]
        assert len(texts) < 30  # several tokens per step arrive in one chunk

        chat = {"messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 5}
        first, *rest = await server.chunks("chat/completions", **chat)
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert len("".join(c["choices"][0]["delta"]["content"] for c in rest).split()) == 5
        async with server.client.post(f"{server.url}/v1/chat/completions", json=chat) as answer:
            assert (await answer.json())["choices"][0]["message"]["role"] == "assistant"

        clock = await (await server.client.get(f"{server.url}/sim/clock")).json()
        assert clock["steps"] > 0
        assert 0.0 <= clock["lag_s"] <= clock["max_lag_s"]


async def test_a_program_that_starts_it_learns_where_it_serves(serve):
    async with serve("--json", "--spec-method", "ngram", "--spec-tokens", "3") as server:
        assert server.process.stdout is not None
        document, lines = None, ""
        while document is None:
            lines += (await asyncio.wait_for(server.process.stdout.readline(), PATIENCE_S)).decode()
            document = json.loads(lines) if lines.endswith("\n}\n") else None
        assert (document["url"], document["model"], document["max_model_len"]) == (server.url, "tiny", 1024)
        assert document["speculative_config"]["num_speculative_tokens"] == 3


async def test_a_client_that_hangs_up_does_not_end_the_server(serve):
    async with serve() as server:
        # Writing to a closed connection would otherwise be the end of it, with exit code 141 in its pod.
        assert ignored_signals(server.process.pid) & (1 << (signal.SIGPIPE - 1))


def ignored_signals(pid: int) -> int:
    found = re.search(r"SigIgn:\t(\w+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1], 16)


async def test_refusals_have_vllms_bodies(serve):
    async with serve("--api-key", "secret") as server:
        assert await server.complete() == (401, {"error": "Unauthorized"})
        assert (await server.client.get(f"{server.url}/health")).status == 200
        server.client.headers["Authorization"] = "Bearer secret"
        assert (await server.complete())[0] == 200
        for body, status, error in (
            ({"model": "nope"}, 404, {
                "message": "The model `nope` does not exist. Valid aliases: tiny.", "type": "NotFoundError", "param": "model"}),
            ({"max_tokens": 5000}, 400, {
                "message": "max_tokens=5000 cannot be greater than max_model_len=1024. Please request fewer output tokens. "
                "(parameter=max_tokens, value=5000)", "type": "BadRequestError", "param": "max_tokens"}),
        ):  # fmt: skip
            assert await server.complete(**body) == (status, {"error": {**error, "code": status}})
        assert (await server.complete(prompt=list(range(1024))))[0] == 400
        # A request that does not fit is cut, not refused.
        _, cut = await server.complete(prompt=list(range(1000)), max_tokens=25)
        assert cut["usage"]["completion_tokens"] == 24
        assert (await server.complete(prompt=None))[0] == 400
        assert (await server.complete(n=2))[0] == 400
        async with server.client.post(f"{server.url}/v1/completions", data="{bad") as answer:
            body = await answer.json()
        assert answer.status == 400
        assert body["error"]["type"] == "Bad Request"
        assert "JSON decode error" in body["error"]["message"]


async def test_a_client_that_leaves_is_aborted(serve):
    async with serve(**SLOW) as server:
        leaving = asyncio.create_task(server.complete(max_tokens=1000))
        await server.until("time_to_first_token_seconds_count", 1)
        leaving.cancel()
        await server.until("num_requests_running", 0)
        # vLLM counts it in the same way: it began, and is in no series of finished requests.
        assert await server.metric("time_to_first_token_seconds_count") == 1
        assert await server.metric('request_success_total{engine="0",finished_reason="abort"') == 0
        assert await server.metric("e2e_request_latency_seconds_count") == 0


async def test_the_event_clock_never_runs_ahead_of_real_time(serve):
    async with serve(step__base_s=0.02) as server:
        before = time.monotonic()
        await server.complete(max_tokens=50)
        took = time.monotonic() - before
    assert took >= 50 * 0.0201 - 0.0001


async def test_health_answers_only_after_start_up(serve):
    before = time.monotonic()
    async with serve(startup__base_s=0.5) as server:
        assert time.monotonic() - before > 0.5
        assert (await server.client.get(f"{server.url}/health")).status == 200


async def hang(server: Server, count: int = 3) -> list[asyncio.Task]:
    """Requests in flight that will be there for minutes."""
    tasks = [asyncio.create_task(server.complete(max_tokens=1000)) for _ in range(count)]
    await server.until("num_requests_running", count)
    return tasks


async def test_with_a_shutdown_timeout_everything_in_flight_completes(serve):
    async with serve("--shutdown-timeout", str(int(PATIENCE_S)), "--max-model-len", "200000") as server:
        tasks = [asyncio.create_task(server.complete(max_tokens=300)) for _ in range(3)]
        # It keeps the drain going until the test has seen what it wants to see.
        last = asyncio.create_task(server.complete(max_tokens=100_000))
        await server.until("time_to_first_token_seconds_count", 4)
        server.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            while (await server.complete(max_tokens=1))[0] != 500:
                pass
        assert (await server.client.get(f"{server.url}/health")).status == 200
        assert [status for status, _ in await asyncio.gather(*tasks)] == [200] * 3
        assert server.process.returncode is None
        last.cancel()
        assert await asyncio.wait_for(server.process.wait(), PATIENCE_S) == 0


async def end_of(answer: aiohttp.ClientResponse, silence_s: float) -> None:
    while await asyncio.wait_for(answer.content.readany(), silence_s):
        pass


async def test_without_one_requests_hang_and_new_ones_are_refused(serve):
    endless = {"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    async with serve(step__base_s=0.05) as server:
        async with server.client.post(f"{server.url}/v1/completions", json=endless) as answer:
            assert await answer.content.readany()
            host, port = server.url.removeprefix("http://").split(":")
            kept, request = await asyncio.open_connection(host, int(port))
            request.write(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n")
            assert b"200 OK" in await kept.readuntil(b"\r\n\r\n")
            server.process.send_signal(signal.SIGTERM)
            # An idle connection is closed, or a client that comes back over it would wait for ever.
            assert await asyncio.wait_for(kept.read(), PATIENCE_S) == b""
            request.close()
            async with aiohttp.ClientSession() as fresh, asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        await (await fresh.get(f"{server.url}/health")).read()
                    except aiohttp.ClientConnectorError:
                        break
            # Thirty steps long nothing comes, not even the end, and the process still waits for its client.
            with pytest.raises(TimeoutError):
                await end_of(answer, silence_s=1.5)
            assert server.process.returncode is None
            answer.close()
        assert await asyncio.wait_for(server.process.wait(), PATIENCE_S) == 0


async def test_an_expired_drain_ends_the_process(serve):
    async with serve("--shutdown-timeout", "1", **SLOW) as server:
        tasks = await hang(server, 1)
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(server.process.wait(), PATIENCE_S) == 0
        with pytest.raises(aiohttp.ClientError):
            await tasks[0]


async def test_an_idle_engine_stops_at_once(serve):
    async with serve() as server:
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(server.process.wait(), PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--no-such-flag"], 2, "unrecognized arguments"),
        (["--sim-costs", "{}"], 1, "breakeven: --sim-costs: step: is missing"),
        (["--speculative-config", '{"method":"ngram"}'], 1, "num_speculative_tokens is missing"),
        (["--port", "99999"], 1, "breakeven: --host 127.0.0.1 --port 99999: bind(): port must be"),
    ],
)
async def test_what_cannot_start_says_so(arguments, status, message):
    await refused(arguments, status, message)


async def test_a_taken_port_is_known_before_the_start_up():
    with socket.socket() as taken:
        taken.bind(("127.0.0.9", 0))
        taken.listen()
        port = taken.getsockname()[1]
        # The default engine would take 108 s to start.
        await refused(
            ["--host", "127.0.0.9", "--port", str(port)], 1, f"breakeven: --host 127.0.0.9 --port {port}: "
        )


async def refused(arguments: list[str], status: int, message: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "breakeven.cli", "engine-sim", "m", *arguments),
        stderr=asyncio.subprocess.PIPE,
    )
    _, error = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == status
    assert message in error.decode()
    if status == 1:
        lines = [line for line in error.decode().splitlines() if not line.startswith("INFO")]
        assert len(lines) == 1
