"""`make publish`: the commands that publish a release, after each was carried out against public places that this machine plays.

A command is made once, for a `Place`: run for the local one, printed for the public one. A release's page and a pull request to krew's index
need a person's account, so these are printed alone; what follows from them is tried: a krew of its own installs the plugin from an
index of its own, and Helm pulls the chart from the index in the pushed site.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from localcluster.binaries import ensure
from localcluster.free_ports import free_ports
from shipping.commands import ROOT, checked
from shipping.image import FACTS, FOLDER, GOAL_MB, sources_digest
from shipping.plugin_archives import this_platform
from shipping.release import DIST, tag_here, version_of
from shipping.shipping_error import ShippingError

PROGRAMS: Final = ("crane", "cosign", "krew", "registry", "helm")
_HOME: Final = "https://github.com/breakeven-dev/breakeven"
_SITE: Final = ROOT / ".site"
_METADATA: Final = ROOT / "packaging" / "artifacthub-repo.yml"
# Of commits, and of a key that ends with the rehearsal.
_NOBODY: Final = {
    f"GIT_{who}_{what}": "rehearsal" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
} | {"COSIGN_PASSWORD": ""}
_UP_S: Final = 30.0
Say = Callable[[str], Any]


@dataclass(frozen=True)
class Release:
    """What is published.

    Attributes:
        version: without a `v`.
        files: folder of `make release`.
        site: folder of `make docs`.
        layout: image of `make image`, in OCI layout.
        digest: of that image.
    """

    version: str
    files: Path
    site: Path
    layout: Path
    digest: str


@dataclass(frozen=True)
class Place:
    """Where a release goes to.

    Attributes:
        image: repository of the image.
        downloads: address below which the files of this release lie.
        pages: address of the site.
        git: the repository whose branch gh-pages is the site.
        signing: options of cosign; none: it signs as whoever signs in.
    """

    image: str
    downloads: str
    pages: str
    git: str
    signing: str = ""


def publish(tag: str = "", say: Say = print) -> None:
    """Tries to publish everything, then says what a person with an account runs.

    Raises:
        ShippingError: something is not made yet, or a try failed.
    """
    release = ready(version_of(tag or tag_here()))
    programs = ensure(PROGRAMS, tell=say)
    with tempfile.TemporaryDirectory() as folder:
        rehearse(release, programs, Path(folder), say)
    say(instructions(release, programs))


def ready(version: str) -> Release:
    """The release of that version.

    Raises:
        ShippingError: its files, its image or the site is not there, or the image is too large.
    """
    sums = DIST / version / "SHA256SUMS"
    if not sums.exists():
        raise ShippingError(f"dist/{version} has no release; make it by: make release TAG=v{version}")
    facts = json.loads(FACTS.read_text(encoding="utf-8")) if FACTS.exists() else {}
    if (facts.get("version"), facts.get("sources")) != (version, sources_digest(ROOT)):
        raise ShippingError(f".image has no image {version} of the present sources; make it by: make image")
    if not (_SITE / "index.html").exists():
        raise ShippingError(".site has no site; make it by: make docs")
    if facts["unpacked_bytes"] > GOAL_MB * 1e6:
        raise ShippingError(
            f".image has {facts['unpacked_bytes'] / 1e6:.0f} MB; expected {GOAL_MB} at most: make image BASE=debian"
        )
    return Release(version, sums.parent, _SITE, FOLDER / "oci", facts["digest"])


def public(release: Release) -> Place:
    """The places that the chart, the plugin's manifest and the pages name."""
    values = yaml.safe_load((ROOT / "charts" / "breakeven" / "values.yaml").read_text(encoding="utf-8"))
    return Place(
        image=values["image"]["repository"],
        downloads=f"{_HOME}/releases/download/v{release.version}",
        pages="https://breakeven-dev.github.io/breakeven",
        git=f"{_HOME}.git",
    )


def image_lines(release: Release, place: Place, programs: Mapping[str, Path]) -> list[str]:
    """Push the image as it was built, and sign it in its registry."""
    return [
        f"{programs['crane']} push {_shown(release.layout)} {place.image}:{release.version}",
        f"{programs['cosign']} sign --yes {place.signing} {place.image}@{release.digest}",
    ]


