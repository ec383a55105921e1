"""`breakeven calibrate` from outside: files, exit codes, resuming."""

from __future__ import annotations

import asyncio
import csv
import json

import click
import pytest
from click.testing import CliRunner

from breakeven.cli.calibrate import PointsFile, command
from breakeven.errors import BreakevenError, InputError
from breakeven.load_driver import sweep
from breakeven.load_driver.measuring import MeasuredWindow
from breakeven.points.point import LoadMode, Point
from breakeven.readers.reading import read_file
from fakes.lawful_engine import LawfulEngine, serving
from golden.documents import unexplained

QUICK = ["--loads", "3", "--point-seconds", "1", "--warmup-seconds", "0", "--max-concurrency", "8",
         "--no-other-lengths"]  # fmt: skip
SMALL = ["--prompt-tokens", "30", "--output-tokens", "30"]


def rows_of(file):
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(autouse=True)
def nothing_speaks_against_a_point(monkeypatch):
    """A busy machine must not decide these tests; flags, and how well pairs are known, have tests of their own."""
    monkeypatch.setattr(MeasuredWindow, "flags", ())
    monkeypatch.setattr(sweep, "PAIRED_ERROR", 10.0)


async def invoke(*arguments: str):
    """Run the command in a thread of its own, as the engine lives in this loop."""
    return await asyncio.to_thread(
        CliRunner().invoke, command, list(map(str, arguments)), standalone_mode=False, catch_exceptions=True
    )


async def test_points_are_appended_and_another_arm_joins_the_file(tmp_path):
    file = tmp_path / "points.csv"
    async with serving(LawfulEngine()) as engine:
        first = await invoke("--url", engine.url, "--method", "none", "-o", file, *QUICK, *SMALL)
        assert first.exception is None
        assert "all 3 loads measured" in first.output
    async with serving(LawfulEngine(speculative_tokens=3)) as engine:
        second = await invoke(
            "--url", engine.url, "--method", "eagle3", "--k", 3, "-o", file, *QUICK, *SMALL, "--json"
        )
        assert second.exception is None
    document = json.loads(second.stdout)
    assert unexplained("calibrate", document) == set()
    assert document["arm"] == {"method": "eagle3", "k": 3}
    assert document["complete"] is True
    assert [point["load_mode"] for point in document["points"]] == ["closed", "closed", "poisson", "closed"]
    assert document["points"][0]["request_rate_rps"] is None
    rows = rows_of(file)
    assert [row["method"] for row in rows] == ["none"] * 4 + ["eagle3"] * 4
    assert {row["model"] for row in rows} == {"tiny"}


async def test_several_engines_are_measured_in_one_command_and_end_with_pairs(tmp_path):
    file = tmp_path / "points.csv"
    async with serving(LawfulEngine()) as none, serving(LawfulEngine(0.001, speculative_tokens=3)) as eagle:
        named = [
            "--engine",
            f"none={none.url}",
            "--engine",
            f"eagle3/3={eagle.url}",
            "-o",
            file,
            *QUICK,
            *SMALL,
        ]
        done = await invoke(*named, "--expected-rps", 4, "--max-seconds", 60, "--json")
        assert done.exception is None
        document = json.loads(done.stdout)
        assert unexplained("calibrate", document) == set()
        assert document["arms"] == [{"method": "none", "k": 0}, {"method": "eagle3", "k": 3}]
        (pair,) = document["pairs"]
        assert (pair["method"], pair["request_rate_rps"], pair["pairs"]) == ("eagle3", 4.0, 4)
        assert 1.0 < pair["speedup_ci"][0] < pair["speedup"] < pair["speedup_ci"][1]
        rows = rows_of(file)
        own = [row["method"] for row in rows if not row["replicate"]]
        assert own == ["none", "eagle3", "eagle3", "none", "none", "eagle3", "eagle3", "none"]
        pairs = [(row["method"], row["replicate"]) for row in rows[8:12]]
        assert pairs == [("none", "1"), ("eagle3", "1"), ("eagle3", "2"), ("none", "2")]
        assert len(rows) == 16
        assert all(float(row["begun_s"]) > 1e9 for row in rows)
        sent = len(none.bodies)
        again = await invoke(*named, "--expected-rps", 4, "--max-seconds", 60)
        assert "going on after 16 points" in again.stderr
        assert "eagle3/3 at 4 rps: " in again.stdout
        assert "as fast as no speculation" in again.stdout
        assert len(none.bodies) == sent, "nothing is asked twice"
        assert len(rows_of(file)) == 16
    gone = await invoke(*named)
    assert isinstance(gone.exception, BreakevenError)
    assert str(gone.exception).startswith("none: http://")


