"""vLLM's command line: what it accepts, what it refuses, and with which exit status."""

from __future__ import annotations

import json

import pytest

from breakeven.errors import BreakevenError
from breakeven_sim.engine.serve_arguments import parse
from breakeven_sim.engine.server import prepare
from breakeven_sim.engine.speculative_config import speculation

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
AS_JSON = json.dumps(NGRAM)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["m"], None),
        (["m", "--speculative-config="], None),
        (["m", "--speculative-config", ""], None),
        (["m", "--speculative-config=None"], None),
        (["m", "--speculative-config=null"], None),
        (["m", f"--speculative-config={AS_JSON}"], NGRAM),
        (["m", "--speculative-config", AS_JSON], NGRAM),
        (["m", "--speculative_config", AS_JSON], NGRAM),
        (["m", "-sc", AS_JSON], NGRAM),
        (
            ["m", "--speculative-config.method", "ngram", "--speculative-config.num_speculative_tokens", "3"],
            NGRAM,
        ),
        (["m", "-sc.method=ngram", "-sc.num_speculative_tokens=3"], NGRAM),
        (["m", "--spec-method", "ngram", "--spec-tokens", "3"], NGRAM),
        (["m", "--spec-tokens=3", "-sc", '{"method": "ngram"}'], NGRAM),
        (["m", "-sc", '{"method": "eagle3"}', "-sc", AS_JSON], NGRAM),
    ],
)
def test_ways_to_say_the_speculative_config(arguments, expected):
    assert parse(arguments).speculative_config == expected
    assert parse(["serve", *arguments]).speculative_config == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m", "--speculative-config=$(BREAKEVEN_SPECULATIVE_CONFIG)"], "variable that was not expanded"),
        (["m", "-sc", "{method: ngram}"], "invalid JSON value"),
        (["m", "--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["m", "--max-num", "3"], "ambiguous option: --max-num could match"),
        (["m", "extra"], "unrecognized arguments: extra"),
        (["m", "--max-model-len", "8x"], "not a number such as"),
        (["m", "--port", "eighty"], "invalid int value"),
        (["m", "--shutdown-timeout", "1.5"], "invalid int value"),
        (["m", "--dtype", "int5"], "invalid choice: 'int5'"),
    ],
)
def test_wrong_usage_exits_with_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as exited:
        parse(arguments)
    assert exited.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m", "-sc", "3"], "--speculative-config: 3; expected a JSON object, null or nothing"),
        (["m", "--spec-method", "ngram", "-sc", AS_JSON], "--spec-method and --speculative-config['method']"),
        (
            ["m", "--spec-tokens", "3", "-sc", AS_JSON],
            "--spec-tokens and --speculative-config['num_speculati",
        ),
        (["m", "--max-num-seqs", "0"], "--max-num-seqs: 0; expected a whole number of at least 1"),
        (["m", "--max-num-seqs", "32", "--max-num-batched-tokens", "16"], "at least max_num_seqs (32)"),
        (["m", "--gpu-memory-utilization", "1.2"], "--gpu-memory-utilization: 1.2; expected above 0"),
        (["m", "--enable-auto-tool-choice"], "given alone; expected --tool-call-parser beside it"),
        (["m", "--per-request-spec-decode-metrics", "summary"], "no speculation"),
        (["--served-model-name", "chat"], "no model before it"),
        (["m", "--config", "a.yaml", "--config", "b.yaml"], "More than one config file specified"),
        (["m", "--config"], "No config file specified"),
        (["m", "--config", "a.json"], "must be of a yaml/yml type"),
    ],
)
def test_what_vllm_refuses_after_parsing_is_one_line(arguments, message):
    with pytest.raises(BreakevenError) as refused:
        parse(arguments)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_flags_that_change_the_engine_and_flags_that_do_not():
    parsed = parse(
        [
            "org/model",
            "--host",
            "127.1.0.5",
            "--port",
            "8001",
            "--served-model-name",
            "chat",
            "chat-v2",
            "--max-num-seqs",
            "16",
            "--max-num-batched-tokens",
            "2k",
            "--max-model-len",
            "8K",
            "--gpu-memory-utilization",
            "0.8",
            "--shutdown-timeout",
            "60",
            "--seed",
            "7",
            "-tp",
            "4",
            "--pipeline-parallel-size=2",
            "--enable-prefix-caching",
            "--no-enable-chunked-prefill",
            "--dtype",
            "bfloat16",
            "--compilation-config.cudagraph_mode",
            "FULL",
            "-O3",
            "--trust_remote_code",
            "--api-key",
            "a",
            "b",
        ]
    )
    assert (parsed.host, parsed.port, parsed.served_names) == ("127.1.0.5", 8001, ("chat", "chat-v2"))
    assert (parsed.max_num_seqs, parsed.max_num_batched_tokens, parsed.max_model_len) == (16, 2000, 8192)
    assert (parsed.shutdown_timeout_s, parsed.seed, parsed.api_keys) == (60.0, 7, ("a", "b"))
    assert parsed.recorded == {
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 2,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": False,
        "dtype": "bfloat16",
        "compilation_config": {"cudagraph_mode": "FULL"},
        "optimization_level": "3",
        "trust_remote_code": True,
    }