def signature_lines(release: Release, place: Place, programs: Mapping[str, Path]) -> list[str]:
    """Sign the sums, and by them every file; the bundle beside them has all that a check without network needs."""
    sums = _shown(release.files / "SHA256SUMS")
    return [f"{programs['cosign']} sign-blob --yes {place.signing} --bundle={sums}.sigstore.json {sums}"]


def site_lines(release: Release, place: Place, programs: Mapping[str, Path]) -> list[str]:
    """Put Helm's index, with the versions before, and Artifact Hub's metadata into the site, and push the site."""
    index, files, site = _shown(release.site / "index.yaml"), _shown(release.files), _shown(release.site)
    return [
        f"curl --silent --fail --output {index} {place.pages}/index.yaml || echo 'no index yet: this is the first'",
        f"{programs['helm']} repo index {files} --url={place.downloads} --merge={index}",
        f"mv {files}/index.yaml {index}",
        f"cp {_shown(_METADATA)} {site}/",
        f"touch {site}/.nojekyll",
        f"git -C {site} init --quiet",
        f"git -C {site} checkout --quiet -B gh-pages",
        f"git -C {site} add --all",
        f"git -C {site} commit --quiet --allow-empty --message='Site of {release.version}'",
        f"git -C {site} push --quiet --force {place.git} gh-pages",
    ]


def instructions(release: Release, programs: Mapping[str, Path]) -> str:
    """The lines that a person with an account runs, in this order."""
    place, tag = public(release), f"v{release.version}"
    files = _shown(release.files)
    parts = {
        "the image (first: crane auth login ghcr.io)": image_lines(release, place, programs),
        "the files: plugin, chart, wheel, CRDs (first: gh auth login)": [
            *signature_lines(release, place, programs),
            f"git push origin {tag}",
            f"gh release create {tag} --verify-tag --notes-file {files}/release-notes.md {files}/*",
        ],
        "site and chart index; once: serve the branch gh-pages, and add its address to Artifact Hub": site_lines(
            release, place, programs
        ),
        "the plugin, as a pull request to krew's index": [
            "gh repo fork kubernetes-sigs/krew-index --clone",
            f"cp {files}/krew-breakeven.yaml krew-index/plugins/breakeven.yaml",
            f"git -C krew-index checkout -b breakeven-{tag}",
            "git -C krew-index add plugins",
            f"git -C krew-index commit -m 'breakeven {tag}'",
            "(cd krew-index && gh pr create --fill)",
        ],
    }
    return "\n".join(f"\n# {title}\n" + "\n".join(" ".join(line.split()) for line in lines) for title, lines in parts.items())  # fmt: skip


def rehearse(release: Release, programs: Mapping[str, Path], folder: Path, say: Say) -> None:
    """Publishes to a registry, a git server's folder and web servers of this machine, and takes everything back from there.

    Raises:
        ShippingError: a command failed, or something else came back.
    """
    # Copies: nothing that this run signs or pushes is left where a person publishes from.
    shutil.copytree(release.files, folder / "files")
    shutil.copytree(release.site, folder / "site")
    release = replace(release, files=folder / "files", site=folder / "site")
    served, bare = folder / "served", folder / "pages.git"
    served.mkdir()
    with contextlib.ExitStack() as up:
        registry = up.enter_context(_registry(programs["registry"], folder))
        downloads = up.enter_context(_web(release.files))
        pages = up.enter_context(_web(served))
        key = _key(programs["cosign"], folder)
        check = f"--key={folder}/cosign.pub --insecure-ignore-tlog=true"
        place = Place(f"{registry}/breakeven/breakeven", downloads, pages, str(bare), key)

        _run(image_lines(release, place, programs))
        _run([f"{programs['cosign']} verify {check} {place.image}@{release.digest}"])
        say(f"tried: image: pushed to a registry as {release.digest[:19]}..., its signature verified there")

        _run(signature_lines(release, place, programs))
        sums = release.files / "SHA256SUMS"
        _run([
            f"{programs['cosign']} verify-blob {check} --bundle={sums}.sigstore.json {sums}",
            f"cd {release.files} && sha256sum --quiet --check SHA256SUMS",
        ])  # fmt: skip
        say(
            f"tried: files: {len(sums.read_text().splitlines())} sums, signed in an offline bundle and verified by a key that is gone now"
        )

        _run([f"git init --quiet --bare {bare}", *site_lines(release, place, programs)])
        _run([f"git -C {bare} archive gh-pages | tar --extract --directory={served}"])
        chart = f"breakeven-{release.version}.tgz"
        helm = f"{programs['helm']} --repository-config={folder}/repositories.yaml --repository-cache={folder}/cache"
        _run([
            f"{helm} repo add breakeven {pages}",
            f"{helm} pull breakeven/breakeven --version={release.version} --destination={folder}",
            f"cd {folder} && grep ' {chart}$' {sums} | sha256sum --quiet --check",
            f"curl --silent --fail --output /dev/null {pages}/artifacthub-repo.yml",
        ])  # fmt: skip
        say(
            f"tried: chart and site: {len(list(served.rglob('*.html')))} pages on gh-pages; helm pull by its index brings {chart}"
        )

        say(
            f"tried: plugin: krew installed it from an index: {_by_krew(release, place, programs['krew'], folder)}"
        )