async def test_a_joint_plan_has_all_arms_at_each_load(tmp_path):
    named = ["--engine", "none=http://127.0.0.1:9", "--engine", "eagle3/1-8:5,9-:0/big=http://127.0.0.1:9"]
    beside = ["--engine", "eagle3/2=http://127.0.0.1:9"]
    three = json.loads(
        (await invoke(*named[:2], *beside, "-o", tmp_path / "p.csv", "--dry-run", "--json")).stdout
    )
    assert [point["k"] for point in three["plan"] if point["prompt_tokens"]] == [0, 2, 2, 0]
    ask = [*named, "-o", tmp_path / "p.csv", "--dry-run", "--max-seconds", 3600]
    document = json.loads((await invoke(*ask, "--json")).stdout)
    assert unexplained("calibrate", document) == set()
    scheduled = {"method": "eagle3", "k": 5, "candidate": "big", "scheduled": True}
    assert document["arms"] == [{"method": "none", "k": 0}, scheduled]
    assert scheduled.items() <= document["plan"][1].items()
    own = [point for point in document["plan"] if not point["prompt_tokens"]]
    assert [point["k"] for point in own[:8]] == [0, 5, 5, 0, 0, 5, 5, 0]
    # A schedule has no points at other lengths.
    assert [point["k"] for point in document["plan"] if point["prompt_tokens"]] == [0, 0]
    assert document["pairs_seconds"] > 720.0
    assert "big/schedule" in (await invoke(*ask)).stdout
    assert "then pairs for up to" in (await invoke(*ask)).stdout


async def test_an_engine_that_is_down_at_the_beginning_is_left_out_and_joins_when_the_command_goes_on(
    tmp_path,
):
    file = tmp_path / "p.csv"
    down = ["--engine", "eagle3/5/big=http://127.0.0.1:9"]
    async with serving(LawfulEngine()) as none, serving(LawfulEngine(0.001, speculative_tokens=3)) as eagle:
        up = ["--engine", f"none={none.url}", "--engine", f"eagle3/3={eagle.url}"]
        done = await invoke(*up, *down, "-o", file, *QUICK, *SMALL, "--max-seconds", 6, "--json")
        assert done.exception is None
        (line,) = done.stderr.splitlines()
        assert line.startswith("big/5 is left out: http://127.0.0.1:9")
        assert line.endswith("; the other arms go on")
        document = json.loads(done.stdout)
        assert unexplained("calibrate", document) == set()
        assert document["arms"][2] == {"method": "eagle3", "k": 5, "candidate": "big"}
        assert document["complete"] is False
        assert "big/5 left out, its engine failed" in document["reason"]
        assert {row["k"] for row in rows_of(file)} == {"0", "3"}
        async with serving(LawfulEngine(speculative_tokens=5)) as big:
            named = ["--engine", f"eagle3/5/big={big.url}"]
            again = await invoke(*up, *named, "-o", file, *QUICK, *SMALL, "--max-seconds", 4)
            assert again.exception is None
            assert "left out" not in again.stderr
            assert {row["candidate"] for row in rows_of(file)} == {"", "big"}
    lone = await invoke(*down, "--engine", "ngram/2=http://127.0.0.1:9", "-o", tmp_path / "r.csv")
    assert str(lone.exception).startswith("big/5: http://127.0.0.1:9")
    assert not lone.output, "there is no other arm that goes on"
    async with serving(LawfulEngine(speculative_tokens=5)) as big:
        ask = [
            "--engine",
            "none=http://127.0.0.1:9",
            "--engine",
            f"eagle3/5={big.url}",
            "-o",
            tmp_path / "r.csv",
        ]
        refused = await invoke(*ask)
        assert str(refused.exception).startswith("none: http://127.0.0.1:9")
        assert not big.bodies
    assert not (tmp_path / "r.csv").exists()


async def test_engines_of_two_models_are_refused_in_one_line(tmp_path, monkeypatch):
    async with serving(LawfulEngine()) as none, serving(LawfulEngine(speculative_tokens=3)) as eagle:
        eagle.model = "other"
        named = ["--engine", f"none={none.url}", "--engine", f"eagle3/3={eagle.url}"]
        refused = await invoke(*named, "-o", tmp_path / "p.csv", *QUICK)
    assert str(refused.exception) == "--engine: engines that serve tiny and other; expected one model"


