"""`make image`: builds the operator's image, unpacks it, and says what it is.

Everything goes to `.image/`: the image in OCI layout, its root file system, its bill of materials, and `image.json` with the facts.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from shipping.commands import ROOT, checked, commit_time_s, tool
from shipping.container_engines import Build, EngineName, base_dockerfile, built, chosen
from shipping.debian_base import make_base
from shipping.oci_layout import Image, read_image, unpack
from shipping.shipping_error import ShippingError

FOLDER: Final = ROOT / ".image"
FACTS: Final = FOLDER / "image.json"
ROOT_FILES: Final = FOLDER / "rootfs"
GOAL_MB: Final = 220
"""Size of the image without compression, at most."""
SOURCES: Final = ("Dockerfile", ".dockerignore", "requirements/operator.lock", "pyproject.toml", "README.md", "LICENSE",
                  "shipping/slim_environment.py", "tuner/breakeven", "operator")  # fmt: skip
"""Files and folders that decide what is in the image, besides its base."""
_DEBIAN: Final = "debian"
_PIP_OPTIONS: Final = frozenset(
    {"index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout", "retries"}
)
_AUTHORITIES: Final = "/run/authorities.pem"
# Shorter words, such as a host called vm, are found in any library.
_LEAST_LETTERS: Final = 8


@dataclass(frozen=True)
class Wish:
    """Options of `make image`.

    Attributes:
        version: tag of the image.
        engine: docker, podman or buildah; empty: the first that works.
        base: image that the build stands on; empty: the Dockerfile's; `debian`: one of Debian's packages.
        twice: build again without any step of before, and compare the digests.
    """

    version: str
    engine: str = ""
    base: str = ""
    twice: bool = False


def make_image(wish: Wish, say: Any = print) -> Mapping[str, Any]:
    """Builds the image; returns the facts, which stand in `image.json` too.

    Raises:
        ShippingError: it cannot be built, is not the same twice, or has something that it must not have.
    """
    engine = chosen(wish.engine)
    started = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    epoch_s = commit_time_s()
    sources = sources_digest(ROOT)
    image, packages = _built_once(engine, wish, FOLDER / "oci", epoch_s, fresh=False)
    say(f"built by {engine} in {time.monotonic() - started:.0f} s: {image.digest}")
    if wish.twice:
        again, _ = _built_once(engine, wish, FOLDER / "again", epoch_s, fresh=True)
        shutil.rmtree(FOLDER / "again")
        say(f"built again from nothing:  {again.digest}")
        if again.digest != image.digest:
            raise ShippingError(f"the second build is another image: {again.digest}, not {image.digest}")
    unpack(FOLDER / "oci", ROOT_FILES)
    for complaint in (*faults(image, ROOT_FILES), *leaks(ROOT_FILES, words_of_this_machine(os.environ))):
        raise ShippingError(complaint)
    counts = bill_of_materials(FOLDER / "oci", FOLDER / "sbom.cdx.json", wish.version)
    facts = {
        **asdict(image),
        "version": wish.version,
        "engine": engine,
        "base": wish.base or default_base((ROOT / "Dockerfile").read_text(encoding="utf-8")),
        "base_packages": list(packages),
        "sources": sources,
        "built_at_s": epoch_s,
    }
    FACTS.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    megabytes = image.unpacked_bytes / 1e6
    verdict = "within" if megabytes <= GOAL_MB else f"{megabytes - GOAL_MB:.0f} MB over"
    say(
        f"size: {megabytes:.1f} MB, {verdict} the goal of {GOAL_MB} MB; {image.packed_bytes / 1e6:.1f} MB in a registry"
    )
    say(f"base: {facts['base']}" + (f", {len(packages)} packages" if packages else ""))
    say(f"user: {image.user}, no file that is set-uid or written by all, no word of this machine")
    say(
        f"bill of materials: .image/sbom.cdx.json ({', '.join(f'{count} {kind}' for kind, count in counts.items())})"
    )
    say(
        f"files: .image/oci (image), .image/rootfs (its root file system); {time.monotonic() - started:.0f} s in all"
    )
    return facts


def _built_once(
    engine: EngineName, wish: Wish, layout: Path, epoch_s: int, *, fresh: bool
) -> tuple[Image, Sequence[str]]:
    packages: Sequence[str] = ()
    arguments = {"BASE": wish.base} if wish.base else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if wish.base == _DEBIAN:
            packages = make_base(folder / "base.tar", epoch_s)
            arguments = {"BASE": _base_image(engine, folder, epoch_s)}
        build = Build(
            context=ROOT,
            file=ROOT / "Dockerfile",
            tag=f"localhost/breakeven:{wish.version}",
            epoch_s=epoch_s,
            arguments=arguments,
            secrets=pip_secrets(folder),
            fresh=fresh,
        )
        built(engine, build, layout)
    return read_image(layout), packages


def _base_image(engine: EngineName, folder: Path, epoch_s: int) -> str:
    """Makes an image of `base.tar` in the engine's store; its name."""
    if engine == "docker":
        raise ShippingError(
            "BASE=debian is for podman and buildah: Docker's builder cannot see an image that was not pushed"
        )
    context = folder / "base"
    context.mkdir()
    (folder / "base.tar").rename(context / "base.tar")
    file = context / "Dockerfile"
    file.write_text(base_dockerfile("base.tar"), encoding="utf-8")
    tag = "localhost/breakeven-base:debian"
    built(
        engine, Build(context=context, file=file, tag=tag, epoch_s=epoch_s, fresh=True), folder / "base-oci"
    )
    return tag