def test_model_and_api_key_from_elsewhere():
    assert parse(["--model", "m"]).model == "m"
    assert parse(["--port", "1", "--model", "m"]).model == "m"
    assert parse(["vllm", "serve", "m"]).served_names == ("m",)
    assert parse(["m"], {"VLLM_API_KEY": "secret"}).api_keys == ("secret",)
    assert parse(["m", "--api-key", "k"], {"VLLM_API_KEY": "secret"}).api_keys == ("k",)


class TestConfigFile:
    def write(self, tmp_path, text, name="vllm.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    @pytest.mark.parametrize(
        "text",
        [
            "speculative-config: {method: ngram, num_speculative_tokens: 3}",
            f"speculative-config: '{AS_JSON}'",
            "speculative_config:\n  method: ngram\n  num_speculative_tokens: 3\n",
        ],
    )
    def test_a_mapping_or_json(self, tmp_path, text):
        assert parse(["m", "--config", self.write(tmp_path, text)]).speculative_config == NGRAM

    def test_the_command_line_replaces_the_whole_value(self, tmp_path):
        file = self.write(
            tmp_path, "speculative-config: {method: eagle3, model: x}\nmax-num-seqs: 4\nport: 9000"
        )
        parsed = parse(["m", "--config", file, "-sc", AS_JSON, "--port", "9001"])
        assert (parsed.speculative_config, parsed.max_num_seqs, parsed.port) == (NGRAM, 4, 9001)

    def test_switches_lists_and_nothing(self, tmp_path):
        text = "enable-prefix-caching: true\nenforce-eager: false\nserved-model-name: [a, b]\nspeculative-config:\n"
        parsed = parse(["m", "--config", self.write(tmp_path, text)])
        assert parsed.recorded == {"enable_prefix_caching": True, "enforce_eager": False}
        assert (parsed.served_names, parsed.speculative_config) == (("a", "b"), None)

    @pytest.mark.parametrize("text", ["", "# only a comment\n"])
    def test_an_empty_file_crashes_as_vllm_does(self, tmp_path, text):
        with pytest.raises(BreakevenError, match="'NoneType' object has no attribute 'items'"):
            parse(["m", "--config", self.write(tmp_path, text)])

    def test_an_empty_mapping_is_fine(self, tmp_path):
        assert parse(["m", "--config", self.write(tmp_path, "{}")]).model == "m"

    def test_in_one_word_the_file_is_not_noticed(self, tmp_path):
        path = self.write(tmp_path, f"speculative-config: '{AS_JSON}'")
        parsed = parse(["m", f"--config={path}"])
        assert (parsed.speculative_config, parsed.recorded) == (None, {"config": path})

    def test_before_the_model_there_is_no_model(self, tmp_path):
        with pytest.raises(BreakevenError, match="No model specified"):
            parse(["--config", self.write(tmp_path, "port: 1"), "m"])

    def test_the_model_may_stand_in_the_file(self, tmp_path):
        assert parse(["--config", self.write(tmp_path, "model: m\nport: 1")]).model == "m"

    def test_an_unknown_key_is_refused(self, tmp_path, capsys):
        with pytest.raises(SystemExit):
            parse(["m", "--config", self.write(tmp_path, "max-num-sequences: 4")])
        assert "unrecognized arguments: --max-num-sequences 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "method", "longest", "tiers"),
    [
        (NGRAM, "ngram", 3, ()),
        ({"model": "ngram", "num_speculative_tokens": 2}, "ngram", 2, ()),
        ({"model": "org/Llama-EAGLE3", "num_speculative_tokens": 2}, "eagle3", 2, ()),
        ({"model": "org/small", "num_speculative_tokens": 2}, "draft_model", 2, ()),
        ({"method": "deepseek_mtp"}, "mtp", 1, ()),
        ({"method": "suffix"}, "suffix", 24, ()),
        ({**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 8, 5], [16, 32, 1], [33, 64, 0]]}, "ngram", 3,
         ((1, 3), (16, 1), (33, 0))),
    ],
)  # fmt: skip
def test_what_vllm_fills_in(config, method, longest, tiers):
    found = speculation(config)
    assert found is not None
    assert (found.method, found.drafts.longest, found.drafts.tiers) == (method, longest, tiers)


def test_n_gram_range_defaults():
    for given, full in (
        ({}, (5, 5)),
        ({"prompt_lookup_max": 4}, (4, 4)),
        ({"prompt_lookup_min": 2}, (2, 2)),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, (2, 4)),
    ):
        found = speculation({**NGRAM, **given})
        assert found is not None
        assert (found.given["prompt_lookup_min"], found.given["prompt_lookup_max"]) == full


