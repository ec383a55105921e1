"""Volumes: what their files hold, how they change, where they appear in the container."""

import base64
import threading

import pytest

from fakes.node_pods import WHERE, make_pod
from localcluster.nodeagent import atomicfiles, mounts, rootfiles
from localcluster.nodeagent.environment import ConfigError
from localcluster.nodeagent.mounts import Bind, Make
from localcluster.nodeagent.payloads import (
    MissingSourceError,
    Payload,
    config_map_data,
    secret_data,
    volume_files,
)
from localcluster.nodeagent.rewriting import rewrite


class Objects:
    async def config_map(self, name):
        return {"a.yaml": b"a", "b": b"\xff"} if name == "conf" else None

    async def secret(self, name):
        return {"key": b"s3cret"} if name == "keys" else None

    async def token(self, audience, lifetime_s):
        return f"token for {audience or 'the API server'}, {lifetime_s} s"


async def files(volume):
    pod = make_pod(labels={"app": "web"})
    found = await volume_files(volume, pod, WHERE, Objects())
    return {path: (payload.content, oct(payload.mode)) for path, payload in found.items()}


async def test_a_config_map_gives_all_keys_or_the_chosen_ones():
    assert await files({"configMap": {"name": "conf"}}) == {
        "a.yaml": (b"a", "0o644"),
        "b": (b"\xff", "0o644"),
    }
    chosen = {"name": "conf", "defaultMode": 0o400, "items": [{"key": "b", "path": "x/y", "mode": 0o600}]}
    assert await files({"configMap": chosen}) == {"x/y": (b"\xff", "0o600")}


async def test_a_projected_volume_joins_its_sources():
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "conf", "items": [{"key": "a.yaml", "path": "ca.crt"}]}},
        {"secret": {"name": "keys"}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        {"secret": {"name": "none", "optional": True}},
    ]
    found = await files({"projected": {"sources": sources, "defaultMode": 0o444}})
    assert {path: content for path, (content, _) in found.items()} == {
        "token": b"token for the API server, 3607 s", "ca.crt": b"a", "key": b"s3cret", "namespace": b"shop",
    }  # fmt: skip
    assert {mode for _, mode in found.values()} == {"0o444"}


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"configMap": {"name": "none"}}, 'configmap "none" not found'),
        ({"secret": {"secretName": "none"}}, 'secret "none" not found'),
        ({"secret": {"secretName": "keys", "items": [{"key": "x", "path": "x"}]}}, "non-existent key: x"),
        (
            {"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "status.nope"}}]}},
            "status.nope",
        ),
    ],
)
async def test_a_missing_source_is_named(volume, message):
    with pytest.raises(MissingSourceError, match=message):
        await files(volume)


def test_objects_hold_text_and_bytes():
    encoded = base64.b64encode(b"\x00\x01").decode()
    assert config_map_data({"data": {"a": "ä"}, "binaryData": {"b": encoded}}) == {
        "a": "ä".encode(),
        "b": b"\x00\x01",
    }
    assert secret_data({"data": {"b": encoded}}) == {"b": b"\x00\x01"}
    assert config_map_data({}) == secret_data({}) == {}


def test_files_are_published_changed_and_removed(tmp_path):
    assert atomicfiles.publish(tmp_path, {"a": Payload(b"1", 0o640), "d/b": Payload(b"2", 0o644)})
    assert (tmp_path / "a").read_bytes() == b"1"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "d/b").read_bytes() == b"2"
    before = (tmp_path / "..data").readlink()
    assert not atomicfiles.publish(tmp_path, {"a": Payload(b"1", 0o640), "d/b": Payload(b"2", 0o644)})
    assert (tmp_path / "..data").readlink() == before
    assert atomicfiles.publish(tmp_path, {"a": Payload(b"3", 0o640)})
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("..")) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"3"
    assert len(list(tmp_path.iterdir())) == 3  # the file, ..data and what it points to
    atomicfiles.publish(tmp_path / "empty", {})
    assert (tmp_path / "empty/..data").is_dir()


def test_a_reader_never_sees_a_mixture(tmp_path):
    def version(n):
        return {name: Payload(str(n).encode(), 0o644) for name in ("a", "b")}

    atomicfiles.publish(tmp_path, version(0))
    stop, torn = threading.Event(), []

    def read():
        while not stop.is_set():
            folder = tmp_path / (tmp_path / "..data").readlink()
            try:
                pair = (folder / "a").read_bytes(), (folder / "b").read_bytes()
            except FileNotFoundError:
                continue  # a version that was current a moment ago
            if pair[0] != pair[1]:
                torn.append(pair)

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(1, 200):
        atomicfiles.publish(tmp_path, version(n))
    stop.set()
    reader.join()
    assert not torn


class Host:
    """A file system of directories, files and links, given by their paths."""

    def __init__(self, *entries, links=()):
        self.links = dict(links)
        self.entries = {"/": "dir", **{e.rstrip("/"): "dir" if e.endswith("/") else "file" for e in entries}}
        self.entries |= dict.fromkeys(self.links, "link")

    def kind(self, path):
        return self.entries.get(path)

    def children(self, path):
        return sorted(
            e.rpartition("/")[2] for e in self.entries if e != "/" and (e.rpartition("/")[0] or "/") == path
        )

    def resolve(self, path):
        for link, target in self.links.items():
            if path == link or path.startswith(f"{link}/"):
                return target + path[len(link) :]
        return path


HOST = Host(
    "/etc/", "/etc/hosts", "/usr/", "/usr/lib/", "/run/", "/run/lock/", links={"/var-run": "/run"}.items()
)


def steps(*targets, host=HOST):
    made, binds = mounts.plan(targets, host)
    return {(m.what, m.path) for m in made}, [b.target for b in binds]


