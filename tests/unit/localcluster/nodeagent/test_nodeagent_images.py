"""Which program an image stands for, and with which command line."""

import subprocess
import sys
from pathlib import Path

import pytest

from localcluster.nodeagent import images

BIN = str(Path(sys.executable).parent)
TABLE = images.load()
ENGINE = [f"{BIN}/breakeven", "engine-sim"]
HOST = ["--host", "127.64.0.2"]


def command_line(image, command=(), args=()):
    return images.find(image, TABLE).command_line(command, args, "127.64.0.2")


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        ([], ["m", "--port", "8000"], [*ENGINE, "m", "--port", "8000", *HOST]),
        (["vllm", "serve"], ["m"], [*ENGINE, "m", *HOST]),
        (["/usr/bin/vllm", "serve", "m"], [], [*ENGINE, "m", *HOST]),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], ["--model", "m"], [*ENGINE, "--model", "m", *HOST]),
        ([], ["m", "--host", "::"], [*ENGINE, "m", "--host", "::"]),
        ([], ["m", "--host=0.0.0.0"], [*ENGINE, "m", "--host=0.0.0.0"]),
        # Anything else runs as it is.
        (["sh", "-c", "vllm serve m"], [], ["sh", "-c", "vllm serve m"]),
        (["vllm", "bench"], ["serve"], ["vllm", "bench", "serve"]),
    ],
)  # fmt: skip
def test_the_engine_image(command, args, expected):
    assert command_line("vllm/vllm-openai:v0.11.0", command, args) == expected


@pytest.mark.parametrize(
    "image",
    ["vllm/vllm-openai", "docker.io/vllm/vllm-openai:latest", "vllm/vllm-openai@sha256:ab", "mirror.local:5000/x/vllm-openai:v1"],
)  # fmt: skip
def test_spellings_of_the_engine_image(image):
    assert command_line(image, [], ["m"])[:2] == ENGINE


def test_our_image_runs_our_programs_as_an_ordinary_user():
    image = "ghcr.io/breakeven-dev/breakeven:0.1.0"
    assert command_line(image) == [f"{BIN}/breakeven-operator"]
    assert command_line(image, ["breakeven"], ["fit"]) == ["breakeven", "fit"]
    assert images.find(image, TABLE).user == 65532


def test_an_image_without_a_program_runs_the_command():
    assert command_line("busybox", ["echo"], ["hi"]) == ["echo", "hi"]
    assert command_line("docker.io/library/busybox:1.36") == []
    assert images.find("nginx:1.29", TABLE) is None


def test_in_a_shell_the_alias_is_a_script_that_adds_the_default_unless_given(tmp_path):
    program = images.find("vllm/vllm-openai:v1", images.load(_table(tmp_path)))
    (tmp_path / "vllm").write_text(program.shims()["vllm"])
    (tmp_path / "vllm").chmod(0o755)

    def run(line):
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "BREAKEVEN_POD_IP": "127.64.0.2"}
        return subprocess.run(
            ["sh", "-c", line], env=env, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert run("vllm serve m --port 1") == "engine: m --port 1 --host 127.64.0.2"
    assert run("vllm serve 'a b' --host=1.2.3.4") == "engine: a b --host=1.2.3.4"


def _table(folder):
    file = folder / "images.yaml"
    file.write_text(
        "- images: ['vllm/*']\n  entrypoint: [echo, 'engine:']\n  aliases: [[vllm, serve]]\n  defaults: {--host: '{pod_ip}'}\n"
    )
    return file


def test_a_table_of_the_users_comes_first(tmp_path):
    assert images.find("vllm/vllm-openai:v1", images.load(_table(tmp_path))).entrypoint == ("echo", "engine:")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1", "expected a list of entries"),
        ("- images: [x]", "entry 1: expected fields images and entrypoint"),
        ("- {images: [x], entrypoint: [y], entry_point: [z]}", "entry 1: expected fields"),
        ("- {images: x, entrypoint: [y]}", "entry 1: images is not a list of strings"),
        ("- {images: [x], entrypoint: [y], preload: {command: [y]}}", "preload is no command and modules"),
        ("- {images: [x], entrypoint: [y], preload: {command: [y], modules: []}}", "preload is no command"),
        ("[", "while parsing"),
    ],
)
def test_a_bad_table_is_refused_with_its_file_and_entry(tmp_path, text, message):
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(images.ImageTableError, match=rf"t\.yaml: .*{message}"):
        images.load(tmp_path / "t.yaml")


def test_image_ids_are_stable_and_differ_between_images():
    assert images.image_id("vllm/vllm-openai@sha256:ab") == "vllm/vllm-openai@sha256:ab"
    one = images.image_id("vllm/vllm-openai:v1")
    assert one == images.image_id("docker.io/vllm/vllm-openai:v1")
    assert one.startswith("vllm/vllm-openai@sha256:")
    assert one != images.image_id("vllm/vllm-openai:v2")
    assert images.image_id("localhost:5000/x").startswith("localhost:5000/x@sha256:")


def test_an_image_may_have_a_root_file_system_of_its_own(tmp_path):
    table = tmp_path / "images.yaml"
    table.write_text(f"[{{images: ['x:*'], entrypoint: [run], root: {tmp_path}}}]")
    assert images.find("x:1", images.load(table)).root == tmp_path
    table.write_text("[{images: ['x:*'], entrypoint: [run], root: not/here}]")
    with pytest.raises(images.ImageTableError, match="root is no absolute path of a folder: not/here"):
        images.load(table)


@pytest.mark.parametrize(
    ("image", "words", "served"),
    [
        ("vllm/vllm-openai:v1", [*ENGINE, "m", *HOST], True),
        ("vllm/vllm-openai:v1", ["vllm", "bench", "serve"], False),
        ("ghcr.io/breakeven-dev/breakeven:0.1.0", [f"{BIN}/breakeven-operator", "trial"], True),
        # It lives long, and is looked up by its environment.
        ("ghcr.io/breakeven-dev/breakeven:0.1.0", [f"{BIN}/breakeven-operator", "run"], False),
    ],
)
def test_containers_whose_imports_are_done_already(image, words, served):
    program = images.find(image, TABLE)
    assert program.preload.serves(words, {"PATH": "/bin", **program.env}) is served
    # Another interpreter, or another locale, is another program.
    for name in ("PYTHONPATH", "LD_PRELOAD", "LANG"):
        assert not program.preload.serves(words, {**program.env, name: "x"})
    assert not program.preload.serves(words, {})
