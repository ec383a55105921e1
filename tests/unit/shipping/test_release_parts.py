"""The parts of a release that need no program."""

import gzip
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from shipping.archives import packed
from shipping.chart_package import stamp_chart
from shipping.kustomize_base import kustomize_files
from shipping.plugin_archives import NEEDED, complete_platform, pinned
from shipping.release import checksums, stamp, version_of
from shipping.release_notes import MOST_CHANGES, changes, release_notes
from shipping.shipping_error import ShippingError

ROOT = Path(__file__).parents[3]
CHANGELOG = """# Changelog

## [Unreleased]

### Added

- Next ([page](docs/x.md)).

## [0.2.0] - 2026-12-01

### Added

#### Chart

- `helm test` runs a cycle ([docs](docs/install.md#test)).
- See [the page](docs/a.md) for more.

### Removed

- An option.

## [0.1.0] - 2026-01-01

- First.
"""


def test_the_version_is_the_tag_s():
    assert version_of("v0.2.0") == "0.2.0"
    for wrong in ("0.2.0", "v0.2", "v0.2.0-rc.1", "v0.2.0\n"):
        with pytest.raises(ShippingError, match=r"expected vMAJOR\.MINOR\.PATCH"):
            version_of(wrong)


def test_notes_are_the_version_s_section_or_what_is_unreleased():
    assert "helm test" in release_notes(CHANGELOG, "0.2.0")
    assert "First" not in release_notes(CHANGELOG, "0.2.0")
    assert release_notes(CHANGELOG, "0.3.0") == "### Added\n\n- Next ([page](docs/x.md)).\n"
    with pytest.raises(ShippingError, match=r"says nothing about 0\.3\.0"):
        release_notes("# Changelog\n\n## [Unreleased]\n\n## [0.2.0]\n\n- x\n", "0.3.0")


def test_changes_for_artifact_hub_are_plain_text_the_gravest_first():
    assert changes(release_notes(CHANGELOG, "0.2.0")) == [
        {"kind": "removed", "description": "An option."},
        {"kind": "added", "description": "`helm test` runs a cycle."},
        {"kind": "added", "description": "See the page for more."},
    ]
    ours = changes(release_notes((ROOT / "CHANGELOG.md").read_text(), "0.0.0"))
    assert 0 < len(ours) <= MOST_CHANGES
    assert not [one for one in ours if "](" in one["description"]]


def exported(tmp_path):
    """Those files of the checkout that a release stamps."""
    names = ["tuner/breakeven/__init__.py", "packaging/krew/breakeven.yaml", "charts/breakeven/Chart.yaml", "charts/breakeven/values.yaml",
             "examples/speculativeservice.yaml", "examples/calibrationrun.yaml", *(str(crd.relative_to(ROOT)) for crd in (ROOT / "crds").glob("*.yaml"))]  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    return tmp_path