def test_an_existing_mount_point_needs_no_new_parent():
    made, binds = steps(Bind("/s", "/usr/lib", read_only=True, is_dir=True))
    assert made == {("copy", "/etc"), ("copy", "/run"), ("copy", "/usr"), ("copy", "/var-run")}
    assert binds == ["/usr/lib"]


def test_a_missing_mount_point_replaces_its_parent_by_one_with_the_same_entries():
    made, _ = steps(Bind("/s", "/etc/conf/deep", read_only=True, is_dir=True))
    assert {("dir", "/etc"), ("copy", "/etc/hosts"), ("dir", "/etc/conf"), ("dir", "/etc/conf/deep")} < made
    assert ("copy", "/etc") not in made
    assert ("copy", "/usr") in made


def test_links_on_the_way_are_followed():
    made, binds = steps(Bind("/s", "/var-run/secrets", read_only=True, is_dir=True))
    assert binds == ["/run/secrets"]
    assert {("dir", "/run"), ("copy", "/run/lock"), ("dir", "/run/secrets"), ("copy", "/var-run")} <= made


def test_a_mount_inside_a_mount_is_made_in_the_outer_volume():
    outer = Bind("/s", "/models", read_only=False, is_dir=True)
    inner = Bind("/f", "/models/x/file", read_only=True, is_dir=False)
    made, binds = steps(inner, outer)
    assert ("dir", "/models") in made
    assert not any(path.startswith("/models/") for _, path in made)
    assert binds == ["/models", "/models/x/file"]
    covered = Bind("/s", "/etc", read_only=False, is_dir=True)
    made, _ = steps(covered, Bind("/f", "/etc/conf/file", read_only=True, is_dir=False))
    assert ("copy", "/etc") in made


def test_a_file_takes_the_place_of_a_directory_and_is_made_where_nothing_is():
    made, _ = steps(
        Bind("/f", "/usr/lib", read_only=True, is_dir=False),
        Bind("/f", "/etc/new", read_only=True, is_dir=False),
    )
    assert {("dir", "/usr"), ("file", "/usr/lib"), ("file", "/etc/new")} <= made
    assert ("copy", "/usr/lib") not in made


def test_dev_holds_only_what_a_container_needs():
    host = Host("/dev/", "/dev/null", "/dev/sda", "/dev/termination-log")
    made, _ = mounts.plan([], host)
    assert made == (Make("dir", "/dev"), Make("copy", "/dev/null"))


def test_links_of_an_image_stay_in_it_and_devices_are_the_machines(tmp_path):
    (tmp_path / "run" / "x").mkdir(parents=True)
    (tmp_path / "var").mkdir()
    for link, target in (("var/run", "/run"), ("up", "../../../etc"), ("circle", "circle")):
        (tmp_path / link).symlink_to(target)
    image = mounts.UnpackedImage(tmp_path)
    assert image.resolve("/var/run/x/y") == "/run/x/y"
    assert image.resolve("/up/passwd") == "/etc/passwd"
    assert image.resolve("/circle/x") == "/circle/x"
    assert image.kind("/etc") is None
    assert image.children("/") == ["circle", "dev", "proc", "run", "sys", "up", "var"]
    assert mounts.place("/dev/null", tmp_path) == "/dev/null"
    assert mounts.place("/run/x", tmp_path) == f"{tmp_path}/run/x"
    assert mounts.place("/run/x", None) == "/run/x"


def binds(tmp_path, mount, *, read_only=False):
    pod = make_pod(containers=[{"name": "main", "volumeMounts": [{"name": "v", "mountPath": "/m", **mount}]}])
    return mounts.binds(pod.container("main"), {"v": (str(tmp_path), read_only)}, {"POD": "p-1"})


def test_sub_paths(tmp_path):
    (tmp_path / "file").write_text("x")
    (file,) = binds(tmp_path, {"subPath": "file"}, read_only=True)
    assert (file.source, file.is_dir, file.read_only) == (str(tmp_path / "file"), False, True)
    (made,) = binds(tmp_path, {"subPathExpr": "logs/$(POD)", "readOnly": True})
    assert (made.source, made.is_dir, made.read_only) == (str(tmp_path / "logs/p-1"), True, True)
    with pytest.raises(ConfigError, match="not found in volume v"):
        binds(tmp_path, {"subPath": "none"}, read_only=True)
    with pytest.raises(ConfigError, match="must stay inside"):
        binds(tmp_path, {"subPath": "a/../../b"})


def test_programs_that_a_volume_would_hide_are_named():
    tmp = Bind("/s", "/tmp", read_only=False, is_dir=True)
    file = Bind("/s", "/opt/venv", read_only=False, is_dir=False)
    needed = ["/opt/venv", "/tmp/clone/.venv", "/tmpfs/x", "/tmp"]
    assert rootfiles.hidden([tmp, file], needed) == ["/tmp/clone/.venv", "/tmp"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/models", "/here"),
        ("--path=/models/x,/models", "--path=/here/x,/here"),
        ("/models/cache/y", "/cache/y"),
        ("/models2 /data/models models", "/models2 /data/models models"),
        ("/models.old", "/models.old"),
        ("file:///models/a", "file:///here/a"),
        ("cat /models;", "cat /here;"),
    ],
)
def test_without_namespaces_paths_are_rewritten(text, expected):
    where = [
        Bind("/here", "/models", read_only=True, is_dir=True),
        Bind("/cache", "/models/cache", read_only=True, is_dir=True),
    ]
    if text.startswith("file:"):
        # After `//` a path and a host look the same; left alone rather than guessed.
        expected = text
    assert rewrite(text, where) == expected
