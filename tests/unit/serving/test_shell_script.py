"""The words that a shell would make of a script, read without running it."""

from __future__ import annotations

import shutil
import subprocess
import time

import pytest

from breakeven.serving.shell_script import shell_script

KNOWN = {"MODEL": "org/m", "EXTRA": "--a 1  --b", "EMPTY": "", "CLUSTER": None}
WORDS = [
    "vllm serve m",
    """vllm serve m --x '{"a": [1, 2]}' "b c" d\\ e""",
    "vllm serve m \\\n  --port 8000 \\\n  --a=b",
    'vllm serve $MODEL "${MODEL}" --m=$MODEL "x $MODEL y"',
    'vllm serve $EXTRA "$EXTRA" p$EXTRA',
    'vllm serve $EMPTY "$EMPTY" end',
    'vllm serve ${EMPTY:-none} ${NOWHERE:-8} "${NOWHERE:-a b}"',
    'vllm serve \'it\'\'s\' "a\\"b" "c\\d" ü',
    'vllm serve "$1" $2 "$@" "$0"',
    'vllm serve --x="$MODEL"/$MODEL',
    "A=1 vllm serve m # --not",
    "export MODEL=other; B=$MODEL/x\nvllm serve $MODEL $B",
    "vllm serve m > /dev/null 2>&1",
    "true && vllm serve m",
    'A=(m "b c" $MODEL)\nA+=(--x 4)\nvllm serve "${A[@]}" z',
    'A=()\nvllm serve "${A[@]}" end',
    'A=a\nA+=" $MODEL"\nvllm serve $A',
    'A="$EXTRA"\nA+=" $MODEL"\nvllm serve "$A"',
    "vllm serve ${NOWHERE:=8} ${EMPTY:-9}",
]


@pytest.mark.parametrize("script", WORDS)
def test_words_are_those_that_bash_hands_on(script):
    arguments = ("sh", "one", "two words")
    read = shell_script(
        script, {name: value for name, value in KNOWN.items() if value is not None}, arguments
    )
    assert read.complete
    told = script.replace("vllm serve", "printf '%s\\0' vllm serve").replace("> /dev/null 2>&1", "")
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-c", told, *arguments],
        env={name: value for name, value in KNOWN.items() if value is not None},
        capture_output=True,
        check=True,
    )
    assert [*read.commands[-1].words] == done.stdout.decode().split("\0")[:-1]


def test_a_variable_of_the_clusters_keeps_its_name_and_says_whether_it_is_quoted():
    (command,) = shell_script('vllm serve --a="$CLUSTER" $CLUSTER', KNOWN).commands
    assert command.words == ("vllm", "serve", "--a=$(CLUSTER)", "$(CLUSTER)")
    assert (command.literal, command.unquoted) == (True, ("CLUSTER",))


@pytest.mark.parametrize("word", ["$(date)", "`date`", "$((1+1))", "<(date)", "$'a'", "${A%b}", '"$(date)"'])
def test_what_only_running_tells_is_not_taken_for_text(word):
    command = next(one for one in shell_script(f"vllm serve {word}", {}).commands if one.words[0] == "vllm")
    assert not command.literal


def test_arguments_that_there_are_none_of_are_no_word():
    (command,) = shell_script('vllm serve "$@"', {}, ("sh",)).commands
    assert command.words == ("vllm", "serve")


def test_an_array_that_may_have_grown_is_not_known():
    script = '[[ -n "$D" ]] && A+=(--x)\nvllm serve "${A[@]}"'
    for text, literal in (
        (f"A=(m)\n{script}", False),
        ('A=(m)\nvllm serve "${A[@]}"', True),
        (script, False),
    ):
        command = shell_script(text, {}).commands[-1]
        assert command.literal == literal, text


def test_what_a_script_exports_is_known_as_far_as_its_text_tells():
    script = 'export A=b; C=1; export C; D=2; export E="$(date)"\nif x; then export F=3; fi\nexport G=$CLUSTER\nvllm serve m'
    assert shell_script(script, KNOWN).exports == {
        "A": "b", "C": "1", "E": None, "F": None, "G": "$(CLUSTER)"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("x", ""),
        ("[ -n a ] && x", "conditional"),
        ("true && x", ""),
        ("true || x", "conditional"),
        ("if a; then x; fi", "conditional"),
        ("case $A in b) x;; esac", "conditional"),
        ("f() { x; }", "conditional"),
        ("x | cat", "conditional"),
        ("(x)", "conditional"),
        ("while a; do x; done", "repeated"),
        ("until a; do x; done", "repeated"),
        ("for i in 1 2; do x; done", "repeated"),
        ("x &\nwait", "background"),
        ("x > /log", "redirected"),
        ("{ x; }", ""),
    ],
)
def test_what_stands_around_a_command_is_said(script, said):
    (command,) = [one for one in shell_script(script, {}).commands if one.words == ("x",)]
    marks = ("conditional", "repeated", "background", "redirected")
    assert [mark for mark in marks if getattr(command, mark)] == ([said] if said else [])
    assert command.piped == ("|" in script.replace("||", ""))


@pytest.mark.parametrize(
    "script", ["vllm 'serve", "if x; then", "(" * 3000, "a " * 40_000, "x <<EOF\n$(" * 500]
)
def test_what_is_no_script_or_is_too_long_is_not_complete(script):
    assert not shell_script(script, {}).complete


@pytest.mark.parametrize(
    "text", ["a|", "a=(", "$(", "((", "a <<X\n", "[[ ", "'", '"$a', "if a; then ", "a & "]
)
def test_no_script_takes_long(text):
    began_s = time.process_time()
    shell_script(text * (20_000 // len(text)), {})
    shell_script(text * (16_000 // len(text)), {})
    assert time.process_time() - began_s < 10
