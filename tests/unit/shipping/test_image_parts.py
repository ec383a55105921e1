"""The image's parts that need no engine: what is left out of it, and when it is refused."""

import dataclasses
import io
import json
import site
import subprocess
import sys
import tarfile
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import pytest

from shipping import container_engines as engines
from shipping import image, oci_layout, slim_environment
from shipping.container_engines import Build, build_commands, chosen
from shipping.debian_base import LEFT_OUT, slimmed
from shipping.oci_layout import Image
from shipping.shipping_error import ShippingError

ROOT = Path(__file__).parents[3]
PACKAGES = Path(next(place for place in site.getsitepackages() if place.startswith(sys.prefix)))


def programs(folder, **exits):
    """Programs that only end, with these exit codes."""
    folder.mkdir(exist_ok=True)
    for name, code in exits.items():
        (folder / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_the_first_engine_that_works_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", docker=1, podman=0, buildah=0) + ":/bin:/usr/bin")
    # Docker's client is there, and no daemon answers.
    assert chosen() == "podman"
    assert chosen("buildah") == "buildah"
    with pytest.raises(ShippingError, match="no docker works here: `docker info` fails"):
        chosen("docker")
    with pytest.raises(ShippingError, match="ENGINE=kaniko: expected docker, podman, buildah"):
        chosen("kaniko")


def test_without_an_engine_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", programs(tmp_path / "bin"))
    with pytest.raises(
        ShippingError, match=r"no docker, podman or buildah works here: .* apt install buildah"
    ):
        chosen()


@pytest.mark.parametrize("engine", engines.ENGINES)
def test_every_engine_dates_files_by_the_commit_and_writes_oci(engine, tmp_path):
    build = Build(
        tmp_path,
        tmp_path / "Dockerfile",
        "localhost/breakeven:1",
        17,
        {"BASE": "b"},
        {"pip": tmp_path / "pip.conf"},
    )
    words = [word for command in build_commands(engine, build, tmp_path / "oci") for word in command]
    assert "--build-arg=BASE=b" in words
    assert f"--secret=id=pip,src={tmp_path}/pip.conf" in words
    if engine == "docker":
        assert "--build-arg=SOURCE_DATE_EPOCH=17" in words
        assert f"--output=type=oci,dest={tmp_path}/oci.tar,rewrite-timestamp=true" in words
    else:
        assert "--timestamp=17" in words
        assert "--layers=false" in words
        assert f"oci:{tmp_path}/oci:1" in words
    # A value of the environment would stay in the image's configuration.
    assert not any(word.startswith("--env") for word in words)


def test_the_base_is_pinned_by_its_digest():
    base = image.default_base((ROOT / "Dockerfile").read_text())
    assert base.startswith("docker.io/library/python:3.")
    assert len(base.partition("@sha256:")[2]) == 64


def test_nothing_that_our_sources_import_is_left_out():
    gone = set(slim_environment.removed(PACKAGES))
    assert len(gone) > 100
    names = slim_environment.imports(ROOT / "tuner") | slim_environment.imports(ROOT / "operator")
    assert {"scipy.special", "kubernetes.aio", "breakeven_operator.handlers"} <= names
    for name in sorted(names):
        spec = find_spec(name)
        place = Path(spec.origin) if spec and spec.origin and spec.origin.startswith(str(PACKAGES)) else None
        assert place is None or not gone.intersection([place, *place.parents]), name


def test_an_import_that_was_cut_is_named_and_one_of_another_use_is_not(tmp_path):
    texts = {
        "breakeven/__init__.py": "",
        "breakeven/plain.py": "import json",
        "breakeven/late.py": "def f():\n    import cutpackage.gone\n",
        "breakeven/pictures.py": "def f():\n    import not_in_the_image\n",
        "breakeven_operator/__init__.py": "import breakeven.plain",
        "cutpackage/__init__.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    script = f"import sys; sys.path[:0] = ['{tmp_path}', '{ROOT}']\nfrom pathlib import Path\nfrom shipping import slim_environment\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{script}print(slim_environment.broken_imports(Path('{tmp_path}')))"],
        # An empty environment: lines of a package that is called like ours and is gone afterwards must not be counted.
        env={}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == """["cutpackage.gone: No module named 'cutpackage.gone'"]\n"""


def test_what_matches_is_removed_once_and_the_rest_stays(tmp_path):
    for name in ("numpy/core.py", "numpy/tests/a.py", "numpy/tests/deep/tests/b.py", "kubernetes/client/models/v1_pod.py",
                 "kubernetes/client/models/__init__.py", "x/a.pyi"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert [str(path.relative_to(tmp_path)) for path in slim_environment.removed(tmp_path)] == [
        "kubernetes/client/models/v1_pod.py", "numpy/tests", "x/a.pyi",
    ]  # fmt: skip


def archive(path, entries, mode="w"):
    """A tar archive of (name, content or None for a folder, more fields)."""
    with tarfile.open(path, mode) as written:
        for name, content, fields in entries:
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            entry.mode = 0o755 if content is None else 0o644
            entry.size = len(content or b"")
            for field, value in fields.items():
                setattr(entry, field, value)
            written.addfile(entry, io.BytesIO(content or b""))
    return path


def test_the_debian_base_has_authorities_and_a_list_of_packages_and_nothing_of_the_machine(tmp_path):
    status = b"Package: libc6\nVersion: 2.36-9\nDescription: C: library\n more\n\nPackage: a\nVersion: 1:2\n"
    certificates = "./usr/share/ca-certificates/mozilla/"
    given = archive(
        tmp_path / "given.tar",
        [
            ("./etc/hostname", b"vm", {}), ("./etc/apt/sources.list", b"deb http://here", {}), ("./dev/null", b"", {"type": tarfile.CHRTYPE}),
            ("./usr/bin/python3.11", b"elf", {"mtime": 5}), (f"{certificates}B.crt", b"b\n", {}), (f"{certificates}A.crt", b"a\n", {}),
            ("./var/lib/dpkg/status", status, {}),
        ],
    )  # fmt: skip
    with tarfile.open(given) as read, tarfile.open(tmp_path / "kept.tar", "w") as kept:
        assert slimmed(read, kept, 99) == ["a 1:2", "libc6 2.36-9"]
    with tarfile.open(tmp_path / "kept.tar") as kept:
        found = {member.name.removeprefix("./"): member for member in kept}
        assert {member.mtime for member in found.values()} == {99}
        assert kept.extractfile(found["etc/ssl/certs/ca-certificates.crt"]).read() == b"a\nb\n"
        assert kept.extractfile(found["var/lib/dpkg/status"]).read() == status
    assert found.keys() & {"etc/hostname", "etc/apt/sources.list", "dev/null"} == set()
    assert {"etc/hostname", "etc/resolv.conf", "etc/apt/*"} <= set(LEFT_OUT)


def blob(layout, content):
    """A blob, by its digest."""
    folder = layout / "blobs" / "sha256"
    folder.mkdir(parents=True, exist_ok=True)
    value = sha256(content).hexdigest()
    (folder / value).write_bytes(content)
    return {"digest": f"sha256:{value}", "size": len(content)}


def layout_of(tmp_path, *layers):
    """An image of these archives, the second one packed."""
    layout = tmp_path / "oci"
    config = {"config": {"User": "65532:65532", "Entrypoint": ["run"], "Env": ["PATH=/bin"]}}
    manifest = {
        "config": blob(layout, json.dumps(config).encode()),
        "layers": [blob(layout, path.read_bytes()) for path in layers],
    }
    index = {"manifests": [blob(layout, json.dumps(manifest).encode())]}
    (layout / "index.json").write_text(json.dumps(index))
    return layout, index["manifests"][0]["digest"]


def test_layers_lie_over_each_other_and_their_sizes_are_those_without_compression(tmp_path):
    lower = archive(
        tmp_path / "lower.tar",
        [("etc", None, {}), ("etc/old", b"1", {}), ("etc/kept", b"1", {}), ("data", None, {}), ("data/x", b"1", {}),
         ("sh", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/kept"})],
    )  # fmt: skip
    upper = archive(
        tmp_path / "upper.tar",
        [("etc", None, {}), ("etc/.wh.old", b"", {}), ("etc/new", b"22", {}), ("data/.wh..wh..opq", b"", {}), ("data/y", b"3", {})],
        "w:gz",
    )  # fmt: skip
    layout, digest = layout_of(tmp_path, lower, upper)
    found = oci_layout.read_image(layout)
    assert found.digest == digest
    assert found.user == "65532:65532"
    assert found.packed_bytes == lower.stat().st_size + upper.stat().st_size
    assert found.unpacked_bytes == 2 * lower.stat().st_size
    oci_layout.unpack(layout, tmp_path / "root")
    files = {str(path.relative_to(tmp_path / "root")) for path in (tmp_path / "root").rglob("*")}
    assert files == {"etc", "etc/kept", "etc/new", "data", "data/y", "sh"}
    assert str((tmp_path / "root" / "sh").readlink()) == "/etc/kept"


def test_a_layer_that_leaves_its_folder_is_refused(tmp_path):
    layout, _ = layout_of(tmp_path, archive(tmp_path / "evil.tar", [("../outside", b"1", {})]))
    with pytest.raises(ShippingError, match=r"leaves its root file system: \.\./outside"):
        oci_layout.unpack(layout, tmp_path / "root")
    assert not (tmp_path / "outside").exists()


def test_pip_settings_come_from_the_environment_first():
    listed = ":env:.cert='/one.pem'\n:env:.index-url='https://index.example/simple'\nglobal.cert='/two.pem'\n"
    assert image.pip_settings(listed) == {"cert": "/one.pem", "index-url": "https://index.example/simple"}


GOOD = Image("sha256:x", 1, 1, "65532:65532", ("run",), ())


def test_what_the_image_must_not_be(tmp_path):
    (tmp_path / "su").write_text("")
    (tmp_path / "open").write_text("")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    assert list(image.faults(GOOD, tmp_path)) == []
    (tmp_path / "su").chmod(0o4755)
    (tmp_path / "open").chmod(0o666)
    assert list(image.faults(dataclasses.replace(GOOD, user=""), tmp_path)) == [
        "the image runs as root; expected a number that is not 0",
        "/open can be written by everybody",
        "/su runs as its owner (set-uid)",
    ]


def test_words_of_the_machine_that_builds_are_found_in_the_image(tmp_path):
    words = image.words_of_this_machine(
        {"HTTPS_PROXY": "http://user:pw@proxy.corp.example:3128", "PIP_INDEX_URL": "https://mirror.corp.example/simple",
         "GOPROXY": "https://go.corp.example,direct", "UV_INDEX_URL": "https://pypi.org/simple", "NO_PROXY": "localhost"}
    )  # fmt: skip
    assert words == {str(ROOT), "proxy.corp.example", "mirror.corp.example", "go.corp.example"}
    (tmp_path / "clean").write_text("nothing")
    assert list(image.leaks(tmp_path, words)) == []
    (tmp_path / "pip.conf").write_text("index-url = https://mirror.corp.example/simple")
    assert list(image.leaks(tmp_path, words)) == [
        "/pip.conf contains 'mirror.corp.example', a word of the machine that built it"
    ]


def test_the_image_is_of_its_sources_and_of_nothing_else(tmp_path):
    for name in image.SOURCES:
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            place.mkdir()
            (place / "module.py").write_text(name)
        else:
            place.write_text(name)
    before = image.sources_digest(tmp_path)
    (tmp_path / "operator" / "__pycache__").mkdir()
    (tmp_path / "operator" / "__pycache__" / "module.pyc").write_text("x")
    (tmp_path / "other.py").write_text("x")
    assert image.sources_digest(tmp_path) == before
    (tmp_path / "operator" / "module.py").write_text("changed")
    assert image.sources_digest(tmp_path) != before