async def test_what_is_there_is_not_measured_again(tmp_path):
    file = tmp_path / "points.csv"
    async with serving(LawfulEngine()) as engine:
        await invoke("--url", engine.url, "--method", "none", "-o", file, *QUICK, *SMALL)
        lines = file.read_text().splitlines()
        file.write_text("\n".join(lines[:-1]) + "\n")
        requests = len(engine.bodies)
        resumed = await invoke("--url", engine.url, "--method", "none", "-o", file, *QUICK, *SMALL)
        assert "going on after 3 points" in resumed.stderr
        assert len(rows_of(file)) == 4
        assert len(engine.bodies) > requests + 1
        # Another workload is another sweep.
        await invoke(
            "--url",
            engine.url,
            "--method",
            "none",
            "-o",
            file,
            *QUICK,
            "--prompt-tokens",
            40,
            "--output-tokens",
            30,
        )
        assert len(rows_of(file)) == 8


async def test_a_dry_run_prints_plan_and_cost_and_asks_the_engine_nothing(tmp_path):
    file = tmp_path / "points.csv"
    ask = ["--url", "http://127.0.0.1:9", "--method", "none", "-o", file, "--dry-run"]
    text = await invoke(*ask)
    assert text.exception is None
    assert "1 client" in text.output
    assert "GPU-seconds" in text.output
    evenly = json.loads((await invoke(*ask, "--json")).stdout)
    assert unexplained("calibrate", evenly) == set()
    longer = [point for point in evenly["plan"] if point["prompt_tokens"]]
    assert [point["concurrency"] for point in longer] == [1, 16]
    # Eight loads, and the first of them once more at the end.
    assert len(evenly["plan"]) == 9 + len(longer)
    assert ", prompts of 1024" in text.output
    plain = json.loads((await invoke(*ask, "--no-other-lengths", "--json")).stdout)
    assert len(plain["plan"]) == 9
    assert evenly["seconds"] == pytest.approx(plain["seconds"] + sum(point["seconds"] for point in longer))
    chosen = json.loads(
        (await invoke(*ask, "--loads", "auto", "--max-seconds", 60, "--expected-rps", 3, "--json")).stdout
    )
    assert chosen["plan"][0]["concurrency"] == 1
    assert chosen["seconds"] == sum(point["seconds"] for point in chosen["plan"]) <= 60
    assert not file.exists()


async def test_on_request_the_decision_says_which_loads_are_measured(tmp_path):
    file = tmp_path / "points.csv"
    auto = ["--loads", "auto", *QUICK[2:], *SMALL, "--max-seconds", 12, "--expected-rps", 20, "--json"]
    async with serving(LawfulEngine()) as engine:
        first = await invoke("--url", engine.url, "--method", "none", "-o", file, *auto)
        assert first.exception is None
    document = json.loads(first.stdout)
    assert [point["concurrency"] for point in document["points"][:2]] == [1, 8]
    assert len(document["points"]) >= 3
    # Points of the first arm are there for the second one's choice, and are not taken for its own.
    other = ["--url", "http://127.0.0.1:9", "--method", "eagle3", "--k", 3, "-o", file]
    plan = json.loads((await invoke(*other, *auto, "--dry-run")).stdout)
    assert plan["measured"] == 0
    assert plan["plan"][0]["concurrency"] == 1


async def test_a_schedule_is_measured_as_an_arm_beside_its_longest_draft_length(tmp_path):
    file = tmp_path / "points.csv"
    async with serving(LawfulEngine(speculative_tokens=3)) as engine:
        for k in ("3", "1-4:3,5-:0", "1-8:3,9-:0"):
            done = await invoke(
                "--url", engine.url, "--method", "eagle3", "--k", k, "-o", file, *QUICK, *SMALL
            )
            assert done.exception is None
        again = await invoke("--url", engine.url, "--method", "eagle3", "--k", k, "-o", file, *QUICK, *SMALL)
    assert "going on after 4 points" in again.stderr
    rows = rows_of(file)
    assert [row["schedule"] for row in rows] == [""] * 4 + ["1-4:3,5-:0"] * 4 + ["1-8:3,9-:0"] * 4
    assert {row["k"] for row in rows} == {"3"}


