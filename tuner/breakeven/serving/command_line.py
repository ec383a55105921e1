"""vLLM's command line, read as vLLM 0.32 reads it: the one reader of operator, `lint` and simulated engine.

The rules were tried with vLLM's own parser. Dashes and underscores mean the same. An unambiguous beginning stands for a
flag. A value follows as the next item or after `=`, and `--flag.key 3` sets one key of a flag's JSON.
`--speculative-config` and its short form `-sc` take JSON; an empty value, `null` and `None` mean no speculation.
`--spec-method`, `--spec-model` and `--spec-tokens` each give one key of it.

The flags are those that vLLM's own parser declares: `tests/realvllm/flags.py` printed `vllm_0_32_flags.json` and
`vllm_0_33_flags.json` where those versions are installed. A flag that the simulated engine's version does not have is refused, as
vLLM would: a manifest with a misspelt flag must fail here too. The YAML file of `--config` is read here too.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import takewhile
from typing import Any, NamedTuple

from breakeven.errors import InputError
from breakeven.intake import kind_of, shipped_json

SPECULATIVE_CONFIG = "--speculative-config"
SHORT_KEYS = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}
"""Flags that give one key of the speculative configuration."""

_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_OPTIMIZATION = re.compile(r"-O=?(\w+)")
SHELLS = {"sh", "bash", "ash", "dash", "zsh", "ksh", "mksh", "fish", "busybox"}
# Shells that run the text of their `-c`.
_SHELLS_BY_OPTION = {"su", "runuser"}
# Switches of other versions of vLLM than those whose tables `vllm_flags` holds.
_OTHER_SWITCHES = ("--disable-frontend-multiprocessing", "--disable-log-requests")


@dataclass(frozen=True, slots=True)
class GivenFlag:
    """One flag of a command line, or a word that is none.

    Attributes:
        items: words of the command line that it is made of; nothing is lost.
        name: vLLM's long name; as it stands, with dashes, if vLLM's table has no such flag; empty for a word that is no flag.
        head: the name as it stands, with dashes and without keys.
        path: keys of a dotted form.
        values: empty for a switch, and if a value is missing.
    """

    items: tuple[str, ...]
    name: str = ""
    head: str = ""
    path: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def speculative(self) -> bool:
        """Whether it says something about speculation."""
        return self.name == SPECULATIVE_CONFIG or self.name in SHORT_KEYS


_DEEPEST = 64
"""Dots in a flag's name."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """The speculation that a command line asks for.

    Attributes:
        config: as given in place; None if there is no speculation, or if `variable` decides.
        variable: name of the environment variable in `$(NAME)`, whose value the container knows at start.
        problem: one line if vLLM would refuse to start.
    """

    config: Mapping[str, Any] | None = None
    variable: str | None = None
    problem: str | None = None


def command_line(container: Mapping[str, Any]) -> list[str]:
    """Command and arguments of a container as its manifest has them."""
    return [str(item) for item in [*(container.get("command") or []), *(container.get("args") or [])]]


def cut(words: Sequence[str]) -> tuple[GivenFlag, ...]:
    """Cut a command line into flags with their values, and single words that are no flags."""
    return _flags_of(tuple(words))


# A decision asks one command line for a dozen flags.
@lru_cache(maxsize=64)
def _flags_of(words: tuple[str, ...]) -> tuple[GivenFlag, ...]:
    return tuple(_cut(words))


def _cut(words: Sequence[str]) -> Iterator[GivenFlag]:
    position = 0
    while position < len(words):
        word, following = words[position], words[position + 1 :]
        position += 1
        if not word.startswith("-") or word in {"-", "--"} or _NEGATIVE_NUMBER.fullmatch(word):
            yield GivenFlag((word,))
            continue
        if level := _OPTIMIZATION.fullmatch(word):
            yield GivenFlag((word,), _long_name("-O"), "-O", (), (level[1],))
            continue
        spelled, equals, value = word.partition("=")
        head, *path = spelled.split(".")
        head = head.replace("_", "-") if head.startswith("--") else head
        name = _long_name(head)
        taken = 0
        if not equals:
            taken = min(1, len(following)) if path else _values_after(name, following)
        position += taken
        values = (value,) if equals else tuple(following[:taken])
        yield GivenFlag((word, *following[:taken]), name, head, tuple(path), values)


def spelled_out(words: Sequence[str]) -> list[str]:
    """The command line with dashes for underscores, `-O3` in full, and dotted forms gathered into JSON.

    As in vLLM the gathered values go to the end and so replace whatever else the same flag was given; `-sc.x` and
    `--speculative-config.y` are gathered apart, so that the one seen last wins.

    Raises:
        InputError: a dotted form without a value, or of more than 64 dots.
    """
    plain: list[str] = []
    gathered: dict[str, dict[str, Any]] = {}
    for flag in cut(words):
        if flag.path:
            if not flag.values:
                raise InputError(flag.items[0], "no value", "one argument")
            if len(flag.path) > _DEEPEST:
                raise InputError(flag.items[0][:60], "nested too deep", f"at most {_DEEPEST} dots")
            _put(gathered.setdefault(flag.head, {}), flag.path, flag.values[0])
        elif flag.head == "-O":
            plain += [flag.name, *flag.values]
        elif "=" in flag.items[0] and flag.name:
            plain.append(f"{flag.head}={flag.values[0]}")
        else:
            plain += [flag.head or flag.items[0], *flag.items[1:]]
    for head, keys in gathered.items():
        plain += [head, json.dumps(keys)]
    return plain


def speculation(words: Sequence[str]) -> Speculation:
    """Read every form in which a command line may ask for speculation; the last whole value wins, as in vLLM."""
    try:
        given = [flag for flag in cut(spelled_out(words)) if flag.speculative]
        said = {flag.name: " ".join(flag.values) for flag in given}
        whole = said.pop(SPECULATIVE_CONFIG, "")
        if variable := _VARIABLE.fullmatch(whole.strip()):
            return Speculation(variable=variable[1])
        shorts = {name: read(name, text) for name, text in said.items()}
        # vLLM reads a value before a later one takes its place.
        for flag in given:
            if flag.name == SPECULATIVE_CONFIG and not _VARIABLE.fullmatch(" ".join(flag.values).strip()):
                configuration(" ".join(flag.values))
        return Speculation(joined(configuration(whole), shorts))
    except InputError as error:
        return Speculation(problem=str(error))


def configuration(text: str) -> Mapping[str, Any] | None:
    """The object in a value of `--speculative-config`; None if it means no speculation.

    Raises:
        InputError: neither JSON nor a word for nothing, or no object.
    """
    try:
        config = json_or_none(text)
    except argparse.ArgumentTypeError as error:
        raise InputError(SPECULATIVE_CONFIG, str(error), "a JSON object, null or nothing") from None
    return checked(config)


def checked(config: Any) -> Mapping[str, Any] | None:
    """The configuration; a refused input if it is neither an object nor None."""
    if config is not None and not isinstance(config, dict):
        raise InputError(SPECULATIVE_CONFIG, kind_of(config), "a JSON object, null or nothing")
    return config


def joined(config: Mapping[str, Any] | None, shorts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The configuration with the keys of the short forms by flag name; a refused input if one key is given in both ways."""
    named = {SHORT_KEYS[name]: value for name, value in shorts.items() if value is not None}
    for name, key in SHORT_KEYS.items():
        if key in named and config and key in config:
            raise InputError(
                f"{name} and {SPECULATIVE_CONFIG}['{key}']", "both given", "one: mutually exclusive"
            )
    return {**(config or {}), **named} if named else config


