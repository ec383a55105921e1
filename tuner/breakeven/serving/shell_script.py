"""The commands of a shell script, read by tree-sitter's grammar of bash and never run.

Variables are filled in from an environment where it says their values. A variable of unknown value stands as
`$(NAME)`, which is how Kubernetes and `command_line` write one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

# The grammar takes time by the square of the length of a few odd texts: a second for this one.
_MOST_CHARACTERS = 16 * 1024
_MOST_COMMANDS = 2000
_LOOPS = {"while_statement", "for_statement", "c_style_for_statement"}
_BRANCHES = {"if_statement", "case_statement", "function_definition", "subshell", "pipeline"}
_ESCAPED = re.compile(r"\\(\n|.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\([$`"\\\n])')


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One simple command.

    Attributes:
        words: program and arguments as the shell hands them on; assignments before them are not among them.
        assignments: variables that it sets, for itself or (without words) for what follows.
        literal: whether every word is known but for variables.
        unquoted: variables of unknown value that stand outside quotes, so that the shell splits what they hold.
        repeated: it stands in a loop.
        conditional: it may not run, or not in the script's own process.
        background: the script does not wait for it.
        redirected: its output goes elsewhere, or its input comes from elsewhere.
    """

    words: tuple[str, ...]
    assignments: Mapping[str, str] = field(default_factory=dict)
    literal: bool = True
    unquoted: tuple[str, ...] = ()
    repeated: bool = False
    conditional: bool = False
    background: bool = False
    redirected: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """The simple commands of a script, in order.

    Attributes:
        complete: whether the whole script was understood; False for a text that is no shell script or is too long.
    """

    commands: tuple[ShellCommand, ...]
    complete: bool = True


@dataclass
class _Word:
    """A word being put together: finished words, and the one that grows."""

    done: list[str]
    text: str = ""
    begun: bool = False
    literal: bool = True
    unquoted: tuple[str, ...] = ()

    def add(self, text: str) -> None:
        self.text += text
        self.begun = True

    def split(self, text: str) -> None:
        """Add a value outside quotes: the shell cuts it at white space."""
        parts = re.split(r"[ \t\n]+", text)
        for part in parts[:-1]:
            if self.begun or part:
                self.add(part)
                self.done.append(self.text)
            self.text, self.begun = "", False
        if parts[-1]:
            self.add(parts[-1])


def shell_script(text: str, environment: Mapping[str, str | None], arguments: Sequence[str] = ()) -> Script:
    """Read a script.

    Args:
        text: the script.
        environment: variables that the container has; None: a value that is known only in the cluster.
        arguments: what the script finds as `$0`, `$1` and so on.
    """
    if len(text) > _MOST_CHARACTERS:
        return Script((), complete=False)
    try:
        return _read(text.encode("utf-8", "surrogatepass"), environment, arguments)
    except RecursionError:
        return Script((), complete=False)


def _read(source: bytes, environment: Mapping[str, str | None], arguments: Sequence[str]) -> Script:
    root = _parser().parse(source).root_node
    known: dict[str, str | None] = dict(environment)
    commands: list[ShellCommand] = []
    for node, place in _simple_commands(root):
        if len(commands) >= _MOST_COMMANDS:
            return Script(tuple(commands), complete=False)
        command = _Reader(source, known, arguments).command(node, place)
        certain = not (place.conditional or place.repeated)
        declares = node.type in {"declaration_command", "variable_assignment", "variable_assignments"}
        if declares or not command.words:
            known.update({name: value if certain else None for name, value in command.assignments.items()})
        if command.words:
            commands.append(command)
    return Script(tuple(commands), complete=not root.has_error)


@cache
def _parser() -> Parser:
    import tree_sitter_bash  # noqa: PLC0415  # 20 ms that only manifests with a shell pay
    from tree_sitter import Language, Parser  # noqa: PLC0415

    return Parser(Language(tree_sitter_bash.language()))


@dataclass(frozen=True, slots=True)
class _Place:
    repeated: bool = False
    conditional: bool = False
    background: bool = False
    redirected: bool = False


def _simple_commands(root: Node) -> Iterator[tuple[Node, _Place]]:
    """Simple commands in the order of the text, each with what stands around it; without recursion, however deep they nest."""
    waiting: list[tuple[Node, _Place]] = [(root, _Place())]
    while waiting:
        node, place = waiting.pop()
        if node.type in {"command", "declaration_command", "variable_assignment", "variable_assignments"}:
            yield node, place
            continue
        repeated = place.repeated or node.type in _LOOPS
        conditional = place.conditional or node.type in _BRANCHES
        redirected = place.redirected or node.type == "redirected_statement"
        children = []
        # Each look at a node's children makes a new list of them.
        inner = node.children
        types = [*(child.type for child in inner), ""]
        for at, child in enumerate(inner):
            following = types[at + 1]
            # What stands behind `||` runs only when something fails; `a && b` is a script that goes as meant.
            inside = conditional or (at > 0 and types[at - 1] == "||")
            behind = place.background or following == "&"
            children.append((child, _Place(repeated, inside, behind, redirected)))
        waiting += reversed([(child, around) for child, around in children if child.is_named])