def pip_secrets(folder: Path) -> Mapping[str, Path]:
    """Files by which the build's pip reaches the index that this machine's pip reaches; none where it has no settings."""
    settings = pip_settings(checked([sys.executable, "-m", "pip", "config", "list"]))
    lines = [f"{name} = {value}" for name, value in settings.items() if name in _PIP_OPTIONS]
    secrets = {}
    if "cert" in settings:
        lines.append(f"cert = {_AUTHORITIES}")
        secrets["authorities"] = Path(settings["cert"])
    if lines:
        secrets["pip"] = folder / "pip.conf"
        secrets["pip"].write_text("\n".join(["[global]", *lines, ""]), encoding="utf-8")
    return secrets


def pip_settings(listed: str) -> Mapping[str, str]:
    """Settings in the output of `pip config list` (`global.cert='...'`), by the option's name; those of the environment win."""
    found: dict[str, str] = {}
    for line in listed.splitlines():
        place, _, value = line.partition("=")
        if value:
            found.setdefault(place.rpartition(".")[2], str(ast.literal_eval(value)))
    return found


def default_base(dockerfile: str) -> str:
    """The base that the Dockerfile names."""
    return re.search(r"^ARG BASE=(\S+)", dockerfile, flags=re.MULTILINE)[1]  # type: ignore[index]


def sources_digest(root: Path) -> str:
    """A digest of everything in the checkout that the image is made of."""
    digest = hashlib.sha256()
    for name in SOURCES:
        place = root / name
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(
                    f"{file.relative_to(root)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode()
                )
    return digest.hexdigest()


def faults(image: Image, root: Path) -> Iterator[str]:
    """Reasons why the image must not run as it is."""
    if image.user.partition(":")[0] in {"", "0", "root"}:
        yield f"the image runs as {image.user or 'root'}; expected a number that is not 0"
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            continue
        mode, place = path.stat().st_mode, path.relative_to(root)
        if path.is_file() and mode & (stat.S_ISUID | stat.S_ISGID):
            yield f"/{place} runs as its owner (set-uid)"
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            yield f"/{place} can be written by everybody"


def words_of_this_machine(environment: Mapping[str, str]) -> frozenset[str]:
    """Words that would say where the image was built: this checkout's folder, and hosts of proxies and package indexes."""
    words = {str(ROOT)}
    for name, value in environment.items():
        if name.upper().endswith(("_PROXY", "_INDEX_URL", "GOPROXY")):
            words |= {host for part in re.split(r"[,|\s]", value) if (host := urlsplit(part).hostname)}
        elif name == "PIP_FIND_LINKS":
            words.add(value)
    public = {"pypi.org", "proxy.golang.org", "localhost"}
    return frozenset(word for word in words if len(word) >= _LEAST_LETTERS and word not in public)


def leaks(root: Path, words: frozenset[str]) -> Iterator[str]:
    """Files of the image that contain one of the words."""
    wanted = [word.encode() for word in sorted(words)]
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            for word in wanted:
                if word in content:
                    yield f"/{path.relative_to(root)} contains {word.decode()!r}, a word of the machine that built it"


def bill_of_materials(layout: Path, target: Path, version: str) -> Mapping[str, int]:
    """Writes what the image is made of, by syft (CycloneDX), without the time and the random number of this run.

    Returns:
        The number of packages by kind.
    """
    found = checked(
        [str(tool("syft")), "scan", f"oci-dir:{layout}", "--quiet", "--source-name=breakeven", f"--source-version={version}",
         "--output=cyclonedx-json"],
        env={**os.environ, "SYFT_CHECK_FOR_APP_UPDATE": "false"},
    )  # fmt: skip
    document = json.loads(found)
    document.pop("serialNumber", None)
    document["metadata"].pop("timestamp", None)
    target.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    kinds = [re.match(r"pkg:(\w+)/", component.get("purl", "")) for component in document["components"]]
    return dict(sorted(Counter(kind[1] for kind in kinds if kind).items()))
