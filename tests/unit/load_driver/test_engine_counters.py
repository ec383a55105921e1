"""Pages of /metrics -> tokens per step, acceptance, preemptions; figures of a real vLLM 0.32 page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven.load_driver.counters import between, kv_cache_tokens, read_counters
from breakeven.serving.growths import EngineLimits, Growths

LABEL = 'engine="0",model_name="tiny"'
# A real vLLM 0.32 with n-gram k=3 after eight requests of 50 tokens (samples of its page, in its order).
NGRAM_PAGE = f"""\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{{LABEL}}} 96.0
vllm:spec_decode_num_drafts_created{{{LABEL}}} 1.7952498848266363e+09
vllm:spec_decode_num_draft_tokens_total{{{LABEL}}} 280.0
vllm:spec_decode_num_accepted_tokens_total{{{LABEL}}} 280.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{{LABEL},position="0"}} 96.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{{LABEL},position="1"}} 96.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{{LABEL},position="2"}} 88.0
vllm:num_requests_running{{{LABEL}}} 3.0
vllm:num_requests_waiting{{{LABEL}}} 1.0
vllm:num_requests_waiting_by_reason{{{LABEL},reason="capacity"}} 7.0
vllm:kv_cache_usage_perc{{{LABEL}}} 0.125
vllm:prefix_cache_queries_total{{{LABEL}}} 46.0
vllm:prefix_cache_hits_total{{{LABEL}}} 0.0
vllm:num_preemptions_total{{{LABEL}}} 0.0
vllm:generation_tokens_total{{{LABEL}}} 400.0
vllm:generation_tokens_created{{{LABEL}}} 1.7952498848285e+09
vllm:time_to_first_token_seconds_count{{{LABEL}}} 8.0
vllm:time_to_first_token_seconds_sum{{{LABEL}}} 1.2339599132537842
vllm:inter_token_latency_seconds_bucket{{{LABEL},le="0.01"}} 120.0
vllm:inter_token_latency_seconds_count{{{LABEL}}} 127.0
"""
ZERO = Growths(
    dict.fromkeys(("generated", "started", "steps", "drafts", "drafted", "preemptions"), 0.0),
    dict.fromkeys(range(3), 0.0),
)


def counting(reading, **changes):
    """The reading with other counters; None: not on the page."""
    stats = {**reading.stats, **changes}
    return replace(reading, stats={name: count for name, count in stats.items() if count is not None})


def test_tokens_per_step_counts_steps_without_a_draft():
    window = between(ZERO, read_counters(NGRAM_PAGE))
    assert window.tokens_per_step == pytest.approx(392 / 127)  # 3.09; 1 + accepted/drafts would say 3.92
    assert window.drafted_per_step == pytest.approx(280 / 127)
    assert window.survival == pytest.approx((1.0, 1.0, 88 / 96))
    assert window.drafts == 96


def test_gauges_are_read_by_their_exact_name():
    counters = read_counters(NGRAM_PAGE)
    assert [counters.stats[name] for name in ("running", "waiting", "kv_usage")] == [3.0, 1.0, 0.125]


def test_several_engine_cores_are_summed_before_anything_is_divided():
    both = NGRAM_PAGE + NGRAM_PAGE.replace('engine="0"', 'engine="1"').replace("} 400.0", "} 800.0")
    window = between(ZERO, read_counters(both))
    assert window.tokens_per_step == pytest.approx((1200 - 16) / 254)
    assert read_counters(both).stats["kv_usage"] == 0.125


def test_without_speculation_there_are_no_drafts_rather_than_zero():
    page = "\n".join(line for line in NGRAM_PAGE.splitlines() if "spec_decode" not in line)
    counters = read_counters(page)
    assert "drafts" not in counters.stats
    window = between(replace(counting(ZERO, drafts=None, drafted=None), accepted={}), counters)
    assert window.drafts is None
    assert window.survival == ()
    assert window.drafted_per_step is None
    assert window.tokens_per_step == pytest.approx(392 / 127)


def test_a_counter_that_went_backwards_gives_no_figure():
    late = read_counters(NGRAM_PAGE)
    assert between(counting(late, generated=9999.0), late).tokens_per_step is None


@pytest.mark.parametrize(("k", "counted", "kept"), [(0, 1.00032, 1.0), (3, 4.0004, 4.0), (3, 3.9, 3.9)])
def test_steps_that_vllm_merged_make_no_impossible_row(k, counted, kept):
    # 1.00032 is what a real vLLM 0.32 said with sixteen clients; `fit` refuses more than k + 1.
    late = counting(ZERO, generated=1e5 * counted, steps=1e5, drafted=1e5 * (k + 1e-3))
    window = between(ZERO, late, EngineLimits(tokens_per_step=k + 1.0))
    assert window.tokens_per_step == pytest.approx(kept)
    assert window.drafted_per_step == k


def test_an_idle_window_gives_no_figure():
    late = read_counters(NGRAM_PAGE)
    window = between(late, late)
    assert (window.tokens_per_step, window.survival, window.preemptions) == (None, (), 0.0)


def test_a_page_of_something_else_has_no_figures():
    assert read_counters("<html>vllm:generation_tokens_total 5 apples</html>") == Growths({})


def test_the_rest_of_a_step_is_no_wait_for_a_place_in_the_batch():
    page = """\
vllm:inter_token_latency_seconds_count{} 600.0
vllm:inter_token_latency_seconds_sum{} 24.0
vllm:request_queue_time_seconds_count{} 100.0
vllm:request_queue_time_seconds_sum{} WAITED
"""
    none = counting(ZERO, step_s=0.0, admitted=0.0, queued_s=0.0)

    def queue_s(waited_s: float) -> float | None:
        return between(none, read_counters(page.replace("WAITED", str(waited_s)))).queue_s

    # Steps of 40 ms: who comes while one is under way waits for up to 40 ms.
    assert queue_s(3.0) == 0.0
    assert queue_s(4.0) == pytest.approx(0.0)
    assert queue_s(54.0) == pytest.approx(0.5)
    assert between(ZERO, read_counters(NGRAM_PAGE)).queue_s is None


def test_a_value_beyond_every_number_is_no_count():
    page = NGRAM_PAGE.replace(
        "inter_token_latency_seconds_count{" + LABEL + "} 127.0",
        "inter_token_latency_seconds_count{" + LABEL + "} 1e999",
    )
    counters = read_counters(page)
    assert "steps" not in counters.stats
    assert between(ZERO, counters).tokens_per_step is None
    huge = "\n".join(f'vllm:generation_tokens_total{{engine="{one}"}} 1.7e308' for one in range(2))
    assert between(ZERO, read_counters(f"{NGRAM_PAGE}{huge}\n")).tokens_per_step is None


def test_only_what_counters_grew_by_counts_and_no_gauge_is_a_growth():
    early = read_counters(NGRAM_PAGE)
    late = replace(counting(early, drafts=196.0), accepted={0: 176.0, 1: 136.0, 2: 88.0})
    window = between(early, late)
    assert window.survival == pytest.approx((0.8, 0.4, 0.0))
    assert window.inflight is None


@pytest.mark.parametrize(
    ("page", "tokens"),
    [
        ("vllm:num_requests_running 1.0", None),
        ('vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100",num_gpu_blocks_override="None"} 1.0', 1600),
        ('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0', None),
        ("\n".join(f'vllm:cache_config_info{{engine="{n}",num_gpu_blocks="100",block_size="16"}} 1.0' for n in (0, 1)), 3200),
    ],
)  # fmt: skip
def test_room_for_context_is_blocks_of_all_engines(page, tokens):
    assert kv_cache_tokens(page) == tokens
