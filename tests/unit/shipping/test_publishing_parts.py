"""What `make publish` prints, what it refuses, and what Artifact Hub will read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from fakes.small_release import VERSION, release_of, stamped_chart
from shipping import publishing
from shipping.image import sources_digest
from shipping.publishing import PROGRAMS, instructions, public, ready
from shipping.shipping_error import ShippingError

ROOT = Path(__file__).parents[3]


def test_a_person_is_told_the_same_commands_with_the_public_places(tmp_path):
    release = release_of(tmp_path)
    said = instructions(release, {name: Path(name) for name in PROGRAMS})
    assert f"\ncrane push {release.layout} ghcr.io/breakeven-dev/breakeven:{VERSION}\n" in said
    assert f"\ncosign sign --yes ghcr.io/breakeven-dev/breakeven@{release.digest}" in said
    assert f"gh release create v{VERSION} " in said
    assert f"--url={public(release).downloads} --merge=" in said
    manifest = yaml.safe_load((release.files / "krew-breakeven.yaml").read_text())
    assert {entry["uri"].rpartition("/")[0] for entry in manifest["spec"]["platforms"]} == {
        public(release).downloads
    }
    assert "127.0.0.1" not in said


def test_nothing_is_published_that_was_not_made(tmp_path, monkeypatch):
    files = tmp_path / VERSION
    facts = tmp_path / "image.json"
    for name, place in {"DIST": tmp_path, "FACTS": facts, "_SITE": tmp_path / "site"}.items():
        monkeypatch.setattr(publishing, name, place)

    def refused():
        with pytest.raises(ShippingError) as caught:
            ready(VERSION)
        return str(caught.value)

    assert refused() == f"dist/{VERSION} has no release; make it by: make release TAG=v{VERSION}"
    files.mkdir()
    (files / "SHA256SUMS").write_text("")
    assert "make it by: make image" in refused()
    image = {
        "version": VERSION,
        "sources": sources_digest(ROOT),
        "digest": "sha256:1",
        "unpacked_bytes": 219e6,
    }
    facts.write_text(json.dumps(image | {"sources": "others"}))
    assert "of the present sources" in refused()
    facts.write_text(json.dumps(image))
    assert "make docs" in refused()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("")
    assert ready(VERSION).digest == "sha256:1"
    facts.write_text(json.dumps(image | {"unpacked_bytes": 221e6}))
    assert refused() == ".image has 221 MB; expected 220 at most: make image BASE=debian"


CATEGORIES = {"ai-machine-learning", "database", "integration-delivery", "monitoring-logging", "networking", "security", "skip-prediction",
              "storage", "streaming-messaging"}  # fmt: skip
CAPABILITIES = {"basic install", "seamless upgrades", "full lifecycle", "deep insights", "auto pilot"}
CHANGES = {"added", "changed", "deprecated", "removed", "fixed", "security"}


def test_artifact_hub_finds_what_its_rules_ask_for(tmp_path):
    """The rules of its page on annotations of Helm charts: its own linter cannot be had by Go's module proxy."""
    chart = stamped_chart(tmp_path / "breakeven")
    said = {name.removeprefix("artifacthub.io/"): text for name, text in chart["annotations"].items()}
    assert set(said) <= {"category", "changes", "crds", "crdsExamples", "images", "license", "links", "operator", "operatorCapabilities"}  # fmt: skip
    assert all(isinstance(text, str) for text in said.values())
    read = {name: yaml.safe_load(text) for name, text in said.items()}
    assert said["category"] in CATEGORIES
    assert said["operator"] == "true"
    assert said["operatorCapabilities"].lower() in CAPABILITIES
    assert said["license"] == "Apache-2.0"
    assert all(one["kind"] in CHANGES and one["description"] for one in read["changes"])
    assert all(set(one) == {"kind", "version", "name", "displayName", "description"} for one in read["crds"])
    assert all({"apiVersion", "kind", "metadata", "spec"} <= set(one) for one in read["crdsExamples"])
    assert {one["kind"] for one in read["crdsExamples"]} <= {one["kind"] for one in read["crds"]}
    assert all(re.fullmatch(r"[a-z0-9./-]+:[\w.-]+", one["image"]) for one in read["images"])
    assert all(one["name"] and one["url"].startswith("https://") for one in read["links"])
    # The file beside the index: an ID, owners and what is left out are all that it may have, and all may be missing.
    beside = yaml.safe_load((ROOT / "packaging" / "artifacthub-repo.yml").read_text())
    assert set(beside) <= {"repositoryID", "owners", "ignore"}
    assert re.match(r"\d+\.\d+\.\d+$", chart["version"])
    assert chart["description"]