def test_the_version_stands_everywhere_after_the_stamp(tmp_path):
    tree = exported(tmp_path)
    stamp(tree, "7.8.9")
    assert '__version__ = "7.8.9"' in (tree / "tuner/breakeven/__init__.py").read_text()
    chart = yaml.safe_load((tree / "charts/breakeven/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == ("7.8.9", "7.8.9")
    manifest = yaml.safe_load((tree / "packaging/krew/breakeven.yaml").read_text())
    assert manifest["spec"]["version"] == "v7.8.9"
    assert all("/v7.8.9/kubectl-breakeven_v7.8.9_" in one["uri"] for one in manifest["spec"]["platforms"])
    (tree / "packaging/krew/breakeven.yaml").write_text("x: v1")
    with pytest.raises(ShippingError, match=r"breakeven\.yaml does not contain v7\.8\.9"):
        stamp(tree, "7.9.0")


def test_the_chart_tells_artifact_hub_its_kinds_examples_image_and_changes(tmp_path):
    tree = exported(tmp_path)
    stamp_chart(tree / "charts" / "breakeven", tree, release_notes(CHANGELOG, "0.2.0"))
    annotations = yaml.safe_load((tree / "charts/breakeven/Chart.yaml").read_text())["annotations"]
    said = {name: yaml.safe_load(text) for name, text in annotations.items()}
    crds = {one["kind"]: one for one in said["artifacthub.io/crds"]}
    assert set(crds) == {"SpeculativeService", "CalibrationRun", "SpeculationProfile"}
    assert all(one["description"] and one["version"] == "v1alpha1" for one in crds.values())
    assert {one["kind"] for one in said["artifacthub.io/crdsExamples"]} == {
        "SpeculativeService",
        "CalibrationRun",
    }
    assert said["artifacthub.io/images"][0]["image"].startswith("ghcr.io/breakeven-dev/breakeven:")
    assert len(said["artifacthub.io/changes"]) == 3


def test_a_kustomize_base_has_no_mark_of_helm_and_every_object_once():
    labels = {
        "app.kubernetes.io/managed-by": "Helm",
        "helm.sh/chart": "x-1",
        "app.kubernetes.io/name": "breakeven",
    }
    ours = {"matchLabels": {"app.kubernetes.io/managed-by": "breakeven"}}
    documents = [
        {
            "kind": "CustomResourceDefinition",
            "metadata": {"annotations": {"helm.sh/resource-policy": "keep"}},
        },
        {"kind": "Deployment", "metadata": {"labels": labels}},
        {"kind": "NetworkPolicy", "spec": {"podSelector": ours}},
    ]
    files = kustomize_files(yaml.safe_dump_all(documents))
    assert set(files) == {"crds.yaml", "namespace.yaml", "operator.yaml", "kustomization.yaml"}
    assert set(yaml.safe_load(files["kustomization.yaml"])["resources"]) == set(files) - {
        "kustomization.yaml"
    }
    others = list(yaml.safe_load_all(files["operator.yaml"]))
    assert [one["kind"] for one in others] == ["Deployment", "NetworkPolicy"]
    assert others[0]["metadata"]["labels"] == {"app.kubernetes.io/name": "breakeven"}
    # Of our own pods this label is what policies select.
    assert others[1]["spec"]["podSelector"] == ours
    assert "helm.sh" not in json.dumps(list(yaml.safe_load_all("---\n".join(files.values()))))


def test_an_archive_is_the_same_wherever_and_whenever_it_is_made(tmp_path):
    for place in ("one", "two"):
        folder = tmp_path / place / "base"
        folder.mkdir(parents=True)
        for name in ("b", "a") if place == "one" else ("a", "b"):
            (folder / name).write_text(name)
        (folder / "a").chmod(0o700)
    first = packed(tmp_path / "one", 17)
    assert first == packed(tmp_path / "two", 17)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(first))) as archive:
        assert [(one.name, one.mode, one.mtime, one.uname) for one in archive] == [
            ("base/a", 0o755, 17, ""), ("base/b", 0o644, 17, ""),
        ]  # fmt: skip


def test_the_plugin_s_packages_are_pinned_with_hashes_by_the_operator_s_lock():
    blocks = pinned((ROOT / "requirements" / "operator.lock").read_text())
    assert [block.partition("==")[0] for block in blocks] == list(NEEDED)
    assert all("--hash=sha256:" in block for block in blocks)


@pytest.mark.parametrize(
    ("system", "machine", "runs", "does_not"),
    [
        ("linux", "amd64", "cp312-cp312-manylinux_2_28_x86_64", "cp312-cp312-manylinux_2_34_x86_64"),
        ("linux", "arm64", "cp312-cp312-manylinux_2_17_aarch64", "cp312-cp312-manylinux_2_17_x86_64"),
        ("darwin", "amd64", "cp312-cp312-macosx_10_13_x86_64", "cp312-cp312-macosx_15_0_x86_64"),
        ("darwin", "arm64", "cp312-cp312-macosx_11_0_arm64", "cp312-cp312-manylinux_2_17_aarch64"),
    ],
)
def test_wheels_of_a_platform_that_is_not_here(system, machine, runs, does_not):
    described = complete_platform(system, machine, (3, 12))
    assert {runs, "py3-none-any"} <= set(described["compatible_tags"])
    assert does_not not in described["compatible_tags"]
    assert "cp311-cp311" not in " ".join(described["compatible_tags"])
    markers = described["marker_environment"]
    assert (markers["sys_platform"], markers["python_full_version"]) == (system, "3.12.0")


def test_the_plugin_imports_nothing_that_its_archive_lacks():
    """Each verb imports on use: what is not in the archive is made to fail, and all modules of the plugin are loaded."""
    allowed = {name.replace("-", "_") for name in NEEDED} | {"yaml", "breakeven", "breakeven_operator"}
    script = (
        "import importlib, importlib.metadata, pkgutil, sys\n"
        f"allowed = {sorted(allowed)!r}\n"
        "known = {top for top, dists in importlib.metadata.packages_distributions().items()} - set(allowed)\n"
        "class Refused:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in known: raise ImportError(name + ' is not in the archive')\n"
        "sys.meta_path.insert(0, Refused())\n"
        "import breakeven_operator.plugin\n"
        "for module in pkgutil.iter_modules(breakeven_operator.plugin.__path__):\n"
        "    importlib.import_module('breakeven_operator.plugin.' + module.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_sums_are_of_every_file(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    assert checksums(tmp_path) == {"a": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
