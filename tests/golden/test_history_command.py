"""`breakeven history` over a Prometheus' API: copies, prefixes and facts as they come, and one line for what is refused."""

from __future__ import annotations

import csv
import io
import json
import time

import numpy as np
import pytest
from click.testing import CliRunner

from breakeven.cli import root
from fakes.answering_prometheus import answering
from fakes.held_series import SeriesStore
from fakes.past_courses import STEP_S, grid_of, lawful, stored
from golden.documents import unexplained

WINDOWS = 24
RATES = np.linspace(0.3, 4.0, WINDOWS)
GRID = grid_of(WINDOWS)
SPAN = f"{WINDOWS * STEP_S // 60}m"
EAGLE = '{"method": "eagle3", "num_speculative_tokens": 3}'


def arms():
    return lawful(RATES), lawful(RATES, "chat-64bd5fcf9-zzzzz", k=3, c1_s=1.5, c2_s=0.12)


@pytest.fixture
def now(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: float(GRID.last_s))


def asked(store: SeriesStore, *words: str):
    with answering(store) as address:
        return CliRunner().invoke(
            root, ["history", "--prometheus", address, "--since", SPAN, *words], standalone_mode=True
        )


def document(store: SeriesStore, *words: str):
    done = asked(store, "--deployment", "llm/chat", "--json", *words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert unexplained("history", found) == set()
    return found


@pytest.mark.usefixtures("now")
@pytest.mark.parametrize(
    "given", [{}, {"copies": ("a", "b")}, {"prefix": "kserve_vllm:"}, {"more": lambda _pod: {"engine": "0"}}]
)
def test_two_arms_come_out_the_same_however_they_are_stored(given, tmp_path):
    file = tmp_path / "points.csv"
    found = document(stored(arms(), GRID, **given), "-o", str(file), "--method", "eagle3")
    assert [(one["method"], one["k"], one["windows"]) for one in found["arms"]] == [
        ("none", 0, WINDOWS),
        ("eagle3", 3, WINDOWS),
    ]
    assert [one["requests"] for one in found["arms"]] == pytest.approx([RATES.sum() * STEP_S] * 2)
    assert found["dropped"] == {}
    assert {one["word"] for one in found["unknown"]} >= {"ChangesUnknown"}
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert len(rows) == len(found["points"]) == sum(one["points"] for one in found["arms"])
    assert {row["load_mode"] for row in rows} == {"poisson"}
    done = CliRunner().invoke(
        root, ["fit", str(file), "-o", str(tmp_path / "chat.json")], standalone_mode=True
    )
    assert done.exit_code == 0, done.output


@pytest.mark.usefixtures("now")
def test_facts_of_kube_state_metrics_name_the_arm_and_cut_the_past():
    old, new = lawful(RATES, last=12), lawful(RATES, "chat-64bd5fcf9-zzzzz", k=3, first=12)
    store = stored((old, new), GRID)
    for pod, image in ((old, "vllm:0"), (new, "vllm:1")):
        about = {"namespace": "llm", "pod": pod.name.replica}
        for time_s in range(GRID.first_s, GRID.last_s + 1, 60):
            store.add("kube_pod_container_info", about | {"container": "vllm", "image": image}, time_s, 1.0)
            store.add(
                "kube_pod_annotations",
                about | {"annotation_breakeven_dev_speculative_config": EAGLE},
                time_s,
                1.0,
            )
    found = document(store)
    assert [(one["method"], one["k"]) for one in found["arms"]] == [("eagle3", 3)]
    assert [(one["differs"], one["image"]) for one in found["earlier"]] == [(["image"], "vllm:0")]
    assert {"OtherArmNeverRan", "EarlierDiffers"} <= {one["word"] for one in found["unknown"]}


@pytest.mark.usefixtures("now")
def test_the_table_says_what_counts_and_what_is_unknown():
    store = stored(arms(), GRID)
    done = asked(store)
    assert done.exit_code == 0, done.output
    assert "unnamed/3" in done.stdout
    assert f"2 pods, {WINDOWS} of {WINDOWS} windows of 600 s" in done.stdout
    assert "! MethodUnknown:" in done.stdout


@pytest.mark.usefixtures("now")
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--since", "14"), "'14' is no span; expected such as 14d, 36h or 90m, at most 400d"),
        (("--since", "401d"), "'401d' is no span"),
        (("--since", "5m"), "--since: 300 s with windows of 600 s; expected 2 to 20000 windows: see --window-seconds"),
        (("--deployment", "chat"), "--deployment: 'chat'; expected NAMESPACE/NAME"),
        (("--deployment", 'llm/c"hat'), "--deployment: 'llm/c\"hat'; expected NAMESPACE/NAME"),
        (("--method", "none"), "--method: 'none'; expected vLLM's name"),
        (("--method", "a b"), "--method: 'a b'; expected vLLM's name"),
        (("--match", "pod"), "--match: 'pod'; expected LABEL=VALUE"),
        (("--metric-prefix", "9"), "--metric-prefix: '9'; expected letters"),
        (("--deployment", "llm/other"), "--prometheus: no vllm:num_requests_running{namespace=\"llm\",pod=~\"other-([a-z0-9]+-)?[a-z0-9]+\"} in the whole span; expected series of namespace='llm' model_name='m'"),
        (("--match", "pod=~chat.*|other.*"), ""),
        ((), "series of several workloads (llm/chat, llm/other-chat); expected --deployment NS/NAME or --match of one of them"),
    ],
)  # fmt: skip
def test_what_is_refused_is_one_line(words, line, tmp_path):
    store = stored((lawful(RATES), lawful(RATES, "other-chat-7d9f8b6c5d-bbbbb")), GRID, scrapes=4)
    file = tmp_path / "points.csv"
    with answering(store) as address:
        done = CliRunner().invoke(
            root, ["history", "--prometheus", address, "--since", SPAN, "-o", str(file), *words]
        )
    if not line:
        assert done.exit_code == 0, done.output
        assert file.exists()
    else:
        assert line in (done.output + str(done.exception))
        assert done.exit_code != 0
        assert not file.exists()