def without_speculation(words: Sequence[str]) -> list[str]:
    """The command line with every form of a speculative flag and its value removed."""
    return [item for flag in cut(words) if not flag.speculative for item in flag.items]


def with_speculation(words: Sequence[str], config: Mapping[str, Any] | None) -> list[str]:
    """The command line of one arm: everything else as it was, and the arm said explicitly (`null`: none)."""
    return [*without_speculation(words), f"{SPECULATIVE_CONFIG}={arm_json(config)}"]


def arm_json(config: Mapping[str, Any] | None) -> str:
    """One spelling per configuration (sorted keys, no spaces), so that equal arms compare equal as text."""
    return "null" if config is None else json.dumps(dict(config), sort_keys=True, separators=(",", ":"))


def flag_value(words: Sequence[str], name: str) -> str | None:
    """Value of a flag by its long name, whichever way it is spelled; the last one wins; None if absent."""
    found = [flag.values for flag in cut(words) if flag.name == name and not flag.path]
    return (found[-1] or ("",))[0] if found else None


def flag_number(words: Sequence[str], name: str) -> int | None:
    """A whole number of at least 0 that a flag gives; None if it gives none, or leaves the choice to the engine."""
    text = flag_value(words, name)
    try:
        number = read(name, text) if text else None
    except InputError:
        return None
    return number if isinstance(number, int) and number >= 0 else None


