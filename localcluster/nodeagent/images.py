"""Which local program a container image stands for (the table is `images.yaml`, which also documents its fields)."""

from __future__ import annotations

import fnmatch
import hashlib
import posixpath
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

BUILT_IN = Path(__file__).with_name("images.yaml")
_FIELDS = {"images", "entrypoint", "aliases", "defaults", "env", "user", "root", "preload"}


class ImageTableError(ValueError):
    """An image table that cannot be read; the message names the file and the entry."""


@dataclass(frozen=True)
class Preload:
    """Imports that are done once for many containers.

    Attributes:
        command: the words that a command line must begin with.
        modules: to import.
        env: with which Python must run; variables that it does not look at are the container's own.
    """

    command: tuple[str, ...]
    modules: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()

    def serves(self, argv: Sequence[str], env: Mapping[str, str]) -> bool:
        """Whether a fork with these imports is the program that the command line would start."""
        return (*argv[: len(self.command)],) == (*_filled(self.command, ""),) and _looked_at(env) == (
            _looked_at(dict(self.env))
        )


def _looked_at(env: Mapping[str, str]) -> dict[str, str]:
    """Variables by which an interpreter or a loader starts otherwise."""
    return {name: value for name, value in env.items() if name.startswith(("PYTHON", "LD_", "LC_", "LANG"))}


@dataclass(frozen=True)
class ImageProgram:
    """The local program behind some images: one entry of `images.yaml`."""

    images: tuple[str, ...]
    entrypoint: tuple[str, ...]
    aliases: tuple[tuple[str, ...], ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    user: int = 0
    root: Path | None = None
    preload: Preload | None = None

    def command_line(self, command: Sequence[str], args: Sequence[str], pod_ip: str) -> list[str]:
        """The words to execute for a container's command and args (already expanded); empty if there is nothing to run.

        A command replaces the entrypoint, as in Kubernetes, unless it spells the entrypoint out.
        """
        given = list(args) if not command else self._without_alias([*command, *args])
        if given is None:
            return [*command, *args]
        line = [*_filled(self.entrypoint, pod_ip), *given]
        for option, value in self.defaults.items():
            if not any(word == option or word.startswith(f"{option}=") for word in given):
                line += _filled([option, value], pod_ip)
        return line

    def shims(self) -> dict[str, str]:
        """Shell scripts, by program name, that stand for the aliases inside a shell's command line."""
        return {
            alias[0]: _shim(alias, _filled(self.entrypoint, ""), self.defaults)
            for alias in self.aliases
            if not alias[0].startswith("python")
        }

    def _without_alias(self, line: Sequence[str]) -> list[str] | None:
        for alias in self.aliases:
            head = [
                posixpath.basename(word) if at == 0 else word for at, word in enumerate(line[: len(alias)])
            ]
            if tuple(head) == alias:
                return list(line[len(alias) :])
        return None


def load(*files: Path) -> tuple[ImageProgram, ...]:
    """The tables of `files`, in their order, then the built-in one.

    Raises:
        ImageTableError: a file is missing, is no YAML or holds an entry with unknown or missing fields.
    """
    return tuple(program for file in (*files, BUILT_IN) for program in _read(file))


def find(image: str, table: Sequence[ImageProgram]) -> ImageProgram | None:
    """The first program whose patterns match the image; None for an image this machine does not have."""
    name = normalised(image)
    for program in table:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in program.images):
            return program
    return None


def normalised(image: str) -> str:
    """The image without Docker Hub's implied prefixes and with a tag, as the table's patterns expect it."""
    name = image.removeprefix("docker.io/").removeprefix("library/")
    last = name.rpartition("/")[2]
    return name if ":" in last or "@" in last else f"{name}:latest"


def image_id(image: str) -> str:
    """A digest reference for `containerStatuses[].imageID`: the image's own digest, or one that is stable for its name."""
    repository, at, _ = image.partition("@")
    if at:
        return image
    name = normalised(repository)
    return f"{name.rpartition(':')[0]}@sha256:{hashlib.sha256(name.encode()).hexdigest()}"


def bin_folder() -> str:
    """The folder of the running Python's programs (not resolved: a virtual environment's Python is a link)."""
    return str(Path(sys.executable).parent)


def _filled(words: Sequence[str], pod_ip: str) -> list[str]:
    # str.format would trip over the braces of JSON in user-given tables.
    places = {"{bin}": bin_folder(), "{python}": sys.executable, "{pod_ip}": pod_ip}
    filled = list(words)
    for place, value in places.items():
        filled = [word.replace(place, value) for word in filled]
    return filled


def _shim(alias: Sequence[str], entrypoint: Sequence[str], defaults: Mapping[str, str]) -> str:
    lines = [
        "#!/bin/sh",
        "# Written by the node agent: the image's program for use inside a shell's command line.",
    ]
    lines += [f'[ "$1" = {shlex.quote(word)} ] && shift' for word in alias[1:]]
    for option, value in defaults.items():
        text = value.replace("{pod_ip}", "$BREAKEVEN_POD_IP")
        lines.append(
            f'case " $* " in *" {option} "*|*" {option}="*) ;; *) set -- "$@" {option} "{text}" ;; esac'
        )
    lines.append(f'exec {shlex.join(entrypoint)} "$@"')
    return "\n".join(lines) + "\n"


def _read(file: Path) -> list[ImageProgram]:
    try:
        entries = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ImageTableError(f"{file}: {error}") from error
    if not isinstance(entries, list):
        raise ImageTableError(f"{file}: expected a list of entries")
    return [_program(entry, f"{file}: entry {number}") for number, entry in enumerate(entries, start=1)]


def _root(folder: Any, where: str) -> Path:
    if not isinstance(folder, str) or not Path(folder).is_absolute() or not Path(folder).is_dir():
        raise ImageTableError(f"{where}: root is no absolute path of a folder: {folder}")
    return Path(folder)


def _program(entry: Any, where: str) -> ImageProgram:
    if not isinstance(entry, dict) or not {"images", "entrypoint"} <= entry.keys() <= _FIELDS:
        raise ImageTableError(
            f"{where}: expected fields images and entrypoint, and of {', '.join(sorted(_FIELDS))} only"
        )
    for name in ("images", "entrypoint"):
        if not isinstance(entry[name], list) or not all(isinstance(item, str) for item in entry[name]):
            raise ImageTableError(f"{where}: {name} is not a list of strings")
    env = {str(name): str(value) for name, value in entry.get("env", {}).items()}
    return ImageProgram(
        images=tuple(entry["images"]),
        entrypoint=tuple(entry["entrypoint"]),
        aliases=tuple(tuple(alias) for alias in entry.get("aliases", [])),
        defaults={str(option): str(value) for option, value in entry.get("defaults", {}).items()},
        env=env,
        user=int(entry.get("user", 0)),
        root=_root(entry["root"], where) if "root" in entry else None,
        preload=_preload(entry["preload"], env, where) if "preload" in entry else None,
    )


def _preload(fields: Any, env: Mapping[str, str], where: str) -> Preload:
    lists = (
        list(fields.values())
        if isinstance(fields, dict) and fields.keys() == {"command", "modules"}
        else [None]
    )
    if not all(
        isinstance(words, list) and words and all(isinstance(word, str) for word in words) for words in lists
    ):
        raise ImageTableError(f"{where}: preload is no command and modules, lists of strings: {fields}")
    return Preload(tuple(fields["command"]), tuple(fields["modules"]), tuple(env.items()))
