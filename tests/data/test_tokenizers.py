"""Tokenizers: where they come from, and what does not fit."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from commonground.data import (
    load_tokenizer,
    tokenize,
)
from commonground.data.text import TextData, TextSamples, tokenizers
from commonground.errors import ConfigError, DataError
from tests.token_rows import pairs, singles, tokenizer


def test_a_tokenizer_by_its_folder(tmp_path: Path) -> None:
    words = tokenizer()
    words.save_pretrained(tmp_path / "model")
    expected = tokenize(singles("a good film"), words)
    for name in (tmp_path / "model", str(tmp_path / "model"), f"hf:{tmp_path / 'model'}"):
        assert np.array_equal(tokenize(singles("a good film"), load_tokenizer(name)), expected)
    assert load_tokenizer(words) is words


def test_tokenizers_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nowhere", tmp_path / "none", f"hf:{tmp_path / 'none'}"):
        with pytest.raises(ConfigError, match=r"there is no folder .* with a tokenizer; name one as hf:NAME_OR_FOLDER"):
            load_tokenizer(name)
    with pytest.raises(ConfigError, match="'hf:' names no tokenizer"):
        load_tokenizer("hf:")
    with pytest.raises(ConfigError, match=r"the folder '.*' holds no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="no tokenizer could be loaded from the folder") as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="a int is no tokenizer"):
        load_tokenizer(3)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"needs the extra: pip install 'commonground\[llm\]'"):
        load_tokenizer("hf:roberta-large")


def test_tokenizers_that_do_not_fit() -> None:
    words = tokenizer()
    with pytest.raises(
        ConfigError, match=r"gives the token number 13, and the model's vocabulary has 10: take the model"
    ):
        tokenize(singles("film"), words, vocab_size=10)
    assert tokenize(singles("film"), words, vocab_size=14).shape == (1, 4, 2)
    with pytest.raises(ConfigError, match="max_length is 2; a row needs at least 3 tokens"):
        tokenize(singles("a"), words, 2)
    with pytest.raises(ConfigError, match="adds 3 tokens of its own to a pair of texts, which leaves too little room"):
        tokenize(pairs([("a", "b")]), words, 4)
    with pytest.raises(
        ConfigError, match=r"max_length is 128, and the model of the tokenizer .* reads at most 64 tokens"
    ):
        tokenize(singles("a"), tokenizer(longest=64), 128)
    with pytest.raises(ConfigError, match="function is no tokenizer of transformers"):
        tokenize(singles("a"), lambda texts: texts, 10)
    with pytest.raises(ConfigError, match=r"cannot read the texts: .*UNK"):
        tokenize(singles("odd"), tokenizer(unknown=False), 10)


def test_texts_that_are_no_texts() -> None:
    with pytest.raises(DataError, match=r"^file\.txt, line 9: the text is empty$"):
        singles("a", " ", origin="file.txt", unit="line", numbers=[8, 9])
    with pytest.raises(DataError, match="the texts, row 0: the second text is empty"):
        pairs([("a", "")])
    with pytest.raises(DataError, match="row 1: the text is int, not text"):
        TextSamples(["a", 3], None, np.zeros(2, np.int64))  # type: ignore[list-item]
    with pytest.raises(DataError, match="there are 2 texts but 1 labels"):
        TextSamples(["a", "b"], None, np.zeros(1, np.int64))
    with pytest.raises(DataError, match="row 0: the label is -1"):
        TextSamples(["a"], None, np.array([-1]))
    with pytest.raises(DataError, match="row 0: the label is 2; with 2 classes it must be 0 to 1"):
        TextData("mine", TextSamples(["a"], None, np.array([2])), singles("a"), ("x", "y"))
    with pytest.raises(DataError, match="pairs of texts in one of its two parts"):
        TextData("mine", singles("a"), pairs([("a", "b")]), ("x",))
    with pytest.raises(DataError, match="a language model needs prompts and answers"):
        tokenize(singles("a"), tokenizer("llama"), generative=True)


def test_texts_without_tokens(tmp_path: Path) -> None:
    from tokenizers import normalizers

    words = tokenizer()
    words.backend_tokenizer.normalizer = normalizers.Replace("b", "")
    with pytest.raises(DataError, match=r"row 1: the tokenizer .* makes no tokens of it"):
        tokenize(singles("a", "b"), words, 10)
    words = tokenizer("llama")
    words.backend_tokenizer.normalizer = normalizers.Replace("b", "")
    with pytest.raises(DataError, match=r"row 0: the tokenizer .* makes no tokens of the answer"):
        tokenize(pairs([("a", "b")]), words, 10, generative=True)


def test_threads_end_with_tokenising(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setattr(tokenizers, "_ours", False)
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    with tokenizers.threads():
        assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"  # so a worker forked later neither warns nor hangs
    monkeypatch.setattr(tokenizers, "_PROCESS", -1)
    with tokenizers.threads():
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    monkeypatch.setattr(tokenizers, "_ours", False)
    with tokenizers.threads():
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"  # the user's word stands


def test_the_package_does_not_import_transformers() -> None:
    import subprocess

    code = "import sys, commonground, commonground.data; print({'transformers', 'datasets'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
