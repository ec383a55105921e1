"""Counts of a running vLLM beside the replay of its own answers: `drafts.py URL K [DRAFT-MODEL]`, n-grams being of 2 to 4 tokens.

Accepted tokens may differ by those beyond a request's last token, which vLLM counts too.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from breakeven.drafters.answers_file import FinishedAnswer
from breakeven.drafters.ranking import first_choices
from breakeven.drafters.replay import (
    Drafts,
    NgramRule,
    SuffixDrafter,
    SuffixRule,
    model_drafts,
    ngram_drafts,
)

PROMPTS = (
    "Repeat this list three times: apples, pears, plums, cherries, grapes.\n1.",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    'Write a JSON list of five people with name and age:\n[{"name": "Ann", "age": 30},',
    "The cat sat on the mat. The dog sat on the log. The cow sat on the plough.\nThe cat",
    "Once upon a time there was a king who",
    "Question: What is 2+2? Answer: 4\nQuestion: What is 3+3? Answer: 6\nQuestion: What is 4+4? Answer:",
    "SELECT name, age FROM people WHERE age > 30;\nSELECT name, city FROM people WHERE",
)
_COUNT = re.compile(r"^vllm:spec_decode_num_(\w+?)_total\{([^}]*)\}\s+(\S+)", re.MULTILINE)


def counted(url: str) -> Counter[str]:
    """Drafts, drafted tokens and accepted tokens by position since the engine's start."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as page:
        found = _COUNT.findall(page.read().decode())
    place = re.compile(r'position="(\d+)"')
    return Counter(
        {
            f"{name} {at[1] if (at := place.search(labels)) else ''}".strip(): int(float(n))
            for name, labels, n in found
        }
    )


def answer(url: str, prompt: str) -> tuple[list[int], list[int]]:
    """Token ids of a prompt and of its greedy answer of 100 tokens."""
    body = {
        "prompt": prompt,
        "max_tokens": 100,
        "temperature": 0,
        "return_token_ids": True,
        "ignore_eos": True,
    }
    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as page:
        body["model"] = json.load(page)["data"][0]["id"]
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as page:
        (choice,) = json.load(page)["choices"]
    return choice["prompt_token_ids"], choice["token_ids"]


def replayed(pairs: list[tuple[list[int], list[int]]], all_drafts: Iterable[Drafts], k: int) -> Counter[str]:
    """The same counts by a replay."""
    counts = Counter[str]()
    for (_, tokens), drafts in zip(pairs, all_drafts, strict=True):
        index = 0
        while index < len(tokens) - 1:
            drafted, accepted = int(drafts.drafted[index, k - 1]), int(drafts.accepted[index, k - 1])
            counts["drafts"] += drafted > 0
            counts["draft_tokens"] += drafted
            counts["accepted_tokens"] += accepted
            counts.update(f"accepted_tokens_per_pos {place}" for place in range(accepted))
            index += accepted + 1
    return counts


def main() -> None:
    """Ask, replay by each rule, and print the counts side by side."""
    url, k, *folder = sys.argv[1], int(sys.argv[2]), *map(Path, sys.argv[3:])
    before = counted(url)
    pairs = [answer(url, prompt) for prompt in PROMPTS]
    engine = counted(url) - before
    suffix = SuffixDrafter(SuffixRule())
    answers = [FinishedAnswer(tuple(prompt), tuple(tokens)) for prompt, tokens in pairs]
    replays = {
        "ngram": (ngram_drafts(*pair, NgramRule(2, 4)) for pair in pairs),
        "suffix": (suffix.drafts(*pair) for pair in pairs),
    }
    if folder:
        replays["model"] = (model_drafts(hits) for hits in first_choices(folder[0], answers))
    counts = {name: replayed(pairs, drafts, k) for name, drafts in replays.items()}
    for name in engine:
        row = f"{name:28} vLLM {engine[name]:5}" + "".join(
            f" as {rule} {counts[rule][name]:5}" for rule in counts
        )
        sys.stdout.write(row + "\n")


if __name__ == "__main__":
    main()