@pytest.mark.usefixtures("now")
def test_a_past_without_a_steady_window_is_refused_with_the_words():
    done = asked(stored((lawful(0.001 + 0.0 * RATES),), GRID, scrapes=4))
    assert "none of 24 windows is steady (TooFewRequests 24); expected a longer past" in str(done.exception)


def plain(model="meta-llama/Llama-3.1-8B-Instruct"):
    return stored((lawful(RATES, model=model),), GRID)


@pytest.mark.usefixtures("now")
def test_a_past_of_no_speculation_ends_with_what_others_measured():
    done = asked(plain(), "--gpu", "H100", "--quantisation", "bf16", "--dense")
    assert done.exit_code == 0, done.output
    ending = done.stdout[done.stdout.index("arm (FromPrior)") :].splitlines()
    assert [line.split()[0] for line in ending[1:4]] == ["eagle3/3", "mtp/2", "ngram_gpu/3"]
    assert "FromPrior: other people measured it" in ending[-1]


@pytest.mark.usefixtures("now")
def test_the_document_has_each_arm_with_its_row():
    words = ["--arm", "ngram/3", "--arm", "eagle3/3"]
    found = document(plain("Qwen3-30B-A3B-FP8"), *words)["others"]
    assert [(one["method"], one["k"], one["basis"]) for one in found] == [
        ("ngram", 3, "FromPrior"),
        ("eagle3", 3, "FromPrior"),
    ]
    assert all(one["source"].startswith("https://") and one["c1_ratio"] > 0 for one in found)


@pytest.mark.usefixtures("now")
def test_an_arm_that_ran_is_not_looked_up():
    found = document(stored(arms(), GRID), "--method", "eagle3", "--arm", "eagle3/3", "--arm", "mtp/1")[
        "others"
    ]
    assert [one["method"] for one in found] == ["mtp"]


@pytest.mark.usefixtures("now")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("eagle3", "METHOD/K"),
        ("none/0", "METHOD/K"),
        ("eagle3/0", "a draft length from 1 to 1000"),
        ("eagle3/x", "METHOD/K"),
    ],
)
def test_an_arm_that_is_none_is_refused_in_one_line(text, shown):
    done = asked(plain(), "--arm", text)
    assert done.exit_code == 1
    assert str(done.exception).startswith("--arm: ")
    assert shown in str(done.exception)
