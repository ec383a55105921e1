"""A cluster answers a newcomer within the minute that the README says, on real parts and by the clock.

Of the other ways to begin two are in tests/golden/test_newcomers_path.py; the demo is a stage of `make test-thorough`, which ends it after 16 minutes.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from demo.earlier_hours import WINDOW_S, past_of
from localcluster import LocalCluster
from localcluster.binaries import ensure
from localcluster.free_ports import free_ports

# Product files whose change runs these tests at the next landing.
COVERS = ("docs/install.md", "examples/minimal.yaml")

ROOT = Path(__file__).parents[2]
COSTS = ROOT / "examples" / "engine-costs" / "demo.json"
MINIMAL = ROOT / "examples" / "minimal.yaml"
TRIED = "{name: eagle, method: eagle3, model: AngelSlim/Qwen3-8B_eagle3, draftLengths: [3]}"
PAST_ENDED_S = 1800
USED_S, FIRST_ROW_S = 170.0, 60.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}/tests:{ROOT}"}


def commands(text):
    """Commands of a page's consoles, lines ending in a backslash joined."""
    blocks = "".join(re.findall(r"```console\n(.*?)```", text, re.DOTALL))
    found = re.findall(r"^\$ ((?:.*\\\n)*.*)$", blocks, re.MULTILINE)
    return [shlex.split(one.replace("\\\n", " ")) for one in found]


def cells(table):
    """A row of kubectl's table by its columns' names."""
    head, row = table.splitlines()
    begins = [found.start() for found in re.finditer(r"(?<!\S)(?:\S+ ?)+", head)]
    ends = [*begins[1:], len(row) + 1]
    return {head[a:b].strip(): row[a:b].strip() for a, b in zip(begins, ends, strict=True)}


@pytest.fixture(scope="module")
def cluster():
    """Two nodes and a Prometheus that holds two hours of the target's past."""
    (target, _) = yaml.safe_load_all((ROOT / "examples" / "vllm-h100.yaml").read_text())
    end_s = int(time.time() - PAST_ENDED_S) // WINDOW_S * WINDOW_S
    with LocalCluster() as running:
        running.start_nodes(environment={"BREAKEVEN_SIM_COSTS": str(COSTS)})
        past = past_of(COSTS, "NVIDIA-H100-80GB-HBM3", target["metadata"]["name"], "code", end_s)
        running.start_prometheus(scrape_interval_s=5.0, past=past)
        yield running


@contextlib.contextmanager
def users(cluster):
    """People ask the target, and have done so for half a window: a pod that has just begun has no figures."""
    words = [
        sys.executable,
        "-m",
        "demo.load",
        "code",
        "2",
        "--seconds=600",
        f"--kubeconfig={cluster.kubeconfig}",
    ]
    asking = subprocess.Popen(words, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    try:
        time.sleep(USED_S)
        yield
    finally:
        asking.send_signal(signal.SIGINT)
        asking.wait()


def test_a_cluster_answers_within_a_minute_of_ten_lines_of_yaml(cluster, tmp_path):
    def said(words):
        done = subprocess.run(
            words, cwd=ROOT, env=cluster.environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    # The method of which the past holds an hour, in place of the page's.
    minimal, (text, changed) = (
        tmp_path / "minimal.yaml",
        re.subn(r"- \{name: lookup.*", f"- {TRIED}", MINIMAL.read_text()),
    )
    minimal.write_text(text)
    assert changed == 1
    programs = ensure(["helm", "kubectl"])
    second, third = (ROOT / "docs" / "install.md").read_text().split("\n## ")[3:5]
    install, named = commands(second)[0], commands(third)
    # Of the page's values the image is not there, and Prometheus is elsewhere; all pods of this machine share its loopback.
    own = [f"--set=prometheus.address={cluster.prometheus_url}", f"--set=board.port={free_ports(1)[0]}"]
    said([programs["helm"], *install[1:], *own])
    kubectl = str(programs["kubectl"])
    ready = [kubectl, "rollout", "status", "--timeout=180s"]
    said([*ready, "--namespace=breakeven", "deployment/breakeven"])
    *workload, _, look = [[kubectl, *words[1:]] for words in named[:4]]
    for words in workload:
        said(words)
    said([*ready, "--namespace=llm", "deployment/code-vllm"])
    with users(cluster):
        said([kubectl, "apply", "--namespace=llm", f"--filename={minimal}"])
        asked_s = time.monotonic()
        while True:
            table = said(look)
            row = cells(table) if table else {}
            took_s = time.monotonic() - asked_s
            if row.get("PAYS", "") not in {"", "?"} or took_s > 2 * FIRST_ROW_S:
                break
            time.sleep(1.0)
    assert row["PAYS"] == "Yes (past)", table
    assert took_s < FIRST_ROW_S, table
    assert (row["NAME"], row["MODE"]) == ("code", "Recommend")