def model_of(words: Sequence[str]) -> str | None:
    """The model that a command line names: as its first word after what starts vLLM, else with `--model`."""
    plain = [flag.items[0] for flag in cut(after_program(words)) if not flag.name]
    return plain[0] if plain else flag_value(words, "--model")


def after_program(words: Sequence[str]) -> Sequence[str]:
    """The words that vLLM's own parser gets: everything after `vllm serve` or `python3 -m vllm...`."""
    for at, word in enumerate(words):
        module = words[at + 1] if word == "-m" and at + 1 < len(words) else ""
        if module.startswith("vllm."):
            return words[at + 2 :]
        if word == "serve" and (at == 0 or words[at - 1].rpartition("/")[2] == "vllm"):
            return words[at + 1 :]
    return words


class ShellCall(NamedTuple):
    """A shell that an option hands a text, and what the text finds as `$0`, `$1` and so on."""

    program: str
    option: str
    script: str
    arguments: tuple[str, ...]


def shell_call(words: Sequence[str]) -> ShellCall | None:
    """The shell that would read a container's command line again, with the text that it is handed; None if there is none.

    It is found wherever it stands before vLLM: as the program, at the begin of the arguments, and behind whatever starts
    it (`tini --`, `env -S`, `numactl`, `timeout 60`). A shell that runs a script is none: a script may pass "$@" on.
    """
    started = after_program(words)
    before = list(words[: len(words) - len(started)] if len(started) < len(words) else words)
    # An image whose entrypoint is vLLM has vLLM's own flags from the first word on.
    before = list(takewhile(lambda word: word.partition("=")[0] not in flags(), before))
    for at, word in enumerate(before):
        program = word.rpartition("/")[2]
        if program in SHELLS | _SHELLS_BY_OPTION and (place := _text_option(before[at + 1 :])) is not None:
            option = at + 1 + place
            script, *arguments = _without_options(words[option + 1 :]) or ("",)
            return ShellCall(word, words[option], script, tuple(arguments))
        if inner := _split_by_env(before[:at], word):
            return shell_call([*inner, *words[at + 1 :]])
    return None


def _without_options(words: Sequence[str]) -> tuple[str, ...]:
    """The words from the first on that is no option, which a shell takes for its text (`bash -lc -- TEXT`)."""
    position = 0
    while position < len(words) and words[position].startswith(("-", "+")):
        if words[position] in {"-", "--"}:
            return tuple(words[position + 1 :])
        position += 2 if re.fullmatch(r"[-+][a-zA-Z]*[oO]", words[position]) else 1
    return tuple(words[position:])


def _text_option(following: Sequence[str]) -> int | None:
    """Place of the option `-c`, alone or among other letters, if it comes before the first word that is no option."""
    applet = 1 if following and following[0] in SHELLS else 0
    valued = False
    for place, word in enumerate(following[applet:], start=applet):
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word):
            return place
        if not valued and not word.startswith(("-", "+")):
            return None
        # `-o pipefail` and `-O extglob` take the next word.
        valued = bool(re.fullmatch(r"[-+][a-zA-Z]*[oO]", word))
    return None


def _split_by_env(before: Sequence[str], word: str) -> list[str]:
    """The words of a text that `env -S` cuts at its spaces; empty if the word is no such text."""
    if not any(one.rpartition("/")[2] == "env" for one in before):
        return []
    attached = re.fullmatch(r"(?:-[a-zA-Z]*S|--split-string=)(.+)", word, re.DOTALL)
    if attached is None and not re.fullmatch(r"-[a-zA-Z]*S|--split-string", before[-1]):
        return []
    try:
        return shlex.split(attached[1] if attached else word)
    except ValueError:
        return []


