"""Finding programs, building what is missing once, and leaving nothing half done."""

import contextlib
import multiprocessing
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from localcluster import binaries, cache, toolchain
from localcluster.binaries import ensure, same_minor
from localcluster.building import complaint, go_build
from localcluster.catalog import BUNDLES, EVERYDAY, PROGRAMS
from localcluster.failure import LocalClusterError
from localcluster.progress import duration


def quiet(_line):
    """No progress wanted."""


def program(path, script="exit 0"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def world(tmp_path, monkeypatch):
    """An empty cache, no network: building writes a file and is counted."""
    built = []

    def build(_bundle, what, target, *_):
        with cache.published(target) as unfinished:
            program(unfinished)
            built.append(what.name)

    monkeypatch.setattr(binaries, "build", build)
    go = toolchain.Toolchain(Path("go"), {"GOCACHE": "/elsewhere"})
    monkeypatch.setattr(
        binaries, "install", lambda workshop, *_: (workshop.mkdir(parents=True, exist_ok=True), go)[1]
    )
    return built, {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_builds_what_is_missing_once(world):
    built, env = world
    first = ensure(["etcd", "helm"], environment=env, tell=quiet)
    assert sorted(built) == ["etcd", "helm"]
    assert all(os.access(path, os.X_OK) for path in first.values())
    assert ensure(["helm", "etcd"], environment=env, tell=quiet) == first
    assert len(built) == 2


def test_two_bundles_are_built_side_by_side_and_each_in_its_order(world, monkeypatch):
    _, env = world
    together = threading.Barrier(2, timeout=60)
    order = []

    def build(bundle, what, target, *_):
        if what.name in {"etcd", "prometheus"}:
            together.wait()
        with cache.published(target) as unfinished:
            program(unfinished)
        order.append((bundle.folder, what.name))

    monkeypatch.setattr(binaries, "build", build)
    ensure(environment=env, tell=quiet)
    assert len(order) == len(EVERYDAY)
    for bundle in BUNDLES:
        assert [name for folder, name in order if folder == bundle.folder] == [
            p.name for p in bundle.programs
        ]


def test_a_failure_ends_what_is_built_beside_it_and_begins_nothing_more(world, monkeypatch):
    _, env = world
    begun = []
    both = threading.Barrier(2, timeout=60)

    def build(_bundle, what, _target, _toolchain, _say, _position, given_up):
        begun.append(what.name)
        both.wait()
        if what.name == "etcd":
            raise LocalClusterError("cannot build etcd: no such package")
        assert given_up.wait(60)
        raise LocalClusterError("given up")

    monkeypatch.setattr(binaries, "build", build)
    with pytest.raises(LocalClusterError, match="cannot build etcd: no such package"):
        ensure(environment=env, tell=quiet)
    assert sorted(begun) == ["etcd", "prometheus"]


def test_what_another_builder_finished_meanwhile_is_not_built_again(world, monkeypatch):
    built, env = world

    @contextlib.contextmanager
    def waited(folder, _say):
        bundle, _ = PROGRAMS["helm"]
        program(folder / bundle.cache_name() / "helm")
        yield

    monkeypatch.setattr(binaries, "exclusive", waited)
    ensure(["etcd", "helm"], environment=env, tell=quiet)
    assert built == ["etcd"]


def test_cache_follows_the_xdg_rules(tmp_path):
    assert cache.cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "breakeven"
    for ignored in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert cache.cache_folder(ignored) == Path.home() / ".cache" / "breakeven"


def test_workshop_is_kept_until_everything_is_there(world, tmp_path):
    _, env = world
    ensure(["etcd"], environment=env, tell=quiet)
    assert (tmp_path / "cache/breakeven/workshop").is_dir()
    ensure(environment=env, tell=quiet)
    assert not (tmp_path / "cache/breakeven/workshop").exists()


def test_assets_are_taken_as_they_are(world, tmp_path):
    built, env = world
    mine = program(tmp_path / "assets/etcd")
    found = ensure(
        ["etcd", "kubectl"], environment=env | {"BREAKEVEN_ASSETS": str(tmp_path / "assets")}, tell=quiet
    )
    assert found["etcd"] == mine
    assert built == ["kubectl"]


def test_assets_that_are_no_folder_are_refused(world):
    _, env = world
    with pytest.raises(LocalClusterError, match=r"BREAKEVEN_ASSETS=/nowhere is not a folder"):
        ensure(["etcd"], environment=env | {"BREAKEVEN_ASSETS": "/nowhere"}, tell=quiet)


@pytest.mark.parametrize(
    ("said", "taken"), [("Kubernetes v1.36.0", True), ("Kubernetes v1.31.2", False), ("", False)]
)
def test_other_projects_assets_only_within_the_version_skew(world, tmp_path, said, taken):
    built, env = world
    theirs = program(tmp_path / "envtest/kube-apiserver", f"echo '{said}'")
    found = ensure(
        ["kube-apiserver"], environment=env | {"KUBEBUILDER_ASSETS": str(tmp_path / "envtest")}, tell=quiet
    )
    assert (found["kube-apiserver"] == theirs) is taken
    assert built == ([] if taken else ["kube-apiserver"])


def test_same_minor_does_not_mistake_a_prefix():
    assert same_minor("Kubernetes v1.36.12", "v1.36.3")
    assert not same_minor("Kubernetes v1.3.12", "v1.36.3")


def test_too_little_space_is_said_before_the_wait(world, tmp_path, monkeypatch):
    _, env = world
    inside = toolchain.Toolchain(Path("go"), {"GOCACHE": str(tmp_path / "cache/breakeven/workshop/objects")})
    monkeypatch.setattr(binaries, "install", lambda *_: inside)
    monkeypatch.setattr(binaries, "WORKSHOP_GB", 1e9)
    with pytest.raises(LocalClusterError, match=r"GB free; expected .* set XDG_CACHE_HOME"):
        ensure(["etcd"], environment=env, tell=quiet)


def test_a_failed_build_publishes_nothing(tmp_path):
    def interrupted():
        with cache.published(tmp_path / "folder/etcd") as unfinished:
            unfinished.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.rglob("*etcd*")) == []


def test_leftovers_of_a_killed_builder_go(tmp_path):
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/etcd.partial").touch()
    (tmp_path / "go-1.partial/bin").mkdir(parents=True)
    keep = tmp_path / "bundle/kubectl"
    keep.touch()
    with cache.exclusive(tmp_path, quiet):
        assert sorted(p.name for p in tmp_path.rglob("*")) == ["build.lock", "bundle", "kubectl"]


def _hold(folder, held, release):
    with cache.exclusive(folder, quiet):
        held.set()
        release.wait()


def test_two_builders_do_not_collide(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, held, release))
    other.start()
    assert held.wait(180)
    said, entered = [], threading.Event()

    def want():
        with cache.exclusive(tmp_path, lambda line: (said.append(line), release.set())):
            entered.set()

    thread = threading.Thread(target=want)
    thread.start()
    assert entered.wait(180)
    thread.join()
    other.join()
    other.close()
    assert said == [f"another process is building into {tmp_path}; waiting for it"]


