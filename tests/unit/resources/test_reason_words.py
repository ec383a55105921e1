"""One word, one meaning, everywhere."""

import re
from pathlib import Path

from breakeven.reasons import Reason
from breakeven_operator.cluster_reasons import ClusterReason

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reasons.md").read_text()


def test_library_and_operator_share_no_word():
    assert not {word.value for word in Reason} & {word.value for word in ClusterReason}
    assert not {word.name for word in Reason} & {word.name for word in ClusterReason}


def test_a_word_can_be_a_condition_reason():
    # metav1.Condition and our own schema: CamelCase, at most 64 characters.
    for word in (*Reason, *ClusterReason):
        assert re.fullmatch(r"[A-Z][A-Za-z]{2,63}", word.value), word


def test_constant_and_word_are_the_same():
    for word in (*Reason, *ClusterReason):
        assert word.name.replace("_", "").lower() == word.value.lower(), word


def test_no_word_is_there_twice():
    # An enum makes equal values aliases of the first, silently.
    for words in (Reason, ClusterReason):
        assert len(words.__members__) == len(list(words))


def test_every_word_says_what_it_means_and_what_to_do():
    for word in (*Reason, *ClusterReason):
        # A sentence, or one that begins with a field's name.
        assert re.fullmatch(r"([A-Z]|spec[.]|updatePolicy[.]).*[^ ][.]", word.meaning), word
    for word in ClusterReason:
        assert word.remedy.endswith("."), word


def test_every_word_stands_in_the_page_once():
    for word in (*Reason, *ClusterReason):
        assert len(re.findall(rf"^\| `{word}` \|", PAGE, re.MULTILINE)) == 1, word


def test_runbooks_named_by_a_remedy_exist():
    for word in ClusterReason:
        for name in re.findall(r"runbook (\w+)", word.remedy):
            assert (ROOT / "docs" / "runbooks" / f"{name}.md").is_file(), word


def test_a_remedy_names_fields_that_exist():
    api = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    for word in ClusterReason:
        for text in (word.meaning, word.remedy):
            for field in re.findall(
                r"\b((?:updatePolicy|metricsSource|calibration|targetRef|spec)(?:\.[a-zA-Z]+)+)", text
            ):
                name = field.removeprefix("spec.")
                assert f"| `{name}` |" in api or f"| `{name}[]` |" in api, (word, field)
