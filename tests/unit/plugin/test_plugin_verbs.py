"""Verbs with a kubectl that notes what it is asked: options are passed on, its refusals are one line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from breakeven.errors import BreakevenError
from breakeven_operator.packed import whole
from breakeven_operator.plugin.examined import examined, past_of, prometheus_of
from breakeven_operator.plugin.plugin_commands import completions, root
from breakeven_operator.plugin.service_view import ServiceView
from breakeven_operator.workloads.known import DeploymentKind, StatefulSetKind

_KUBECTL = """#!/bin/sh
printf '%s\\n' "$*" >> "{folder}/asked"
case "$*" in
*refused*) echo 'Error from server (Forbidden): specsvc "refused" is forbidden:' >&2; echo '  cannot patch' >&2; exit 1;;
"config view"*) printf 'chats';;
*"--selector=team=nobody"*) echo '{{"items": []}}';;
"get leases"*"--context=leads"*) cat "{folder}/leases";;
"get leases"*) echo 'Error from server (Forbidden): leases' >&2; exit 1;;
"get speculativeservices.breakeven.dev --"*) echo '{{"items": ['; cat "{folder}/service"; echo ']}}';;
*speculativeservices*) cat "{folder}/service";;
"get service/prometheus "*) echo service/prometheus;;
"get pods"*) cat "{folder}/pods";;
"port-forward"*) echo 'Forwarding from 127.0.0.1:40001 -> 8081'; echo 'Handling connection for 40001';;
"get Deployment"*) cat "{folder}/target";;
"get speculationprofiles"*) cat "{folder}/profile";;
*) echo "error: what is $*" >&2; exit 1;;
esac
"""


class Verbs:
    """Runs verbs; `asked` are the calls of kubectl."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, *words):
        done = CliRunner().invoke(root, list(words), catch_exceptions=True)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.output

    @property
    def asked(self):
        file = self.folder / "asked"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def verbs(tmp_path, monkeypatch, recommending):
    program = tmp_path / "kubectl"
    program.write_text(_KUBECTL.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    target = recommending.cluster.objects["deployments", "llm", "chat-vllm"]
    profile = recommending.cluster.objects["speculationprofiles", "llm", "chat-p1"]
    for name, found in (("service", recommending.service), ("target", target), ("profile", profile)):
        (tmp_path / name).write_text(json.dumps(found, default=str))
    return Verbs(tmp_path)


def test_status_of_one_of_all_and_as_json(verbs):
    assert "eagle/3" in verbs("status", "chat", "-n", "llm", "--context=here", "--kubeconfig", "/k")
    assert verbs.asked[0] == (
        "get speculativeservices.breakeven.dev chat --namespace=llm --output=json --context=here --kubeconfig=/k"
    )
    assert verbs("status", "-A").startswith("NAMESPACE")
    assert "get speculativeservices.breakeven.dev --all-namespaces --output=json" in verbs.asked
    assert json.loads(verbs("status", "--json"))["services"][0]["recommended"] == "eagle/3"


def test_explain_export_and_diff(verbs):
    assert "What it waits for" in verbs("explain", "chat")
    assert yaml.safe_load(verbs("export", "chat"))["kind"] == "Deployment"
    assert "get Deployment.v1.apps chat-vllm --namespace=llm --output=json" in verbs.asked
    assert "+++ Deployment/chat-vllm should run eagle/3" in verbs("diff", "chat")


def test_a_receipt_has_the_patch_in_it_or_beside_it(verbs, tmp_path):
    text = verbs("export", "chat", "--receipt")
    assert yaml.safe_load(text.split("```yaml\n")[1].removesuffix("```\n"))["kind"] == "Deployment"
    file = tmp_path / "pr.md"
    assert yaml.safe_load(verbs("export", "chat", "--receipt", "-o", str(file)))["kind"] == "Deployment"
    assert "## At stake" in file.read_text()
    assert "```" not in file.read_text()
    with pytest.raises(AssertionError, match="--output goes with --receipt"):
        verbs("export", "chat", "-o", str(file))


@pytest.mark.parametrize(
    ("words", "patch", "said"),
    [
        (["pause", "chat"], {"spec": {"paused": True}}, "paused"),
        (["resume", "chat"], {"spec": {"paused": False}}, "resumed"),
        (
            ["pin", "chat", "none"],
            {"spec": {"updatePolicy": {"pinnedArm": "none"}}},
            "pinned to no speculation",
        ),
        (
            ["unpin", "chat"],
            {"spec": {"updatePolicy": {"pinnedArm": None}}},
            "not pinned, figures decide",
        ),
    ],
)
def test_a_change_is_one_merge_patch(verbs, words, patch, said):
    assert verbs(*words, "-n", "llm").startswith(f"speculativeservice/chat {said}\n")
    assert " ".join(verbs.asked) == (
        "patch speculativeservices.breakeven.dev chat --namespace=llm --type=merge "
        f"--field-manager=kubectl-breakeven --patch={json.dumps(patch)} --output=json"
    )


def two_services(folder):
    """kubectl finds chat, and a service that may not be changed."""
    service = json.loads((folder / "service").read_text())
    other = {**service, "metadata": {**service["metadata"], "name": "refused"}}
    (folder / "service").write_text(json.dumps(other) + "," + json.dumps(service))


@pytest.mark.parametrize(("words", "asked"), [(["--all"], ""), (["-l", "team=a"], " --selector=team=a")])
def test_a_selection_is_paused_and_a_refusal_about_one_does_not_keep_the_others(verbs, words, asked):
    two_services(verbs.folder)
    done = CliRunner().invoke(root, ["pause", *words, "-n", "llm"])
    assert verbs.asked[0] == (f"get speculativeservices.breakeven.dev --namespace=llm{asked} --output=json")
    assert [line.split()[:3] for line in verbs.asked[1:]] == [
        ["patch", "speculativeservices.breakeven.dev", name] for name in ("refused", "chat")
    ]
    assert done.exit_code == 1
    assert '! refused: Error from server (Forbidden): specsvc "refused" is forbidden' in done.stderr


def test_a_selection_is_printed_as_one_stream_of_manifests(verbs):
    two_services(verbs.folder)
    printed = verbs("resume", "--all", "--dry-run=client")
    assert [one["metadata"]["name"] for one in yaml.safe_load_all(printed)] == ["refused", "chat"]


def test_nothing_found_says_where_it_was_looked_for(verbs):
    (verbs.folder / "service").write_text("")
    assert verbs("status") == "no SpeculativeService in namespace chats; -A looks in all namespaces\n"
    assert verbs("status", "-n", "llm").startswith("no SpeculativeService in namespace llm;")
    assert verbs("status", "-A") == "no SpeculativeService in any namespace\n"
    done = CliRunner().invoke(root, ["pause", "-l", "team=nobody"])
    assert str(done.exception) == (
        "namespace chats: has no SpeculativeService with team=nobody; expected one at least"
    )


def test_annotations_get_a_value_of_now(verbs):
    verbs("recalibrate", "chat")
    verbs("resume", "chat", "--retry", "--dry-run=server")
    asked, resumed = verbs.asked
    assert '{"metadata": {"annotations": {"breakeven.dev/recalibrate": "20' in asked
    assert '"breakeven.dev/resume": "20' in resumed
    assert '"paused": false' in resumed
    assert "--dry-run=server" in resumed


def test_a_dry_run_of_the_client_asks_nobody(verbs):
    pinned = yaml.safe_load(verbs("pin", "chat", "eagle/3", "-n", "llm", "--dry-run=client", "-o", "yaml"))
    assert pinned["spec"] == {"updatePolicy": {"pinnedArm": "eagle/3"}}
    assert json.loads(verbs("pause", "chat", "--dry-run=client", "-o", "json"))["spec"] == {"paused": True}
    assert verbs.asked == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pin", "chat"], "Missing argument 'ARM'"),
        (["pause"], "expected one of SERVICE, --selector and --all"),
        (["resume", "chat", "-l", "team=a"], "expected one of SERVICE, --selector and --all"),
        (["stauts"], "Did you mean 'status'?"),
        (["pause", "chat", "-o", "yaml"], "--output goes with --dry-run=client"),
        (["status", "chat", "-A"], "leave --all-namespaces out"),
    ],
)
def test_wrong_usage_is_said_before_anybody_is_asked(verbs, words, said):
    done = CliRunner().invoke(root, words)
    assert (done.exit_code, said in done.output, verbs.asked) == (2, True, [])


