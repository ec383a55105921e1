"""Objects that `make real` puts into the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakeven_operator.resources.calibrationspec import AnswerCheck
from breakeven_operator.resources.speculativeservice import SpeculativeService
from real import deployments
from real.served_model import language_model, random_words

FOLDER = Path("/models")


@pytest.mark.parametrize("served", [random_words(FOLDER), language_model(FOLDER)], ids=["random", "smollm2"])
def test_the_service_is_one_that_the_operator_takes(served):
    document = deployments.service(served)
    service = SpeculativeService.model_validate(document)
    workload = service.spec.calibration.workload
    assert (workload.prompt_tokens, workload.output_tokens) == (
        served.shape.prompt_tokens,
        served.shape.output_tokens,
    )
    assert service.spec.answer_check is AnswerCheck.WARN
    assert [method.draft_lengths for method in service.spec.candidates.methods] == [
        served.draft_lengths,
        (deployments.DRAFT_LENGTH,),
    ]


def test_only_a_model_without_weights_is_filled_with_random_ones():
    dummy = [
        "--load-format=dummy" in deployments.engine_arguments(served)
        for served in (random_words(FOLDER), language_model(FOLDER))
    ]
    assert dummy == [True, False]
    assert all(
        str(one.target) in str(deployments.beside(one, "null"))
        and "--speculative-config=null" in str(deployments.beside(one, "null"))
        for one in (random_words(FOLDER), language_model(FOLDER))
    )
