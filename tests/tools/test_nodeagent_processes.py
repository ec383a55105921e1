"""Containers' processes: what they see, how they end, and that nothing of them stays."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from fakes.node_pods import make_pod
from localcluster.nodeagent import (
    container_actions,
    isolation,
    probing,
)
from localcluster.nodeagent.images import Preload
from localcluster.nodeagent.mounts import Bind
from localcluster.nodeagent.podspec import ExecAction, HttpAction, SleepAction, TcpAction
from localcluster.nodeagent.preloading import ForkServers
from localcluster.nodeagent.processes import Launch, Process, StartError

ENV = {"PATH": os.defpath}
# Against hanging only: a busy machine is no failure.
PATIENCE_S = 60


@pytest.fixture
async def isolated(tmp_path):
    found = await isolation.detect(tmp_path)
    if not found.allowed:
        pytest.skip(f"no user namespaces on this machine: {found.reason}")

    def root(*binds, read_only=False, uid=0, image=None):
        return isolation.container_root(
            tmp_path / "root",
            binds,
            image,
            read_only=read_only,
            uid=uid,
            gid=uid,
            hostname="chat-0",
        )

    return root


async def start(script, root=None, out=None, **more):
    with output(out) as file:
        return await Process.start(Launch(["sh", "-c", script], ENV, "/", root=root, **more), file.fileno())


def top_level():
    return set(Path("/").iterdir())


def output(path):
    return Path(path or os.devnull).open("wb")


async def said(tmp_path, script, root=None):
    process = await start(script, root, tmp_path / "out")
    assert await process.exited() == 0, (tmp_path / "out").read_text()
    return (tmp_path / "out").read_text().split("\n")[:-1]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(pid):
    # No signal announces the end of a process that is not one's child.
    deadline = time.monotonic() + PATIENCE_S
    while alive(pid) and time.monotonic() < deadline:  # noqa: ASYNC110 - no event to wait for, as said
        await asyncio.sleep(0.01)
    assert not alive(pid)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
async def test_exit_codes(script, code):
    assert await (await start(script)).exited() == code


async def test_a_command_that_does_not_exist_and_one_that_may_not_be_executed(tmp_path):
    (tmp_path / "data").write_text("x")
    for argv, message in [
        (["no-such-program"], "no such file"),
        ([str(tmp_path / "data")], "Permission denied"),
    ]:
        with pytest.raises(StartError, match=message):
            await Process.start(Launch(argv, ENV, "/"), 2)
    with pytest.raises(StartError, match="/no/such/folder"):
        await Process.start(Launch(["true"], ENV, "/no/such/folder"), 2)


async def test_a_container_has_only_the_environment_it_was_given(tmp_path):
    lines = await said(tmp_path, "env")
    assert [line for line in lines if not line.startswith(("PWD=", "SHLVL=", "_=", "OLDPWD="))] == [
        f"PATH={os.defpath}"
    ]


async def test_a_container_sees_its_volumes_user_and_name(tmp_path, isolated):
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "weights").write_text("42")
    before = top_level()
    root = isolated(
        Bind(str(volume), "/models/chat", read_only=True, is_dir=True),
        Bind(str(volume), "/models/chat-rw", read_only=False, is_dir=True),
        Bind(str(volume / "weights"), "/etc/breakeven/weights", read_only=True, is_dir=False),
        uid=1234,
    )  # fmt: skip
    script = (
        "cat /models/chat/weights; echo; id -u; uname -n; cat /etc/breakeven/weights; echo; test -e /etc/hosts && echo hosts;"
        "touch /models/chat/x 2>/dev/null || echo read-only; touch /models/chat-rw/new && echo writable; mkdir /scratch"
    )
    lines = await said(tmp_path, script, root)
    assert lines == ["42", "1234", "chat-0", "42", "hosts", "read-only", "writable"]
    assert (volume / "new").exists()
    assert top_level() == before


def small_image(folder, *programs):
    """A root file system with these programs and their libraries, as an image has them."""
    for program in programs:
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for path in [program, *(word for word in listed.split() if word.startswith("/"))]:
            target = folder / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(Path(path).read_bytes())
            target.chmod(0o755)
    (folder / "etc").mkdir()
    (folder / "etc" / "image-release").write_text("small")
    # An absolute link means the image's root.
    (folder / "run" / "here").mkdir(parents=True)
    (folder / "var").mkdir()
    (folder / "var" / "run").symlink_to("/run")
    return folder


async def test_an_image_with_a_root_of_its_own_shows_nothing_of_this_machine(tmp_path, isolated):
    image = small_image(tmp_path / "image", "/bin/sh", "/bin/cat", "/bin/ls")
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "token").write_text("t")
    before = sorted(path for path in image.rglob("*"))
    binds = [
        Bind(str(volume), "/var/run/secrets", read_only=True, is_dir=True),
        Bind(str(volume), "/tmp", read_only=False, is_dir=True),
    ]
    root = isolated(*binds, image=image, read_only=True, uid=65532)
    script = (
        "cat /etc/image-release; echo; cat /var/run/secrets/token; echo; echo x > /tmp/new; (echo x > /etc/new) 2>/dev/null || echo read-only;"
        f"test -e {sys.prefix} || echo not-here; test -e /etc/passwd || echo no-passwd; echo x > /dev/null; test -d /proc/self && ls /run"
    )
    lines = await said(tmp_path, script, root)
    assert lines == ["small", "t", "read-only", "not-here", "no-passwd", "here", "secrets"]
    assert (volume / "new").exists()
    assert sorted(path for path in image.rglob("*")) == before


async def test_a_read_only_root(tmp_path, isolated):
    volume = tmp_path / "volume"
    volume.mkdir()
    root = isolated(Bind(str(volume), "/notes", read_only=False, is_dir=True), read_only=True)
    script = f"for d in / /etc {tmp_path} /notes /dev/shm; do touch $d/x 2>/dev/null && echo $d; done; echo x > /dev/null && echo null"
    assert await said(tmp_path, script, root) == ["/notes", "/dev/shm", "null"]


async def test_what_a_container_started_ends_with_it_even_in_another_session(tmp_path, isolated):
    process = await start(
        "setsid sleep 60 & echo $!; sleep 60 & echo $!; echo done; exit 3", isolated(), tmp_path / "out"
    )
    assert await process.exited() == 3
    first, second, _ = (tmp_path / "out").read_text().split()
    await gone(first)
    await gone(second)


async def test_without_a_root_of_its_own_a_command_s_group_ends_with_it(tmp_path):
    process = await start("sleep 60 & echo $!; exit 3", out=tmp_path / "out")
    assert await process.exited() == 3
    await gone((tmp_path / "out").read_text().strip())


async def test_one_container_s_end_leaves_the_others_alone(isolated):
    """A namespace's number is reused at once: a look-up after the end would kill the next container."""
    ended = [await start("exit 0", isolated()) for _ in range(8)]
    others = [await start("sleep 60", isolated()) for _ in range(8)]
    for process in ended:
        await process.exited()
    await asyncio.sleep(0.05)
    assert all(process.running for process in others)
    for process in others:
        process.kill()
        assert await process.exited() == 137


