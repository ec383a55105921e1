"""The commands of a shell script, read by tree-sitter's grammar of bash and never run.

Variables are filled in from an environment where it says their values. A variable of unknown value stands as
`$(NAME)`, which is how Kubernetes and `command_line` write one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

# The grammar takes time by the square of the length of a few odd texts: a second for this one.
_MOST_CHARACTERS = 16 * 1024
_MOST_COMMANDS = 2000
_LOOPS = {"while_statement", "for_statement", "c_style_for_statement"}
_BRANCHES = {"if_statement", "case_statement", "function_definition", "subshell", "pipeline"}
_AROUND = {*_LOOPS, *_BRANCHES, "redirected_statement"}
_ESCAPED = re.compile(r"\\(\n|.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\([$`"\\\n])')


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One simple command.

    Attributes:
        words: program and arguments as the shell hands them on; assignments before them are not among them.
        spans: begin and end of each word in the text's bytes; words of one variable have the same.
        assignments: variables that it sets. Without words they hold for the commands that follow.
        literal: whether every word is known but for variables.
        unquoted: variables of unknown value that stand outside quotes, so that the shell splits what they hold.
        conditional: it may not run, or not in the script's own process. repeated: it stands in a loop.
        background: the script does not wait for it. piped: it stands in a pipe. redirected: so is its input or output.
    """

    words: tuple[str, ...]
    assignments: Mapping[str, str] = field(default_factory=dict)
    literal: bool = True
    unquoted: tuple[str, ...] = ()
    repeated: bool = False
    conditional: bool = False
    background: bool = False
    redirected: bool = False
    piped: bool = False
    spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """The simple commands of a script, in order.

    Attributes:
        complete: whether the whole script was understood; False for a text that is no shell script or is too long.
        exports: variables that it hands to its commands; None for a value that only running can tell.
    """

    commands: tuple[ShellCommand, ...]
    complete: bool = True
    exports: Mapping[str, str | None] = field(default_factory=dict)


@dataclass
class _Words:
    """Words of a command or of an array, put together: finished words, and the word that grows."""

    done: list[str] = field(default_factory=list)
    text: str = ""
    begun: bool = False
    literal: bool = True
    unquoted: tuple[str, ...] = ()

    def add(self, text: str) -> None:
        self.text += text
        self.begun = True

    def end(self) -> None:
        """Finish the word that grows."""
        if self.begun:
            self.done.append(self.text)
        self.text, self.begun = "", False

    def split(self, text: str) -> None:
        """Add a value outside quotes: the shell cuts it at white space."""
        *parts, last = re.split(r"[ \t\n]+", text)
        for part in parts:
            if part:
                self.add(part)
            self.end()
        if last:
            self.add(last)