@cache
def _long_names() -> Mapping[str, str]:
    return {name: flag.names[0] for flag in flags().values() for name in flag.names}


# Bounded, because the author of a manifest chooses the words.
@lru_cache(maxsize=1024)
def _long_name(head: str) -> str:
    if head == "-O":
        return "--optimization-level"
    names = _long_names()
    if head in names or not head.startswith("--"):
        return names.get(head, head)
    begun = {name for name in names if name.startswith(head)}
    return begun.pop() if len(begun) == 1 else head


def _values_after(name: str, following: Sequence[str]) -> int:
    """Number of words after a flag without `=` that are its values; only a number may begin with a dash.

    A flag that vLLM's table does not know, as of a newer version or a plug-in, owns one.
    """
    flag = flags().get(name)
    takes = "nothing" if name in _OTHER_SWITCHES else flag.takes if flag is not None else "one"
    if takes in {"nothing", "yes or no"} or name.startswith("--no-"):
        return 0
    values = takewhile(lambda word: not word.startswith("-") or _NEGATIVE_NUMBER.fullmatch(word), following)
    count = sum(1 for _ in values)
    return count if takes == "many" else min(count, 1)


def _put(target: dict[str, Any], path: Sequence[str], text: str) -> None:
    """Set one nested key; a key that ends in `+` adds comma-separated items to a list."""
    *outer, key = path
    for name in outer:
        inner = target.setdefault(name, {})
        if not isinstance(inner, dict):
            inner = target[name] = {}
        target = inner
    if key.endswith("+"):
        before = target.get(key[:-1])
        target[key[:-1]] = [*(before if isinstance(before, list) else ()), *text.split(",")]
        return
    try:
        target[key] = json.loads(text)
    except (ValueError, RecursionError):
        try:
            target[key] = size(text)
        except argparse.ArgumentTypeError:
            target[key] = text


VERSIONS = ("0.32", "0.33")
"""Versions whose flags are known, oldest first."""
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        names: `--long-name` first, then short forms.
        takes: nothing, yes or no (`--no-long-name` exists), one, perhaps one, or many.
        type: int, float, size, json, or empty for text.
        choices: the only values taken; empty for any.
        opposite: the flag that switches it off, beside `--no-...`.
    """

    names: tuple[str, ...]
    takes: str
    type: str = ""
    choices: tuple[str, ...] = ()
    opposite: str = ""


@cache
def flags_of(version: str) -> dict[str, Flag]:
    """Every flag of one of `VERSIONS` by its long name."""
    rows = shipped_json(f"vllm_{version.replace('.', '_')}_flags.json")["flags"]
    return {row["names"][0]: Flag(**row) for row in rows}


@cache
def flags() -> dict[str, Flag]:
    """Every flag of any known version by its long name, as the newest version that has it takes it.

    A manifest may run any of them, so its words are cut with all of them. A flag that switches another one off is a switch.
    """
    found: dict[str, Flag] = {}
    for version in VERSIONS:
        found |= flags_of(version)
    off = {flag.opposite: Flag((flag.opposite,), "nothing") for flag in found.values() if flag.opposite}
    return off | found


def size(text: str) -> int:
    """VLLM's readable integers: 8192, 8k (8000), 8K (8192), 25.6k; -1 and auto leave the choice to the engine.

    Raises:
        argparse.ArgumentTypeError: not such a number.
    """
    word = text.strip()
    if word.lower() == "auto":
        return -1
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", word)
    try:
        if found is None:
            return int(word)
        number, suffix = found.groups()
        if suffix in _DECIMAL:
            return int(float(number) * _DECIMAL[suffix])
        return int(number) * _BINARY[suffix]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 8192, 8k or 8K") from None


def json_or_none(text: str) -> Any:
    """JSON; empty and `None` mean none.

    Raises:
        argparse.ArgumentTypeError: not JSON, such as an environment reference that was not expanded.
    """
    if text in {"", "None"}:
        return None
    try:
        return json.loads(text)
    except ValueError:
        hint = " (an environment variable that was not expanded)" if text.startswith("$(") else ""
        raise argparse.ArgumentTypeError(f"invalid JSON value: {text!r}{hint}") from None
    except RecursionError:
        raise argparse.ArgumentTypeError("JSON that is nested too deep") from None


def _int_or_none(text: str) -> int | None:
    return None if text in {"", "None"} else int(text)


def _float_or_none(text: str) -> float | None:
    return None if text in {"", "None"} else float(text)


# argparse names the type of a wrong value by the function's name.
_int_or_none.__name__, _float_or_none.__name__ = "int", "float"

TYPES: dict[str, Callable[[str], Any]] = {
    "": str,
    "int": _int_or_none,
    "float": _float_or_none,
    "size": size,
    "json": json_or_none,
}


def read(name: str, text: str) -> Any:
    """The value of a flag as its type, or a refused input; text where vLLM's table has no such flag."""
    kind = flags()[name].type if name in flags() else ""
    try:
        return TYPES[kind](text)
    except (argparse.ArgumentTypeError, ValueError):
        raise InputError(name, repr(text), {"int": "a whole number"}.get(kind, f"a {kind}")) from None


