"""The script of pairs on simulated engines in virtual time: whole, without an engine, out of time, and cut off anywhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import replace

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.load_driver.client import EngineError
from breakeven.readers.reading import read_file
from breakeven_sim.engine.costs import default_document
from fakes.simulated_engine import simulated
from fakes.virtual_time import in_virtual_time
from real.deployments import SHORT_SCRIPT
from real.pair_rows import AGAIN, BESIDE, DECODE, IN_TURN, MIXED, PARTS, RESTARTED, STOPPED, term
from real.pairs import KeptWindows, PairScript, Script, read_kept, table_of

SLOWED = 5.0
SHORT = Script(
    whole_s=250.0,
    start_s=20.0,
    decode_clients=(1, 4),
    decode_answer=16,
    decode_s=0.5,
    streams=4,
    prompts=(128, 1024),
    each=4,
    quiet_s=0.2,
    rps=6.0,
    inflight=4.0,
    prompt=128,
    answer=16,
    warmup_s=0.5,
    window_s=2.0,
    rounds=2,
    closed_clients=4,
    answers=(8, 24),
    short_s=2.0,
)


class SimulatedEngines:
    """Engines in the test's own loop with an H100's costs, slowed down.

    Args:
        broken: names of engines that do not start.
        dies: name of one that is gone after so many seconds.
    """

    def __init__(self, broken=(), dies=(None, 0.0)):
        self.broken, self.dies = broken, dies
        self.stacks = {}

    async def start(self, name, within_s):
        await asyncio.sleep(3.0)
        if name in self.broken:
            raise EngineError(f"it ended within {within_s:.0f} s")
        document = default_document().gpus["NVIDIA-H100-80GB-HBM3"].model_dump(exclude_unset=True)
        method, _, k = name.partition("/")
        spec = {"method": method, "model": "head", "num_speculative_tokens": int(k)} if k else None
        self.stacks[name] = contextlib.AsyncExitStack()
        if name == self.dies[0]:
            asyncio.get_running_loop().call_later(self.dies[1], asyncio.ensure_future, self.stop(name))
        return await self.stacks[name].enter_async_context(
            simulated({**document, "time_scale": SLOWED}, spec)
        )

    async def stop(self, name):
        if name in self.stacks:
            await self.stacks.pop(name).aclose()


def play(folder, script=SHORT, cut_s=None, **faults):
    """What a script kept, as far as it went."""

    @in_virtual_time
    async def run():
        engines = SimulatedEngines(**faults)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(cut_s):
                await PairScript(script, engines, KeptWindows(folder, lambda _line: None), "GPU").run()
        for name in list(engines.stacks):
            await engines.stop(name)

    run()
    return read_kept(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, play(folder)


def windows(kept, part):
    return [one.engine for one in kept if one.part == part and "latency_s" in one.figures]


def test_all_parts_are_measured_and_nothing_is_left_out(whole):
    folder, kept = whole
    assert [one.left_out for one in kept if one.left_out] == []
    assert list(dict.fromkeys(one.part for one in kept)) == list(PARTS)
    there = ["none", "eagle3/2", "eagle3/5"]
    assert windows(kept, DECODE) == [*there, *there[::-1]] * 2
    assert windows(kept, IN_TURN) == [*there, *there[::-1]] * 2
    assert windows(kept, STOPPED) == ["none", "eagle3/2", "eagle3/2", "none"]
    assert windows(kept, MIXED) == ["none"] * 6
    assert windows(kept, RESTARTED) == [AGAIN] * 2
    beside = Counter(one.engine for one in kept if one.part == BESIDE)
    # A prompt of one token, and each length alone and beside streams.
    assert beside == {"none": 5, "eagle3/2": 5}
    lines = table_of(folder).splitlines()
    assert not any(line.startswith(("left out", "not reached")) for line in lines)
    assert [line.partition(":")[0] for line in lines[-3:]] == [
        "a prompt beside decodes", "state of the machine", "pairs",
    ]  # fmt: skip


def test_windows_of_one_arm_have_the_same_requests(whole):
    latencies = [one.figures["latency_s"] for one in whole[1] if one.part == IN_TURN and one.engine == "none"]
    # Nothing is left to chance without drafts, on an engine without a state.
    assert latencies == pytest.approx([latencies[0]] * 4, rel=0.01)


def test_a_prompt_costs_beside_decodes_what_it_costs_alone_on_an_engine_without_such_a_term(whole):
    for part, engine in ((BESIDE, "none"), (BESIDE, "eagle3/2"), (RESTARTED, AGAIN)):
        found = term(whole[1], part, engine)
        assert abs(found.value) < 0.001 * SLOWED, engine


def test_points_are_read_by_the_product_and_say_when_they_began(whole):
    points = read_file(whole[0] / "points.csv")
    assert {point.arm for point in points} == {NO_SPECULATION, Arm("eagle3", 2), Arm("eagle3", 5)}
    # The restarted engine is another one.
    assert len(points) == 12 + 12 + 4 + 6
    begun = [point.begun_s for point in points]
    assert begun == sorted(begun)


@pytest.mark.parametrize(
    ("broken", "measured", "sentences"),
    [
        ("eagle3/5", {DECODE, BESIDE, IN_TURN, MIXED, RESTARTED}, {"it ended within 20 s", "it is not up"}),
        (AGAIN, set(PARTS) - {RESTARTED}, {"it ended within 20 s"}),
        ("none", {DECODE, BESIDE, IN_TURN, STOPPED}, {"it ended within 20 s", "it is not up"}),
    ],
)
def test_an_engine_that_does_not_start_leaves_its_part_out(broken, measured, sentences, tmp_path):
    kept = play(tmp_path, broken={broken})
    figures = {one.part for one in kept if one.figures and one.what != "start"}
    assert figures == measured
    assert {one.left_out for one in kept if one.left_out} == sentences
    assert broken not in {one.engine for one in kept if one.figures}
    assert f"{broken}: it ended within 20 s" in table_of(tmp_path)


def test_an_engine_that_dies_leaves_the_others(tmp_path):
    kept = play(tmp_path, replace(SHORT, rounds=1), dies=("eagle3/2", 45.0))
    gone = [one for one in kept if one.left_out]
    assert {one.engine for one in gone} == {"eagle3/2"}
    assert windows(kept, RESTARTED) == [AGAIN] * 2


def test_a_script_that_is_out_of_time_leaves_the_rest_out(tmp_path):
    kept = play(tmp_path, replace(SHORT, whole_s=60.0))
    # One time there and back, although not all that comes later has its time.
    assert len(windows(kept, IN_TURN)) == 6
    late = {one.left_out[:21] for one in kept if one.part in {MIXED, RESTARTED} and one.left_out}
    assert late == {"the time left is less"}
    assert play(tmp_path, replace(SHORT, whole_s=20.0))[-1].left_out == "20 s are over"


def test_a_script_that_is_cut_off_has_a_table_of_what_it_kept(tmp_path):
    kept = play(tmp_path, cut_s=45.0)
    assert kept[-1].part == IN_TURN
    table = table_of(tmp_path)
    assert "speedup of eagle3/2" in table
    assert [line for line in table.splitlines() if line.startswith("not reached")] == [
        f"not reached: {part}" for part in (STOPPED, MIXED, RESTARTED)
    ]


def test_whatever_was_written_last_there_is_a_table(whole, tmp_path):
    text = (whole[0] / "kept.jsonl").read_text()
    for end in [0, *range(1, len(text), 997), len(text)]:
        (tmp_path / "kept.jsonl").write_text(text[:end])
        assert len(read_kept(tmp_path)) == text[:end].count("\n")
        assert "pairs: " in table_of(tmp_path)
        assert "nan" not in table_of(tmp_path)


def test_the_short_script_asks_for_what_its_engines_take():
    longest = max(*SHORT_SCRIPT.prompts, SHORT_SCRIPT.prompt, SHORT_SCRIPT.stream_tokens)
    assert longest + SHORT_SCRIPT.answers[1] < 1024
    assert max(*SHORT_SCRIPT.decode_clients, SHORT_SCRIPT.streams, SHORT_SCRIPT.closed_clients) <= 32