def test_the_report_is_made_of_the_profile_in_force(verbs, tmp_path):
    page = tmp_path / "page.html"
    done = CliRunner().invoke(root, ["report", "chat", "--to", str(page)])
    assert done.exit_code == 0, done.output
    assert re.search(r"eagle/3 is 1\.79x \([0-9.]+ to [0-9.]+\) as fast as no speculation", page.read_text())
    assert "at 3 rps per replica" in page.read_text()


PROMETHEUS = "BREAKEVEN_PROMETHEUS_ADDRESS"


@contextlib.contextmanager
def answering_nothing():
    """A Prometheus without a series; yields its address."""

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self):
            kind = "matrix" if "query_range" in self.path else "vector"
            body = json.dumps({"status": "success", "data": {"resultType": kind, "result": []}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def names_prometheus(address, namespace="breakeven"):
    """A pod of an operator that asks this Prometheus."""
    environment = [{"name": PROMETHEUS, "value": address}]
    return {"metadata": {"namespace": namespace}, "spec": {"containers": [{"env": environment}]}}


@pytest.mark.parametrize(
    ("address", "forwarded", "asked"),
    [
        ("http://prometheus.monitoring:9090/p/", "--namespace=monitoring service/prometheus :9090", "http://127.0.0.1:40001/p"),
        ("http://prometheus.monitoring.svc.cluster.local.", "--namespace=monitoring service/prometheus :80", "http://127.0.0.1:40001"),
        ("http://prometheus:9090", "--namespace=breakeven service/prometheus :9090", "http://127.0.0.1:40001"),
        # No such Service.
        ("http://outside.example:9", None, "http://outside.example:9"),
        ("https://outside.example:9", None, "https://outside.example:9"),
        ("http://127.0.0.1:9", None, "http://127.0.0.1:9"),
    ],
)  # fmt: skip
def test_doctor_asks_the_prometheus_of_the_operator_about_the_pods_of_the_service(
    verbs, capfd, address, forwarded, asked
):
    (verbs.folder / "pods").write_text(json.dumps({"items": [names_prometheus(address)]}))
    done = CliRunner().invoke(root, ["doctor", "chat", "-n", "llm", "--timeout-seconds", "0.2"])
    said = capfd.readouterr().err
    assert (done.exit_code, said.count("\n"), asked in said) == (1, 1, True), said
    assert any(one.startswith("get pods --all-namespaces ") for one in verbs.asked)
    forwards = [one for one in verbs.asked if one.startswith("port-forward")]
    assert forwards == ([f"port-forward {forwarded} --address=127.0.0.1"] if forwarded else [])


def test_history_asks_about_the_pods_and_the_candidates_of_the_service(verbs, capfd):
    (verbs.folder / "pods").write_text(json.dumps({"items": [names_prometheus("http://127.0.0.1:9")]}))
    done = CliRunner().invoke(root, ["history", "chat", "-n", "llm", "--since=1d", "--timeout-seconds=0.2"])
    assert (done.exit_code, "http://127.0.0.1:9" in capfd.readouterr().err) == (1, True)
    words = list(past_of(ServiceView.of(json.loads((verbs.folder / "service").read_text()))))
    assert words[:5] == ["--match", "model_name=chat", "--match", "namespace=llm", "--match"]
    assert words[5].startswith(r"pod=~chat\-vllm-")
    assert "--gpu NVIDIA-A100-SXM4-80GB --arm eagle3/3" in " ".join(words)


@pytest.mark.parametrize(("words", "named"), [(["-n", "llm"], "{specsvc_namespace="), (["-A"], "{}")])
def test_savings_asks_the_prometheus_of_the_operator_about_the_services_of_a_namespace(
    verbs, capfd, words, named
):
    with answering_nothing() as address:
        (verbs.folder / "pods").write_text(json.dumps({"items": [names_prometheus(address)]}))
        done = CliRunner().invoke(root, ["savings", *words, "--since=2d", "-o", "csv"])
    said = capfd.readouterr().err
    assert (done.exit_code, f"no series breakeven_service_info{named}" in said) == (1, True), said
    done = CliRunner().invoke(root, ["savings", *words, "--prometheus=ftp://x"])
    assert (done.exit_code, "'ftp://x'" in capfd.readouterr().err) == (1, True)


def test_savings_says_that_no_operator_names_a_prometheus(verbs):
    (verbs.folder / "pods").write_text(json.dumps({"items": []}))
    done = CliRunner().invoke(root, ["savings", "-n", "llm"])
    assert "name no Prometheus, or may not be read; expected --prometheus" in str(done.exception)


def test_pods_of_the_operator_are_looked_for_where_its_lease_is(verbs, board):
    board([operator_pod("op-2")], "--context=leads")
    assert [line for line in verbs.asked if line.startswith("get pods")] == [
        "get pods --namespace=breakeven --selector=app.kubernetes.io/name=breakeven --output=json --context=leads"
    ]


def test_doctor_asks_the_prometheus_that_it_is_given_and_no_pod(verbs, capfd):
    done = CliRunner().invoke(root, ["doctor", "chat", "--prometheus=ftp://x"])
    assert (done.exit_code, "'ftp://x'" in capfd.readouterr().err) == (1, True)
    assert not [one for one in verbs.asked if "pods" in one or "port-forward" in one]


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ([], "chat: names no Prometheus, nor does a pod of the operator that you may read; expected --prometheus"),
        ([names_prometheus("http://a:1"), names_prometheus("http://b:1")], "and operators name several"),
        ([names_prometheus("https://prometheus.monitoring")], "its certificate is not for a forwarded port"),
    ],
)  # fmt: skip
def test_doctor_says_what_is_missing(verbs, pods, said):
    (verbs.folder / "pods").write_text(json.dumps({"items": pods}))
    done = CliRunner().invoke(root, ["doctor", "chat", "-n", "llm"])
    assert said in str(done.exception)


