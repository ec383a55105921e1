"""A manifest of a megabyte, and one that is too large."""

from __future__ import annotations

import time

from click.testing import CliRunner

from breakeven.cli.lint import command


def test_a_manifest_of_a_megabyte_is_read_in_seconds_and_a_larger_one_refused(tmp_path):
    file = tmp_path / "m.yaml"
    file.write_text("kind: ConfigMap\ndata:\n" + "".join(f"  k{n}: [a, b, c]\n" for n in range(60_000)))
    assert file.stat().st_size > 1_100_000
    began_s = time.process_time()
    result = CliRunner().invoke(command, [str(file)])
    assert (
        "no Deployment, StatefulSet, LeaderWorkerSet, Rollout, LLMInferenceService or InferenceService in it"
        in str(result.exception or result.output)
    )
    assert time.process_time() - began_s < 15.0
    file.write_text("#" * (4 << 20) + "\n")
    result = CliRunner().invoke(command, [str(file)])
    assert "more than 4 MiB" in str(result.exception or result.output)
