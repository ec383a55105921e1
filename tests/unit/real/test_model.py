"""The model that is all shape: a vocabulary of the words that calibrations send."""

from __future__ import annotations

import json

from breakeven.load_driver.sent_workload import ProsePrompts
from real import model


def test_every_word_that_a_calibration_sends_is_in_the_vocabulary():
    known = set(model.prose_words())
    sent = {word for index in range(300) for word in ProsePrompts(60, seed=index).prompt(index).split()}
    assert sent <= known
    assert len(known) < 200, "a larger vocabulary has longer circles, and n-gram finds them later"


def test_configuration_and_tokenizer_agree_about_the_vocabulary(tmp_path):
    model.write(tmp_path / "m", model.TARGET, ["a", "market"])
    config, tokenizer = (
        json.loads((tmp_path / "m" / name).read_text()) for name in ("config.json", "tokenizer.json")
    )
    vocabulary = tokenizer["model"]["vocab"]
    assert config["vocab_size"] == len(vocabulary) == model.SPECIAL + 2
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert vocabulary["</s>"] == config["eos_token_id"]
    assert vocabulary["<s>"] == config["bos_token_id"]


def test_the_drafter_is_another_model_of_the_same_words():
    target, drafter = (model.config(shape, 146) for shape in (model.TARGET, model.DRAFTER))
    assert target["vocab_size"] == drafter["vocab_size"]
    # vLLM fills weights of one shape with the same random numbers.
    assert target["hidden_size"] != drafter["hidden_size"]
    for config in (target, drafter):
        assert config["hidden_size"] == config["num_attention_heads"] * config["head_dim"]
