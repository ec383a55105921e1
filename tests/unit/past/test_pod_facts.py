"""Facts about pods: of kube-state-metrics, DCGM and vLLM, however they were scraped, and what follows for arms."""

from __future__ import annotations

import pytest

from breakeven.past.courses import POD
from breakeven.past.pod_facts import (
    ANNOTATIONS,
    ARGUMENTS,
    DCGM,
    GPUS,
    IMAGES,
    NODES,
    Fingerprint,
    PodFacts,
    fact_questions,
    kind_of,
    read_facts,
)
from breakeven.serving.promql import PREFIX, EngineSeries, by_replica

POD_A = ("llm", "chat-a")
OWN = {"namespace": "llm", "pod": "chat-a"}
# A server without honorLabels: the labels of the one that describes, and of what is described.
RENAMED = {"namespace": "monitoring", "pod": "ksm-0", "exported_namespace": "llm", "exported_pod": "chat-a"}
EAGLE = '{"method": "eagle3", "num_speculative_tokens": 3}'


@pytest.mark.parametrize("labels", [OWN, RENAMED])
def test_facts_are_those_of_the_pod_that_is_described(labels):
    found = read_facts(
        {
            IMAGES: [
                labels | {"container": "vllm", "image": "vllm/vllm-openai:v0.32.0"},
                labels | {"container": "proxy", "image": "envoy:1"},
            ],
            ANNOTATIONS: [labels | {"annotation_breakeven_dev_speculative_config": EAGLE}],
            NODES: [labels | {"node": "n1"}],
            GPUS: [{"node": "n1", "label_nvidia_com_gpu_product": "NVIDIA-H100"}],
            DCGM: [labels | {"modelName": "NVIDIA H100 80GB HBM3"}],
            ARGUMENTS: [{"namespace": "llm", "replica": "chat-a", "block_size": "16", "cache_dtype": "fp8"}],
        }
    )
    assert found[POD_A] == PodFacts(
        "vllm/vllm-openai:v0.32.0", "NVIDIA-H100", "block_size=16 cache_dtype=fp8", EAGLE
    )


def test_images_of_unknown_containers_count_together():
    found = read_facts({IMAGES: [OWN | {"container": name, "image": name} for name in ("b", "a")]})
    assert found[POD_A].image == "a b"


def test_a_fact_that_is_unknown_differs_from_nothing():
    one = Fingerprint("m", "v1", None, "x")
    assert one.differs(Fingerprint("m", "v1", "H100", None)) == ()
    assert one.differs(Fingerprint("m", "v2", "H100", "y")) == ("image", "arguments")


@pytest.mark.parametrize(
    ("drafts", "longest", "config", "arm"),
    [
        (False, 0, None, (0, "none", None)),
        (True, 3, None, (3, "given", None)),
        (True, 0, None, (1, "given", None)),
        (True, 3, EAGLE, (3, "eagle3", None)),
        (True, 0, EAGLE, (3, "eagle3", None)),
        # The engine's counts decide what ran: an annotation is a wish.
        (False, 0, EAGLE, (0, "none", None)),
        (True, 2, "null", (2, "given", None)),
        (True, 2, "no JSON", (2, "given", None)),
        (
            True,
            5,
            '{"method": "eagle3", "num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": [[1, 8, 5], [9, 64, 0]]}',
            (5, "eagle3", "1-8:5,9-:0"),
        ),
        (
            True,
            7,
            '{"method": "eagle3", "num_speculative_tokens": 7, "enable_adaptive_verification": true}',
            (7, "eagle3", "adaptive"),
        ),
    ],
)
def test_counts_decide_what_ran_and_the_annotation_names_it(drafts, longest, config, arm):
    found = kind_of("m", drafts, longest, PodFacts(config=config), "given")
    assert (found.k, found.method, found.schedule) == arm


def test_questions_name_the_pods_and_no_text_of_users_becomes_a_query():
    engines = EngineSeries((), PREFIX, POD, by_replica)
    asked = fact_questions([("llm", 'chat-7d9f8b6c5d-"}'), ("llm", "chat-7d9f8b6c5d-b")], engines, 600)
    assert "(chat-7d9f8b6c5d)[a-z0-9.-]*" in asked[IMAGES]
    assert set(asked) == {IMAGES, ANNOTATIONS, NODES, GPUS, DCGM, ARGUMENTS}