def flags_of_file(settings: Mapping[Any, Any]) -> list[str]:
    """The flags of a file's mapping: a mapping becomes JSON, `true` and `false` the two forms of a switch."""
    found: list[str] = []
    for key, value in settings.items():
        flag = f"--{key}"
        if isinstance(value, bool):
            switch = flags().get(flag)
            has_negative = switch is not None and switch.takes == "yes or no"
            found += [flag] if value else [f"--no-{key}"] if has_negative else []
        elif isinstance(value, list):
            found += [flag, *(str(item) for item in value)] if value else []
        elif isinstance(value, dict):
            found += [flag, json.dumps(value, default=str)]
        else:
            found += [flag, str(value)]
    return found


def mounted_files(
    pod_spec: Mapping[str, Any], container: Mapping[str, Any], config_maps: Iterable[Mapping[str, Any]]
) -> dict[str, str]:
    """Files of ConfigMaps (of any namespace) in a container, by path; what Kubernetes would refuse is left out."""
    held = {str(_inner(one, "metadata").get("name")): _inner(one, "data") for one in config_maps}
    volumes = {
        volume.get("name"): _inner(volume, "configMap") for volume in _objects(pod_spec.get("volumes"))
    }
    found = {}
    for mount in _objects(container.get("volumeMounts")):
        source = volumes.get(str(mount.get("name"))) or {}
        data = held.get(str(source.get("name")), {})
        items = {str(item.get("key")): item.get("path") for item in _objects(source.get("items"))}
        base, part = str(mount.get("mountPath", "")).rstrip("/"), mount.get("subPath")
        for key, text in data.items():
            name = items.get(str(key)) if items else key
            if name is not None and (part is None or part == name):
                found[base if part is not None else f"{base}/{name}"] = str(text)
    return found


def with_config_file(words: Sequence[str], files: Mapping[str, str]) -> list[str]:
    """The command line with the flags of its `--config` file, behind the model as vLLM puts them, so that others win.

    As it was if the file is not known, or is none that vLLM reads.
    """
    start = len(words) - len(after_program(words))
    own = list(words[start:])
    if own.count("--config") != 1:
        return list(words)
    import yaml  # noqa: PLC0415 - a plan reads loads and no file

    from breakeven.yaml_intake import yaml_documents  # noqa: PLC0415

    at = own.index("--config")
    try:
        loaded = next(yaml_documents(files[own[at + 1]]), None)
    except (IndexError, KeyError, ValueError, RecursionError, yaml.YAMLError):
        return list(words)
    if not isinstance(loaded, Mapping):
        return list(words)
    rest = own[:at] + own[at + 2 :]
    head = 1 if rest and not rest[0].startswith("-") else 0
    return [*words[:start], *rest[:head], *flags_of_file(loaded), *rest[head:]]


def _objects(items: Any) -> Iterator[Mapping[str, Any]]:
    yield from (item for item in (items if isinstance(items, list) else []) if isinstance(item, Mapping))


def _inner(item: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = item.get(key)
    return found if isinstance(found, Mapping) else {}