def test_data_parallel_ranks_draft_one_length_whatever_the_table_says(document):
    table = {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 64, 0]]}
    words = ["m", "--sim-costs", json.dumps(document()), "-sc", json.dumps(table)]
    alone = prepare(parse(words)).config.drafts
    assert [alone.at(batch) for batch in (4, 5)] == [3, 0]
    for dp in (("--data-parallel-size", "2"), ("-dp", "2")):
        ranks = prepare(parse([*words, *dp])).config.drafts
        assert [ranks.at(batch) for batch in (4, 5)] == [3, 3]


def test_a_schedule_holds_between_and_after_its_ranges():
    found = speculation(
        {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 4, 3], [9, 9, 1], [20, 30, 0]]}
    )
    assert found is not None
    assert [found.drafts.at(b) for b in (1, 4, 5, 8, 9, 10, 19, 20, 31, 500)] == [
        3,
        3,
        3,
        3,
        1,
        1,
        1,
        0,
        0,
        0,
    ]


def test_imposed_acceptance_as_vllm_resolves_it():
    base = {**NGRAM, "rejection_sample_method": "synthetic"}
    by_length = speculation({**base, "synthetic_acceptance_length": 2.5})
    by_rates = speculation({**base, "synthetic_acceptance_rates": [0.9, 0.5, 0.1]})
    assert by_length is not None
    assert by_rates is not None
    assert by_length.imposed_survival == (1.0, 0.5, 0.0)
    assert by_rates.imposed_survival == (0.9, 0.5, 0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "medusa"}, "method 'medusa'"),
        ({"num_speculative_token": 3}, "unknown key num_speculative_token"),
        ({"num_speculative_tokens": None}, "num_speculative_tokens is missing"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens is 0"),
        ({"num_speculative_tokens": 2.5}, "num_speculative_tokens is 2.5"),
        ({"method": "eagle3"}, "method eagle3 without a model"),
        ({"method": None}, "neither method nor model"),
        ({"prompt_lookup_min": 6, "prompt_lookup_max": 2}, "prompt_lookup_min 6 above"),
        ({"num_speculative_tokens_per_batch_size": [[2, 4, 3]]}, "begins at batch size 2"),
        ({"num_speculative_tokens_per_batch_size": [[1, 4, 3], [4, 8, 1]]}, "overlap at batch size 4"),
        ({"num_speculative_tokens_per_batch_size": [[1, 4]]}, "holds [1, 4]"),
        ({"num_speculative_tokens_per_batch_size": [[3, 1, 3]]}, "begins at batch size 3"),
        ({"num_speculative_tokens_per_batch_size": []}, "is []"),
        ({"method": "suffix", "num_speculative_tokens_per_batch_size": [[1, 4, 3]]}, "with method suffix"),
        ({"rejection_sample_method": "synthetic"}, "exactly one of"),
        (
            {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 5},
            "synthetic_acceptance_length 5",
        ),
        (
            {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.6, 0.1]},
            "non-increasing",
        ),
        (
            {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5]},
            "a list of 3 numbers",
        ),
        ({"synthetic_acceptance_length": 2}, "synthetic acceptance with method standard"),
    ],
)
def test_configurations_that_vllm_refuses(change, message):
    with pytest.raises(BreakevenError) as refused:
        speculation({**NGRAM, **change})
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu-memory-utilization", "0.4"], "No available memory for the cache blocks"),
        (["--num-gpu-blocks-override", "10"], "To serve at least one request"),
        (["--max-model-len", "3M"], "To serve at least one request"),
        (["-sc", '{"method": "suffix"}'], "no entry for method suffix"),
    ],
)
def test_engines_that_vllm_would_not_start(arguments, message, document):
    with pytest.raises(BreakevenError) as refused:
        prepare(parse(["m", "--sim-costs", json.dumps(document()), *arguments]))
    assert message in str(refused.value)


def test_sizes_of_the_engine(document):
    costs = json.dumps(document(time_scale=2.0, startup__base_s=3.0, startup__drafter_s=1.0))
    plain = prepare(parse(["m", "--sim-costs", costs]))
    drafting = prepare(
        parse(
            [
                "m",
                "--sim-costs",
                costs,
                "-sc",
                '{"method": "eagle3", "model": "d", "num_speculative_tokens": 2}',
            ]
        )
    )
    assert (plain.startup_s, drafting.startup_s) == (6.0, 8.0)
    assert plain.config.kv_pool_tokens == int(0.84 * 2**20)
    assert drafting.config.kv_pool_tokens == int(0.84 * 0.9 * 2**20)
    assert (
        prepare(parse(["m", "--sim-costs", costs, "--kv-cache-memory-bytes", "8M"])).config.kv_pool_tokens
        == 8192
    )
    assert plain.config.max_num_seqs == 256
