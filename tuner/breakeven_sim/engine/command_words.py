"""vLLM's own rewriting of a command line before argparse sees its words.

It moves the model to the front, puts the flags of a YAML file behind it, and spells all of them out.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from breakeven.errors import InputError
from breakeven.intake import file_text
from breakeven.serving.command_line import flags_of_file, spelled_out
from breakeven.yaml_intake import yaml_documents


def rewritten(words: list[str]) -> list[str]:
    """The words that argparse gets.

    Raises:
        InputError: what vLLM refuses at this stage.
    """
    return spelled_out(_with_config_file(_with_model_first(words)))


def _with_model_first(words: list[str]) -> list[str]:
    """Move `--model NAME` to the front, as vLLM does; a model that stands there already is then one too many."""
    at = next((i for i, word in enumerate(words) if word == "--model" or word.startswith("--model=")), None)
    if at is not None:
        _, equals, name = words[at].partition("=")
        width = 1 if equals else 2
        moved = [name] if equals else words[at + 1 : at + 2]
        return [*moved, *words[:at], *words[at + width :]]
    named = any(re.match(r"--served[-_]model[-_]name(=|$)", word) for word in words)
    if words and words[0].startswith("-") and named and "--config" not in words:
        raise InputError("--served-model-name", "no model before it", "the model as the first argument")
    return words


def _with_config_file(words: list[str]) -> list[str]:
    """Put the flags of `--config FILE` right behind the model, before the command line's own, which therefore win.

    Two files are refused. A file needs the model as the first word or as a key of its own. An empty file crashes. A mapping
    value becomes JSON, `true` and `false` the two forms of a switch. `--config=FILE` in one word is not noticed at all. All
    of this was tried with vLLM.
    """
    places = [i for i, word in enumerate(words) if word == "--config"]
    if not places:
        return words
    if len(places) > 1:
        raise InputError("--config", "given twice", "one file: More than one config file specified!")
    at = places[0]
    if at + 1 >= len(words):
        raise InputError("--config", "No config file specified!", "a YAML file")
    from_file = _read_config_file(words[at + 1])
    rest = words[:at] + words[at + 2 :]
    # vLLM takes the first word for the model, even if `--config` pushed the real model away from the front.
    head = 1 if not words[0].startswith("-") else 0
    if not head and "--model" not in from_file:
        raise InputError(
            "--config", "No model specified!", "it as the first argument or as a key of the file"
        )
    return rest[:head] + from_file + rest[head:]


def _read_config_file(path: str) -> list[str]:
    """The flags of a YAML file."""
    where = f"--config {path}"
    if path.rpartition(".")[2] not in {"yaml", "yml"}:
        raise InputError(where, "another kind of file", "Config file must be of a yaml/yml type")
    try:
        loaded = next(yaml_documents(file_text(Path(path), "a YAML file", where)), None)
    except yaml.YAMLError as problem:
        raise InputError(where, " ".join(str(problem).split()), "a readable YAML file") from None
    if not isinstance(loaded, dict):
        # An empty file, or one of comments only, takes vLLM down with an AttributeError.
        raise InputError(
            where, f"'{type(loaded).__name__}' object has no attribute 'items'", "a YAML mapping; {} for none"
        )
    return flags_of_file(loaded)
