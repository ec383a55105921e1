"""`make release`: every file of a release from its tag, each tried before it counts, into `dist/VERSION/`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from localcluster.binaries import ensure
from shipping.archives import packed
from shipping.chart_package import stamp_chart
from shipping.commands import ROOT, checked, commit_time_s, environment, git
from shipping.kustomize_base import kustomize_files
from shipping.plugin_archives import plugin_archives
from shipping.release_notes import release_notes
from shipping.shipping_error import ShippingError

DIST: Final = ROOT / "dist"
_TAG: Final = re.compile(r"v(\d+\.\d+\.\d+)")
Say = Callable[[str], Any]


def make_release(tag: str = "", say: Say = print) -> Path:
    """Makes the files of a release; returns their folder.

    Args:
        tag: such as `v0.2.0`; empty: the tag of the commit that is checked out. One that does not exist yet is a rehearsal: its
            release is made of the commit that is checked out.
        say: receives progress.

    Raises:
        ShippingError: there is no such tag, the changelog says nothing, or a file does not work.
    """
    tag = tag or tag_here()
    version = version_of(tag)
    exists = bool(git("tag", "--list", tag))
    commit = f"{tag}^{{commit}}" if exists else "HEAD"
    epoch_s = commit_time_s(commit)
    target = DIST / version
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    say(
        f"release {version} of {git('rev-parse', '--short', commit)}"
        + ("" if exists else f" (rehearsal: there is no tag {tag})")
    )
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        _export(commit, tree)
        stamp(tree, version)
        notes = release_notes((tree / "CHANGELOG.md").read_text(encoding="utf-8"), version)
        (target / "release-notes.md").write_text(notes, encoding="utf-8")
        say(f"release-notes.md: {notes.count(chr(10) + '- ')} changes")
        _distributions(tree, target, epoch_s, say)
        programs = ensure(["helm", "kubectl"], tell=say)
        _chart(tree, target, version, notes, epoch_s, programs, say)
        manifest = yaml.safe_load(
            (tree / "packaging" / "krew" / "breakeven.yaml").read_text(encoding="utf-8")
        )
        filled = plugin_archives(tree, target, manifest, epoch_s, say)
        (target / "krew-breakeven.yaml").write_text(
            yaml.safe_dump(filled, sort_keys=False, width=160), encoding="utf-8"
        )
    sums = checksums(target)
    (target / "SHA256SUMS").write_text(
        "".join(f"{digest}  {name}\n" for name, digest in sums.items()), encoding="utf-8"
    )
    for name, digest in sums.items():
        say(f"{digest[:16]}  {(target / name).stat().st_size / 1e6:7.2f} MB  {name}")
    return target


def version_of(tag: str) -> str:
    """The version that a tag names.

    Raises:
        ShippingError: the tag has another form.
    """
    found = _TAG.fullmatch(tag)
    if found is None:
        raise ShippingError(f"tag {tag}: expected vMAJOR.MINOR.PATCH, such as v0.2.0")
    return found[1]


def stamp(tree: Path, version: str) -> None:
    """Writes the version into an exported tree, wherever it stands: distribution, chart and the plugin's manifest."""
    module = tree / "tuner" / "breakeven" / "__init__.py"
    before = re.search(r'__version__ = "([^"]+)"', module.read_text(encoding="utf-8"))
    if before is None:
        raise ShippingError(f"{module.name} names no version")
    _replace(module, f'__version__ = "{before[1]}"', f'__version__ = "{version}"')
    _replace(tree / "packaging" / "krew" / "breakeven.yaml", f"v{before[1]}", f"v{version}")
    chart = tree / "charts" / "breakeven" / "Chart.yaml"
    text = chart.read_text(encoding="utf-8")
    chart.write_text(re.sub(r"(?m)^(version|appVersion): .*$", rf"\1: {version}", text), encoding="utf-8")