async def test_a_command_in_a_running_container(tmp_path, isolated):
    volume = tmp_path / "volume"
    volume.mkdir()
    main = await start("sleep 60", isolated(Bind(str(volume), "/inside", read_only=False, is_dir=True)))
    inner = await start("touch /inside/seen && uname -n", out=tmp_path / "out", join=main.pid)
    assert await inner.exited() == 0
    assert (volume / "seen").exists()
    assert (tmp_path / "out").read_text() == "chat-0\n"
    assert main.running
    main.kill()
    await main.exited()


# os.write: what two processes say to one pipe must not mingle, however Python buffers.
ORPHAN = r"import os, time; os.setsid(); os.fork() and os._exit(0); os.write(1, b'%d\n' % os.getpid()); time.sleep(60)"
GUARDED = r"""
import os, subprocess, sys, time
from localcluster.nodeagent import warden
def agent():
    subprocess.run([sys.executable, "-c", sys.argv[1]])
    os.write(1, b"ready\n")
    {rest}
    return 5
warden.guard(agent)
"""


@pytest.mark.parametrize(
    ("rest", "end", "code"),
    [("pass", None, 5), ("time.sleep(60)", "agent", 247), ("time.sleep(60)", "warden", None)],
)
def test_nothing_outlives_the_warden_s_agent(rest, end, code):
    env = {**os.environ, "PYTHONPATH": "."}
    guard = subprocess.Popen(
        [sys.executable, "-c", GUARDED.format(rest=rest), ORPHAN], stdout=subprocess.PIPE, text=True, env=env
    )
    with guard.stdout:
        # In either order: the orphan is on its own.
        lines = {guard.stdout.readline().strip() for _ in range(2)}
        assert "ready" in lines
        (orphan,) = lines - {"ready"}
    children = Path(f"/proc/{guard.pid}/task/{guard.pid}/children").read_text().split()
    agent = next((pid for pid in children if pid != orphan), None)
    if end == "agent":
        os.kill(int(agent), signal.SIGKILL)
    elif end == "warden":
        os.kill(guard.pid, signal.SIGTERM)
    guard.wait(PATIENCE_S)
    if code is not None:
        assert guard.returncode == code
    deadline = time.monotonic() + PATIENCE_S
    while any(map(alive, [orphan, *children])) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(alive, [orphan, *children]))


