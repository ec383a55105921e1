"""`make mutants`: which changes are made, that each is found again, and that a trial notices what its tests notice."""

from __future__ import annotations

import ast
import subprocess
import textwrap
from dataclasses import replace

import pytest

from mutation import __main__ as program
from mutation.reach import Reach
from mutation.sites import Mutant, drawn, found, sites
from mutation.trial import Outcome, control, copied, trial


def changes(source):
    return {(site.mutant.before, site.mutant.after) for site in sites("a.py", source)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a < b", "a <= b"),
        ("a in b", "a not in b"),
        ("a + b", "a - b"),
        ("a ** 2", "a * 2"),
        ("a and b", "a or b"),
        ("not a", "a"),
        ("-a", "a"),
        ("a if b else c", "a if not b else c"),
        ("True", "False"),
        ("3", "4"),
        ("2.0", "3.0"),
        ("0.0", "1.0"),
        ("min(a, b)", "max(a, b)"),
        ("np.maximum(a, b)", "np.minimum(a, b)"),
    ],
)
def test_an_expression_is_changed(before, after):
    assert (before, after) in changes(f"x = {before}\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [("return a", "return None"), ("raise E", "pass"), ("f()", "pass"), ("continue", "break")],
)
def test_a_statement_is_changed(before, after):
    assert (before, after) in changes(f"def g():\n    for _ in a:\n        {before}\n")


@pytest.mark.parametrize(
    "source",
    [
        "x: int | None\n",
        "def f(a: A | B) -> A | B: ...\n",
        "@frozen(slots=True)\nclass A: ...\n",
        'x = f"{a + 1}"\n',
        'x = "a" + b\n',
        "if TYPE_CHECKING:\n    a = 1\n",
        "x = zip(a, b, strict=True)\n",
    ],
)
def test_what_nothing_evaluates_or_only_a_person_reads_is_left(source):
    assert changes(source) == set()


def test_every_change_is_a_program_of_its_own_that_differs_in_one_place():
    source = "Größe = 'µ', 1 + (2\n  * 3)  # and a comment\ndef f(a):\n    if a > 1 and not a: return 2\n"
    texts = [site.in_source(source) for site in sites("a.py", source)]
    assert len(texts) == len({ast.dump(ast.parse(text)) for text in texts}) == 11
    assert all("# and a comment" in text for text in texts)


def test_a_mutant_is_found_again_where_its_function_has_moved_and_not_where_it_has_changed():
    source = "def f(a):\n    return a + 1\n\ndef g(a):\n    b = a < 1\n    return (a < 1) + b\n"
    (_, second) = [site for site in sites("a.py", source) if site.mutant.after == "a <= 1"]
    assert second.mutant == Mutant("a.py", "g", "a < 1", "a <= 1", 1)
    moved = f"# more above\n\n{source}"
    again = found(second.mutant, moved)
    assert again.lines == (8, 8)
    assert "return ((a <= 1)) + b" in again.in_source(moved)
    assert found(second.mutant, source.replace("b = a < 1", "b = 2")) is None


def test_a_sample_is_the_same_for_the_same_seed():
    sources = {"a.py": "x = 1 + 2 * 3 - 4 < 5\n", "b.py": "y = not 1 < 2\n"}
    assert drawn([sources], 5, 25) == drawn([dict(reversed(sources.items()))], 5, 25)
    assert drawn([sources], 5, 25) != drawn([sources], 5, 26)
    assert len(drawn([sources], 500, 25)) == 13


def test_each_package_has_the_same_share_of_a_sample_as_far_as_it_has_mutants():
    large, small = {"a.py": "x = 1 + 2 * 3 - 4 < 5\n"}, {"b.py": "y = not 1\n"}
    sample = drawn([large, small], 5, 25)
    assert [mutant.path for mutant in sample] == ["a.py", "a.py", "a.py", "b.py", "b.py"]


