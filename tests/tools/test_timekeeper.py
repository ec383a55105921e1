"""Seconds of tests and fixtures are measured where they run, and a test that uses more CPU than it may fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from timekeeping import dear, plugin, report

TESTS = Path(__file__).parents[1]
CONFTEST = """
import pytest
from timekeeping import plugin
from timekeeping.readings import read
plugin.BUDGET_CPU_S, plugin.BUDGET_YARDSTICKS = 0.1, 0.0
def pytest_addoption(parser):
    parser.addoption("--times")
def pytest_configure(config):
    config.pluginmanager.register(plugin.Timekeeper(config, read()))
"""
CASES = '''
import os, subprocess, sys, time
from pathlib import Path
import pytest
BURN = "import time; end = time.process_time() + 0.2\\nwhile time.process_time() < end: pass"
def burn(): exec(BURN, {})
@pytest.fixture(scope="module")
def shared(): burn()
@pytest.fixture
def own(): burn()
@pytest.fixture
def waits(own): time.sleep(0.2)
@pytest.fixture(scope="module")
def background():
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield child
    child.kill()
    child.wait()
def test_computes(): burn()
def test_starts_what_computes(): subprocess.run([sys.executable, "-c", BURN])
def test_makes_what_computes(own): pass
def test_has_a_reason():
    """A sum.

    Costly: the sum has so many terms.
    """
    burn()
def test_has_no_reason():
    """Costly: no"""
    burn()
def test_waits(): time.sleep(0.2)
@pytest.mark.parametrize("parameter", [1])
def test_has_a_parameter(parameter): pass
def test_stands_on_what_others_use(shared): pass
def test_waits_for_a_fixture(waits): """Costly: the fixture before it burns."""
def test_has_a_cluster_beside_it(background): time.sleep(0.2)
def used_s(child):
    stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
def test_still_has_it(background):
    # Neighbours of this machine decide how long it takes.
    enough_s = used_s(background) + 0.1
    while used_s(background) < enough_s: time.sleep(0.01)
'''
TOO_DEAR = {
    "test_computes",
    "test_starts_what_computes",
    "test_makes_what_computes",
    "test_has_no_reason",
}


@pytest.fixture(scope="module", params=["alone", "by two"])
def measured(request, tmp_path_factory):
    """Pytest's output about CASES, and the file that it wrote."""
    folder = tmp_path_factory.mktemp("timed")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_cases.py").write_text(CASES)
    beside = {"alone": ("-n0",), "by two": ("-n2", "--dist=loadfile")}[request.param]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--times=times.json", *beside],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done, folder / "times.json"


def test_a_test_that_uses_more_than_it_may_fails_and_is_named_with_its_seconds(measured):
    done, _ = measured
    # In CI pytest writes the sentence once more, in its summary.
    named = re.findall(r"::(\w+).* CPU seconds; expected at most 0\.1 \(", done.stdout)
    assert set(named) == TOO_DEAR
    assert done.returncode == 1
    assert f"{len(TOO_DEAR)} failed, 7 passed" in done.stdout


def test_a_slower_machine_gets_as_many_seconds_more_as_its_yardstick_takes(request):
    assert not plugin.over_budget(request.node, plugin.BUDGET_YARDSTICKS, 1.0)
    assert "(600 at this machine's speed)" in plugin.over_budget(request.node, 601.0, 1.0)
    assert not plugin.over_budget(request.node, plugin.BUDGET_CPU_S, 1e-3)
    assert plugin.over_budget(request.node, plugin.BUDGET_CPU_S + 0.1, 1e-3)


def test_seconds_are_those_that_pass_and_those_of_cores_with_children(measured):
    records = report.load([measured[1]])
    tests = {name.partition("::")[2]: took for name, took in records.tests.items()}
    assert tests["test_starts_what_computes"].cpu_s >= 0.2
    assert tests["test_waits"].wall_s >= 0.2
    assert tests["test_waits"].cpu_s < 0.1
    # The same process as before it: what it used since then.
    assert tests["test_still_has_it"].cpu_s >= 0.08
    assert records.whole.cpu_s > sum(took.cpu_s for took in tests.values())


def test_a_fixture_is_charged_for_itself_alone(measured):
    fixtures = {fixture.name: fixture for fixture in report.load([measured[1]]).fixtures}
    assert "parameter" not in fixtures
    assert fixtures["own"].times == 2
    assert fixtures["own"].took.cpu_s >= 0.4
    assert fixtures["waits"].took.wall_s >= 0.2
    assert fixtures["waits"].took.cpu_s < 0.1
    assert (fixtures["shared"].scope, fixtures["shared"].times) == ("module", 1)


def test_the_tests_that_check_leaves_out_exist():
    for name in dear.listed():
        file, _, test = name.partition("::")
        assert f"def {test}(" in (TESTS.parent / file).read_text(encoding="utf-8"), name


def test_the_dear_ones_are_found_with_all_their_parameters():
    took = {"a.py::x[1]": 0.3, "a.py::x[2]": 0.3, "a.py::y": 0.4, f"{dear.ALWAYS}a.py::z": 9.0}
    tests = {name: report.Took(1.0, cpu_s) for name, cpu_s in took.items()}
    assert dear.dear(report.Records(tests, (), report.Took(2.0, 1.0)), yardstick_s=0.1) == ["a.py::x"]