@dataclass(frozen=True, slots=True)
class _Reader:
    source: bytes
    known: Mapping[str, str | None]
    arguments: Sequence[str]

    def command(self, node: Node, place: _Place) -> ShellCommand:
        words: list[str] = []
        assignments: dict[str, str] = {}
        literal = True
        unquoted: tuple[str, ...] = ()
        redirected = place.redirected
        parts = [node] if node.type == "variable_assignment" else node.children
        for child in parts:
            if child.type == "variable_assignment":
                name, value, certain = self._assignment(child)
                assignments[name] = value
                literal = literal and certain
            elif child.type in {"file_redirect", "herestring_redirect", "heredoc_redirect"}:
                redirected = True
            elif child.is_named or node.type == "declaration_command":
                word = _Word([])
                self._word(child, word, quoted=False)
                words += [*word.done, word.text] if word.begun else word.done
                literal = literal and word.literal
                unquoted = (*unquoted, *word.unquoted)
        if node.type == "declaration_command":
            words = []
        return ShellCommand(
            tuple(words),
            assignments,
            literal=literal,
            unquoted=unquoted,
            repeated=place.repeated,
            conditional=place.conditional,
            background=place.background,
            redirected=redirected,
        )

    def _assignment(self, node: Node) -> tuple[str, str, bool]:
        name, *rest = node.children
        word = _Word([])
        for child in rest:
            if child.is_named:
                self._word(child, word, quoted=True)
        return self._text(name), word.text, word.literal

    def _text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def _word(self, node: Node, word: _Word, *, quoted: bool) -> None:
        """Add what a node stands for; a node within a node is followed at most as deep as quotes nest."""
        text = self._text(node)
        match node.type:
            case "command_name" | "concatenation":
                for child in node.children:
                    self._word(child, word, quoted=quoted)
            case "raw_string":
                word.add(text[1:-1])
            case "string":
                self._string(node, word)
            case "simple_expansion" | "expansion":
                blank = text[: len(text) - len(text.lstrip())]
                if blank:
                    word.add(blank)
                self._variable(text.strip(), word, quoted=quoted)
            case "command_substitution" | "process_substitution" | "arithmetic_expansion" | "ansi_c_string":
                self._substitution(text, word)
            case _:
                word.add(_ESCAPED.sub(lambda found: "" if found[1] == "\n" else found[1], text))

    def _string(self, node: Node, word: _Word) -> None:
        # White space between two expansions belongs to no node.
        word.add("")
        at = node.start_byte + 1
        for child in [*node.named_children, None]:
            end = child.start_byte if child is not None else max(node.end_byte - 1, at)
            between = self.source[at:end].decode("utf-8", "replace")
            word.add(_ESCAPED_IN_QUOTES.sub(lambda found: "" if found[1] == "\n" else found[1], between))
            if child is None:
                return
            if child.type == "string_content":
                plain = self._text(child)
                word.add(_ESCAPED_IN_QUOTES.sub(lambda found: "" if found[1] == "\n" else found[1], plain))
            else:
                self._word(child, word, quoted=True)
            at = child.end_byte

    def _variable(self, text: str, word: _Word, *, quoted: bool) -> None:
        found = re.fullmatch(r"\$(?:\{(\w+|[@*])(?::?-([^${}`'\"]*))?\}|(\w+|[@*]))", text)
        if found is None:
            self._substitution(text, word)
            return
        name, default = found[1] or found[3], found[2]
        if name in {"@", "*"}:
            self._all_arguments(name, word, quoted=quoted)
            return
        value = self._value(name, default)
        if value is None:
            word.add(f"$({name})")
            if not quoted:
                word.unquoted = (*word.unquoted, name)
        elif quoted:
            word.add(value)
        else:
            word.split(value)

    def _value(self, name: str, default: str | None) -> str | None:
        """The value of a variable; None if it is known only in the cluster, or nowhere."""
        if name.isdecimal():
            place = int(name) if len(name) < 4 else len(self.arguments)
            value: str | None = self.arguments[place] if place < len(self.arguments) else ""
        else:
            # Somebody else may set it, as an image does with PATH; a default is the script's own word.
            value = self.known.get(name, default)
        return default if value == "" and default else value

    def _all_arguments(self, name: str, word: _Word, *, quoted: bool) -> None:
        given = list(self.arguments[1:])
        if quoted and name == "*":
            word.add(" ".join(given))
        elif given:
            word.add(given[0])
            for argument in given[1:]:
                word.done.append(word.text)
                word.text = argument
        elif quoted and not word.text:
            # "$@" without arguments is no word at all.
            word.begun = False

    def _substitution(self, text: str, word: _Word) -> None:
        """The words that only running can tell; `$(NAME)` of Kubernetes is put in before the shell reads the text."""
        inner = re.fullmatch(r"\$\((\w+)\)", text)
        if inner and inner[1] in self.known:
            word.unquoted = (*word.unquoted, inner[1])
        else:
            word.literal = False
        word.add(text)