def test_doctor_judges_the_running_arm_by_the_profile_in_force(settled, fresh):
    service = ServiceView.of(settled.service)
    words = list(examined(service, lambda name: Path(f"{name}.json")))
    assert (words[:5], words[6:]) == (
        ["--model", "chat", "--namespace", "llm", "--match"],
        ["--profile", "chat-p1.json", "--method", "eagle", "--k", "3"],
    )
    assert "--profile" not in list(examined(ServiceView.of(fresh.service), Path))


def test_doctor_looks_at_the_series_that_the_operator_looks_at(settled):
    settled.service["spec"]["metricsSource"] = {
        "metricPrefix": "kserve_vllm:",
        "prometheus": {
            "address": "http://own.llm:1",
            "labelNames": {"pod": "exported_pod"},
            "extraMatchers": [{"label": "cluster", "value": "a"}],
        },
    }
    service = ServiceView.of(settled.service)
    words = list(examined(service, Path))
    pods = re.compile(words[5].removeprefix("pod=~"))
    assert pods.fullmatch("chat-vllm-7d9f8b6c5d-x2k4b")
    assert not pods.fullmatch("chat-vllm-large-7d9f8b6c5d-x2k4b")
    assert words[6:10] == ["--match", "cluster=a", "--metric-prefix", "kserve_vllm:"]
    assert prometheus_of(service, list).labels == ("pod=exported_pod",)


