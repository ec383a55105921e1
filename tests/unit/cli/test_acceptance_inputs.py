"""`breakeven acceptance` on figures as people have them: right numbers, a question, or one clear line."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from breakeven.cli.acceptance import command, read_log
from breakeven.errors import BreakevenError

NEW = (
    "INFO 11-25 10:00:00 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: 2.12, Accepted throughput: 31.20 tokens/s, "
    "Drafted throughput: 83.10 tokens/s, Accepted: 312 tokens, Drafted: 837 tokens, Per-position acceptance rate: 0.603, 0.332, "
    "0.183, Avg Draft acceptance rate: 37.3%"
)
OLD = (
    "(APIServer pid=1) INFO SpecDecoding metrics: Draft acceptance rate: 50.0%, Mean acceptance length: 2.50, Accepted: 450 tokens, "
    "Drafted: 900 tokens, Per-position acceptance rate: 0.800, 0.500, 0.200"
)
IDLE = "SpecDecoding metrics: Mean acceptance length: nan, Accepted: 0 tokens, Drafted: 0 tokens, Per-position acceptance rate: nan, nan, nan"


def said(*arguments, text=""):
    done = CliRunner().invoke(command, [*arguments, "--json"], input=text)
    if isinstance(done.exception, BreakevenError):
        return str(done.exception)
    return json.loads(done.stdout) if done.exit_code == 0 else done.stderr.splitlines()[-1]


@pytest.mark.parametrize("shares", ["[0.5, 0.25]", ".5,.25", "50%, 25%", "0.5 0.25", "0.5;0.25", " .5\t.25 "])
def test_lists_are_read_however_they_are_written(shares):
    assert said("--per-position", shares)["tokens_per_step"] == pytest.approx(1.75)


def test_a_rate_may_be_a_percentage():
    assert said("--rate", "45%", "--k", "3")["tokens_per_step"] == pytest.approx(2.35)
    assert said("--rate", ".45", "--k", "3")["tokens_per_step"] == pytest.approx(2.35)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--rate", "45", "--k", "3"],
            "--rate: 45; expected a share between 0 and 1, or 45% as a percentage",
        ),
        (["--rate", "145%", "--k", "3"], "--rate: '145%'; expected a percentage of at most 100%"),
        (
            ["--per-position", "57,28"],
            "position 1: 57; expected a share between 0 and 1, or 57% as a percentage",
        ),
        (
            ["--length", "5.2", "--k", "3"],
            "0 to 4 (a step of 3 drafts yields at most 3 and the target's own)",
        ),
        (["--length", "2.1", "--k", "3"], "which may or may not count the bonus token"),
        (["--per-position", NEW], "a line of vLLM's log; expected --log FILE"),
        (["--per-position", "0,57;0,28"], "is not a comma-separated list of numbers"),
        (["--log", "-", "--drafts", "5"], "--drafts is the number of drafts behind --accepted"),
    ],
)
def test_what_may_mean_two_things_or_nothing_gets_one_line(arguments, line):
    assert line in said(*arguments)


def test_lines_of_a_log_are_pooled_by_their_drafts():
    found = said("--log", "-", text=f"INFO started\n{NEW}\n{IDLE}\n{OLD}\n")
    # 312 accepted tokens at 1.118 per draft, and 450 at 1.5.
    drafts = (312 / 1.118, 300.0)
    assert found["survival"][0] == pytest.approx((0.603 * drafts[0] + 0.8 * drafts[1]) / sum(drafts))
    assert found["tokens_per_step"] == pytest.approx(1 + (312 + 450) / sum(drafts))


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ([IDLE], "no line with 'SpecDecoding metrics:' in which something was drafted"),
        ([], "no line with"),
        ([NEW, OLD.replace(", 0.200", "").replace("2.50", "2.30")], "line 2: 2 positions, 3 in line 1; expected one draft length"),
        ([NEW.replace("0.603", "0.903")], "line 1: mean acceptance length 2.12, and shares that add up to 1.418"),
        ([NEW.replace("0.332,", "0.332nan,")], "line 1: a line that is cut or of another program"),
        ([NEW.partition("Per-position")[0]], "line 1: a line that is cut or of another program"),
        ([NEW.replace("0.332, 0.183", "0.33")], "shares that add up to"),
    ],
)  # fmt: skip
def test_a_log_that_does_not_say_it_is_refused_by_line(lines, line):
    with pytest.raises(BreakevenError) as refusal:
        read_log(lines, "vllm.log")
    assert line in str(refusal.value)


def test_a_log_in_which_nothing_was_accepted_is_one():
    nothing = "SpecDecoding metrics: Mean acceptance length: 1.00, Accepted: 0 tokens, Drafted: 90 tokens, Per-position acceptance rate: 0.000, 0.000, 0.000"
    found = read_log([nothing], "vllm.log")
    assert (found.survival, found.drafts) == ((0.0, 0.0, 0.0), 30.0)


def logged(drafts, survival, drafted):
    """A line about so many drafts, as vLLM rounds it."""
    accepted = round(drafts * sum(survival))
    shares = ", ".join(f"{share:.3f}" for share in survival)
    return (
        f"SpecDecoding metrics: Mean acceptance length: {1 + sum(survival):.2f}, Accepted: {accepted} tokens, "
        f"Drafted: {drafted} tokens, Per-position acceptance rate: {shares}, Avg Draft acceptance rate: 1.0%"
    )


LONG, SHORT = (0.8, 0.6, 0.45, 0.3, 0.2), (0.8, 0.6, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ([logged(400, LONG, 2000), logged(400, SHORT, 800)], "line 2: drafts of 2 tokens, of 5 before; expected one draft length"),
        ([logged(400, SHORT, 800), logged(400, LONG, 2000)], "line 2: drafts of 5 tokens, of 2 before"),
        ([logged(400, LONG, 2000), IDLE.replace("nan, nan, nan", "nan, nan, nan, nan, nan"), logged(400, LONG, 1700)], "line 3: drafts of 4.25 tokens"),
        ([logged(400, LONG, 1400)], "line 1: drafts of 3.5 tokens on average, with 5 positions"),
        ([logged(400, LONG, 1600)], "line 1: drafts of 4 tokens on average, with 5 positions"),
        ([logged(400, LONG, 2600)], "line 1: drafts of 6.5 tokens on average"),
    ],
)  # fmt: skip
def test_a_log_whose_drafts_changed_their_length_has_no_one_k(lines, line):
    with pytest.raises(BreakevenError) as refusal:
        read_log(lines, "vllm.log")
    assert line in str(refusal.value)


@pytest.mark.parametrize(
    ("lines", "k"),
    [
        ([logged(400, LONG, 2000), logged(90, LONG, 450)], 5),
        ([logged(400, LONG, 1990), logged(90, LONG, 449)], 5),
        ([logged(400, SHORT, 800), logged(90, SHORT, 180)], 2),
        ([logged(3, (0.667, 0.333, 0.0), 9), logged(900, (0.7, 0.4, 0.2), 2700)], 3),
        ([logged(400, (0.01, 0.0, 0.0), 1200)], 3),
    ],
)
def test_a_log_of_one_draft_length_has_that_k(lines, k):
    assert len(read_log(lines, "vllm.log").survival) == k


def test_the_rate_of_a_log_is_accepted_over_drafted():
    lines = [logged(400, LONG, 1000), logged(300, LONG, 1500)]
    accepted = 400 * sum(LONG) + 300 * sum(LONG)
    found = said("--log", "-", "--method", "ngram", text="\n".join(lines))
    assert found["acceptance_rate"] == pytest.approx(accepted / 2500)
    assert (found["tokens_per_step"], found["k"]) == (pytest.approx(1 + sum(LONG)), 5)
    whole = said("--log", "-", text=f"{NEW}\n")
    assert whole["acceptance_rate"] == pytest.approx(312 / 837)


def test_a_log_of_a_lookup_counts_drafts_and_not_steps():
    for method, warned in (("ngram", True), ("eagle3", False)):
        found = said("--log", "-", "--method", method, text=NEW)
        assert any("steps in which nothing was found" in line for line in found["warnings"]) == warned