async def test_the_fits_reader_takes_the_file(tmp_path):
    file = tmp_path / "points.csv"
    async with serving(LawfulEngine()) as engine:
        await invoke("--url", engine.url, "--method", "none", "-o", file, *QUICK, *SMALL)
    points = read_file(file)
    assert len(points) == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--method", "eagle3"], "--k is needed"),
        (["--method", "none", "--engine", "none=http://127.0.0.1:9"], "--engine excludes --url"),
        (["--method", "none", "--k", "3"], "k is 0 for method none"),
        (["--method", "none", "--dataset", "{file}", "--prefix-share", "0.5"], "--prefix-share excludes"),
        (["--method", "none", "--lengths", "{file}", "--prompt-tokens-stdev", "5"], "--lengths excludes"),
        (["--method", "none", "--loads", "2"], "'2' is no number of loads"),
        (["--method", "none", "--expected-rps", "3"], "--expected-rps needs --loads auto"),
        (["--method", "none", "--target-regret-percent", "1"], "--target-regret-percent needs --loads auto"),
    ],
)
async def test_wrong_usage_is_named(tmp_path, arguments, said):
    texts = tmp_path / "prompts.txt"
    texts.write_text("hello\n")
    given = [argument.replace("{file}", str(texts)) for argument in arguments]
    result = await invoke("--url", "http://127.0.0.1:9", "-o", tmp_path / "p.csv", *given)
    assert isinstance(result.exception, click.UsageError)
    assert said in str(result.exception)
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected --url and --method, or engines by --engine ARM=URL"),
        (["--url", "http://127.0.0.1:9"], "expected --url and --method"),
        (["--engine", "none"], "--engine 'none': no address; expected each arm once, such as none=http://"),
        (["--engine", "none=ftp://a"], "ftp://a: expected http://host:port"),
        (["--engine", "none=http://a:99999"], "http://a:99999: expected http://host:port"),
        (["--engine", "none=http://[::1"], "http://[::1: expected http://host:port"),
        (["--engine", "eagle3=http://a"], "--engine 'eagle3': --k is needed with --method eagle3 (--engine eagle3/K=URL)"),
        (["--engine", "eagle3/=http://a"], "--engine 'eagle3/': an empty method, draft length or name; expected each arm once"),
        (["--engine", "=http://a"], "--engine '': an empty method, draft length or name"),
        (["--engine", "eagle3/x=http://a"], "--engine 'eagle3/x': 'x' is no draft length"),
        (["--engine", "eagle3/8:1=http://a"], "is no range of batch sizes"),
        (["--engine", "none/3=http://a"], "--engine 'none/3': arm none/3: k is 0 for method none and at least 1 otherwise; expected"),
        (["--engine", "none=http://a", "--engine", "none=http://b"], "none is named twice"),
        (["--engine", "none=http://a", "--engine", "ngram/2=http://b", "--target-regret-percent", "1"], "needs --loads auto"),
    ],
)  # fmt: skip
async def test_engines_that_are_named_wrongly_are_wrong_usage(tmp_path, arguments, said):
    result = await invoke(*arguments, "-o", tmp_path / "p.csv")
    assert isinstance(result.exception, click.UsageError)
    assert said in str(result.exception)


async def test_an_engine_that_is_not_there_leaves_no_file(tmp_path):
    result = await invoke("--url", "http://127.0.0.1:9", "--method", "none", "-o", tmp_path / "p.csv")
    assert isinstance(result.exception, BreakevenError)
    said = "http://127.0.0.1:9/v1/models: Connection refused; expected an engine there"
    assert str(result.exception) == said
    assert not (tmp_path / "p.csv").exists()


async def test_a_missing_api_key_is_named_and_its_value_never_is(tmp_path, monkeypatch):
    result = await invoke(
        "--url", "http://x", "--method", "none", "-o", tmp_path / "p.csv", "--api-key-env", "NO_KEY"
    )
    assert "NO_KEY" in str(result.exception)
    monkeypatch.setenv("A_KEY", "s3cret")
    async with serving(LawfulEngine(require_key="s3cret")) as engine:
        done = await invoke(
            "--url",
            engine.url,
            "--method",
            "none",
            "-o",
            tmp_path / "p.csv",
            "--api-key-env",
            "A_KEY",
            *QUICK,
            *SMALL,
        )
        assert done.exception is None
    assert "s3cret" not in done.output + (tmp_path / "p.csv").read_text()