@pytest.mark.parametrize(
    ("kind", "name", "own", "others"),
    [
        (StatefulSetKind(), "chat", "chat-12", "chat-large-1"),
        (DeploymentKind(), "c" * 60, "c" * 57 + "7d9f8b6x2k4b", "d" * 60),
    ],
)
def test_pods_are_told_by_their_names_as_far_as_these_say_it(kind, name, own, others):
    assert re.fullmatch(kind.pods_of(name), own)
    assert not re.fullmatch(kind.pods_of(name), others)


def test_kubectl_completes_verbs_options_and_services(verbs):
    assert completions(["pa"]).splitlines() == [
        "pause\tChange and start nothing until resume.",
        ":4",
    ]
    assert completions(["explain", "-n", "llm", "c"]).splitlines() == ["chat", ":4"]
    assert any("--namespace=llm" in line for line in verbs.asked)
    assert completions(["explain", "refused"]) == ":4"


def started(folder, *words, path=None):
    """The program as kubectl starts it."""
    return subprocess.run(
        [sys.executable, "-m", "breakeven_operator.plugin", *words],
        env={**os.environ, "PATH": path or os.environ["PATH"]}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_refusal_is_one_line_and_status_1(verbs, tmp_path):
    done = started(tmp_path, "pause", "refused")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        'kubectl breakeven: Error from server (Forbidden): specsvc "refused" is forbidden: cannot patch\n'
    )


