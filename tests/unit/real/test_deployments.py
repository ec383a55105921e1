"""Objects that `make real` puts into the cluster."""

from __future__ import annotations

from pathlib import Path

from breakeven_operator.resources.speculativeservice import SpeculativeService
from real import deployments


def test_the_service_is_one_that_the_operator_takes():
    document = deployments.service(Path("/models/drafter"))
    service = SpeculativeService.model_validate(document)
    workload = service.spec.calibration.workload
    assert (workload.prompt_tokens, workload.output_tokens) == (
        deployments.PROMPT_TOKENS,
        deployments.OUTPUT_TOKENS,
    )
    assert [method.draft_lengths for method in service.spec.candidates.methods] == [
        (deployments.DRAFT_LENGTH, deployments.LONG_DRAFT),
        (deployments.DRAFT_LENGTH,),
    ]