def test_go_is_told_everything_that_decides_the_program():
    bundle, prometheus = PROGRAMS["prometheus"]
    command = go_build(bundle, prometheus, Path("/go"), Path("/out"))
    assert command[:2] == ["/go", "build"]
    assert "-trimpath" in command
    assert command[command.index("-tags") + 1] == "netgo,remove_all_sd,enable_kubernetes_sd"
    assert command[-3:] == ["-o", "/out", "github.com/prometheus/prometheus/cmd/prometheus"]


@pytest.mark.parametrize(
    "line",
    [
        'go: k8s.io/api@v0.36.3: Get "https://proxy.golang.org/x.mod": dial tcp: lookup proxy.golang.org: no such host',
        "go: a@v1: reading https://proxy.golang.org/a: 503 Service Unavailable",
        'go: a@v1: verifying module: a@v1: Get "https://sum.golang.org/": dial tcp 1.2.3.4:443: i/o timeout',
    ],
)  # fmt: skip
def test_network_trouble_is_told_from_a_compilers_error(line):
    said = complaint("etcd", ["go: downloading k8s.io/api v0.36.3", line, "some/package: build failed"])
    assert said.startswith("cannot download the Go modules of etcd: ")
    assert "BREAKEVEN_ASSETS" in said
    assert "\n" not in said


def test_a_compilers_error_is_one_line():
    said = complaint("etcd", ["runtime", "x.go:3:5: undefined: y", ""])
    assert said == "cannot build etcd: x.go:3:5: undefined: y"
    assert complaint("etcd", []) == "cannot build etcd: go build failed without a word"


def test_pips_reason_is_found():
    output = "WARNING: Retrying\nERROR: Could not find a version\nERROR: No matching   distribution found\nnotice\n"
    assert toolchain.pip_complaint(output) == "No matching distribution found"
    assert toolchain.pip_complaint("Segmentation fault") == "Segmentation fault"


def test_a_cross_compiling_user_still_gets_programs_for_this_machine(tmp_path):
    go = program(tmp_path / "go", 'echo \'{"GOCACHE": "/mine"}\'')
    mine = {
        "PATH": os.environ["PATH"],
        "GOOS": "windows",
        "GOPROXY": "https://proxy.example",
        "GOFLAGS": "-mod=vendor",
    }
    env = toolchain.build_environment(go, tmp_path / "w", mine)
    assert env == {
        "PATH": os.environ["PATH"],
        "GOPROXY": "https://proxy.example",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
        "GOMODCACHE": str(tmp_path / "w/modules"),
        "GOFLAGS": "-modcacherw",
    }


def test_durations_read_well():
    assert [duration(s) for s in (0, 5.4, 60, 119.6, 185)] == [
        "0 s",
        "5 s",
        "1 min",
        "2 min",
        "3 min 5 s",
    ]


def test_programs_are_found_and_built_by_a_python_without_packages(tmp_path):
    for name in EVERYDAY:
        program(tmp_path / name)
    # Without site-packages, as `make demo` does while these are being installed.
    done = subprocess.run(
        [sys.executable, "-S", "-m", "localcluster.binaries"],
        cwd=Path(binaries.__file__).parents[1],
        env={"BREAKEVEN_ASSETS": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