async def test_a_dataset_is_sent_as_it_says_with_the_sampling_that_was_asked_for(tmp_path):
    file, dataset = tmp_path / "p.csv", tmp_path / "support.jsonl"
    dataset.write_text(
        '{"prompt": "one", "output_tokens": 8}\n'
        '{"messages": [{"role": "user", "content": "two words"}], "output_tokens": 8}\n'
    )
    given = ("--method", "none", "-o", file, "--dataset", dataset, "--temperature", 0.7, "--top-p", 0.9)
    async with serving(LawfulEngine()) as engine:
        done = await invoke("--url", engine.url, *given, "--sampling-seed", 5, *QUICK)
        assert done.exception is None
        assert {body["prompt"] for body in engine.bodies if "prompt" in body} == {"one"}
        chats = [body["messages"] for body in engine.bodies if "messages" in body]
        assert chats[0] == [{"role": "user", "content": "two words"}]
        assert all(
            (body["temperature"], body["top_p"], body["seed"]) == (0.7, 0.9, 5) for body in engine.bodies
        )
        # The first of each client have what a request in mid-flight has left.
        assert max(body["max_tokens"] for body in engine.bodies) == 8
    rows = rows_of(file)
    assert {row["text_source"] for row in rows} == {"support"}
    assert {float(row["output_tokens"]) for row in rows} == {8.0}
    assert "two words" not in done.output + file.read_text()


async def test_lengths_that_scatter_leave_every_point_near_the_mean(tmp_path):
    file = tmp_path / "p.csv"
    given = ("--method", "none", "-o", file, "--prompt-tokens", 30, "--output-tokens", 12, *QUICK)
    async with serving(LawfulEngine()) as engine:
        done = await invoke(
            "--url", engine.url, *given, "--prompt-tokens-stdev", 20, "--output-tokens-stdev", 6
        )
        assert done.exception is None
        assert len({body["max_tokens"] for body in engine.bodies}) > 5
    for row in rows_of(file):
        assert float(row["output_tokens"]) == pytest.approx(12, rel=0.1)
        assert float(row["output_tokens_sq"]) > 1.1 * float(row["output_tokens"]) ** 2
        assert row["text_source"] == "synthetic text"


async def test_a_dataset_that_is_none_is_one_line_and_no_file(tmp_path):
    dataset = tmp_path / "support.jsonl"
    dataset.write_text('{"prompt": "xyzzy"}\n{"text": "xyzzy"}\n')
    refused = await invoke(
        "--url", "http://127.0.0.1:9", "--method", "none", "-o", tmp_path / "p.csv", "--dataset", dataset
    )
    assert (
        str(refused.exception) == f"{dataset}: line 2: neither prompt nor messages; expected one of the two"
    )
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [("a,b\n1,2\n", "no column k, method"), ("method,k\nnone,0,9\n", "row 2"), ("method,k\nnone\n", "row 2")],
)
def test_a_file_that_is_no_points_file_is_left_alone(tmp_path, content, said):
    file = tmp_path / "points.csv"
    file.write_text(content)
    with pytest.raises(InputError, match=said):
        PointsFile(file).append({"method": "none", "k": "0"})
    assert file.read_text() == content


def test_new_columns_are_added_to_old_rows(tmp_path):
    file = PointsFile(tmp_path / "points.csv")
    file.path.write_text("method,k,colour,mean_latency_s\nnone,0,red,0.50\n")
    file.append(
        Point(
            method="ngram", k=1, load_mode=LoadMode.CLOSED, concurrency=4, mean_latency_s=0.25, accept=(0.5,)
        )
    )
    old, new = rows_of(file.path)
    assert {name: text for name, text in old.items() if text} == {
        "method": "none",
        "k": "0",
        "colour": "red",
        "mean_latency_s": "0.50",
    }, "what stands there stays as it stands"
    assert (new["k"], new["colour"], new["concurrency"], new["accept_1"]) == ("1", "", "4", "0.5")


async def test_two_points_at_other_lengths_come_after_the_first(tmp_path):
    file = tmp_path / "p.csv"
    given = ("--method", "none", "-o", file, *QUICK[:-1], *SMALL)
    async with serving(LawfulEngine()) as engine:
        assert (await invoke("--url", engine.url, *given)).exception is None
        sent = len(engine.bodies)
        assert (await invoke("--url", engine.url, *given)).exception is None
        assert len(engine.bodies) == sent, "nothing is measured twice"
    rows = rows_of(file)
    first = float(rows[0]["prompt_tokens"])
    longer = [float(row["prompt_tokens"]) / first > 3 for row in rows]
    assert longer == [False, True, True, False, False, False]
