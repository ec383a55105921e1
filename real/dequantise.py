"""Program: a language model of a GGUF file as two folders that vLLM serves, `target` and `drafter`.

    python -m real.dequantise FILE.gguf FOLDER

Run by vLLM's own Python, with `gguf` and `accelerate` on its path. The drafter is the target's first layers: it has the same
words, and is right now and then.
"""

from __future__ import annotations

import sys
from pathlib import Path

_DRAFTER_LAYERS = 6


def main() -> None:
    """Write both models (float32) and the tokenizer."""
    import torch  # noqa: PLC0415  # tests import this module without vLLM's environment
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # Its weights are plain numbers now; a model that says otherwise cannot be saved.
    model.hf_quantizer = None
    vars(model.config).pop("quantization_config", None)
    for name, layers in (("target", len(model.model.layers)), ("drafter", _DRAFTER_LAYERS)):
        model.model.layers = model.model.layers[:layers]
        model.config.num_hidden_layers = layers
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


if __name__ == "__main__":
    main()
