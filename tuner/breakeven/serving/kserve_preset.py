"""The text with which KServe's presets start vLLM, read from its end.

Such a text looks for network devices and for vLLM's version, sets variables, and ends with one command in its first column:
`eval "exec vllm serve ... ${VLLM_ADDITIONAL_ARGS} $@"`. It is too long to be read as a whole for each target in each cycle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from breakeven.serving.opt_in import PRESET_VARIABLE

_LAST_COMMAND = re.compile(r'^eval "exec vllm serve ', re.MULTILINE)
# A target has a megabyte for its text; a preset has 7,000 characters.
_MOST_CHARACTERS = 64 * 1024
_USED = re.compile(r"\$\{(\w+)\}")
_SET = re.compile(r"^[ \t]*(\w+)=(.*)$", re.MULTILINE)
# Anything else is known only when the text runs.
_PLAIN = re.compile(r'"([^"$`\\]*)"')


class PresetEnd(NamedTuple):
    """The last command of a preset's text.

    Attributes:
        text: the command.
        variables: that the text before it sets; None for a value that only running it shows.
    """

    text: str
    variables: Mapping[str, str | None]


def preset_end(text: str) -> PresetEnd | None:
    """The last command of a text that has the form of KServe's presets; None of any other text.

    Of a variable that the text sets more than once the last value counts: that of the newest vLLM that the preset knows.

    Args:
        text: of a shell.
    """
    starts = list(_LAST_COMMAND.finditer(text)) if len(text) <= _MOST_CHARACTERS else []
    if len(starts) != 1:
        return None
    before, command = text[: starts[0].start()], text[starts[0].start() :]
    used = set(_USED.findall(command))
    if PRESET_VARIABLE not in used:
        return None
    last = {name: value for name, value in _SET.findall(before) if name in used - {PRESET_VARIABLE}}
    plain = {name: _PLAIN.fullmatch(value.strip()) for name, value in last.items()}
    return PresetEnd(command, {name: found[1] if found else None for name, found in plain.items()})
