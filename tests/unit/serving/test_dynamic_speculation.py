"""A draft length per batch size in `--speculative-config`: what vLLM makes of it, and where it runs something else."""

from __future__ import annotations

import pytest

from breakeven.errors import InputError
from breakeven.serving.vllm_versions import SCHEDULE_KEY, schedule_doubts, schedule_in

EAGLE = {"method": "eagle3", "model": "org/head", "num_speculative_tokens": 5}
GOOD = {**EAGLE, SCHEDULE_KEY: [[1, 8, 5], [9, 32, 2], [33, 256, 0]]}


def test_the_table_is_read_as_vllm_runs_it():
    assert schedule_in(EAGLE) is None
    assert str(schedule_in(GOOD)) == "1-8:5,9-32:2,33-:0"
    assert str(schedule_in({**EAGLE, SCHEDULE_KEY: [[9, 16, 2], [1, 4, 9]]})) == "1-8:5,9-:2"


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ([], "is []"),
        ("1-8:5", "is '1-8:5'"),
        ([[1, 4]], "three integers"),
        ([[1, 4, True]], "three integers"),
        ([[2, 4, 1]], "begins at batch size 2"),
        ([[1, 4, 1], [4, 8, 0]], "overlap at batch size 4"),
        ([[1, 4, -1]], "k >= 0"),
    ],
)
def test_a_table_that_vllm_refuses_is_a_doubt_in_one_line(table, problem):
    with pytest.raises(InputError):
        schedule_in({**EAGLE, SCHEDULE_KEY: table})
    (found,) = schedule_doubts({**EAGLE, SCHEDULE_KEY: table}, [])
    assert problem in found
    assert found.endswith("vLLM refuses to start")
    assert "\n" not in found


@pytest.mark.parametrize(
    ("config", "words", "image", "said"),
    [
        (GOOD, [], "vllm/vllm-openai:v0.33.0", None),
        (EAGLE, ["--data-parallel-size=4"], "vllm/vllm-openai:v0.14.1", None),
        (GOOD, ["--data-parallel-size", "1"], "registry:5000/vllm", None),
        (GOOD, ["--data-parallel-size", "2"], "", "at every batch size, and only its log says so"),
        (GOOD, ["-dp=2"], "", "at every batch size"),
        (GOOD, [], "vllm/vllm-openai:v0.23.1", "from 0.24 on, 0.23 refuses to start"),
        (
            {**GOOD, "num_speculative_tokens": 3},
            [],
            "",
            "asks for 5 drafts, num_speculative_tokens reserves 3",
        ),
        ({**GOOD, "method": "dspark"}, [], "", "leaves the table aside"),
        ({**GOOD, "method": "suffix"}, [], "", "with method suffix"),
    ],
)
def test_where_vllm_runs_something_else_is_said(config, words, image, said):
    found = list(schedule_doubts(config, words, image))
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