async def test_a_start_that_is_cancelled_leaves_no_process(tmp_path, monkeypatch):
    started = []

    def spawn_and_cancel(*given, spawn=os.posix_spawn, **options):
        started.append(spawn(*given, **options))
        starting.cancel()
        return started[0]

    monkeypatch.setattr(os, "posix_spawn", spawn_and_cancel)
    starting = asyncio.ensure_future(start("sleep 600"))
    with pytest.raises(asyncio.CancelledError):
        await starting
    await gone(started[0])


class Inside:
    pod_ip = "127.0.0.1"

    def command(self, argv):
        return Launch(list(argv), ENV, "/")


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as made:
        yield made


@pytest.fixture
async def server():
    async def answer(request):
        if request.headers.get("X-Key") != "s3cret":
            return web.Response(status=401)
        return web.Response(status=int(request.query.get("status", "200")), headers={"Location": "/nowhere"})

    app = web.Application()
    app.router.add_get("/health", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@pytest.mark.parametrize(
    ("query", "headers", "ok", "output"),
    [
        ("", (("X-Key", "s3cret"),), True, ""),
        ("?status=302", (("X-Key", "s3cret"),), True, ""),
        ("?status=503", (("X-Key", "s3cret"),), False, "HTTP probe failed with statuscode: 503"),
        ("", (), False, "HTTP probe failed with statuscode: 401"),
    ],
)
async def test_http(session, server, query, headers, ok, output):
    action = HttpAction(None, server, f"/health{query}", "http", headers)
    assert await container_actions.perform(
        action, Inside(), session, PATIENCE_S
    ) == container_actions.ActionResult(ok=ok, output=output)


async def test_commands_connections_and_timeouts(session, server):
    async def perform(action, timeout_s=PATIENCE_S):
        result = await container_actions.perform(action, Inside(), session, timeout_s)
        return result.ok, result.output

    assert await perform(ExecAction(("true",))) == (True, "")
    assert await perform(ExecAction(("sh", "-c", "echo why; exit 1"))) == (False, "why\n")
    assert await perform(ExecAction(("sh", "-c", "exit 4"))) == (False, "exit code 4")
    assert (await perform(ExecAction(("no-such-program",))))[0] is False
    assert await perform(ExecAction(("sleep", "60")), 0.2) == (False, "timed out after 0.2s")
    assert await perform(TcpAction(None, server)) == (True, "")
    assert (await perform(TcpAction("127.0.0.1", 1)))[0] is False
    assert await perform(SleepAction(0.01)) == (True, "")


class Listener:
    def __init__(self):
        self.heard = []
        self.news = asyncio.Event()

    def _note(self, *what):
        self.heard.append(what)
        self.news.set()

    def on_started(self):
        self._note("started")

    def on_ready(self, *, ready):
        self._note("ready", ready)

    def on_unhealthy(self, kind, output):
        self._note("unhealthy", kind)

    def on_dead(self, kind, probe):
        self._note("dead", kind)

    async def until(self, *what):
        async with asyncio.timeout(PATIENCE_S):
            while what not in self.heard:
                self.news.clear()
                await self.news.wait()


def probed(tmp_path, **probes):
    def probe(name):
        return {
            "exec": {"command": ["test", "-e", str(tmp_path / name)]},
            "periodSeconds": 0.02,
            "failureThreshold": 2,
        }

    names = {"startupProbe": "up", "readinessProbe": "ready", "livenessProbe": "live"}
    body = {field: {**probe(names[field]), **more} for field, more in probes.items()}
    return make_pod(containers=[{"name": "main", **body}]).container("main")


async def watching(container, session):
    listener = Listener()
    return listener, asyncio.ensure_future(probing.watch(container, Inside(), session, listener))


async def test_probes_gate_each_other_and_report_changes(tmp_path, session):
    container = probed(tmp_path, startupProbe={"failureThreshold": 1000}, readinessProbe={}, livenessProbe={})
    (tmp_path / "live").touch()
    listener, task = await watching(container, session)
    await listener.until("unhealthy", "Startup")
    assert ("started",) not in listener.heard
    (tmp_path / "up").touch()
    await listener.until("started")
    await listener.until("ready", False)
    (tmp_path / "ready").touch()
    await listener.until("ready", True)
    assert ("dead", "liveness") not in listener.heard
    failures = listener.heard.count(("unhealthy", "Readiness"))
    (tmp_path / "live").unlink()
    await listener.until("dead", "liveness")
    # Readiness was probed all the while, and only its changes were reported.
    assert [what for what in listener.heard if what[0] == "ready"] == [("ready", False), ("ready", True)]
    assert listener.heard.count(("unhealthy", "Readiness")) == failures
    task.cancel()


async def test_a_startup_probe_that_gives_up_ends_the_watch(tmp_path, session):
    listener, task = await watching(probed(tmp_path, startupProbe={}, readinessProbe={}), session)
    await asyncio.wait_for(task, PATIENCE_S)
    assert listener.heard == [("unhealthy", "Startup"), ("unhealthy", "Startup"), ("dead", "startup")]


async def test_without_probes_a_container_is_started_and_ready_at_once(tmp_path, session):
    listener, task = await watching(probed(tmp_path), session)
    await task
    assert listener.heard == [("started",), ("ready", True)]


PROGRAM = r"""
import json, os, signal, sys
json.load  # imported once, by the server
print(json.dumps({
    "argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd(), "uid": os.getuid(), "host": os.uname().nodename,
    "imported": "colorsys" in sys.modules, "cmdline": open("/proc/self/cmdline").read().split("\0"),
    "leader": os.getsid(0) == os.getpid(), "fds": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "sigpipe": signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN, "stdin": os.readlink("/proc/self/fd/0"),
}))
sys.exit(int(os.environ.get("CODE", "0")))
"""


class Forked:
    """Starts a program as forks of a server that has imported."""

    def __init__(self, program, servers):
        self.program = program
        self.preload = Preload((str(program),), ("json", "colorsys"))
        self.servers = servers

    @property
    def server(self):
        return self.servers.ready_for(self.preload)

    async def __call__(self, *words, out=None, **more):
        fields = {"env": ENV, "cwd": "/", "preload": self.preload} | more
        with output(out) as file:
            launch = Launch([str(self.program), *words], **fields)
            return await Process.start(launch, file.fileno(), self.servers)


@pytest.fixture
async def forked(tmp_path):
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\n{PROGRAM}")
    program.chmod(0o755)
    found = Forked(program, ForkServers())
    async with asyncio.timeout(PATIENCE_S):
        while found.server is None:  # noqa: ASYNC110 - it says so on a socket of its own
            await asyncio.sleep(0.01)
    yield found
    found.servers.close()


async def test_a_fork_is_what_a_start_would_be(tmp_path, isolated, forked):
    volume = tmp_path / "volume"
    volume.mkdir()
    root = isolated(Bind(str(volume), "/models", read_only=True, is_dir=True), uid=1234)
    env = {**ENV, "CODE": "7", "NAME": "chat"}
    found = {}
    for kind, preload in (("forked", {}), ("started", {"preload": None})):
        process = await forked(
            "serve", "a model", out=tmp_path / kind, env=env, cwd="/models", root=root, **preload
        )
        assert await process.exited() == 7
        found[kind] = json.loads((tmp_path / kind).read_text())
        found[kind]["cmdline"] = [word for word in found[kind]["cmdline"] if word]
    assert [found[kind].pop("imported") for kind in ("forked", "started")] == [True, False]
    assert found["forked"] == found["started"]
    assert (found["forked"]["uid"], found["forked"]["host"], found["forked"]["cwd"]) == (
        1234,
        "chat-0",
        "/models",
    )


async def test_a_fork_ends_by_its_signal_and_with_its_server(forked, tmp_path):
    (tmp_path / "program").write_text(f"#!{sys.executable}\nimport time; time.sleep(600)")
    killed, left = await forked(), await forked()
    killed.signal(signal.SIGTERM)
    assert await killed.exited() == 143
    os.kill(forked.server.pid, signal.SIGKILL)
    assert await left.exited() == 137
    (tmp_path / "program").write_text(f"#!{sys.executable}\nraise SystemExit(3)")
    assert await (await forked()).exited() == 3


async def test_a_fork_whose_container_cannot_be_made_says_why(forked, tmp_path):
    with pytest.raises(StartError, match="/no/such/folder"):
        await forked(cwd="/no/such/folder")
    (tmp_path / "program").unlink()
    with pytest.raises(StartError, match="no such file"):
        await forked()