def shell_script(text: str, environment: Mapping[str, str | None], arguments: Sequence[str] = ()) -> Script:
    """Read a script; variables of an environment have the value None if it is known only in the cluster.

    The script finds the arguments as `$0`, `$1` and so on.
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
    lists: dict[str, _Words] = {}
    exports: dict[str, str | None] = {}
    opaque: frozenset[str] = frozenset()
    commands: list[ShellCommand] = []
    for node, place in _simple_commands(root):
        if len(commands) >= _MOST_COMMANDS:
            return Script(tuple(commands), complete=False)
        reader = _Reader(source, known, arguments, lists, opaque)
        command = reader.command(node, place)
        certain = not (place.conditional or place.repeated)
        if not command.words:
            told = certain and command.literal
            known.update({name: value if told else None for name, value in command.assignments.items()})
            changed = frozenset(command.assignments)
            opaque = opaque - changed if told else opaque | changed
            lists.update(reader.lists_of(node, certain=certain))
            for name in reader.exported(node):
                exports[name] = known.get(name) if told else None
        if command.words:
            commands.append(command)
    return Script(tuple(commands), not root.has_error, exports)


@cache
def _parser() -> Parser:
    import tree_sitter_bash  # noqa: PLC0415  # 20 ms that only manifests with a shell pay
    from tree_sitter import Language, Parser  # noqa: PLC0415

    return Parser(Language(tree_sitter_bash.language()))


def _simple_commands(root: Node) -> Iterator[tuple[Node, ShellCommand]]:
    """Simple commands in the order of the text, each as what stands around it says, without its words; without recursion, however deep they nest."""
    waiting = [(root, ShellCommand(()))]
    while waiting:
        node, place = waiting.pop()
        if node.type in {"command", "declaration_command", "variable_assignment", "variable_assignments"}:
            yield node, place
            continue
        around = place
        # A copy for each node would take longer than the rest of the walk.
        if node.type in _AROUND:
            around = replace(
                place,
                repeated=place.repeated or node.type in _LOOPS,
                conditional=place.conditional or node.type in _BRANCHES,
                redirected=place.redirected or node.type == "redirected_statement",
                piped=place.piped or node.type == "pipeline",
            )
        children = []
        # Each look at a node's children makes a new list of them.
        inner = node.children
        types = [*(child.type for child in inner), ""]
        for at, child in enumerate(inner):
            following = types[at + 1]
            # A command behind `||` runs only if something fails. `a && b` is the intended course of a script, unless a is a test.
            tested = at > 1 and types[at - 1] == "&&" and types[at - 2] == "test_command"
            inside = around.conditional or tested or (at > 0 and types[at - 1] == "||")
            behind = place.background or following == "&"
            same = inside == around.conditional and behind == around.background
            children.append(
                (child, around if same else replace(around, conditional=inside, background=behind))
            )
        waiting += reversed([one for one in children if one[0].is_named])


@dataclass(frozen=True, slots=True)
class _Reader:
    source: bytes
    known: Mapping[str, str | None]
    arguments: Sequence[str]
    lists: Mapping[str, _Words] = field(default_factory=dict)
    opaque: frozenset[str] = frozenset()

    def command(self, node: Node, place: ShellCommand) -> ShellCommand:
        found = _Words()
        spans: list[tuple[int, int]] = []
        assignments: dict[str, str] = {}
        redirected = place.redirected
        for child in [node] if node.type == "variable_assignment" else node.children:
            if child.type == "variable_assignment":
                if child.children[-1].type == "array":
                    continue
                name, value, certain = self._assignment(child)
                assignments[name] = value
                found.literal = found.literal and certain
            elif child.type in {"file_redirect", "herestring_redirect", "heredoc_redirect"}:
                redirected = True
            elif child.is_named or node.type == "declaration_command":
                before = len(found.done)
                self._word(child, found, quoted=False)
                found.end()
                spans += [(child.start_byte, child.end_byte)] * (len(found.done) - before)
        words = () if node.type == "declaration_command" else tuple(found.done)
        return replace(
            place,
            words=words,
            assignments=assignments,
            literal=found.literal,
            unquoted=found.unquoted,
            redirected=redirected,
            spans=tuple(spans[: len(words)]),
        )

    def exported(self, node: Node) -> list[str]:
        """Names of the variables that a declaration exports."""
        if node.type != "declaration_command" or node.children[0].type != "export":
            return []
        inner = (
            child.children[0] if child.type == "variable_assignment" else child
            for child in node.named_children
        )
        return [self._text(child) for child in inner if child.type == "variable_name"]

    def lists_of(self, node: Node, *, certain: bool) -> dict[str, _Words]:
        """Arrays that a command without words sets, as they are after it; certain if it runs once."""
        found: dict[str, _Words] = {}
        for child in [node] if node.type == "variable_assignment" else node.children:
            if child.type != "variable_assignment" or child.children[-1].type != "array":
                continue
            name, adds = self._text(child.children[0]), child.children[1].type == "+="
            before = found.get(name) or self.lists.get(name)
            words = replace(before, done=[*before.done]) if adds and before else _Words()
            for item in child.children[-1].named_children if certain or not adds else ():
                self._word(item, words, quoted=False)
                words.end()
            words.literal = words.literal and certain
            found[name] = words
        return found

    def _assignment(self, node: Node) -> tuple[str, str, bool]:
        name, *rest = node.children
        word = _Words()
        if rest and rest[0].type == "+=":
            self._variable(f"${self._text(name)}", word, quoted=True)
        for child in rest:
            if child.is_named:
                self._word(child, word, quoted=True)
        return self._text(name), word.text, word.literal

    def _text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def _word(self, node: Node, word: _Words, *, quoted: bool) -> None:
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
                # The grammar counts white space and continued lines before an expansion to it.
                blank = text[: text.index("$")]
                if blank:
                    word.add(blank.replace("\\\n", ""))
                self._variable(text[len(blank) :].strip(), word, quoted=quoted)
            case "command_substitution" | "process_substitution" | "arithmetic_expansion" | "ansi_c_string":
                self._substitution(text, word)
            case _:
                word.add(_ESCAPED.sub(lambda found: "" if found[1] == "\n" else found[1], text))

    def _string(self, node: Node, word: _Words) -> None:
        # White space between two expansions belongs to no node.
        word.add("")
        at = node.start_byte + 1
        for child in [*(one for one in node.named_children if one.type != "string_content"), None]:
            end = child.start_byte if child is not None else max(node.end_byte - 1, at)
            if plain := self.source[at:end].decode("utf-8", "replace"):
                word.add(_ESCAPED_IN_QUOTES.sub(lambda found: "" if found[1] == "\n" else found[1], plain))
            if child is not None:
                self._word(child, word, quoted=True)
                at = child.end_byte

    def _variable(self, text: str, word: _Words, *, quoted: bool) -> None:
        whole = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", text)
        if whole and (listed := self.lists.get(whole[1])):
            self._each(listed.done, word, quoted=quoted)
            word.literal = word.literal and listed.literal
            word.unquoted = (*word.unquoted, *listed.unquoted)
            return
        found = re.fullmatch(r"\$(?:\{(\w+|[@*])(?::?[-=]([^${}`'\"]*))?\}|(\w+|[@*]))", text)
        if found is None:
            self._substitution(text, word)
            return
        name, default = found[1] or found[3], found[2]
        if name == "*" and quoted:
            word.add(" ".join(self.arguments[1:]))
            return
        if name in {"@", "*"}:
            self._each(self.arguments[1:], word, quoted=quoted)
            return
        value = self._value(name, default)
        if value is None:
            # The script sets the variable to a value that only running it shows.
            word.literal = word.literal and name not in self.opaque
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

    def _each(self, given: Sequence[str], word: _Words, *, quoted: bool) -> None:
        """Add each as a word of its own; the first and the last join what stands beside them."""
        if given:
            word.add(given[0])
            for argument in given[1:]:
                word.end()
                word.add(argument)
        elif quoted and not word.text:
            # "$@" without arguments is no word at all.
            word.begun = False

    def _substitution(self, text: str, word: _Words) -> None:
        """The words that only running can tell; `$(NAME)` of Kubernetes is put in before the shell reads the text."""
        inner = re.fullmatch(r"\$\((\w+)\)", text)
        if inner and inner[1] in self.known:
            word.unquoted = (*word.unquoted, inner[1])
        else:
            word.literal = False
        word.add(text)
