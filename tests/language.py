"""Tiny language models with random weights and their data, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from commonground import FederatedDataset
from commonground.tasks import make_task

WORDS = [f"w{i}" for i in range(40)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def tiny_model(kind: str, folder: Path, layers: int = 3, labels: int = 2) -> str:
    """Save a random model of a real class; its name for ``model=``.

    Args:
        kind: bert, roberta, llama (for classification) or llama-lm.
        folder: where to.
        layers: number of transformer layers.
        labels: classes.
    """
    import transformers

    size = {
        "vocab_size": len(SPECIAL) + len(WORDS),
        "hidden_size": 16,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "num_labels": labels,
        "initializer_range": 0.3,  # so large that a few steps change something
    }
    classes = {
        "bert": (transformers.BertConfig, transformers.BertForSequenceClassification),
        "roberta": (transformers.RobertaConfig, transformers.RobertaForSequenceClassification),
        "llama": (transformers.LlamaConfig, transformers.LlamaForSequenceClassification),
        "llama-lm": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    }
    config, model = classes[kind]
    more = {"num_key_value_heads": 2} if kind.startswith("llama") else {"type_vocab_size": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model(config(**size, **more)).save_pretrained(folder)
    return f"hf:{folder}"


def token_data(
    clients: int = 4, *, sizes: tuple[int, ...] = (5, 9, 3, 7), language: bool = False, longest: int = 11
) -> FederatedDataset:
    """Rows of random tokens of differing length whose class is whether more of them are below 20 than above."""
    rng = np.random.default_rng(3)
    count = sum(sizes[c % len(sizes)] for c in range(clients))
    columns = []
    for number in range(2 * count):
        length = int(rng.integers(4, longest + 1))
        row = np.zeros((1 + longest, 2), np.int32)
        row[1:, 0] = -1
        row[0] = number, length
        row[1 : 1 + length, 0] = rng.integers(len(SPECIAL), len(SPECIAL) + len(WORDS), length)
        row[1 + length // 2 : 1 + length, 1] = 1 if language else 0
        columns.append(row)
    x = np.stack(columns)
    y = np.array([int((row[1 : 1 + row[0, 1], 0] < 24).mean() > 0.5) for row in x])
    if language:
        y[:] = 0
    ends = np.cumsum([0, *(sizes[c % len(sizes)] for c in range(clients))])
    return FederatedDataset(
        name="tokens",
        x_train=x[:count],
        y_train=y[:count],
        x_test=x[count:],
        y_test=y[count:],
        classes=1 if language else 2,
        class_names=("any",) if language else ("low", "high"),
        train_index=np.arange(count),
        train_offsets=ends,
        test_index=np.arange(count),
        test_offsets=ends,
        task=make_task("answers" if language else "classification"),
    )
