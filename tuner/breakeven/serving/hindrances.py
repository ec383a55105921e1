"""Settings of an engine with which nothing can be measured, or with which it does not start once it speculates."""

from __future__ import annotations

from collections.abc import Sequence

from breakeven.serving.command_line import cut, flag_number


def hindrances(words: Sequence[str]) -> list[str]:
    """A line for each, with what to change.

    Args:
        words: command and arguments of the container.
    """
    given = {flag.name: flag.items[0] for flag in cut(words)}
    found = []
    if name := given.get("--disable-log-stats"):
        found.append(
            f"{name}: vLLM then counts nothing, and its metrics page has no vllm:* series, so that nothing can be "
            "measured or decided; remove it"
        )
    stages = flag_number(words, "--pipeline-parallel-size") or 1
    if stages > 1:
        name = given["--pipeline-parallel-size"].partition("=")[0]
        found.append(
            f"{name} {stages}: vLLM does not start with pipeline parallelism and speculation together; "
            "use tensor parallelism alone, or leave speculation out"
        )
    if name := given.get("--logits-processors"):
        found.append(
            f"{name.partition('=')[0]}: vLLM refuses custom logits processors together with speculation; "
            "remove them, or leave speculation out"
        )
    return found