def _by_krew(release: Release, place: Place, krew: Path, folder: Path) -> str:
    """What the plugin says that krew installed from an index of one manifest."""
    index, home = folder / "krew-index", folder / "krew"
    (index / "plugins").mkdir(parents=True)
    manifest = (release.files / "krew-breakeven.yaml").read_text(encoding="utf-8")
    (index / "plugins" / "breakeven.yaml").write_text(
        manifest.replace(public(release).downloads, place.downloads), encoding="utf-8"
    )
    _run([f"cd {index} && git init --quiet && git add . && git commit --quiet --message=index"])
    settings = {
        "KREW_ROOT": str(home), "KREW_DEFAULT_INDEX_URI": index.as_uri(), "KREW_NO_UPGRADE_CHECK": "1",
        "KREW_OS": this_platform()[0], "KREW_ARCH": this_platform()[1],
    }  # fmt: skip
    _run([f"{krew} update", f"{krew} install breakeven"], **settings)
    return checked([str(home / "bin" / "kubectl-breakeven"), "--version"]).strip()


def _key(cosign: Path, folder: Path) -> str:
    """Options by which cosign signs with a key of this rehearsal, and asks nobody."""
    _run(
        [
            f"cd {folder} && {cosign} generate-key-pair",
            f"{cosign} signing-config create --out={folder}/nobody.json",
        ]
    )
    return f"--key={folder}/cosign.key --signing-config={folder}/nobody.json"


@contextlib.contextmanager
def _registry(program: Path, folder: Path) -> Iterator[str]:
    """A registry on the loopback; its host and port."""
    (port,) = free_ports(1)
    host, config = f"127.0.0.1:{port}", folder / "registry.json"
    storage = {"filesystem": {"rootdirectory": str(folder / "registry")}}
    config.write_text(
        json.dumps({"version": "0.1", "log": {"level": "error"}, "storage": storage, "http": {"addr": host}})
    )
    with subprocess.Popen([program, "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # fmt: skip
        try:
            _until_up(f"http://{host}/v2/")
            yield host
        finally:
            process.terminate()


def _until_up(url: str) -> None:
    deadline = time.monotonic() + _UP_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=_UP_S).close()
        except urllib.error.URLError as error:
            if time.monotonic() > deadline:
                raise ShippingError(f"{url} does not answer within {_UP_S:.0f} s: {error.reason}") from error
            time.sleep(0.1)
        else:
            return


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """A dry run says one line per thing."""


@contextlib.contextmanager
def _web(folder: Path) -> Iterator[str]:
    """A folder's files on the loopback; their address."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _run(lines: list[str], **environment: str) -> None:
    for line in lines:
        checked(["sh", "-ec", line], cwd=ROOT, env={**os.environ, **_NOBODY, **environment})


def _shown(path: Path) -> str:
    """A path from the checkout, where it lies in it."""
    return os.path.relpath(path, ROOT) if path.is_relative_to(ROOT) else str(path)