def test_the_quickest_tests_of_a_line_come_first_and_a_fixture_counts_for_its_whole_file():
    reach = Reach(
        ["t.py::slow", "t.py::quick", "setup of u.py"],
        {"a.py": {4: 0b011, 5: 0b100}},
        {"t.py::slow": 2.0, "t.py::quick": 0.1, "u.py::one": 0.2, "u.py::two": 0.3},
    )
    assert reach.tests("a.py", (4, 4)) == ["t.py::quick", "t.py::slow"]
    assert reach.tests("a.py", (5, 6)) == ["u.py::one", "u.py::two"]
    assert reach.tests("a.py", (4, 5)) == ["t.py::quick", "u.py::one", "u.py::two", "t.py::slow"]
    # What runs on import, such as the body of a class, runs before any test.
    assert len(reach.tests("a.py", (9, 9))) == len(reach.tests("a.py", (0, 0))) == 4
    assert reach.tests("b.py", (9, 9)) == []


@pytest.fixture
def tree(tmp_path):
    """A repository with one function and its test."""
    files = {
        "tuner/breakeven/planning/half.py": "def half(a):\n    return a / 2\n\ndef unseen(a):\n    while a < 9: a += 1\n    return a\n",
        "tests/test_half.py": """
            import sys
            sys.path.insert(0, "tuner/breakeven/planning")
            from half import half, unseen
            def test_half(): assert half(4) == 2
            def test_unseen(): unseen(8)
        """,
        "pyproject.toml": '[tool.pytest.ini_options]\nfilterwarnings = ["error"]\nasyncio_default_fixture_loop_scope = "function"\n',
    }
    for name, text in files.items():
        (tmp_path / "repository" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "repository" / name).write_text(textwrap.dedent(text))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path / "repository", check=True)
    return copied(tmp_path / "repository", "", tmp_path / "copy")


@pytest.mark.parametrize(
    ("function", "before", "after", "word", "killer"),
    [
        ("half", "a / 2", "a * 2", "killed", "tests/test_half.py::test_half"),
        ("unseen", "return a", "return None", "survived", ""),
        ("unseen", "1", "2", "survived", ""),
    ],
)
def test_a_trial_notices_what_its_tests_notice_and_leaves_the_tree_as_it_was(
    function, before, after, word, killer, tree
):
    path = "tuner/breakeven/planning/half.py"
    source = (tree / path).read_text()
    site = found(Mutant(path, function, before, after), source)
    outcome = trial(tree, site, ["tests/test_half.py"], cpu_s=30)
    assert (outcome.word, outcome.killer) == (word, killer)
    assert (tree / path).read_text() == source


def test_a_test_that_fails_without_a_change_is_not_asked(tree, tmp_path):
    test = (tree / "tests/test_half.py").read_text()
    (tree / "tests/test_half.py").write_text(f"{test}def test_wrong(): assert half(4) == 3\n")
    reach = program.reached(tree, tmp_path / "reach", workers=2)
    assert reach.tests("tuner/breakeven/planning/half.py", (2, 2)) == ["tests/test_half.py::test_half"]


def test_without_a_change_nobody_notices_anything_and_a_pytest_that_does_not_start_is_nobodys_catch(tree):
    assert control(tree, ["tests/test_half.py"], 30).word == "survived"
    (tree / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = ['--no-such-option']\n")
    broken = control(tree, ["tests/test_half.py"], 30)
    assert (broken.word, broken.caught) == ("broken", False)


def test_the_table_counts_by_folder_and_names_each_survivor_with_its_reason():
    words = {"a": "timeout", "b": "survived", "c": "moved", "d": "survived", "e": "unreached"}
    sample = [Mutant("core/a.py", "f", before, "x") for before in words]
    outcomes = {one: Outcome(words[one.before]) for one in sample}
    lines = program.table(sample, outcomes, {replace(sample[1], path=""): "Nobody can notice it."})
    assert [line.split() for line in lines[1:4]] == [
        ["folder", "mutants", "caught", "equal", "moved", "survived", "unreached"],
        ["core", "5", "1", "1", "1", "1", "1"],
        ["all", "5", "1", "1", "1", "1", "1"],
    ]
    assert lines[4:] == [
        f"equal: {sample[1]}", "    Nobody can notice it.", f"moved: {sample[2]}", f"survived: {sample[3]}", f"unreached: {sample[4]}",
    ]  # fmt: skip


def test_mutants_that_are_called_equal_are_there_and_have_a_reason():
    core = {path: text for package in program.core_of(program.ROOT) for path, text in package.items()}
    for mutant, why in program.known_equal().items():
        places = [path for path in core if found(replace(mutant, path=path), core[path])]
        assert places, f"{mutant}: take it out of equal.yaml"
        assert why.endswith(".")
