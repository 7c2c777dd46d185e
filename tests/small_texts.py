"""Tiny pretrained models of kinds that are read in ways of their own, and runs on a small table of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import commonground as cg
from commonground.engine.run import Run
from tests.token_rows import tokenizer

transformers = pytest.importorskip("transformers")

SIZE: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "initializer_range": 0.3,
}  # fmt: skip


def base(kind: str, folder: Path) -> str:
    """A tiny pretrained model beside its tokenizer: Llama's kind knows no token for padding, RoBERTa's counts its
    places from it and has fewer than its tokenizer says.
    """
    words = tokenizer("llama" if kind == "llama" else "roberta")
    size = {**SIZE, "vocab_size": len(words)}
    torch.manual_seed(0)
    if kind == "llama":
        more = {"bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id}
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, **more)).save_pretrained(folder)
    else:
        more = {"pad_token_id": words.pad_token_id, "max_position_embeddings": 18, "type_vocab_size": 1}
        transformers.RobertaModel(transformers.RobertaConfig(**size, **more)).save_pretrained(folder)
    words.save_pretrained(folder)
    return f"hf:{folder}"


def table(folder: Path, rows: int = 12, words: int = 4) -> Path:
    draw = np.random.default_rng(0)
    lines = [
        {"who": who, "text": " ".join([*draw.choice(list("abcde"), draw.integers(1, words)), mood]), "label": mood}
        for who in "xyz"
        for mood in draw.choice(["good", "bad"], rows)
    ]
    pd.DataFrame(lines).to_csv(folder / "texts.csv", index=False)
    return folder / "texts.csv"


def trained(kind: str, folder: Path, method: str = "lora", **more: Any) -> Run:
    options = {"rank": 2, **more}
    return cg.train(
        method, str(table(folder)), client_column="who", model=base(kind, folder / "base"), model_options=options,
        rounds=2, lr=0.05, workers=1, out=folder / "run",
    )  # fmt: skip