def test_what_kubectl_logs_does_not_hide_its_own_sentence(tmp_path):
    program = tmp_path / "kubectl"
    logged = (
        'E1130 10:21:02.529267 8949 memcache.go:265] "Unhandled Error" err="dial tcp: connection refused"'
    )
    sentence = "The connection to the server localhost:8080 was refused"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' '{logged}' '{logged}' '{sentence}' >&2\nexit 1\n")
    program.chmod(0o755)
    done = started(tmp_path, "status", path=f"{tmp_path}:{os.environ['PATH']}")
    assert (done.returncode, done.stderr) == (1, f"kubectl breakeven: {sentence}\n")


def test_without_kubectl_one_line_says_so(tmp_path):
    done = started(tmp_path, "status", path=str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "kubectl is not on PATH" in done.stderr


def test_an_answer_that_is_no_object_is_refused(tmp_path, monkeypatch):
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    done = CliRunner().invoke(root, ["explain", "chat"])
    assert isinstance(done.exception, BreakevenError)
    assert "printed 'hello'; expected a JSON object" in str(done.exception)


def test_help_needs_neither_models_nor_a_client():
    heavy = ("pydantic", "numpy", "scipy", "yaml", "rich", "kubernetes", "asyncio", "aiohttp")
    code = f"import sys, breakeven_operator.plugin.__main__; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_option_is_explained():
    silent = [
        (name, option.name)
        for name, command in root.commands.items()
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert silent == []


def operator_pod(name, release="breakeven", phase="Running", port="board"):
    return {
        "metadata": {
            "namespace": "breakeven",
            "name": name,
            "labels": {"app.kubernetes.io/instance": release},
        },
        "spec": {
            "containers": [
                {
                    "env": [{"name": "BREAKEVEN_BOARD_PATH_PREFIX", "value": "/b"}],
                    "ports": [
                        {"name": "metrics", "containerPort": 8080},
                        {"name": port, "containerPort": 8081},
                    ],
                }
            ]
        },
        "status": {"phase": phase},
    }


@pytest.fixture
def board(verbs, monkeypatch):
    """Runs the verb among these pods; what it printed, opened and asked, and how it ended."""
    opened: list[str] = []
    monkeypatch.setattr("click.launch", opened.append)

    def run(pods, *words):
        (verbs.folder / "pods").write_text(json.dumps({"items": pods}))
        lease = {
            "metadata": {"namespace": "breakeven", "name": "breakeven"},
            "spec": {"holderIdentity": "op-2_0f0f", "renewTime": "2026-11-26T10:00:00Z"},
        }
        (verbs.folder / "leases").write_text(json.dumps({"items": [lease]}))
        done = CliRunner().invoke(root, ["board", *words])
        return done.output, opened, str(done.exception)

    return run


def test_board_forwards_a_port_to_the_pod_that_leads_and_prints_the_address(verbs, board):
    printed, opened, ended = board([operator_pod("op-1"), operator_pod("op-2")], "--context=leads", "--open")
    assert printed == "http://127.0.0.1:40001/b/\n"
    assert opened == ["http://127.0.0.1:40001/b/"]
    assert ended == "kubectl port-forward has ended; its message stands above"
    assert verbs.asked[-1] == (
        "port-forward --namespace=breakeven pod/op-2 :8081 --address=127.0.0.1 --context=leads"
    )


def test_board_without_a_lease_takes_a_pod_that_runs(verbs, board):
    board([operator_pod("op-0", phase="Pending"), operator_pod("op-1")], "--port=9000", "-n", "breakeven")
    assert verbs.asked[1].startswith(
        "get pods --namespace=breakeven --selector=app.kubernetes.io/name=breakeven"
    )
    assert verbs.asked[-1] == "port-forward --namespace=breakeven pod/op-1 9000:8081 --address=127.0.0.1"


@pytest.mark.parametrize(
    ("pods", "words", "said"),
    [
        (
            [],
            (),
            "the operator's pods: serve no board; expected a running pod of a release with board.enabled",
        ),
        ([operator_pod("op-1", port="other")], (), "serve no board"),
        ([operator_pod("op-1")], ("--pod=op-9",), "op-9: serve no board"),
        (
            [operator_pod("op-1"), operator_pod("op-2", "second")],
            (),
            "--pod, one of breakeven/op-1, breakeven/op-2",
        ),
    ],
)
def test_board_says_what_is_missing(board, pods, words, said):
    assert said in board(pods, *words)[2]


def test_board_of_one_of_several_releases_is_chosen_by_its_pod(verbs, board):
    board([operator_pod("op-1"), operator_pod("op-2", "second")], "--pod=op-1")
    assert "pod/op-1" in verbs.asked[-1]


@pytest.fixture
def losing(verbs):
    """Verbs about a service whose arm loses."""
    service = json.loads((verbs.folder / "service").read_text())
    service["status"]["decision"] |= {"speedup": "0.8", "loadRps": "11"}
    (verbs.folder / "service").write_text(json.dumps(service))
    return verbs


def test_explain_reads_the_profile_only_of_a_service_that_loses(verbs):
    verbs("explain", "chat")
    assert not any("speculationprofiles" in line for line in verbs.asked)


def test_explain_of_a_losing_arm_asks_breakeven_what_it_would_take(losing):
    said = losing("explain", "chat")
    assert "Acceptance: eagle/3 would pay from" in said
    assert "The load: eagle/3 would pay" not in said
    # Who may not read the profile, and whose law does not know the figures, reads the rest.
    service = (losing.folder / "service").read_text()
    impossible = json.loads(service)
    impossible["status"] = whole(impossible["status"])
    impossible["status"]["workings"]["memory"]["seen"] = [{"arm": "eagle/3", "tokensPerStep": "9"}]
    (losing.folder / "service").write_text(json.dumps(impossible))
    assert "Acceptance" not in losing("explain", "chat")
    (losing.folder / "service").write_text(service)
    (losing.folder / "profile").write_text("{}")
    assert "Acceptance" not in losing("explain", "chat")


def test_without_breakeven_one_line_says_what_is_missing(losing, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(losing.folder / "python3"))
    monkeypatch.setenv("PATH", f"{losing.folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    said = " ".join(losing("explain", "chat").split())
    assert "What it would take for eagle/3 to pay: see the board, or install the command `breakeven`" in said
    done = CliRunner().invoke(root, ["report", "chat"])
    assert "breakeven: is not on PATH" in str(done.exception)


def test_no_verb_imports_numpy(losing):
    page = str(losing.folder / "chat.html")
    verbs = [
        ["status", "-A"], ["status", "chat", "--json"], ["explain", "chat"], ["export", "chat"], ["diff", "chat"], ["pause", "chat"],
        ["resume", "chat", "--retry"], ["pin", "chat", "eagle/3"], ["recalibrate", "chat"], ["report", "chat", "--to", page],
        ["doctor", "chat", "--prometheus", "http://127.0.0.1:9"], ["history", "chat", "--prometheus", "http://127.0.0.1:9"],
        ["savings", "-n", "llm", "--prometheus", "http://127.0.0.1:9"],
        ["unpin", "chat"], ["pause", "--all"], ["board"],
    ]  # fmt: skip
    (losing.folder / "pods").write_text(json.dumps({"items": [operator_pod("op-1")]}))
    code = (
        "import sys; sys.modules['numpy'] = sys.modules['scipy'] = None\n"
        "from click.testing import CliRunner\n"
        "from breakeven_operator.plugin.plugin_commands import root\n"
        f"for words in {verbs!r}:\n"
        "    done = CliRunner().invoke(root, words)\n"
        "    print('>', words[0], done.exit_code, done.exception, flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ends = {
        "doctor": "1 1",
        "history": "1 1",
        "savings": "1 1",
        "board": "1 kubectl port-forward has ended; its message stands above",
    }
    ended = [line.removeprefix("> ") for line in done.stdout.splitlines() if line.startswith("> ")]
    assert ended == [f"{name} {ends.get(name, '0 None')}" for name, *_ in verbs]


def test_the_report_says_what_the_service_gains(verbs, tmp_path):
    page, service = tmp_path / "chat.html", json.loads((verbs.folder / "service").read_text())
    service["status"]["savings"] = {"message": "2 GPUs [1,3] not needed with eagle/3"}
    (verbs.folder / "service").write_text(json.dumps(service))
    assert CliRunner().invoke(root, ["report", "chat", "--to", str(page)]).exit_code == 0
    assert "2 GPUs [1,3] not needed with eagle/3" in page.read_text()
    assert (
        CliRunner().invoke(root, ["report", "chat", "--to", str(page), "--note", "<own> words"]).exit_code
        == 0
    )
    assert "&lt;own&gt; words" in page.read_text()