def checksums(folder: Path) -> Mapping[str, str]:
    """The SHA-256 of each file in a folder, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file()
    }


def _replace(file: Path, before: str, after: str) -> None:
    text = file.read_text(encoding="utf-8")
    if before not in text:
        raise ShippingError(f"{file.name} does not contain {before}")
    file.write_text(text.replace(before, after), encoding="utf-8")


def _distributions(tree: Path, target: Path, epoch_s: int, say: Say) -> None:
    """Wheel and sdist; the wheel of the sdist must be the same, and all commands run in a clean environment."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch_s)}
    build = [sys.executable, "-m", "hatchling", "build", "--directory"]
    checked([*build, str(target)], cwd=tree, env=environment)
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as name:
        again = Path(name)
        with tarfile.open(sdist) as archive:
            archive.extractall(again, filter="data")
        (source,) = again.iterdir()
        checked([*build, str(again / "out"), "--target", "wheel"], cwd=source, env=environment)
        if (again / "out" / wheel.name).read_bytes() != wheel.read_bytes():
            raise ShippingError(f"the wheel that {sdist.name} builds is another one than {wheel.name}")
        said = _tried(tree, wheel, again / "clean")
    say(f"{wheel.name}, {sdist.name}: the sdist builds the same wheel; in a clean environment: {said}")


def _tried(tree: Path, wheel: Path, clean: Path) -> str:
    """Installs the wheel with the operator's locked packages and runs each program of it."""
    install = environment(clean, tree / "requirements" / "operator.lock")
    checked([*install, str(wheel)])
    programs = ("breakeven", "breakeven-operator", "kubectl-breakeven")
    said = [checked([str(clean / "bin" / program), "--version"]).strip() for program in programs]
    lint = checked([str(clean / "bin" / "breakeven"), "lint", str(tree / "examples" / "vllm-a100.yaml")])
    return ", ".join([*said, f"lint: {len(lint.splitlines())} lines"])


def _chart(
    tree: Path, target: Path, version: str, notes: str, epoch_s: int, programs: Mapping[str, Path], say: Say
) -> None:
    """Chart package, CRD bundle and kustomize base, read back by Helm and kubectl."""
    chart = tree / "charts" / "breakeven"
    stamp_chart(chart, tree, notes)
    helm, kubectl = str(programs["helm"]), str(programs["kubectl"])
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        checked([helm, "lint", "--strict", str(chart)])
        checked([helm, "package", str(chart), f"--destination={made}"])
        (package,) = made.glob("*.tgz")
        with tarfile.open(package) as archive:
            archive.extractall(made / "chart", filter="data")
        # Helm writes the time of the build into its package.
        (target / package.name).write_bytes(packed(made / "chart", epoch_s))
        shown = yaml.safe_load(checked([helm, "show", "chart", str(target / package.name)]))
        say(
            f"{package.name}: {shown['name']} {shown['version']}, {len(shown['annotations'])} annotations for Artifact Hub"
        )
        bundle = "---\n".join(
            file.read_text(encoding="utf-8") for file in sorted((tree / "crds").glob("*.yaml"))
        )
        (target / f"breakeven-crds-{version}.yaml").write_text(bundle, encoding="utf-8")
        rendered = checked(
            [helm, "template", "breakeven", str(target / package.name), "--namespace=breakeven", "--kube-version=1.30.0", "--skip-tests"]
        )  # fmt: skip
        base = made / "base"
        base.mkdir()
        for file, text in kustomize_files(rendered).items():
            (base / file).write_text(text, encoding="utf-8")
        built = checked([kubectl, "kustomize", str(base)])
        (target / f"breakeven-kustomize-{version}.tar.gz").write_bytes(packed(made, epoch_s, only="base"))
        say(
            f"kustomize base: {len(list(yaml.safe_load_all(built)))} objects; CRDs: {bundle.count('kind: CustomResourceDefinition')}"
        )


def tag_here() -> str:
    """The first tag of the commit that is checked out.

    Raises:
        ShippingError: it has none.
    """
    tags = git("tag", "--points-at", "HEAD").split()
    if not tags:
        raise ShippingError(
            "this commit has no tag: git tag v0.2.0, or make release TAG=v0.2.0 to rehearse it"
        )
    return tags[0]


def _export(commit: str, tree: Path) -> None:
    """The files of a commit, so that nothing else of this folder gets into a release."""
    tree.mkdir()
    done = subprocess.run(
        ["git", "archive", "--format=tar", commit], cwd=ROOT, capture_output=True, check=True
    )
    subprocess.run(["tar", "--extract", f"--directory={tree}"], input=done.stdout, check=True)
