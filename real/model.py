"""Write a language model that has a shape and no weights, and whose greedy answers soon repeat themselves.

    python -m real.model FOLDER [--hidden 512] [--layers 6]

vLLM fills in random weights (`--load-format dummy`). A model of random weights maps the last tokens to the next one by a
rule that has nothing to do with language. Over a small vocabulary its greedy text meets an earlier state after a dozen
tokens, and repeats itself from there on. An n-gram drafter finds these repetitions, which nobody has planted.

The vocabulary is the words that calibrations send and nothing else, so that it distinguishes all their prompts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from breakeven.load_driver.sent_workload import ProsePrompts

_SPECIAL = ("<unk>", "<s>", "</s>")
SPECIAL = len(_SPECIAL)
"""Ids before the first word."""
# Enough clauses for every word that made-up prose has.
_SAMPLE_WORDS = 20_000


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama.

    Attributes:
        hidden: width; its weights, and so the cost of a step, grow with its square.
        layers: how many blocks.
    """

    hidden: int
    layers: int
    max_positions: int = 2048


# On one core of an ordinary server: some ten milliseconds to read the weights, about one more per token of a step.
TARGET = Shape(hidden=512, layers=8)
# Another width gives other random weights, so that it agrees with the target by chance only; half of its work.
DRAFTER = Shape(hidden=384, layers=4)


def config(shape: Shape, words: int) -> dict[str, Any]:
    """The `config.json` of a Llama of this shape with a vocabulary of so many words."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": 3 * shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.hidden // 64,
        "num_key_value_heads": shape.hidden // 64,
        "head_dim": 64,
        "vocab_size": words,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def tokenizer(vocabulary: Iterable[str]) -> dict[str, Any]:
    """A `tokenizer.json` that splits at blanks: one token per word, `<unk>` for any other word."""
    words = [*_SPECIAL, *vocabulary]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": word, "special": True, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False}
            for number, word in enumerate(_SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": _SPECIAL[0],
        },
    }  # fmt: skip


def prose_words() -> list[str]:
    """Every word of the prose that calibrations send, sorted."""
    return sorted(set(ProsePrompts(_SAMPLE_WORDS, seed=0).prompt(0).split()))


def write(folder: Path, shape: Shape, vocabulary: Iterable[str]) -> None:
    """Write a model's files into a folder, which is made."""
    words = list(vocabulary)
    write_files(folder, config(shape, SPECIAL + len(words)), words)


def write_files(folder: Path, described: Mapping[str, Any], vocabulary: Iterable[str]) -> None:
    """Write a model of any configuration; ids from `SPECIAL` on are the words of the vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {
        "config.json": described,
        "tokenizer.json": tokenizer(vocabulary),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": _SPECIAL[0],
            "bos_token": _SPECIAL[1],
            "eos_token": _SPECIAL[2],
            "chat_template": "{% for m in messages %}{{ m['content'] }} {% endfor %}",
        },
    }
    for name, content in parts.items():
        (folder / name).write_text(json.dumps(content, indent=1))


def main() -> None:
    """Write the model into the folder named on the command line."""
    parser = argparse.ArgumentParser(prog="real.model", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden", type=int, default=TARGET.hidden)
    parser.add_argument("--layers", type=int, default=TARGET.layers)
    options = parser.parse_args()
    write(options.folder, Shape(options.hidden, options.layers), prose_words())


if __name__ == "__main__":
    main()
