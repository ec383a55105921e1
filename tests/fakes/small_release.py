"""A release as small as one can be, of the same form as that of `make release`, `make image` and `make docs`, which take a quarter of an hour."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import yaml

from shipping.chart_package import stamp_chart
from shipping.publishing import Release
from shipping.release import checksums
from shipping.release_notes import release_notes

ROOT = Path(__file__).parents[2]
VERSION = "7.8.9"


def blob(layout: Path, content: bytes) -> dict[str, str | int]:
    digest = hashlib.sha256(content).hexdigest()
    (layout / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    (layout / "blobs" / "sha256" / digest).write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def layout_of(folder: Path) -> str:
    """An image of one empty layer, in OCI layout; its digest."""
    kind = "application/vnd.oci.image"
    empty = b"\0" * 1024
    layer = blob(folder, gzip.compress(empty, mtime=0))
    diffs = [f"sha256:{hashlib.sha256(empty).hexdigest()}"]
    config = {
        "os": "linux",
        "architecture": "amd64",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": diffs},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": blob(folder, json.dumps(config).encode()) | {"mediaType": f"{kind}.config.v1+json"},
        "layers": [layer | {"mediaType": f"{kind}.layer.v1.tar+gzip"}],
    }
    made = blob(folder, json.dumps(manifest).encode()) | {"mediaType": manifest["mediaType"]}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [made]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return str(made["digest"])


def plugin_of(files: Path) -> None:
    """Archives of a plugin that says its version, and krew's manifest with their digests."""
    manifest = yaml.safe_load(
        (ROOT / "packaging" / "krew" / "breakeven.yaml").read_text().replace("0.1.0", VERSION)
    )
    script = files / "kubectl-breakeven"
    script.write_text(f"#!/bin/sh\necho kubectl breakeven, version {VERSION}\n")
    script.chmod(0o755)
    for entry in manifest["spec"]["platforms"]:
        archive = files / entry["uri"].rpartition("/")[2]
        with tarfile.open(archive, "w:gz") as made:
            made.add(script, "kubectl-breakeven")
            made.add(ROOT / "LICENSE", "LICENSE")
        entry["sha256"] = hashlib.sha256(archive.read_bytes()).hexdigest()
    script.unlink()
    (files / "krew-breakeven.yaml").write_text(yaml.safe_dump(manifest))


def stamped_chart(folder: Path) -> Any:
    """The chart with its annotations for Artifact Hub, of this version."""
    shutil.copytree(ROOT / "charts" / "breakeven", folder)
    file = folder / "Chart.yaml"
    file.write_text(re.sub(r"(?m)^(version|appVersion): .*$", rf"\1: {VERSION}", file.read_text()))
    stamp_chart(folder, ROOT, release_notes((ROOT / "CHANGELOG.md").read_text(), VERSION))
    return yaml.safe_load(file.read_text())


def release_of(folder: Path) -> Release:
    """A release with everything but the chart."""
    files, site, layout = folder / "release", folder / "pages", folder / "image"
    files.mkdir()
    site.mkdir()
    (site / "index.html").write_text("<title>Breakeven</title>")
    plugin_of(files)
    return Release(VERSION, files, site, layout, layout_of(layout))


def summed(release: Release) -> None:
    sums = {name: digest for name, digest in checksums(release.files).items() if name != "SHA256SUMS"}
    (release.files / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
