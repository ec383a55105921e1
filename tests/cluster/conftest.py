"""One real cluster for the whole run, a namespace of its own for each test.

Fixtures (session unless said otherwise):

* `cluster`: control plane and two nodes (an A100 and an H100 one, 8 GPUs each).
* `prometheus`: its Prometheus' URL; scrapes and evaluates every second, with Alertmanager.
* `kube`: an API client of the `kubernetes` package, as administrator.
* `namespace` (per test): the name of a fresh namespace in which pods can be created; its pods have ended, and their
  GPUs are free, before the next test starts.
* `stage`, and `place` per test: another cluster, with the operator in it, and a namespace there (`operatorcluster`).
"""

from __future__ import annotations

import os
import re
import secrets
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

import kubernetes
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling, LoadScopeScheduling

from localcluster import LocalCluster, optional_controllers
from localcluster.account import account
from localcluster.binaries import ensure
from localcluster.catalog import CLIENTS, EVERYDAY, PUBLISHING, SOURCES
from operatorcluster.administrator import Administrator
from operatorcluster.fixtures import place, shows, stage  # noqa: F401 - fixtures of the operator's tests
from operatorcluster.optional import asked
from operatorcluster.stage import HOME, Place, Stage
from timekeeping.tiers import due_files

HERE = Path(__file__).parent
# Against hanging only: waits have limits of their own and say what they waited for.
TIMEOUT_S = 900
# Files that run in one process, one test after another; every other file is a group of its own.
GROUPS: Mapping[str, Sequence[str]] = {
    # Arms are measured there, in real time: two measurements at once would disturb each other on two cores.
    "measuring": (
        "test_operator_always_pays",
        "test_operator_calibration",
        "test_operator_decides",
        "test_operator_gate",
        "test_operator_killed",
        "test_operator_schedule",
    ),
    # They share the fixture `cluster`, which is worth starting once.
    "without-operator": ("test_event_series", "test_nodeagent", "test_watch_faults"),
}
# Roughly how long a file takes: groups that take longest begin first. Of others: a minute.
SECONDS: Mapping[str, int] = {
    "test_nodeagent": 90,
    "test_operator_annotation": 300,
    "test_operator_autoscaled": 200,
    "test_operator_calibration": 240,
    "test_operator_confirms": 250,
    "test_operator_deployments": 150,
    "test_operator_gate": 560,
    "test_operator_kserve": 600,
    # Before KServe's on any worker: its first test needs a cluster without the kind, which that one brings.
    "test_operator_lws": 610,
    "test_operator_rollouts": 200,
    "test_operator_metrics": 300,
    "test_history_on_prometheus": 240,
}


def group(stem: str) -> str:
    """The group of a file."""
    return next((name for name, files in GROUPS.items() if stem in files), stem)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    seconds: dict[str, int] = defaultdict(int)
    for stem in {item.path.stem for item in ours}:
        seconds[group(stem)] += SECONDS.get(stem, 60)
    for item in ours:
        item.add_marker(pytest.mark.cluster)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
    longest_first = sorted(ours, key=lambda item: (-seconds[group(item.path.stem)], group(item.path.stem)))
    items[:] = [item for item in items if not item.path.is_relative_to(HERE)] + longest_first


class GroupScheduling(LoadFileScheduling):
    """By group where `--dist=loadfile` goes by file."""

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.partition("::")[0])
        # One stage for all faults.
        return "faults" if file.parent.name == "faults" else group(file.stem)


# Not by marks and `--dist=loadgroup`: xdist writes these into the node's id, which pytest 9.2 does not let it.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    return GroupScheduling(config, log) if config.getoption("dist") == "loadfile" else None


# Controllers of kinds that not every cluster has, and servers in Prometheus' place; their tests are skipped if nobody asks for them
# and they were not built.
OPTIONAL = (
    *optional_controllers.NAMES,
    *(program.name for bundle in (*SOURCES, *CLIENTS) for program in bundle.programs),
)
# A quarter of an hour for one file: for whoever wants all built, and for no landing.
AT_A_RELEASE = tuple(program.name for bundle in PUBLISHING for program in bundle.programs)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("tier") == "landing" and not os.environ.get("BREAKEVEN_CONTROLLERS"):
        texts = [file.read_text(encoding="utf-8") for file in due_files()]
        # Before the tests are imported: whether they are skipped is known then.
        os.environ["BREAKEVEN_CONTROLLERS"] = ",".join(
            name for name in OPTIONAL if any(name in text or name.replace("-", "_") in text for text in texts)
        )
    # Of several processes the first: it runs no test, and what the others print while they build is seen by nobody.
    if config.getoption("numprocesses", None) and not config.option.collectonly:
        ensure((*EVERYDAY, *asked((*OPTIONAL, *AT_A_RELEASE))))


def pytest_collection_finish(session: pytest.Session) -> None:
    # Here and not in a fixture: a first build takes minutes, and a fixture's time counts as its test's.
    wanted = any(item.path.is_relative_to(HERE) for item in session.items)
    if wanted and not session.config.option.collectonly:
        capture = session.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            ensure((*EVERYDAY, *asked((*OPTIONAL, *AT_A_RELEASE))))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure includes its cluster's account, because nobody can ask the cluster later."""
    report = yield
    if report.failed and report.when != "teardown":
        given = getattr(item, "funcargs", {})
        known = given.values()
        clusters = {id(found): found for found in map(_cluster_of, known) if found is not None}
        for found in clusters.values():
            own = (place.name for place in known if isinstance(place, Place))
            names = (given["namespace"],) if "namespace" in given else tuple(own)
            report.sections.append(("cluster", account(found, (*names, HOME))))
    return report


def _cluster_of(value: object) -> LocalCluster | None:
    match value:
        case LocalCluster():
            return value
        case Stage():
            return value.cluster
        case Place():
            return value.stage.cluster
    return None


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        running.start_nodes()
        yield running


@pytest.fixture(scope="session")
def prometheus(cluster: LocalCluster) -> str:
    cluster.start_prometheus(scrape_interval_s=1.0)
    return cluster.prometheus_url


@pytest.fixture(scope="session")
def kube(cluster: LocalCluster) -> Iterator[kubernetes.client.ApiClient]:
    with kubernetes.config.new_client_from_config(str(cluster.kubeconfig)) as client:
        yield client


@pytest.fixture(scope="module")
def administrator(cluster: LocalCluster) -> Iterator[Administrator]:
    # Of the module: some have a cluster of their own.
    with Administrator(cluster) as api:
        yield api


@pytest.fixture
def namespace(administrator: Administrator, request: pytest.FixtureRequest) -> Iterator[str]:
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_")).strip("-")
    name = f"{words[:40].strip('-')}-{secrets.token_hex(3)}"
    with administrator.namespace(name, wait=True):
        yield name
